"""Predicted complex eigenvalues grouped by the basins of their density, one ellipse each."""

from __future__ import annotations

import numpy as np
from jaxtyping import Complex, Float

from icml_deepcontour.contour import Contour

CELLS = 96  # of the grid, along each axis
BANDWIDTHS = (0.12, 0.08, 0.05, 0.03, 0.02, 0.012)  # in units of the extent, until basins are small enough
MARGIN = 0.15  # of the half axes


def basin_ellipses(
    values: Complex[np.ndarray, " M"], error: Float[np.ndarray, " M"], max_per: int
) -> list[Contour]:
    """Ellipses around the basins of the density of points in the plane.

    Args:
        values: predicted eigenvalues.
        error: by which each may be wrong; ellipses are larger by twice that.
        max_per: most points in a basin, as far as a narrower kernel separates them.
    """
    for bandwidth in BANDWIDTHS:
        labels = watershed(values, bandwidth)
        if np.bincount(labels).max() <= max_per:
            break
    found = []
    for label in np.unique(labels):
        inside = labels == label
        others = values[~inside]
        found.append(_ellipse(values[inside], float(error[inside].max()), others))
    return found


def watershed(values: Complex[np.ndarray, " M"], bandwidth: float) -> np.ndarray:
    """The basin of -density that each point lies in: every cell flows to the highest of its neighbours.

    Args:
        values: points.
        bandwidth: of the Gaussian kernel, in units of the extent.
    """
    points = np.stack([values.real, values.imag], axis=1)
    extent = np.maximum(np.ptp(points, axis=0), 1e-3 * max(float(np.ptp(points, axis=0).max()), 1e-300))
    unit = (points - points.min(axis=0)) / extent.max()
    low, high = unit.min(axis=0) - 3 * bandwidth, unit.max(axis=0) + 3 * bandwidth
    x, y = (np.linspace(low[i], high[i], CELLS) for i in (0, 1))
    gx = np.exp(-0.5 * ((x[:, None] - unit[:, 0]) / bandwidth) ** 2)
    gy = np.exp(-0.5 * ((y[:, None] - unit[:, 1]) / bandwidth) ** 2)
    heights = gx @ gy.T
    padded = np.pad(heights, 1, constant_values=-1.0)
    moves = [(i, j) for i in (0, 1, 2) for j in (0, 1, 2)]
    around = np.stack([padded[i : i + CELLS, j : j + CELLS] for i, j in moves])
    up = np.argmax(around, axis=0)
    step = np.array(moves)[up] - 1
    rows, columns = np.indices(heights.shape)
    rows, columns = np.clip(rows + step[..., 0], 0, CELLS - 1), np.clip(columns + step[..., 1], 0, CELLS - 1)
    top = np.arange(CELLS * CELLS)
    target = (rows * CELLS + columns).ravel()
    # Ties of a flat top could form a ring; the higher index wins, so that every path ends.
    level = heights.ravel()
    target = np.where(level[target] > level[top], target, top)
    for _ in range(2 * CELLS):
        following = target[target]
        if np.array_equal(following, target):
            break
        target = following
    i = np.clip(np.searchsorted(x, unit[:, 0]), 0, CELLS - 1)
    j = np.clip(np.searchsorted(y, unit[:, 1]), 0, CELLS - 1)
    return np.unique(target[i * CELLS + j], return_inverse=True)[1]


def _ellipse(inside: np.ndarray, error: float, others: np.ndarray) -> Contour:
    """The ellipse along the principal axes that holds all points, kept clear of the others where possible."""
    center = complex((inside.real.max() + inside.real.min()) / 2, (inside.imag.max() + inside.imag.min()) / 2)
    points = np.stack([inside.real, inside.imag], axis=1)
    angle = 0.0
    if len(inside) > 2:
        w, v = np.linalg.eigh(np.cov(points.T))
        if w[1] > 4 * w[0]:
            angle = float(np.arctan2(v[1, 1], v[0, 1]))
    turned = (inside - center) * np.exp(-1j * angle)
    a, b = float(np.abs(turned.real).max()), float(np.abs(turned.imag).max())
    size = max(a, b, 1e-9 * max(abs(center), 1.0))
    if len(others):
        size = max(size, 0.25 * float(np.abs(others - center).min()))
    a, b = max(a, 0.2 * size), max(b, 0.2 * size)
    # Of the ellipses with these proportions the one through the outermost point, and a margin beyond it.
    level = float(np.hypot(turned.real / a, turned.imag / b).max()) or 1.0
    grow = max(level, 0.5) * (1 + MARGIN) + 2 * error / max(a, b)
    ellipse = Contour(center, a * grow, len(inside), aspect=b / a, angle=angle)
    if not len(others):
        return ellipse
    outside = float(ellipse.level(others).min())
    if outside > 1:
        return Contour(center, a * grow, len(inside), aspect=b / a, angle=angle, outside=outside * a * grow)
    # Another basin reaches in: half-way between the own outermost point and the nearest other one.
    own, other = level, outside * grow
    middle = (own + other) / 2 if other > own else own * (1 + 1e-3)
    return Contour(
        center, a * middle, len(inside), aspect=b / a, angle=angle, outside=max(other, middle * 1.01) * a
    )
