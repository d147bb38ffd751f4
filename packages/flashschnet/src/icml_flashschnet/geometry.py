"""Internal coordinates and shape measures of structures, over whole trajectories at once."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int

CONTACT_CUTOFF = 8.0
"""CA-CA distance (Å) below which two residues of the native structure touch."""
CONTACT_SEPARATION = 4
"""Residues that lie between two in a native contact, at least, plus one."""


def distances(
    pos: Float[np.ndarray, "... beads 3"], bonds: Int[np.ndarray, "bonds 2"]
) -> Float[np.ndarray, "... bonds"]:
    """Distance of each pair, Å."""
    return np.linalg.norm(pos[..., bonds[:, 1], :] - pos[..., bonds[:, 0], :], axis=-1)


def angle_cosines(
    pos: Float[np.ndarray, "... beads 3"], angles: Int[np.ndarray, "angles 3"]
) -> Float[np.ndarray, "... angles"]:
    """Cosine of each angle, the vertex in the middle."""
    first = pos[..., angles[:, 0], :] - pos[..., angles[:, 1], :]
    second = pos[..., angles[:, 2], :] - pos[..., angles[:, 1], :]
    norms = np.linalg.norm(first, axis=-1) * np.linalg.norm(second, axis=-1)
    return np.clip((first * second).sum(-1) / norms, -1.0, 1.0)


def dihedral_angles(
    pos: Float[np.ndarray, "... beads 3"], dihedrals: Int[np.ndarray, "dihedrals 4"]
) -> Float[np.ndarray, "... dihedrals"]:
    """Dihedral angles in radians, -π to π, 0 when cis (IUPAC sign; Blondel and Karplus 1996)."""
    i, j, k, m = (pos[..., dihedrals[:, place], :] for place in range(4))
    f, g, h = i - j, j - k, m - k
    a, b = np.cross(f, g), np.cross(h, g)
    return np.arctan2((np.cross(b, a) * g).sum(-1) / np.linalg.norm(g, axis=-1), (a * b).sum(-1))


def radius_of_gyration(
    pos: Float[np.ndarray, "... beads 3"], masses: Float[np.ndarray, " beads"]
) -> Float[np.ndarray, ...]:
    """Mass-weighted radius of gyration, Å."""
    weight = np.asarray(masses, dtype=np.float64) / np.sum(masses)
    centre = (pos * weight[:, None]).sum(-2, keepdims=True, dtype=np.float64)
    return np.sqrt((np.square(pos - centre).sum(-1) * weight).sum(-1))


def rmsd(
    pos: Float[np.ndarray, "... beads 3"], reference: Float[np.ndarray, "beads 3"]
) -> Float[np.ndarray, ...]:
    """Root mean square deviation from a reference after the best superposition, Å.

    The rotation is Kabsch's (Acta Cryst. A32, 922 (1976)): with the singular values s of the covariance
    X^T Y, rmsd² = (|X|² + |Y|² - 2 (s1 + s2 ± s3)) / n, the sign that of its determinant.
    """
    x = np.asarray(pos, dtype=np.float64)
    y = np.asarray(reference, dtype=np.float64)
    if x.shape[-2:] != y.shape:
        raise ValueError(f"positions of {x.shape[-2]} beads against a reference of {y.shape[0]}")
    x = x - x.mean(-2, keepdims=True)
    y = y - y.mean(-2, keepdims=True)
    covariance = np.swapaxes(x, -1, -2) @ y
    s = np.linalg.svd(covariance, compute_uv=False)
    overlap = s[..., 0] + s[..., 1] + np.where(np.linalg.det(covariance) < 0, -s[..., 2], s[..., 2])
    squares = np.square(x).sum((-1, -2)) + np.square(y).sum() - 2.0 * overlap
    return np.sqrt(np.maximum(squares, 0.0) / len(y))


def native_contacts(
    pos: Float[np.ndarray, "... residues 3"],
    reference: Float[np.ndarray, "residues 3"],
    *,
    cutoff: float = CONTACT_CUTOFF,
    steepness: float = 5.0,
    tolerance: float = 1.2,
) -> Float[np.ndarray, ...]:
    """Fraction Q of native contacts, between CA beads, smoothed.

    Q = mean over native pairs of 1 / (1 + exp(β (r - λ r0))), the definition of Best, Hummer and Eaton (PNAS
    110, 17874 (2013)) with CA beads in place of heavy atoms and λ = 1.2 as they advise for coarse models.

    Args:
        pos: positions of the CA beads, Å.
        reference: those of the native structure.
        cutoff: largest native distance, Å.
        steepness: β, 1/Å.
        tolerance: λ.

    Raises:
        ValueError: the reference has no contacts.
    """
    y = np.asarray(reference, dtype=np.float64)
    r0 = np.linalg.norm(y[:, None] - y[None], axis=-1)
    i, j = np.nonzero(np.triu(r0 < cutoff, CONTACT_SEPARATION))
    if not len(i):
        raise ValueError(
            f"the reference has no two residues within {cutoff} Å and {CONTACT_SEPARATION} apart"
        )
    r = distances(np.asarray(pos, dtype=np.float64), np.stack([i, j], 1))
    exponent = np.clip(steepness * (r - tolerance * r0[i, j]), -60.0, 60.0)
    return (1.0 / (1.0 + np.exp(exponent))).mean(-1)
