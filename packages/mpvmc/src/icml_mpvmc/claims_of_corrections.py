"""Claims about the corrections: where plain bf16 is measurably biased, both are not."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

OFFSET = 150.0
"""A constant in log ψ, whose rounding is what bf16 suffers from in large systems."""


def pair_correlations(run: Run, seed: int) -> dict[str, Any]:
    """⟨x₁xₖ⟩ of ten spins, bf16 without float32 sums: deviations from the exact values in standard errors.

    log ψ carries the constant 150, the size that it has for a few hundred spins, by a hidden unit without
    weights: bf16 has steps of one there, and σ is about 0.5. The exact values are sums over all states. With
    the ablation the corrections are switched off.
    """
    import torch

    from icml_mpvmc import exact
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM

    n_spins, chains = 10, 64 if run.scale == "smoke" else 16384
    draws = {"smoke": 8, "small": 122, "full": 488}[run.scale]
    model = RBM(n_spins, (n_spins + 1) / n_spins, std=0.2, seed=seed % 2**31)
    with torch.no_grad():
        model.weight[:, -1] = 0.0
        model.hidden_bias[-1] = OFFSET
    states, p = exact.distribution(model, n_spins)
    truth = (p[:, None, None] * states.double()[:, :, None] * states.double()[:, None, :]).sum(0)
    figures: dict[str, Any] = {}
    for name in ("plain", "reweight", "delayed"):
        correction: Any = None if name == "plain" or run.ablation == "no-correction" else name
        sampler = Metropolis(
            model, n_spins, n_chains=chains, dtype="bf16", upcast=False, correction=correction, seed=seed
        )
        sampler.sample(chains, discard=0 if run.scale == "smoke" else 50)
        samples = sampler.sample(chains * draws, discard=0)
        spins = samples.x.double()
        deviations = []
        for k in range(1, n_spins):
            found = samples.mean(spins[:, 0] * spins[:, k])
            deviations.append(abs(found.mean - float(truth[0, k])) / max(found.error, 1e-12))
        figures[name] = float(deviations[0])
        figures[f"{name}_worst"] = float(max(deviations))
        figures["sigma"] = samples.sigma if name == "plain" else figures["sigma"]
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    pairs = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("no-correction",))(
        pair_correlations
    )
    suite.claim(
        "plain-bf16-is-biased",
        of=pairs,
        figure="plain",
        kind="every",
        at_least=5.0,
        statement="⟨x₁x₂⟩ of ten spins is off by more than 5 standard errors in plain bf16, 2·10⁶ samples.",
        paper="Not in the paper.",
        unit="s.e.",
    )
    suite.claim(
        "corrections-are-needed",
        of=pairs,
        figure="sigma",
        kind="every",
        at_least=0.3,
        statement="σ of the uncorrected chains is at least 0.3.",
        paper="Not in the paper.",
    )
    for name, what in (("reweight", "Reweighted"), ("delayed", "With delayed acceptance")):
        suite.claim(
            f"{name}-is-exact",
            of=pairs,
            figure=name,
            kind="every",
            at_most=3.0,
            statement=f"{what}, ⟨x₁x₂⟩ is within 3 standard errors of the exact value.",
            paper="Not in the paper.",
            unit="s.e.",
        )
        # Of nine deviations the largest passes 4 once in 1,700 exact runs.
        suite.claim(
            f"{name}-is-exact-everywhere",
            of=pairs,
            figure=f"{name}_worst",
            kind="every",
            at_most=4.0,
            statement=f"{what}, every one of the nine correlations is within 4 standard errors.",
            paper="Not in the paper.",
            unit="s.e.",
            teeth="no-correction",
        )
