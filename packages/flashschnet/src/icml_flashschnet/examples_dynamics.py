"""Tiny instances of the prior, the simulation and the evaluation, for the contract tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_flashschnet.prior import CGPrior
    from icml_flashschnet.structure import Molecule

SEQUENCE = "AGP"
POSITIONS = (
    (-3.94, 2.63, 0.92), (-2.49, 2.54, 1.00), (-2.02, 2.50, 2.45), (-1.98, 1.31, 0.27), (-2.53, 0.22, 0.42),
    (-0.92, 1.47, -0.52), (-0.35, 0.36, -1.28), (0.72, -0.35, -0.46), (1.28, 0.23, 0.47),
    (1.01, -1.60, -0.81), (2.02, -2.37, -0.10), (1.96, -3.74, -0.76), (3.42, -1.80, -0.25),
    (3.81, -1.40, -1.35),
)  # fmt: skip
"""Å; N, CA, CB, C, O of each residue."""


def cg_prior(seed: int) -> Example:
    """The prior of a tripeptide."""
    import torch

    def inputs() -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed)
        pos = torch.tensor(_tripeptide().pos, dtype=torch.float32)
        return {"pos": pos + 0.05 * torch.randn(pos.shape, generator=generator)}

    def check(energy: Any) -> None:
        assert energy.shape == (1,)
        assert 0.0 < float(energy.detach()) < 1e4

    return Example(
        build=_prior,
        inputs=inputs,
        call=lambda prior, given: prior(**given),
        check=check,
        bad=lambda: {"pos": torch.zeros(13, 3)},
    )


def langevin(seed: int) -> Example:
    """Two replicas of a tripeptide in its prior."""
    from icml_flashschnet.simulation import LangevinSimulator

    def check(frames: Any) -> None:
        import numpy as np

        assert frames.shape[1:] == (2, 14, 3)
        assert np.isfinite(frames).all()

    return Example(
        build=lambda: LangevinSimulator(_prior(), _tripeptide(), n_replicas=2, seed=seed, device="cpu"),
        inputs=lambda: {"n": 3, "seed": seed, "steps_between": 5},
        call=lambda simulator, given: simulator.sample(**given),
        check=check,
        bad=lambda: {"n": -1, "seed": seed},
    )


def structure(seed: int) -> Example:
    """A tripeptide against its own shaken structure."""
    import numpy as np

    from icml_flashschnet.structure_evaluation import StructureEvaluator

    def check(figures: dict[str, float]) -> None:
        assert 0.0 < figures["rmsd"] < 1.0

    return Example(
        build=lambda: StructureEvaluator(_tripeptide()),
        inputs=lambda: _tripeptide().pos + 0.2 * np.random.default_rng(seed).standard_normal((2, 3, 14, 3)),
        call=lambda evaluator, pos: evaluator.evaluate(pos),
        check=check,
        bad=lambda: np.zeros((2, 3, 13, 3)),
    )


def _tripeptide() -> Molecule:
    """Alanine, glycine, proline: the middle of nothing in particular, with sound geometry."""
    from icml_flashschnet.structure import chain_molecule

    return chain_molecule(SEQUENCE, POSITIONS)


def _prior() -> CGPrior:
    from icml_flashschnet.prior import CGPrior
    from icml_flashschnet.prior_fit import FittedTerm, PriorParameters

    terms = [
        *(_term("bond", name, "harmonic", k, r0) for name, k, r0 in (
            ("CA-N", 340.0, 1.47), ("CA-CB", 320.0, 1.54), ("C-CA", 335.0, 1.54), ("C-O", 560.0, 1.23),
            ("C-N", 490.0, 1.34))),
        *(_term("angle", name, "cosine", k, c0) for name, k, c0 in (
            ("CB-CA-N", 107.0, -0.34), ("C-CA-N", 109.0, -0.39), ("C-CA-CB", 101.0, -0.36),
            ("CA-C-O", 172.0, -0.51), ("CA-C-N", 148.0, -0.46), ("N-C-O", 186.0, -0.53),
            ("C-N-CA", 142.0, -0.57))),
        *(FittedTerm(f"any {kind}", "fourier", 1, (v0, 0.0, cosine), 0.0) for kind, v0, cosine in (
            ("phi", 1.0, -1.0), ("psi", 1.0, -1.0), ("omega", 19.0, 19.0), ("carbonyl", 130.0, -130.0))),
        FittedTerm("any chirality", "fourier", 1, (213.0, 117.7, -177.4), 0.0),
        *(FittedTerm(f"any repulsion {a}-{b}", "repulsion", 1, (2.8,), 0.0)
          for a in ("C", "CA", "CB", "N", "O") for b in ("C", "CA", "CB", "N", "O") if a <= b),
    ]  # fmt: skip
    parameters = PriorParameters({t.name: t for t in terms}, "5bead", 300.0, cutoff=6.0, exclusion=4)
    return CGPrior(_tripeptide(), parameters, trainable=True)


def _term(kind: str, name: str, form: str, *parameters: float) -> Any:
    from icml_flashschnet.prior_fit import FittedTerm

    return FittedTerm(f"any {kind} {name}", form, 1, parameters, 0.0)
