"""Stored pairs from listed ones: sorted, with contradictions refused and infinite weights made finite."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from icml_btt.graph_input import Missing, check_missing

Pairs = tuple[
    Int[np.ndarray, "pairs 2"],
    Int8[np.ndarray, " pairs"],
    Float[np.ndarray, " pairs"],
    "Bool[np.ndarray, ' pairs'] | None",
]


def checked_pairs(
    n: int,
    ends: Int[np.ndarray, "pairs 2"],
    sign: Int8[np.ndarray, " pairs"],
    weight: Float[np.ndarray, " pairs"],
    missing: Missing,
    ids: tuple[Hashable, ...] | None,
    keep_implied: bool = False,
) -> Pairs:
    """Sort the pairs, refuse contradictions, and drop what need not be stored.

    An infinite weight becomes a finite one that outweighs all others together, and is marked as hard.

    Args:
        n: number of vertices.
        ends: of the pairs listed.
        sign: +1 or −1.
        weight: at least 0, or infinite.
        missing: what a pair is that is not listed.
        ids: names of the vertices, for messages.
        keep_implied: keep also what ``missing`` says of such a pair anyway.

    Returns:
        Ends, signs, weights, and which pairs are hard (None where none is).

    Raises:
        ValueError: a pair with both signs or two weights, a weight that is negative or NaN.
    """
    check_missing(missing)

    def show(pair: Int[np.ndarray, " 2"]) -> str:
        return ", ".join(repr(int(v) if ids is None else ids[v]) for v in pair)

    wrong = ~(weight >= 0)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise ValueError(
            f"edge {show(ends[first])} has weight {weight[first]:g}; a weight is a number >= 0, "
            "and the sign belongs in the sign"
        )
    loops = ends[:, 0] == ends[:, 1]
    if loops.any():
        warnings.warn(
            f"{int(loops.sum())} self-loops ignored, the first at {show(ends[int(np.argmax(loops))][:1])}",
            UserWarning,
            stacklevel=4,
        )
        ends, sign, weight = ends[~loops], sign[~loops], weight[~loops]
    ends = np.sort(ends, axis=1)
    sign = np.where(weight == 0, 0, sign).astype(np.int8)
    keys = ends[:, 0] * n + ends[:, 1]
    order = np.lexsort((weight, sign, keys))
    ends, sign, weight, keys = ends[order], sign[order], weight[order], keys[order]
    again = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    contradiction = again[sign[again] != sign[again - 1]]
    if len(contradiction):
        raise ValueError(
            f"edge {show(ends[contradiction[0]])} is listed with two signs; "
            "decide which one holds, or leave the pair out"
        )
    ambiguous = again[weight[again] != weight[again - 1]]
    if len(ambiguous):
        first = ambiguous[0]
        raise ValueError(
            f"edge {show(ends[first])} is listed with the weights {weight[first - 1]:g} and "
            f"{weight[first]:g}; merge them first"
        )
    implied = (sign == 0) if missing == "free" else (sign == -1) & (weight == 1)
    if keep_implied:
        implied = np.zeros(len(sign), dtype=bool)
    implied[again] = True
    ends, sign, weight = ends[~implied], sign[~implied], weight[~implied]
    hard = np.isinf(weight)
    if not hard.any():
        return ends, sign, weight, None
    return ends, sign, np.where(hard, beyond(n, weight[~hard], missing), weight), hard


def beyond(n: int, weight: Float[np.ndarray, " pairs"], missing: Missing) -> float:
    """A whole number above the sum of all weights, pairs that are not stored included."""
    implied = n * (n - 1) // 2 if missing == "negative" else 0
    return float(1 + implied + math.ceil(math.fsum(weight)))
