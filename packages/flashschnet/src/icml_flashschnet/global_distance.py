"""GDT-TS: how much of a structure can be laid onto a reference, at four distances.

GDT-TS = mean over 1, 2, 4 and 8 Å of the largest share of residues that one superposition brings within that
distance of their places (Zemla, Nucleic Acids Res. 31, 3370 (2003)). The largest share is searched for as LGA
does: from superpositions of short pieces of the chain, each repeated on the residues that it brought within
the distance until nothing changes. What is found is a lower bound of the maximum.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

THRESHOLDS = (1.0, 2.0, 4.0, 8.0)
"""Å."""
PIECES = (4, 8, 16, 32)
"""Lengths of the pieces of the chain that a search begins with, besides the whole chain."""
MOST_STARTS = 24
"""Pieces of one length."""
ROUNDS = 12


def gdt_ts(pos: Float[np.ndarray, "residues 3"], reference: Float[np.ndarray, "residues 3"]) -> float:
    """GDT-TS of CA positions, 0 to 1.

    Args:
        pos: CA positions, Å.
        reference: those of the reference, in the same order.

    Raises:
        ValueError: another number of residues, or fewer than three.

    Example:
        >>> gdt_ts(np.eye(4, 3) * 4, np.eye(4, 3) * 4 + 1)
        1.0
    """
    x, y = np.asarray(pos, dtype=np.float64), np.asarray(reference, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != 3 or len(x) < 3:
        raise ValueError(
            f"GDT-TS compares at least three residues with as many; got {list(x.shape)}, {list(y.shape)}"
        )
    starts = _starts(len(x))
    return float(np.mean([_largest_share(x, y, starts, threshold) for threshold in THRESHOLDS]))


def _starts(n: int) -> Bool[np.ndarray, "starts residues"]:
    """Which residues each search begins with: the whole chain, and pieces of it."""
    pieces = [np.ones(n, dtype=bool)]
    for length in PIECES:
        if length < n:
            for first in np.unique(np.linspace(0, n - length, MOST_STARTS).astype(int)):
                piece = np.zeros(n, dtype=bool)
                piece[first : first + length] = True
                pieces.append(piece)
    return np.stack(pieces)


def _largest_share(
    x: np.ndarray, y: np.ndarray, chosen: Bool[np.ndarray, "starts residues"], threshold: float
) -> float:
    best = 0.0
    for _ in range(ROUNDS):
        near = _distances(x, y, chosen) < threshold
        best = max(best, float(near.mean(1).max()))
        # Three residues at least define a superposition; a search that has fewer keeps what it had.
        near = np.where(near.sum(1, keepdims=True) >= 3, near, chosen)
        if np.array_equal(near, chosen):
            break
        chosen = np.unique(near, axis=0)
    return best


def _distances(
    x: np.ndarray, y: np.ndarray, chosen: Bool[np.ndarray, "starts residues"]
) -> Float[np.ndarray, "starts residues"]:
    """Distances of all residues after each best superposition of the chosen ones (Kabsch)."""
    weight = chosen[..., None] / chosen.sum(1)[:, None, None]
    centre_x, centre_y = (weight * x).sum(1, keepdims=True), (weight * y).sum(1, keepdims=True)
    from_x, from_y = x - centre_x, y - centre_y
    u, _, vt = np.linalg.svd(np.swapaxes(weight * from_x, 1, 2) @ from_y)
    sign = np.where(np.linalg.det(u @ vt) < 0, -1.0, 1.0)
    u[:, :, 2] *= sign[:, None]
    return np.linalg.norm(from_x @ (u @ vt) - from_y, axis=-1)
