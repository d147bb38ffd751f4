"""Claims about training: loss, spheres, activations, learning rates across widths, radius, experts, depth.

The paper's figures come from 50 to 100 billion tokens; here a byte-level decoder sees the sources of the
standard library for about a hundred steps, each arm of a seed with the same first weights and windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from icml_core import ClaimSuite, Run

if TYPE_CHECKING:
    from icml_sso.small_trainings import Trained

PAPER_LR, HIGH_LR = 5e-3, 2e-2
"""The paper's common learning rate, best for its AdamW, and one nearer the optimum of the others here."""
TRIED = {"adamw": (2.5e-3, 5e-3, 1e-2), "muon": (2e-2, 4e-2, 8e-2)}
TRIED |= {"muonsphere": TRIED["muon"], "sso": TRIED["muon"]}
"""Learning rates among which each optimizer's own best is sought: as many for one as for another."""
RADII = (0.5, 1.0, 2.0)
WIDTH_RATES = {"sso": (1e-2, 2e-2, 4e-2, 8e-2, 1.6e-1), "adamw": (2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2)}

SIZES: dict[str, dict[str, int]] = {
    "smoke": {"width": 32, "layers": 1, "context": 16, "batch": 2, "steps": 4},
    "small": {"width": 64, "layers": 3, "context": 96, "batch": 16, "steps": 120},
    "full": {"width": 512, "layers": 8, "context": 512, "batch": 64, "steps": 4000},
}
WIDTHS = {"smoke": (32, 48), "small": (32, 64, 128), "full": (256, 512, 1024)}
DEPTHS = {"smoke": 4, "small": 48, "full": 200}


def _train(
    run: Run, seed: int, optimizer: str, lr: float, *, steps: int | None = None, **changes: Any
) -> Trained:
    """One arm at this scale's size; ``changes`` go to the decoder (width, layers, moe) or to the training."""
    from icml_sso.small_trainings import decoder, train_arm

    size = SIZES[run.scale]
    model = decoder(
        changes.pop("width", size["width"]),
        changes.pop("layers", size["layers"]),
        context=size["context"],
        moe=changes.pop("moe", None),
    )
    options = {"batch": size["batch"], "spectra_every": 0, "measure_every": 2, **changes}
    return train_arm(run, seed, model, optimizer, lr, steps=steps or size["steps"], **options)


