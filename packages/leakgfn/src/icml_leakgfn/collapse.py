"""Whether one object fills the batches, and whether its reward says that it should."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

RECENT = 100  # objects on which it is judged


def variety(recent: Sequence[tuple[str, float]]) -> dict[str, float]:
    """The share of different objects among the last hundred, and what their rewards let expect; nothing
    before.

    Args:
        recent: name and log R of objects.
    """
    if len(recent) < RECENT:
        return {}
    known = dict(recent)
    return {
        "unique": len(known) / len(recent),
        "unique_expected": expected_unique(list(known.values()), len(recent)),
    }


def expected_unique(log_rewards: Sequence[float], draws: int) -> float:
    """The share of different objects among draws in proportion to R from these: sum_x (1 - (1 - p_x)^n) /
    n.
    """
    values = np.asarray(log_rewards, dtype=np.float64)
    chances = np.exp(values - values.max())
    chances /= chances.sum()
    return float((1 - (1 - chances) ** draws).sum() / draws)


def warn_of_collapse(step: int, shares: dict[str, float], threshold: float) -> None:
    """Say that training ends, with both shares, so that a peaked target is told from a collapse."""
    warnings.warn(
        f"step {step}: {shares['unique']:.0%} of the last {RECENT} objects are different, below "
        f"{threshold:.0%}; "
        f"their rewards let expect {shares['unique_expected']:.0%}. Training ends; where the two "
        "agree the target "
        "is peaked, and a smaller exponent flattens it",
        stacklevel=5,
    )
