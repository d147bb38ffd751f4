"""Which pair to ask about next: the least certain answers, spread over the items, pairs never asked first."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

MANY = 2000  # items beyond which only near neighbours in the ranking are candidates
_NEIGHBOURS = 64


def propose(
    scores: Float[np.ndarray, " items"], seen: Any, k: int, *, max_repeat: int = 2
) -> Int[np.ndarray, "k 2"]:
    """The k pairs with the largest p (1 - p), p = sigmoid of the difference in score: where an answer says
    most.

    A pair that was asked comes after all that were not, and the fewer times the sooner. An item that was
    compared less counts for more, and none occurs more than ``max_repeat`` times while others are left.

    Args:
        scores: of the items.
        seen: [pairs, 2] that were asked.
        k: how many pairs.
        max_repeat: how often an item may occur in the batch.

    Raises:
        ValueError: fewer than two items, or k or max_repeat below 1.
    """
    items = len(scores)
    if items < 2:
        raise ValueError(f"{items} items make no pair")
    if k < 1 or max_repeat < 1:
        raise ValueError(f"k={k} and max_repeat={max_repeat} must be at least 1")
    first, second = _candidates(np.asarray(scores))
    asked = np.asarray(seen, dtype=np.int64).reshape(-1, 2)
    low, high = asked.min(1), asked.max(1)
    codes, counts = np.unique(low * items + high, return_counts=True)
    code = np.minimum(first, second) * items + np.maximum(first, second)
    place = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
    times = np.where(codes[place] == code, counts[place], 0) if len(codes) else np.zeros(len(code), np.int64)
    degree = np.bincount(asked.ravel(), minlength=items)
    p = 1 / (1 + np.exp(-np.clip(scores[first] - scores[second], -500, 500)))
    worth = p * (1 - p) * (1 / (1.0 + degree[first]) + 1 / (1.0 + degree[second])) ** 0.5
    order = np.lexsort((code, -worth, times))
    used = np.zeros(items, np.int64)
    chosen: list[int] = []
    for often in np.unique(times).tolist():
        group = [at for at in order.tolist() if times[at] == often]
        # Where the limit leaves too few, items repeat beyond it; pairs never do within a batch.
        for limit in (max_repeat, len(order) + 1):
            taken = set(chosen)
            for at in group:
                a, b = first[at], second[at]
                if len(chosen) < k and at not in taken and used[a] < limit and used[b] < limit:
                    chosen.append(at)
                    used[[a, b]] += 1
    return np.stack([first[chosen], second[chosen]], axis=1)


def _candidates(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    items = len(scores)
    if items <= MANY:
        first, second = np.triu_indices(items, 1)
        return first, second
    order = np.argsort(-scores, kind="stable")
    first = np.concatenate([order[:-gap] for gap in range(1, _NEIGHBOURS + 1)])
    second = np.concatenate([order[gap:] for gap in range(1, _NEIGHBOURS + 1)])
    return first, second