def _steps(run: Run, small: int) -> int:
    """Steps of the shorter trainings, in proportion at the other scales."""
    return max(SIZES[run.scale]["steps"] * small // SIZES["small"]["steps"], 2)


def against_adamw(run: Run, seed: int) -> dict[str, float]:
    """SSO and AdamW at two learning rates: loss, spectral norms by exact singular values, activations.

    Without spectral groups SSO is AdamW; without retraction its matrices leave their spheres.
    """
    import numpy as np

    from icml_sso.small_trainings import drift_over_last_half

    every = max(SIZES[run.scale]["steps"] // 24, 1)
    figures: dict[str, float] = {}
    for name in ("sso", "adamw"):
        figures[f"{name}_paper"] = _train(run, seed, name, PAPER_LR, measure_every=0).validation
        arm = _train(run, seed, name, HIGH_LR, spectra_every=every, watch_spheres=name == "sso")
        figures[f"{name}_high"] = arm.validation
        for kind in ("attention", "ffn"):
            figures[f"{name}_{kind}_absmax"] = arm.record.last(f"{kind}_absmax")
            figures[f"{name}_{kind}_rms"] = arm.record.last(f"{kind}_rms")
            figures[f"{name}_{kind}_drift"] = drift_over_last_half(arm.record.measured(f"{kind}_rms"))
        low, high = arm.record.measured("sigma_ratio_low"), arm.record.measured("sigma_ratio_high")
        figures[f"{name}_sigma_high"] = max(high.tolist(), default=1.0)  # absent where it diverged at once
        off = max(abs(np.concatenate((low, high)) - 1).tolist(), default=0.0)
        figures[f"{name}_sigma_error"] = max(arm.sphere_errors, default=off)
        figures[f"{name}_sigma_error_after_step"] = off
    return figures


def best_learning_rates(run: Run, seed: int) -> dict[str, float]:
    """The four optimizers at the paper's learning rate and at the best of three of their own."""
    figures: dict[str, float] = {}
    for name, rates in TRIED.items():
        arms = {lr: _train(run, seed, name, lr) for lr in dict.fromkeys((PAPER_LR, HIGH_LR, *rates))}
        best = min(rates, key=lambda lr: arms[lr].validation)
        figures[f"{name}_paper"] = arms[PAPER_LR].validation
        figures[f"{name}_high"] = arms[HIGH_LR].validation
        figures[f"{name}_best"] = arms[best].validation
        figures[f"{name}_best_lr"] = best
        figures[f"{name}_best_ffn_absmax"] = arms[best].record.last("ffn_absmax")
    return figures


def width_transfer(run: Run, seed: int) -> dict[str, float]:
    """By what factor the best learning rate moves between widths, for SSO and AdamW.

    The best one is where the parabola through five losses in log lr is lowest.
    """
    from icml_sso.small_trainings import parabola_minimum

    figures: dict[str, float] = {}
    for name, rates in WIDTH_RATES.items():
        best = []
        for width in WIDTHS[run.scale]:
            arms = [
                _train(run, seed, name, lr, width=width, steps=_steps(run, 60), measure_every=0)
                for lr in rates
            ]
            best.append(parabola_minimum(rates, [arm.validation for arm in arms]))
            figures[f"{name}_best_lr_{width}"] = best[-1]
        figures[f"{name}_moves"] = max(best) / min(best)
    return figures


def radius_and_activation(run: Run, seed: int) -> dict[str, float]:
    """RMS and largest magnitude of feed-forward outputs under three radius scales c.

    With one radius for all, c is asked for and not applied.
    """
    from icml_sso.small_trainings import log_slope

    rms, absmax = [], []
    for c in RADII:
        applied = 1.0 if run.ablation == "one-radius" else c
        arm = _train(run, seed, "sso", HIGH_LR, steps=_steps(run, 80), radius_scale=applied)
        rms.append(arm.record.last("ffn_rms"))
        absmax.append(arm.record.last("ffn_absmax"))
    slope, r_squared = log_slope(RADII, rms)
    return {
        "slope": slope,
        "r_squared": r_squared,
        "absmax_growth": min(absmax[1] / absmax[0], absmax[2] / absmax[1]),
        **{f"rms_{c:g}": value for c, value in zip(RADII, rms, strict=True)},
    }


def expert_load(run: Run, seed: int) -> dict[str, float]:
    """MaxVio in a training of two mixture layers, 2 of 8 experts active, with the auxiliary loss."""
    from icml_sso.configurations import MoEConfig

    size = SIZES[run.scale]
    moe = MoEConfig(8, 2, size["width"], first_dense_layers=0)
    figures: dict[str, float] = {}
    for name in ("sso", "muon", "adamw"):
        arm = _train(run, seed, name, HIGH_LR, steps=_steps(run, 60), layers=2, moe=moe, measure_every=0)
        violation = arm.record.measured("max_violation")
        figures[f"{name}_mean"] = float(violation.mean())
        figures[f"{name}_final"] = float(violation[-max(len(violation) // 10, 1) :].mean())
        figures[f"{name}_loss"] = arm.validation
    return figures


def depth(run: Run, seed: int) -> dict[str, float]:
    """A narrow decoder of many layers without warm-up, at the lr that is the better one for AdamW too."""
    figures: dict[str, float] = {}
    for name in ("sso", "adamw"):
        arm = _train(run, seed, name, HIGH_LR, steps=_steps(run, 60), width=32, layers=DEPTHS[run.scale])
        figures[f"{name}_loss"] = arm.validation
        figures[f"{name}_diverged"] = float(arm.diverged)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    several = {"smoke": 1, "small": 3, "full": 3}
    suite.measure(seeds=several, ablations=("no-retraction", "no-spectral-groups"))(against_adamw)
    suite.measure(seeds=several)(best_learning_rates)
    suite.measure(seeds=several)(width_transfer)
    suite.measure(seeds=several, ablations=("one-radius",))(radius_and_activation)
    suite.measure(seeds=several, ablations=("no-spectral-groups",))(expert_load)
    suite.measure(seeds=several, ablations=("no-spectral-groups",))(depth)
    _claim_loss(suite)
    _claim_activations(suite)
    _claim_scaling(suite)


def _claim_loss(suite: ClaimSuite) -> None:
    for label, lr in (("paper", PAPER_LR), ("high", HIGH_LR)):
        suite.claim(
            f"loss-below-adamw-{label}-lr",
            of=against_adamw,
            figure=f"sso_{label}",
            baseline=f"adamw_{label}",
            kind="mean",
            at_most=0.0,
            statement=f"At lr {lr:g} and equal steps the held-out loss of SSO is below AdamW's.",
            paper="Dense 1.7 B, 100 B tokens, lr 5e-3: 2.5398 against 2.5933.",
            teeth="no-spectral-groups",
            unit="nats a token",
        )
    suite.claim(
        "own-best-lr-below-adamw",
        of=best_learning_rates,
        figure="sso_best",
        baseline="adamw_best",
        kind="mean",
        at_most=0.0,
        statement="Each at the best of three learning rates, SSO's held-out loss is below AdamW's.",
        paper="No figure; the paper compares at AdamW's best lr.",
        unit="nats a token",
    )
    for other, paper in (
        ("muon", "Dense 1.7 B: 2.5398 against 2.5585; MoE 2.4216 against 2.4415."),
        ("muonsphere", "Dense 1.7 B: 2.5398 against 2.5506; MoE 2.4216 against 2.4364."),
    ):
        for label, lr in (("paper", "lr 5e-3"), ("high", "lr 2e-2"), ("best", "its own best lr")):
            suite.claim(
                f"loss-below-{other}-{label}-lr",
                of=best_learning_rates,
                figure=f"sso_{label}",
                baseline=f"{other}_{label}",
                kind="mean",
                at_most=0.0,
                statement=f"At {lr} SSO's loss is below that of {other}; inconclusive means within noise.",
                paper=paper,
                unit="nats a token",
            )
        suite.claim(
            f"loss-not-above-{other}",
            of=best_learning_rates,
            figure="sso_high",
            baseline=f"{other}_high",
            kind="mean",
            at_most=0.02,
            statement=f"At lr 2e-2 SSO's held-out loss is at most 0.02 above that of {other}.",
            paper=paper,
            unit="nats a token",
        )
    suite.claim(
        "outliers-below-muon-best-lr",
        of=best_learning_rates,
        figure="sso_best_ffn_absmax",
        baseline="muon_best_ffn_absmax",
        kind="ratio",
        at_most=1.0,
        statement="Each at its own best lr, SSO's largest feed-forward output is below Muon's.",
        paper="Largest output of attention at the end: 4.8 against 7.5 (dense 1.7 B).",
    )


def _claim_activations(suite: ClaimSuite) -> None:
    suite.claim(
        "spheres-held-in-training",
        of=against_adamw,
        figure="sso_sigma_error",
        kind="every",
        at_most=2e-3,
        statement="At lr 2e-2, after every retraction, every matrix has |σ/R - 1| below 2e-3, by exact SVD.",
        paper="σ = R always.",
        teeth="no-retraction",
    )
    suite.claim(
        "adamw-leaves-the-spheres",
        of=against_adamw,
        figure="adamw_sigma_high",
        kind="every",
        at_least=2.0,
        statement="In the same trainings a matrix of AdamW's grows beyond twice its radius.",
        paper="Muon and AdamW let weights drift.",
    )
    for kind, what in (("attention", "attention"), ("ffn", "feed-forward")):
        for figure, name in (("absmax", "largest magnitude"), ("rms", "RMS")):
            suite.claim(
                f"{kind}-{figure}-half-of-adamw",
                of=against_adamw,
                figure=f"sso_{kind}_{figure}",
                baseline=f"adamw_{kind}_{figure}",
                kind="ratio",
                at_most=0.5,
                statement=f"At lr 2e-2 the {name} of {what} outputs ends at half of AdamW's or below.",
                paper="Dense 1.7 B: largest output of attention 4.8 with SSO, 7.5 with Muon.",
                teeth="no-spectral-groups",
            )
    suite.claim(
        "ffn-rms-steady",
        of=against_adamw,
        figure="sso_ffn_drift",
        kind="every",
        at_most=0.2,
        statement="Over the last half of a training the RMS of feed-forward outputs moves by at most 20 %.",
        paper="0.08 to 0.10 over 24 k steps (dense 1.7 B).",
    )


def _claim_scaling(suite: ClaimSuite) -> None:
    transfer = (
        "Best lr 1e-2 at widths 256 to 2048; AdamW's moves from 3e-3 to 5e-3, Muon's from 9e-3 to 1.5e-2."
    )
    suite.claim(
        "best-lr-stays-across-widths",
        of=width_transfer,
        figure="sso_moves",
        kind="every",
        at_most=1.5,
        statement="From width 32 to 128 SSO's best learning rate moves by a factor of at most 1.5.",
        paper=transfer,
    )
    suite.claim(
        "best-lr-moves-less-than-adamw",
        of=width_transfer,
        figure="sso_moves",
        baseline="adamw_moves",
        kind="ratio",
        at_most=1.0,
        statement="It moves by a smaller factor than AdamW's.",
        paper=transfer,
    )
    radius = (
        "RMS of feed-forward outputs 0.0054, 0.043, 0.150, 0.391, 11.1 at c 0.1, 0.5, 1, 2, 10 (dense 1.7 B)."
    )
    law = (
        (
            "radius-sets-the-rms",
            "slope",
            1.0,
            "RMS of feed-forward outputs against c: log-log slope above 1.",
        ),
        ("radius-law-is-straight", "r_squared", 0.9, "The log-log line of RMS against c has R² above 0.9."),
        ("absmax-grows-with-radius", "absmax_growth", 1.0, "Largest outputs grow from each c to the next."),
    )
    for name, figure, bound, statement in law:
        suite.claim(
            name,
            of=radius_and_activation,
            figure=figure,
            kind="every",
            at_least=bound,
            statement=statement,
            paper=radius,
            teeth="one-radius",
        )
    suite.claim(
        "load-more-even-than-adamw",
        of=expert_load,
        figure="sso_mean",
        baseline="adamw_mean",
        kind="mean",
        at_most=0.0,
        statement="MaxVio averaged over a training is below AdamW's; lr 2e-2, the same auxiliary loss.",
        paper="MoE 8B-A1B at the end: about 0.12; AdamW spikes above 1.",
        teeth="no-spectral-groups",
        unit="MaxVio",
    )
    suite.claim(
        "load-beside-muon",
        of=expert_load,
        figure="sso_mean",
        baseline="muon_mean",
        kind="mean",
        statement="MaxVio averaged over a training, less Muon's, at lr 2e-2.",
        paper="MoE 8B-A1B at the end: about 0.12 against 0.19.",
        unit="MaxVio",
    )
    suite.claim(
        "deep-below-adamw",
        of=depth,
        figure="sso_loss",
        baseline="adamw_loss",
        kind="mean",
        at_most=0.0,
        statement="With 48 layers and no warm-up the held-out loss of SSO is below AdamW's, at lr 2e-2.",
        paper="200 layers of width 512: SSO best.",
        teeth="no-spectral-groups",
        unit="nats a token",
    )
    suite.claim(
        "deep-never-diverges",
        of=depth,
        figure="sso_diverged",
        kind="every",
        at_most=0.0,
        statement="No seed diverges at 48 layers without warm-up.",
        paper="200 layers are trainable.",
    )
