"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_mpvmc.vmc import VMC


def rbm(seed: int) -> Example:
    """A machine of five spins and ten hidden units; log ψ does not overflow."""
    from icml_mpvmc.models import RBM

    def check(value: Any) -> None:
        assert value.shape == (6,)
        assert bool(value.isfinite().all())

    return Example(
        build=lambda: RBM(5, 2, std=0.2, seed=seed),
        inputs=lambda: _spins(6, 5, seed),
        call=lambda module, x: module(x),
        check=check,
        bad=lambda: _spins(6, 4, seed),
        expected_failures={},
    )


def rescnn(seed: int) -> Example:
    """A small network on a torus of 4 x 4: translations do not change log ψ."""
    import torch

    from icml_mpvmc.rescnn import ResCNN

    def inputs() -> Any:
        x = _spins(2, 16, seed)
        moved = x.reshape(2, 4, 4).roll((1, 2), (1, 2)).reshape(2, 16)
        return torch.cat([x, moved])

    def check(value: Any) -> None:
        torch.testing.assert_close(value[:2], value[2:], rtol=1e-5, atol=1e-5)

    def build() -> Any:
        model = ResCNN((4, 4), filters=4, blocks=1, seed=seed)
        with torch.no_grad():  # the last normalisation starts with the sum 0
            model.norm.weight += torch.linspace(-0.5, 0.5, 4)
        return model

    return Example(
        build=build,
        inputs=inputs,
        call=lambda module, x: module(x),
        check=check,
        bad=lambda: _spins(2, 15, seed),
    )


def metropolis(seed: int) -> Example:
    """One chain of six spins."""
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM

    def check(samples: Any) -> None:
        assert len(samples) == 20
        assert set(samples.x.flatten().tolist()) == {-1, 1}
        assert 0 < samples.acceptance <= 1

    return Example(
        build=lambda: Metropolis(RBM(6, 1, std=0.1), 6, n_chains=1, dtype="f32", correction="reweight"),
        inputs=lambda: 20,
        call=lambda sampler, n: sampler.sample(n, seed=seed),
        check=check,
        bad=lambda: -1,
    )


def vmc(seed: int) -> Example:
    """Four spins, eight iterations; stopped after four and resumed it is the same training."""
    from icml_mpvmc.hamiltonians import TFIM
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM
    from icml_mpvmc.vmc import VMC

    def build() -> VMC:
        H, model = TFIM(4), RBM(4, 1, std=0.1, seed=seed)
        sampler = Metropolis.for_hamiltonian(H, model, n_chains=32, dtype="f32", seed=seed)
        return VMC(H, model, sampler, lr=0.1, n_samples=128)

    def resumed(training: VMC, inputs: None, directory: Path) -> list[float]:
        file = directory / "half.safetensors"
        training.fit(4, checkpoint=file)
        return build().fit(8, checkpoint=file, resume=True).energy

    def check(energies: list[float]) -> None:
        assert len(energies) == 8
        assert energies[-1] < energies[0]

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda training, inputs: training.fit(8).energy,
        check=check,
        resumed=resumed,
    )


def ground_state(seed: int) -> Example:
    """Four spins of the transverse-field Ising chain."""
    from dataclasses import replace

    from icml_mpvmc.exact import tfim_chain_energy
    from icml_mpvmc.ground_state import GroundState
    from icml_mpvmc.hamiltonians import TFIM

    def check(result: Any) -> None:
        assert abs(result.energy - tfim_chain_energy(4)) < 0.05

    return Example(
        build=lambda: GroundState(n_iter=25, n_samples=256, n_chains=64, lr=0.2, dtype="f32", seed=seed),
        inputs=lambda: TFIM(4),
        call=lambda solver, problem: solver.solve(problem),
        check=check,
        corrupt=lambda result: replace(result, energy=result.energy - 1.0),
        bad=lambda: [[0.0, 1.0], [1.0, 0.0]],
    )


def precision_report(seed: int) -> Example:
    """Uniform samples of a machine whose weights are small."""
    from icml_mpvmc.models import RBM
    from icml_mpvmc.report import PrecisionEvaluator

    def check(figures: Any) -> None:
        assert figures["bf16/sigma"] > 100 * figures["f32/sigma"]
        assert figures["f32/ok"] == 1.0

    return Example(
        build=lambda: PrecisionEvaluator(("bf16", "f32")),
        inputs=lambda: (RBM(6, 2, std=0.1, seed=seed), _spins(64, 6, seed)),
        call=lambda evaluator, given: evaluator.evaluate(given[0], x=given[1]),
        check=check,
        bad=lambda: (RBM(6, 2), _spins(1, 6, seed)),
    )


def _spins(rows: int, spins: int, seed: int) -> Any:
    import torch

    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randint(0, 2, (rows, spins), generator=generator) - 1).to(torch.int8)
