"""What a set of Markov chains is worth: correlation time, split R̂, error of a mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

WINDOW = 5.0
"""Sokal's window: sums of the autocorrelation end at five correlation times."""

Series = Float[np.ndarray, "chains draws"]


@dataclass(frozen=True)
class Estimate:
    """A mean with what is known of its error.

    Attributes:
        mean: weighted where there are weights.
        error: one standard error, of correlated samples.
        variance: of single samples.
        tau: integrated correlation time in draws.
        r_hat: split R̂.
    """

    mean: complex | float
    error: float
    variance: float
    tau: float
    r_hat: float


def autocorrelation(series: Series) -> Float[np.ndarray, " draws"]:
    """ρ(t) within chains by FFT, averaged over chains; ρ(0) = 1.

    Chains are centred by their common mean: by its own mean a short chain looks less correlated than it is,
        and
    chains that sit apart would look independent.
    """
    series = _series(series)
    draws = series.shape[1]
    centred = series - series.mean()
    size = 1 << (2 * draws - 1).bit_length()
    transform = np.fft.rfft(centred, size, axis=1)
    covariance = np.fft.irfft(np.abs(transform) ** 2, size, axis=1)[:, :draws].mean(0)
    covariance /= draws - np.arange(draws)
    return covariance / covariance[0] if covariance[0] > 0 else np.eye(1, draws)[0]


def tau_int(series: Series) -> float:
    """Integrated autocorrelation time 1 + 2 Σ ρ(t), at least 1, summed up to five times itself.

    1 for independent draws; NaN where a chain has a single draw.
    """
    series = _series(series)
    if series.shape[0] == 0 or series.shape[1] < 2:
        return float("nan")
    sums = 2.0 * np.cumsum(autocorrelation(series)) - 1.0
    enough = np.arange(len(sums)) >= WINDOW * np.maximum(sums, 1.0)
    end = int(np.argmax(enough)) if enough.any() else len(sums) - 1
    return float(max(1.0, sums[end]))


def split_r_hat(series: Series) -> float:
    """Gelman and Rubin's R̂ of half chains; 1 where all chains say the same, NaN below four draws a chain."""
    series = _series(series)
    half = series.shape[1] // 2
    if half < 2 or series.shape[0] == 0:
        return float("nan")
    halves = np.concatenate([series[:, :half], series[:, -half:]])
    within = halves.var(1, ddof=1).mean()
    between = half * halves.mean(1).var(ddof=1)
    if within == 0:
        return 1.0 if between == 0 else float("inf")
    return float(np.sqrt((half - 1) / half + between / (half * within)))


def estimate(values: np.ndarray, n_chains: int, log_w: np.ndarray | None = None) -> Estimate:
    """Mean of samples in the order of chains, and its error.

    The error is √(variance τ / n), or the spread of the means of the chains where that says more; with
    weights n is (Σw)²/Σw².

    Args:
        values: [chains · draws], real or complex, chain after chain.
        n_chains: how many chains.
        log_w: logarithms of weights.
    """
    values = np.asarray(values)
    n = len(values)
    if n == 0:
        nan = float("nan")
        return Estimate(nan, nan, nan, nan, nan)
    w = np.full(n, 1.0 / n)
    if log_w is not None:
        w = np.exp(log_w - log_w.max())
        w = w / w.sum()
    mean = (w * values).sum()
    variance = float((w * np.abs(values - mean) ** 2).sum())
    effective = 1.0 / float((w**2).sum())
    series = np.real(values).reshape(n_chains, -1)
    tau = tau_int(series)
    error = np.sqrt(variance * (1.0 if np.isnan(tau) else tau) / effective)
    if n_chains >= 16:
        weights = w.reshape(n_chains, -1)
        means = (weights * (values - mean).reshape(n_chains, -1)).sum(1)
        error = max(error, float(np.sqrt((np.abs(means) ** 2).sum() * n_chains / (n_chains - 1))))
    number = complex(mean) if np.iscomplexobj(values) else float(mean)
    return Estimate(number, float(error), variance, tau, split_r_hat(series))


def _series(series: np.ndarray) -> np.ndarray:
    series = np.asarray(series, dtype=float)
    if series.ndim != 2:
        raise ValueError(f"a series has shape {series.shape}; expected [chains, draws]")
    return series
