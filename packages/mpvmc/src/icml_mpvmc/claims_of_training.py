"""Claims about training: sampling in half precision loses nothing."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run


def _noisy(model: Any, sigma: float, seed: int) -> Any:
    """The model's log π with quenched Gaussian noise of this size: a precision of few bits."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    n_spins = model.weight.shape[0]
    noise = 0.5 * sigma * torch.randn(2**n_spins, generator=generator, dtype=torch.float64)
    powers = 2 ** torch.arange(n_spins - 1, -1, -1)

    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) + noise[((x < 0).long() * powers).sum(1)].to(x.dtype)

    return Noisy()


def _train(run: Run, seed: int, dtype: str, correction: Any, sigma: float = 0.0) -> tuple[float, float, Any]:
    """Relative errors of the trained state's exact energy and of the energy that the run reports."""
    from icml_mpvmc import exact
    from icml_mpvmc.hamiltonians import TFIM
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM
    from icml_mpvmc.vmc import VMC

    n_spins, iterations, samples = (6, 10, 128) if run.scale == "smoke" else (12, 250, 2048)
    chains = samples // 4
    H = TFIM(n_spins, h=1.0)
    model = RBM(n_spins, 2, std=0.05, seed=seed % 2**31)
    sampler = Metropolis(model, n_spins, n_chains=chains, dtype=dtype, correction=correction, seed=seed)
    if sigma:
        noise = _noisy(model, sigma, seed % 2**31)
        noisy = Metropolis(noise, n_spins, n_chains=chains, dtype="f64", seed=seed, incremental=False)
        noisy.model = model  # the chains keep the noisy density that they were built with
        sampler = noisy
    vmc = VMC(H, model, sampler, lr=0.05, n_samples=samples)
    vmc.run(iterations)
    least = exact.ground_energy(H)
    reported, _ = vmc.history.last(50)
    trained, _ = exact.energy(model, H)
    return (trained - least) / abs(least), abs(reported - least) / abs(least), model


def half_precision(run: Run, seed: int) -> dict[str, float]:
    """TFIM chain of 12 spins at h/J = 1, α = 2, 250 iterations on 2048 samples; f64, bf16, bf16 reweighted.

    With the ablation bf16's place is taken by noise of σ = 2 in log π, what a mantissa of five bits gives.
    """
    figures = {}
    for name, dtype, correction in (
        ("f64", "f64", None),
        ("bf16", "bf16", None),
        ("reweighted", "bf16", "reweight"),
    ):
        coarse = 2.0 if run.ablation == "five-bits" and name == "bf16" else 0.0
        error, reported, _ = _train(run, seed, dtype, correction, coarse)
        figures[f"{name}_error"] = error
        figures[f"{name}_reported"] = reported
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    paper = (
        "ResCNN, TFIM 10x10, h=3.04438, 1000 iterations: -323.54504 (f64), -323.54477 (f32), -323.54465 "
        "(f16), "
        "-323.54486 (bf16): 1.2e-6 relative."
    )
    training = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("five-bits",))(
        half_precision
    )
    suite.claim(
        "bf16-finds-the-ground-state",
        of=training,
        figure="bf16_error",
        kind="every",
        at_most=1e-3,
        statement="Sampled in bf16, the energy of the trained state is within 1e-3 of the lowest eigenvalue.",
        paper=paper,
        teeth="five-bits",
    )
    suite.claim(
        "bf16-reports-the-ground-energy",
        of=training,
        figure="bf16_reported",
        kind="every",
        at_most=1e-3,
        statement="The energy that the run itself reports (its last 50 iterations) is within 1e-3 too.",
        paper=paper,
        teeth="five-bits",
    )
    suite.claim(
        "bf16-is-level-with-f64",
        of=training,
        figure="bf16_error",
        baseline="f64_error",
        kind="mean",
        between=(-1e-4, 1e-4),
        statement="Errors of bf16 and f64 differ by less than 1e-4 of the energy.",
        paper=paper,
        teeth="five-bits",
    )
    suite.claim(
        "reweighted-is-level-with-f64",
        of=training,
        figure="reweighted_error",
        baseline="f64_error",
        kind="mean",
        between=(-1e-4, 1e-4),
        statement="Errors of reweighted bf16 and f64 differ by less than 1e-4 of the energy.",
        paper=paper,
    )
