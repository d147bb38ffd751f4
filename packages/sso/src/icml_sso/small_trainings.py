"""Trainings small enough to be repeated over seeds, learning rates and optimizers: what the claims measure.

Every arm of one seed starts from the same weights and sees the same windows of the standard
library's sources.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from icml_core import Run
from icml_core.claims import Scale

from icml_sso.configurations import RECIPES, MoEConfig, TransformerConfig
from icml_sso.corpus import TokenCorpus, standard_library
from icml_sso.pretraining import Pretraining, PretrainingOptions
from icml_sso.training_record import TrainingRecord
from icml_sso.weight_spectra import sphere_ratios

HEAD = 16  # width of a head in the small models

ABLATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "no-retraction": ("sso", {"retract": "off"}),
    "no-spectral-groups": ("adamw", {}),
}
"""What takes the place of SSO: the optimizer and its options. Without its spectral groups SSO is AdamW."""


@dataclass(frozen=True)
class Trained:
    """What one arm came to.

    Attributes:
        validation: held-out cross-entropy, nats a token; of a training that diverged, the logarithm of the
            vocabulary's size, which is the loss of a guess.
        diverged: whether the loss or a gradient became infinite or NaN.
        record: all rows up to there.
        sphere_errors: largest |σ₁/R - 1| over all matrices just after the retraction of each step, by exact
            singular values; empty where it was not watched.
    """

    validation: float
    diverged: bool
    record: TrainingRecord
    sphere_errors: tuple[float, ...] = ()


class SphereWatch:
    """How far matrices are from their spheres just after each retraction, by exact singular values.

    A step retracts at its start, W ← f W, before it moves; what W was is known from the end of the step
    before.

    Args:
        training: one whose optimizer is an SSO.
    """

    def __init__(self, training: Pretraining) -> None:
        self._training = training
        self._before: dict[str, np.ndarray] = {}
        self.errors: list[float] = []

    def __call__(self, row: dict[str, float]) -> None:
        """To be called after each step."""
        stats = self._training.optimizer.stats()
        if self._before:
            self.errors.append(
                max(
                    float(np.abs(ratios * stats[f"{name}.weight"]["retraction"] - 1).max())
                    for name, ratios in self._before.items()
                )
            )
        ratios = sphere_ratios(self._training.model, self._training.options.radius_scale)
        self._before = {name: values.numpy() for name, values in ratios.items()}


def decoder(width: int, layers: int, *, context: int = 96, moe: MoEConfig | None = None) -> TransformerConfig:
    """A byte-level decoder with heads of 16, half as many key heads, and a feed-forward layer three times as
    wide."""
    heads = max(width // HEAD, 1)
    return replace(
        RECIPES["tiny"].model,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=max(heads // 2, 1),
        head_dim=HEAD,
        intermediate_size=3 * width,
        context=context,
        moe=moe,
    )


def train_arm(
    run: Run,
    seed: int,
    model: TransformerConfig,
    optimizer: str,
    lr: float,
    *,
    watch_spheres: bool = False,
    **options: Any,
) -> Trained:
    """Train one arm.

    Args:
        run: gives the device; with ``run.ablation`` the optimizer "sso" is replaced as ``ABLATIONS`` says.
        seed: of weights and windows.
        model: sizes.
        optimizer: its name.
        lr: the highest learning rate.
        watch_spheres: measure every retraction (of a dense model; AdamW has none).
        options: further fields of :class:`icml_sso.pretraining.PretrainingOptions`.
    """
    extra: dict[str, Any] = {}
    if optimizer == "sso" and run.ablation in ABLATIONS:
        optimizer, extra = ABLATIONS[run.ablation]
    training = Pretraining(
        model,
        _text(run.scale),
        PretrainingOptions(optimizer=optimizer, lr=lr, **options),
        seed=seed,
        device=run.device,
        optimizer_options=extra,
    )
    watch = SphereWatch(training) if watch_spheres and optimizer != "adamw" else None
    try:
        record = training.fit(callback=watch)
    except FloatingPointError:
        return Trained(math.log(model.vocab_size), True, training.record)
    return Trained(record.last("validation"), False, record, tuple(watch.errors) if watch else ())


@cache
def _text(scale: Scale) -> TokenCorpus:
    return standard_library(50_000) if scale == "smoke" else standard_library()


def parabola_minimum(rates: Sequence[float], losses: Sequence[float]) -> float:
    """Learning rate at which the least-squares parabola of the loss in log lr is lowest.

    Where the parabola opens downwards or has its minimum outside the rates, the rate of the lowest loss.

    Raises:
        ValueError: fewer than three rates, or a number of losses that differs.
    """
    if len(rates) < 3 or len(rates) != len(losses):
        raise ValueError(f"{len(losses)} losses at {len(rates)} learning rates; three of both are needed")
    a, b, _ = np.polyfit(np.log(rates), losses, 2)
    best = math.exp(-b / (2 * a)) if a > 0 else 0.0
    return best if min(rates) <= best <= max(rates) else float(rates[int(np.argmin(losses))])


def log_slope(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """Slope and R² of the straight line through (log x, log y); R² is 0 where y is constant."""
    log_x, log_y = np.log(x), np.log(y)
    slope, offset = np.polyfit(log_x, log_y, 1)
    residual = log_y - slope * log_x - offset
    spread = log_y - log_y.mean()
    total = float(spread @ spread)
    return float(slope), 1.0 - float(residual @ residual) / total if total > 1e-20 else 0.0


def drift_over_last_half(values: Sequence[float]) -> float:
    """|last tenth's mean / mean of the tenth that begins the last half - 1|."""
    half = np.asarray(values)[len(values) // 2 :]
    tenth = max(len(half) // 5, 1)
    return float(abs(half[-tenth:].mean() / half[:tenth].mean() - 1))
