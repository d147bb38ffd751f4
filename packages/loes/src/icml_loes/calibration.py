"""Which labelled examples choose the layers: a stratified sample, and never a test example."""

from __future__ import annotations

from typing import Any

import numpy as np

LEAST_PER_CLASS = 2


def calibration_split(
    targets: Any, n_cal: int, *, seed: int, least_per_class: int = LEAST_PER_CLASS
) -> tuple[np.ndarray, np.ndarray]:
    """Split examples into calibration and rest, classes in proportion, each with at least two in calibration.

    Args:
        targets: [n] classes; anything else (real numbers, several columns) is split at random.
        n_cal: size of the calibration set.
        seed: of the split.
        least_per_class: fewer in a class are refused.

    Returns:
        Sorted positions of the calibration examples, and of the rest.

    Raises:
        ValueError: a class has too few examples (it is named); ``n_cal`` does not lie between the least
            number and n.

    Example:
        >>> calibration_split([0, 0, 0, 1, 1, 1], 4, seed=0)[0].shape
        (4,)
    """
    array = np.asarray(targets)
    n, rng = len(array), np.random.default_rng(seed)
    if not 1 <= n_cal <= n:
        raise ValueError(f"n_cal={n_cal} of {n} examples; expected 1 to {n}")
    if array.ndim != 1 or array.dtype.kind == "f":
        chosen = np.sort(rng.permutation(n)[:n_cal])
        return chosen, np.setdiff1d(np.arange(n), chosen)
    classes, labels, counts = np.unique(array, return_inverse=True, return_counts=True)
    rare = np.flatnonzero(counts < least_per_class)
    if len(rare):
        names = ", ".join(f"{classes[c].item()!r} ({counts[c]})" for c in rare[:5])
        raise ValueError(
            f"too few examples of class {names}; calibration needs {least_per_class} of each. Merge or drop "
            "it"
        )
    if n_cal < least_per_class * len(classes):
        raise ValueError(
            f"n_cal={n_cal} is too small for {len(classes)} classes; {least_per_class * len(classes)} are "
            "needed"
        )
    wanted = _shares(counts, n_cal, least_per_class)
    picked = [rng.permutation(np.flatnonzero(labels == c))[: wanted[c]] for c in range(len(classes))]
    chosen = np.sort(np.concatenate(picked))
    return chosen, np.setdiff1d(np.arange(n), chosen)


def _shares(counts: np.ndarray, total: int, least: int) -> np.ndarray:
    """Integers in proportion to the counts (largest remainders), at least ``least`` and at most the
    counts."""
    exact = counts * (total / counts.sum())
    shares = np.clip(np.floor(exact).astype(int), least, counts)
    while shares.sum() != total:
        if shares.sum() < total:
            room = np.where(shares < counts, exact - shares, -np.inf)
            shares[int(np.argmax(room))] += 1
        else:
            surplus = np.where(shares > least, shares - exact, -np.inf)
            shares[int(np.argmax(surplus))] -= 1
    return shares
