"""How good a ranking is: against a truth, against answers, and how reliable those who answered are."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.stats import kendalltau

from icml_idealpoint.comparisons import as_comparisons


def kendall_tau(scores: Any, truth: Any) -> float:
    """Kendall's tau-b, which corrects for ties; 0 where either side is constant.

    Raises:
        ValueError: shapes that differ, or fewer than two items.

    Example:
        >>> kendall_tau([1, 2, 3], [1, 2, 2])  # doctest: +ELLIPSIS
        0.816...
    """
    a, b = _same(scores, truth)
    found = kendalltau(a, b).statistic
    # SciPy divides by two roots: a perfect order comes out as 1 - 2e-16.
    return 0.0 if np.isnan(found) else round(float(found), 14)


def pair_accuracy(scores: Any, pairs: Any) -> float:
    """The weighted share of answers whose winner has the higher score; equal scores count half."""
    values = np.asarray(scores, dtype=np.float64)
    answers = as_comparisons(pairs, len(values))
    apart = values[answers.winner] - values[answers.loser]
    right = np.where(apart == 0, 0.5, np.where(apart > 0, answers.outcome, 1 - answers.outcome))
    return float(np.average(right, weights=answers.weight))


def ndcg(scores: Any, truth: Any) -> float:
    """Normalised discounted cumulative gain: sum of gain / log2(1 + rank) over its largest value.

    Gains are the truth less its least value.
    """
    a, b = _same(scores, truth)
    gain = b - b.min()
    discount = 1 / np.log2(np.arange(2, len(a) + 2))
    # Items of equal score share the mean of their gains.
    order = np.argsort(-a, kind="stable")
    _, place, counts = np.unique(-a, return_inverse=True, return_counts=True)
    mean = np.bincount(place, weights=gain) / counts
    ideal = float(np.sort(gain)[::-1] @ discount)
    return float(mean[place][order] @ discount) / ideal if ideal > 0 else 1.0


def calibration_error(scores: Any, pairs: Any, bins: int = 10) -> float:
    """The expected calibration error of P = sigmoid(score of the first - score of the second).

    Each answer is taken from the side on which P is at least one half.
    """
    values = np.asarray(scores, dtype=np.float64)
    answers = as_comparisons(pairs, len(values))
    p = 1 / (1 + np.exp(-np.clip(values[answers.winner] - values[answers.loser], -500, 500)))
    confident = np.maximum(p, 1 - p)
    right = np.where(p >= 0.5, answers.outcome, 1 - answers.outcome)
    place = np.minimum(((confident - 0.5) * 2 * bins).astype(int), bins - 1)
    total = 0.0
    for k in range(bins):
        inside = place == k
        if inside.any():
            share = answers.weight[inside].sum() / answers.weight.sum()
            gap = np.average(right[inside], weights=answers.weight[inside]) - np.average(
                confident[inside], weights=answers.weight[inside]
            )
            total += share * abs(float(gap))
    return total


def annotator_agreement(scores: Any, pairs: Any) -> Float[np.ndarray, " annotators"]:
    """Of each annotator, the weighted share of answers that agree with the scores; NaN for one who gave
    none."""
    values = np.asarray(scores, dtype=np.float64)
    answers = as_comparisons(pairs, len(values))
    found = np.full(answers.n_annotators, np.nan)
    for person in range(answers.n_annotators):
        mine = answers[answers.annotator == person]
        if len(mine):
            found[person] = pair_accuracy(values, mine)
    return found


class RankingMetrics:
    """The figures above in one call."""

    def evaluate(self, subject: Any, *, truth: Any = None, pairs: Any = None) -> dict[str, float]:
        """Figures of scores against a truth, answers, or both.

        Args:
            subject: the scores.
            truth: of the same items, larger is better.
            pairs: answers about them.

        Raises:
            ValueError: neither is given, or scores that are not finite.
        """
        values = np.asarray(subject, dtype=np.float64)
        if truth is None and pairs is None:
            raise ValueError("give a truth, pairs, or both")
        figures: dict[str, float] = {}
        if truth is not None:
            figures |= {"kendall_tau": kendall_tau(values, truth), "ndcg": ndcg(values, truth)}
        if pairs is not None:
            agreement = annotator_agreement(values, pairs)
            figures |= {
                "pair_accuracy": pair_accuracy(values, pairs),
                "calibration_error": calibration_error(values, pairs),
                "least_agreement": float(np.nanmin(agreement)),
            }
        return figures


def _same(scores: Any, truth: Any) -> tuple[np.ndarray, np.ndarray]:
    a, b = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or len(a) < 2:
        raise ValueError(
            f"scores and truth have shapes {list(a.shape)} and {list(b.shape)}; expected the same items"
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("scores and truth must be finite")
    return a, b
