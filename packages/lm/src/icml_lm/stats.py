"""Is one better than the other? Intervals and tests for paired, grouped and counted outcomes.

SciPy does the numerical work; what is here are the forms in which evaluations of language models need it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats as scipy_stats


@dataclass(frozen=True)
class Interval:
    """An estimate with a confidence interval."""

    estimate: float
    low: float
    high: float

    def excludes(self, value: float = 0.0) -> bool:
        """Whether ``value`` lies outside."""
        return not self.low <= value <= self.high


def paired_bootstrap(
    a: ArrayLike,
    b: ArrayLike,
    *,
    seed: int,
    groups: Sequence[Hashable] | None = None,
    draws: int = 2000,
    level: float = 0.95,
) -> Interval:
    """The mean of ``a - b`` over items that both were tried on, with a percentile interval.

    Where items belong together (programs of a family, steps of an episode), whole groups are drawn: items of
    a group are not independent, and drawing them one by one makes the interval too short.

    Args:
        a, b: outcomes of two methods on the same items.
        seed: of the draws.
        groups: to which group each item belongs; each item is its own by default.
        draws: resamples.
        level: of the interval.

    Raises:
        ValueError: for outcomes of different shapes, no item, NaN, or fewer than two groups.
    """
    x, y = _column("a", a), _column("b", b)
    if x.shape != y.shape:
        raise ValueError(f"a has {len(x)} outcomes and b {len(y)}; pairs of the same items are wanted")
    if draws < 1 or not 0 < level < 1:
        raise ValueError(f"draws = {draws}, level = {level}; at least 1, and between 0 and 1")
    difference = x - y
    if groups is None:
        sums, counts = difference, np.ones(len(difference))
    else:
        if len(groups) != len(difference):
            raise ValueError(f"{len(groups)} groups for {len(difference)} items; one for each is wanted")
        places = {group: place for place, group in enumerate(dict.fromkeys(groups))}
        index = np.array([places[group] for group in groups])
        sums = np.bincount(index, weights=difference)
        counts = np.bincount(index).astype(float)
    if len(sums) < 2:
        raise ValueError(f"{len(sums)} independent items or groups; an interval takes at least two")
    generator = np.random.default_rng(seed)
    means = np.empty(draws)
    block = max(1, 2_000_000 // len(sums))
    for start in range(0, draws, block):
        stop = min(draws, start + block)
        drawn = generator.integers(0, len(sums), (stop - start, len(sums)))
        means[start:stop] = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(sums.sum() / counts.sum()), float(low), float(high))


def wilson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """A proportion with Wilson's score interval (E. B. Wilson, 1927), which is sensible at 0 and at 1 too.

    Raises:
        ValueError: where ``0 <= successes <= trials`` and ``trials >= 1`` do not hold.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"{successes} successes in {trials} trials; 0 <= successes <= trials, trials >= 1")
    interval = scipy_stats.binomtest(successes, trials).proportion_ci(level, method="wilson")
    return Interval(successes / trials, float(interval.low), float(interval.high))


def mcnemar(a: ArrayLike, b: ArrayLike) -> float:
    """The exact two-sided p-value that two methods are right equally often (Q. McNemar, 1947).

    Only items where exactly one is right say anything; their number in favour of ``a`` is binomial with 1/2.

    Args:
        a, b: whether each was right, item by item.

    Raises:
        ValueError: for different lengths, or outcomes that are not 0 or 1.
    """
    x, y = _column("a", a), _column("b", b)
    if x.shape != y.shape:
        raise ValueError(f"a has {len(x)} outcomes and b {len(y)}; pairs of the same items are wanted")
    if not (np.isin(x, (0, 1)).all() and np.isin(y, (0, 1)).all()):
        raise ValueError("outcomes other than 0 and 1; McNemar's test compares right with wrong")
    only_a, only_b = int(((x == 1) & (y == 0)).sum()), int(((x == 0) & (y == 1)).sum())
    if only_a + only_b == 0:
        return 1.0
    return float(scipy_stats.binomtest(only_a, only_a + only_b).pvalue)


def holm(p_values: ArrayLike) -> np.ndarray:
    """p-values adjusted so that the chance of any false rejection among them stays bounded (S. Holm, 1979).

    The i-th smallest of m is multiplied by m - i + 1; none may then be smaller than a smaller one.

    Raises:
        ValueError: for values outside [0, 1].

    Example:
        >>> holm([0.01, 0.04, 0.03]).round(4).tolist()
        [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=float).ravel()
    if not ((p >= 0) & (p <= 1)).all():
        raise ValueError(f"p-values outside [0, 1]: {p[~((p >= 0) & (p <= 1))].tolist()}")
    order = np.argsort(p, kind="stable")
    scaled = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, scaled)
    return adjusted


class SequentialTest:
    """Wald's sequential probability ratio test of a success rate (A. Wald, 1945).

    After s successes and f failures the log-likelihood ratio is s log(p1/p0) + f log((1-p1)/(1-p0)); at or
    above log((1-beta)/alpha) the rate is called high, at or below log(beta/(1-alpha)) low.

    Args:
        low: the rate that is bad enough to refuse.
        high: the rate that is good enough to accept.
        alpha: chance of accepting at the low rate.
        beta: chance of refusing at the high rate.

    Raises:
        ValueError: unless ``0 < low < high < 1`` and both chances lie in (0, 1/2).
    """

    def __init__(self, low: float, high: float, *, alpha: float = 0.05, beta: float = 0.05) -> None:
        if not 0 < low < high < 1:
            raise ValueError(f"low = {low}, high = {high}; 0 < low < high < 1 is wanted")
        if not (0 < alpha < 0.5 and 0 < beta < 0.5):
            raise ValueError(f"alpha = {alpha}, beta = {beta}; both between 0 and 1/2 are wanted")
        self._success, self._failure = math.log(high / low), math.log((1 - high) / (1 - low))
        self.upper, self.lower = math.log((1 - beta) / alpha), math.log(beta / (1 - alpha))
        self.log_ratio, self.trials = 0.0, 0

    def update(self, success: bool) -> Literal["high", "low"] | None:
        """Take one outcome; the verdict, or None while it is open. A verdict stays."""
        if self.verdict is None:
            self.log_ratio += self._success if success else self._failure
            self.trials += 1
        return self.verdict

    @property
    def verdict(self) -> Literal["high", "low"] | None:
        """``"high"``, ``"low"``, or None while more outcomes are wanted."""
        if self.log_ratio >= self.upper:
            return "high"
        return "low" if self.log_ratio <= self.lower else None


def _column(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    if array.ndim != 1 or len(array) == 0:
        raise ValueError(f"{name} has the shape {array.shape}; one outcome for each item is wanted")
    if bad := int((~np.isfinite(array)).sum()):
        raise ValueError(f"{name} has {bad} outcomes that are not finite; drop both of the pair")
    return array
