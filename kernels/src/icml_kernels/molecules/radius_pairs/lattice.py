"""Cells with open axes: the lattice that a search for neighbours works in."""

from __future__ import annotations

import numpy as np

MIN_VOLUME = 1e-9
"""Smallest volume of the periodic vectors over the product of their lengths: flatter is no cell."""


def completed_lattice(cell: np.ndarray, pbc: np.ndarray) -> np.ndarray:
    """Rows: the periodic lattice vectors, and unit vectors at right angles to them for the open axes.

    What the cell says about an open axis is ignored: many programs put a dummy vector there.

    Args:
        cell: [3, 3], rows are lattice vectors.
        pbc: [3], which of them are periodic.

    Raises:
        ValueError: Periodic vectors that are zero, not finite or linearly dependent.
    """
    lattice = np.empty((3, 3))
    periodic = np.asarray(cell, dtype=np.float64)[pbc]
    lengths = np.linalg.norm(periodic, axis=1)
    singular = np.linalg.svd(periodic, compute_uv=False) if np.isfinite(periodic).all() else np.zeros(1)
    if len(periodic) and (singular.prod() <= MIN_VOLUME * lengths.prod() or not lengths.prod() > 0):
        raise ValueError(
            f"the periodic vectors of the cell span no volume: {periodic.tolist()}; "
            "give independent finite rows, or pbc=False on axes without a period"
        )
    lattice[pbc] = periodic
    lattice[~pbc] = np.linalg.svd(periodic)[2][len(periodic) :] if len(periodic) else np.eye(3)
    return lattice


def heights(lattice: np.ndarray) -> np.ndarray:
    """Distances between opposite faces of the cell [3]."""
    return 1.0 / np.linalg.norm(np.linalg.inv(lattice), axis=0)
