"""Claims about the bounds: they hold, they are tight, and sums in float32 bring σ down."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

SCALES = (0.1, 0.5, 1.0)
SIGMAS = (1e-6, 1e-4, 1e-2, 0.05, 0.2, 0.7, 2.0, 10.0)


def _machine(n_spins: int, scale: float, seed: int) -> Any:
    """A Boltzmann machine with normal weights and biases of this standard deviation."""
    from icml_mpvmc.models import RBM

    return RBM(n_spins, 1, std=scale, seed=seed % 2**31)


def quenched_noise(run: Run, seed: int) -> dict[str, list[float]]:
    """All states of a machine: the mean change of acceptance under Gaussian δ, beside its bound, for eight σ.

    With the ablation the bounds are computed from a quarter of σ.
    """
    import numpy as np
    import torch

    from icml_mpvmc import bounds, exact

    n_spins, repeats = (6, 8) if run.scale == "smoke" else (12 if run.scale == "small" else 16, 24)
    _, p = exact.distribution(_machine(n_spins, 0.3, seed), n_spins)
    p = p.numpy()
    numbers = np.arange(len(p))
    generator = torch.Generator().manual_seed(seed % 2**31)
    slack, looseness, pointwise = [], [], []
    for sigma in SIGMAS:
        change, over = [], 0.0
        for _ in range(repeats):
            delta = sigma * torch.randn(len(p), generator=generator, dtype=torch.float64).numpy()
            mean = 0.0
            for i in range(n_spins):
                other = numbers ^ (1 << i)
                s, epsilon = p[other] / p, delta[other] - delta
                with np.errstate(over="ignore"):
                    moved = np.abs(np.minimum(1, s * np.exp(epsilon)) - np.minimum(1, s))
                over = max(over, float((moved - bounds.pointwise(s, epsilon)).max()))
                mean += float((p * moved).sum()) / n_spins
            change.append(mean)
        bound = bounds.acceptance(0.25 * sigma if run.ablation == "quarter-sigma" else sigma)
        error = float(np.std(change, ddof=1)) / len(change) ** 0.5
        slack.append((bound + 3 * error - float(np.mean(change))) / bound)
        pointwise.append(over)
        if sigma < 0.3:
            looseness.append(bound / float(np.mean(change)))
    return {"slack": slack, "looseness": looseness, "pointwise_excess": pointwise}


def real_casts(run: Run, seed: int) -> dict[str, list[float]]:
    """All states of machines of three weight scales in f32, f16 and bf16: total variation, KL and σ.

    With the ablation σ is halved.
    """
    import torch

    from icml_mpvmc import bounds, exact
    from icml_mpvmc.lowered import LogDensity

    n_spins = {"smoke": 8, "small": 12, "full": 18}[run.scale]
    valid: list[float] = []
    tight: list[float] = []
    gain: list[float] = []
    magnetisation: list[float] = []
    parity: list[float] = []
    for scale in SCALES:
        model = _machine(n_spins, scale, seed)
        states, p = exact.distribution(model, n_spins)
        log_p = torch.log(p)
        sigmas = {}
        for dtype in ("f32", "f16", "bf16"):
            for upcast in (True, False):
                low = LogDensity(model, dtype, upcast=upcast)(states).double()
                delta = low - log_p
                mean = float((p * delta).sum())
                sigma = float((p * (delta - mean) ** 2).sum().sqrt())
                sigmas[dtype, upcast] = sigma
                variation, divergence = bounds.distances(log_p.numpy(), delta.numpy())
                sigma = 0.5 * sigma if run.ablation == "half-sigma" else sigma
                valid.append(2 * variation / (2 * divergence) ** 0.5)
                tight.append((2 * divergence) ** 0.5 / sigma)
                rise = p * torch.expm1(delta - mean - divergence)  # π̃ - π, without cancellation
                for values, found in (
                    (states.double().mean(1), magnetisation),
                    (states.double().prod(1), parity),
                ):
                    bias = abs(float((rise * values).sum()))
                    found.append(bias / max(sigma, 1e-300))
        if scale >= 0.5:
            gain.append(sigmas["bf16", False] / sigmas["bf16", True])
    return {
        "variation_over_kl": valid,
        "kl_over_sigma": tight,
        "upcast_gain": gain,
        "magnetisation_over_sigma": magnetisation,
        "parity_over_sigma": parity,
    }


def acceptance_rates(run: Run, seed: int) -> dict[str, list[float]]:
    """Acceptance of single flips in machines of 16 spins trained at h = 0.5 and h = 2, in each precision.

    Measured in the stationary state: the difference from f64 over the average bound plus three standard
    errors, what of it is above three standard errors relative to the acceptance, and, at h = 2, the bound of
    plain bf16 over the acceptance (at h = 0.5, where few proposals are accepted, the difference can hardly be
    above it). With the ablation the chains of bf16 see ten times its noise and are judged by its bound.
    """
    from icml_mpvmc import bounds
    from icml_mpvmc.claims_of_training import with_noise
    from icml_mpvmc.hamiltonians import TFIM
    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM
    from icml_mpvmc.vmc import VMC

    n_spins, iterations, draws = (8, 20, 4) if run.scale == "smoke" else (16, 200, 200)
    chains = 64 if run.scale == "smoke" else 1024
    shares, relative, informs = [], [], []
    for field in (0.5, 2.0):
        model = RBM(n_spins, 1, std=0.05, seed=seed % 2**31)
        sampler = Metropolis(model, n_spins, n_chains=chains, dtype="f64", seed=seed)
        VMC(TFIM(n_spins, h=field), model, sampler, lr=0.05, n_samples=2 * chains).run(iterations)

        def rate(model: Any = model, **options: Any) -> tuple[float, float, float]:
            walker = Metropolis(model, n_spins, n_chains=chains, seed=seed + 1, **options)
            walker.sample(chains, discard=20 if run.scale == "smoke" else 100)
            found = [walker.sample(chains, discard=0) for _ in range(draws)]
            values = [r.acceptance for r in found]
            mean = sum(values) / len(values)
            spread = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
            return mean, spread / len(values) ** 0.5, max(r.sigma for r in found)

        reference, error, _ = rate(dtype="f64")
        for dtype in ("f32", "bf16"):
            value, other, sigma = rate(dtype=dtype, upcast=dtype != "bf16")
            if run.ablation == "ten-times" and dtype == "bf16":
                density = with_noise(model, 10 * sigma, seed % 2**31)
                value, other, _ = rate(dtype="f64", density=density)
            unseen = 3 * (error**2 + other**2) ** 0.5
            difference, bound = abs(value - reference), bounds.acceptance(sigma)
            shares.append(difference / (bound + unseen))
            relative.append(max(0.0, difference - unseen) / reference)
            if field == 2.0 and dtype == "bf16":
                informs.append((bound + unseen) / reference)
    return {"share_of_bound": shares, "relative_difference": relative, "bound_over_acceptance": informs}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    noise = suite.measure(seeds={"smoke": 1, "small": 5, "full": 10}, ablations=("quarter-sigma",))(
        quenched_noise
    )
    paper = "KL and average bounds lie above the measured bias for σ from 1e-6 to 10; 12 spins, 10 seeds."
    suite.claim(
        "average-bound-holds",
        of=noise,
        figure="slack",
        kind="every",
        at_least=0.0,
        statement="Under Gaussian δ the mean change of acceptance is at most 1 - exp(σ²) erfc(σ), plus 3 "
        "s.e.",
        paper=paper,
        teeth="quarter-sigma",
    )
    suite.claim(
        "average-bound-informs",
        of=noise,
        figure="looseness",
        kind="every",
        between=(1.0, 50.0),
        statement="For σ < 0.3 the bound is at most 50 times what is measured.",
        paper=paper,
        unit="×",
        teeth="quarter-sigma",
    )
    suite.claim(
        "pointwise-bound-holds",
        of=noise,
        figure="pointwise_excess",
        kind="every",
        at_most=1e-12,
        statement="No proposal's acceptance changes by more than min(1 - exp(-|ε|), s |1 - exp(ε)|).",
        paper="Lemma of the paper.",
    )
    casts = suite.measure(seeds={"smoke": 1, "small": 5, "full": 10}, ablations=("half-sigma",))(real_casts)
    suite.claim(
        "kl-bound-holds",
        of=casts,
        figure="variation_over_kl",
        kind="every",
        at_most=1.0,
        statement="Real casts: twice the total variation is at most √(2 KL), for all precisions and scales "
        "(a "
        "theorem: this checks the computation).",
        paper=paper,
    )
    suite.claim(
        "kl-is-sigma",
        of=casts,
        figure="kl_over_sigma",
        kind="every",
        at_most=1.05,
        statement="√(2 KL) is at most 1.05 σ: σ alone gives the bound.",
        paper="KL ≈ σ²/2.",
        teeth="half-sigma",
    )
    for name, what in (("magnetisation", "the mean spin"), ("parity", "the parity")):
        suite.claim(
            f"bias-of-{name}-below-sigma",
            of=casts,
            figure=f"{name}_over_sigma",
            kind="every",
            at_most=1.05,
            statement=f"The bias of {what} is at most 1.05 σ.",
            paper=paper,
        )
    suite.claim(
        "upcast-sums-lower-sigma",
        of=casts,
        figure="upcast_gain",
        kind="every",
        at_least=2.3,
        statement="In bf16, at weight scales of 0.5 and more, float32 sums bring σ down at least 2.3 times.",
        paper="Not in the paper.",
        unit="×",
    )
    rates = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("ten-times",))(
        acceptance_rates
    )
    paper = "TFIM L=16, h=0.5: 0.03544 (f64), 0.03546, 0.03549, 0.0360 (f32, f16, bf16)."
    suite.claim(
        "acceptance-is-unchanged",
        of=rates,
        figure="share_of_bound",
        kind="every",
        at_most=1.0,
        statement="Acceptance in f32 and in plain bf16 differs from that in f64 by at most the average "
        "bound, plus "
        "3 s.e.",
        paper=paper,
        teeth="ten-times",
    )
    suite.claim(
        "acceptance-bound-informs",
        of=rates,
        figure="bound_over_acceptance",
        kind="every",
        at_most=0.5,
        statement="At h = 2 the bound of plain bf16, plus 3 s.e., is at most half of the acceptance.",
        paper="Not in the paper: the condition without which the claim above could not fail.",
    )
    suite.claim(
        "acceptance-moves-little",
        of=rates,
        figure="relative_difference",
        kind="every",
        at_most=0.016,
        statement="Acceptance in f32 and plain bf16 differs from that in f64 by at most 1.6 % of it, plus 3 "
        "s.e.",
        paper=paper,
        teeth="ten-times",
    )
