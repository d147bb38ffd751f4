"""Claims about training: sampling in half precision loses nothing."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run


def with_noise(model: Any, sigma: float, seed: int) -> Any:
    """log ψ of the model whose log π has quenched Gaussian noise of this size: a precision of few bits."""
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


def _train(run: Run, seed: int, dtype: str, correction: Any, sigma: float = 0.0) -> tuple[float, float]:
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
    options: dict[str, Any] = {"dtype": dtype, "correction": correction}
    if sigma:
        options = {"dtype": "f64", "density": with_noise(model, sigma, seed % 2**31)}
    sampler = Metropolis(model, n_spins, n_chains=chains, seed=seed, **options)
    vmc = VMC(H, model, sampler, lr=0.05, n_samples=samples)
    vmc.run(iterations)
    least = exact.ground_energy(H)
    reported, _ = vmc.history.last(50)
    trained, _ = exact.energy(model, H)
    return (trained - least) / abs(least), abs(reported - least) / abs(least)


def half_precision(run: Run, seed: int) -> dict[str, Any]:
    """TFIM chain of 12 spins at h/J = 1, α = 2, 250 iterations on 2048 samples; f64, bf16, bf16 reweighted.

    Each is trained from 3 seeds (5 at full scale); deviations are differences of the mean errors from that of
    f64 in standard errors, over these seeds, of the difference. With the ablation the place of both kinds of
    bf16 is taken by noise of σ = 2 in log π, what a mantissa of five bits gives, without a correction.
    """
    import numpy as np

    repeats = {"smoke": 2, "small": 3, "full": 5}[run.scale]
    errors: dict[str, list[float]] = {}
    figures: dict[str, Any] = {}
    for name, dtype, correction in (
        ("f64", "f64", None),
        ("bf16", "bf16", None),
        ("reweighted", "bf16", "reweight"),
    ):
        coarse = 2.0 if run.ablation == "five-bits" and name != "f64" else 0.0
        found = [_train(run, seed + k, dtype, correction, coarse) for k in range(repeats)]
        errors[name] = figures[f"{name}_error"] = [error for error, _ in found]
        figures[f"{name}_reported"] = [reported for _, reported in found]
    for name in ("bf16", "reweighted"):
        off = float(np.mean(errors[name]) - np.mean(errors["f64"]))
        spread = sum(float(np.var(errors[k], ddof=1)) / repeats for k in (name, "f64"))
        figures[f"{name}_deviation"] = off / max(spread, 1e-300) ** 0.5
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    paper = (
        "ResCNN, TFIM 10x10, h=3.04438, 1000 iterations: -323.54504 (f64), -323.54477 (f32), -323.54465 "
        "(f16), -323.54486 (bf16): 1.2e-6 relative."
    )
    training = suite.measure(seeds={"smoke": 1, "small": 1, "full": 1}, ablations=("five-bits",))(
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
    for name, what in (("bf16", "bf16"), ("reweighted", "reweighted bf16")):
        suite.claim(
            f"{name}-is-level-with-f64",
            of=training,
            figure=f"{name}_deviation",
            kind="every",
            between=(-2.0, 2.0),
            statement=f"The mean error of {what} is within 2 standard errors of that of f64.",
            paper=paper,
            unit="s.e.",
            teeth="five-bits",
        )
