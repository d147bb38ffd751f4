"""Activation curves: how often a current at one electrode evokes a spike, and the current that does so half
the time."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.stats import norm

from icml_hhmea.stimulus import LARGEST_UA

WIDTHS = (0.01, 0.5)  # relative noise of a threshold


@dataclass(frozen=True)
class ActivationCurve:
    """Spike counts at several amplitudes of one sign.

    Attributes:
        electrode: its number.
        amplitudes: µA; negative is cathodic.
        p: share of trials with a spike.
        trials: of each amplitude.
        visible: share of evoked spikes that the recording shows; the rest falls into the artefact's blank.
    """

    electrode: int
    amplitudes: tuple[float, ...]
    p: tuple[float, ...]
    trials: tuple[int, ...] | None = None
    visible: float = 1.0

    def __post_init__(self) -> None:
        a, p = np.asarray(self.amplitudes, dtype=np.float64), np.asarray(self.p, dtype=np.float64)
        if a.ndim != 1 or a.shape != p.shape or len(a) < 2:
            raise ValueError(
                f"{len(a)} amplitudes and {len(p)} probabilities; expected as many, at least two"
            )
        if not np.isfinite(a).all() or (a == 0).any() or (np.sign(a) != np.sign(a[0])).any():
            raise ValueError("amplitudes of one curve must be finite, not 0, and of one sign")
        if np.abs(a).max() > LARGEST_UA:
            raise ValueError(f"an amplitude of {np.abs(a).max():g} is above 1e3 µA; amplitudes are in µA")
        if not ((p >= 0) & (p <= 1)).all():
            raise ValueError("probabilities must lie in 0 to 1")
        if not 0 < self.visible <= 1:
            raise ValueError(f"visible={self.visible} must lie in 0 to 1")
        order = np.argsort(np.abs(a))
        count = np.asarray(self.trials or (20,) * len(a), dtype=np.float64)
        if count.shape != a.shape or (count < 1).any():
            raise ValueError(f"trials {self.trials} must be one positive number for each amplitude")
        rising, n = p[order], count[order]
        drop = np.maximum.accumulate(rising) - rising
        if (drop > 3 * np.sqrt(0.25 / n) + 1 / n).any():
            warnings.warn(
                f"electrode {self.electrode}: the activation curve falls by {drop.max():.2g} with rising "
                "current, more than chance does",
                stacklevel=3,
            )

    @property
    def sign(self) -> int:
        """1 for anodic amplitudes, -1 for cathodic ones."""
        return 1 if self.amplitudes[0] > 0 else -1

    @classmethod
    def from_spikes(
        cls,
        electrode: int,
        times: Sequence[float],
        triggers: Mapping[float, Sequence[float]],
        *,
        blank_ms: float,
        window_ms: float,
        latencies: Sequence[float] | None = None,
    ) -> ActivationCurve:
        """Count the trials with a spike from ``blank_ms`` to ``window_ms`` after a trigger.

        Spikes inside the blank cannot be seen. They count as censored: with ``latencies`` known (from other
        electrodes or a recording without blank) the share of evoked spikes that is visible is taken from
        them.

        Args:
            times: of spikes, ms.
            triggers: times of pulses, ms, of each amplitude in µA.

        Raises:
            ValueError: a window that is wholly blanked, no trigger, or latencies of which none is visible.
        """
        if not 0 <= blank_ms < window_ms:
            raise ValueError(
                f"the blank of {blank_ms} ms covers the window of {window_ms} ms: nothing can be seen"
            )
        visible = 1.0
        if latencies is None and blank_ms > 0:
            warnings.warn(
                f"spikes in the first {blank_ms:g} ms after a pulse cannot be seen and count as failures; "
                "pass latencies= to have them counted as censored",
                stacklevel=2,
            )
        if latencies is not None:
            known = np.asarray(latencies, dtype=np.float64)
            known = known[(known >= 0) & (known <= window_ms)]
            visible = float((known > blank_ms).mean()) if len(known) else 0.0
            if visible == 0:
                raise ValueError("every known latency lies inside the blank: nothing can be seen")
        spikes = np.sort(np.asarray(times, dtype=np.float64))
        amplitudes, p, trials = [], [], []
        for amplitude, pulses in triggers.items():
            begin = np.asarray(pulses, dtype=np.float64)
            if not len(begin):
                raise ValueError(f"no trigger at {amplitude} µA")
            hits = np.searchsorted(spikes, begin + window_ms, "right") - np.searchsorted(
                spikes, begin + blank_ms, "right"
            )
            amplitudes.append(float(amplitude))
            p.append(float((hits > 0).mean()))
            trials.append(len(begin))
        return cls(electrode, tuple(amplitudes), tuple(p), tuple(trials), visible)

    def fit(self) -> tuple[float, float, float]:
        """(amplitude that fires half the time in µA with its sign, its relative standard error, relative
        width).

        Maximum likelihood of visible * Phi((|I| / I50 - 1) / width).

        Raises:
            ValueError: the curve stays below, or above, half at all amplitudes.
        """
        size = np.abs(np.asarray(self.amplitudes))
        p = np.asarray(self.p)
        n = np.asarray(self.trials or (20,) * len(p), dtype=np.float64)
        if (p < 0.5 * self.visible).all() or (p > 0.5 * self.visible).all():
            raise ValueError(
                f"electrode {self.electrode}: the curve stays on one side of one half from {size.min():g} to "
                f"{size.max():g} µA; measure a wider range"
            )
        low, high = np.log(size.min()) - 0.5, np.log(size.max()) + 0.5

        def loss(x: np.ndarray) -> float:
            chance = self.visible * norm.cdf((size / math.exp(x[0]) - 1) / math.exp(x[1]))
            chance = np.clip(chance, 1e-6, 1 - 1e-6)
            return float(-(n * (p * np.log(chance) + (1 - p) * np.log(1 - chance))).sum())

        bounds = [(low, high), (math.log(WIDTHS[0]), math.log(WIDTHS[1]))]
        starts = [np.array([x, w]) for x in np.linspace(low + 0.3, high - 0.3, 9) for w in (-3.0, -2.0)]
        best = min((minimize(loss, s, bounds=bounds, method="L-BFGS-B") for s in starts), key=lambda r: r.fun)
        step = 1e-3
        aside = np.array([step, 0.0])
        curvature = (loss(best.x + aside) - 2 * loss(best.x) + loss(best.x - aside)) / step**2
        error = 1 / math.sqrt(curvature) if curvature > 1 else 1.0
        width = math.exp(best.x[1])
        spacing = float(np.diff(np.sort(np.log(size))).min()) / 4 if len(size) > 1 else 0.1
        return self.sign * math.exp(best.x[0]), max(min(error, 1.0), 0.25 * width, 0.1 * spacing), width


def probability(scale: np.ndarray, noise: float) -> np.ndarray:
    """Phi((1 / scale* - 1) / noise): the chance of a spike where threshold is at ``scale*`` of the
    pattern."""
    inverse = np.where(np.isinf(scale), 0.0, 1 / np.where(np.isinf(scale), 1.0, scale))
    return norm.cdf((inverse - 1) / noise)
