"""Contours from predicted eigenvalues: a kernel density on each group, cut at its valleys.

    G(t) = sum over j of exp(-w (t - lambda_j)^2 / (lambda_end - lambda_start)^2)

(arXiv 2511.01927, overview figure: a Gaussian kernel whose bandwidth scales with the interval). Where G is
low the spectrum is sparse, and a contour may pass. Which valleys become cuts is decided by dynamic
programming: the fullest piece should be small, and the cuts low.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from icml_deepcontour.contour import Contour

GROUP = 60  # predictions beyond which a group is split at its widest gap
SHARPNESS = 200.0  # w to begin with: a bandwidth of a twentieth of the interval
SHARPEST = 2.0**24
GRID = 24  # points of the density for each prediction
DEPTH = 0.5  # mu: what a cut at the density's top costs, in units of a full piece


def kde_contours(
    lam_hat: Float[np.ndarray, " M"],
    q95: Float[np.ndarray, " M"] | float | None = None,
    w: float | str = "auto",
    max_per: int = 32,
    min_per: int = 4,
    shape: str = "circle",
) -> list[Contour]:
    """Contours that hold predicted eigenvalues, about equally many each, with their edges in sparse places.

    Args:
        lam_hat: predicted eigenvalues; complex ones are grouped in the plane, one ellipse a basin.
        q95: error that 95 % of predictions stay below, for each or for all; cuts keep that distance, or two
            pieces are joined.
        w: sharpness of the kernel, or ``"auto"``: 200, doubled until there are valleys enough to cut every
            group into pieces of at most `max_per`.
        max_per: most predictions in a piece, as far as the density has valleys.
        min_per: fewest, where the valleys allow.
        shape: ``"circle"``, or ``"interval"`` for flat ellipses around slices of the real line.

    Returns:
        Contours from left to right, each with the number of predictions inside and the distance to the
        nearest
        one outside.

    Raises:
        ValueError: predictions that are not finite or none; q95 of another length; bounds in the wrong order.

    Example:
        >>> contours = kde_contours(np.r_[1.0:1.5:5j, 3.0:3.5:5j], max_per=5)
        >>> [c.expected for c in contours], bool(1.5 < contours[0].interval[1] < 3.0)
        ([5, 5], True)
    """
    values = np.asarray(lam_hat).ravel()
    if len(values) == 0 or not np.isfinite(values).all():
        raise ValueError("lam_hat must hold finite predicted eigenvalues, at least one")
    if not 1 <= min_per <= max_per:
        raise ValueError(f"min_per={min_per} and max_per={max_per}; expected 1 <= min_per <= max_per")
    if shape not in ("circle", "interval"):
        raise ValueError(f'shape={shape!r} is neither "circle" nor "interval"')
    if w != "auto" and not (isinstance(w, int | float) and w > 0):
        raise ValueError(f'w={w!r} must be "auto" or a number above 0')
    error = np.zeros(len(values)) if q95 is None else np.broadcast_to(np.asarray(q95, float), values.shape)
    if not (np.isfinite(error).all() and (error >= 0).all()):
        raise ValueError("q95 must be finite and not negative")
    if np.iscomplexobj(values) and np.abs(values.imag).max() > 0:
        from icml_deepcontour.basins import basin_ellipses

        return basin_ellipses(values, error, max_per)
    order = np.argsort(values.real, kind="stable")
    return _line(values.real[order], error[order], w, max_per, min_per, shape)


def density(t: Float[np.ndarray, " T"], values: Float[np.ndarray, " N"], w: float) -> Float[np.ndarray, " T"]:
    """G at points t, for a group of values."""
    length = max(float(np.ptp(values)), 1e-300)
    return np.exp(-w * ((t[:, None] - values) / length) ** 2).sum(axis=1)


def _line(
    values: np.ndarray, error: np.ndarray, w: float | str, max_per: int, min_per: int, shape: str
) -> list[Contour]:
    spans = [s for a, b in _groups(values) for s in _pieces(values[a:b], error[a:b], a, w, max_per, min_per)]
    spans = _joined(values, error, spans)
    spacing = float(np.ptp(values)) / max(len(values) - 1, 1) or max(abs(values[0]), 1.0) * 1e-3
    edges = [values[0] - _extension(values, error, 0, spacing)]
    edges += [(values[a - 1] + values[a]) / 2 for a, _ in spans[1:]]
    edges.append(values[-1] + _extension(values, error, len(values) - 1, spacing))
    found = []
    for k, (a, b) in enumerate(spans):
        low, high = edges[k], edges[k + 1]
        center, radius = (low + high) / 2, (high - low) / 2
        near = [center - values[a - 1]] if a else []
        near += [values[b] - center] if b < len(values) else []
        aspect = 1.0 if shape == "circle" else 0.3
        found.append(Contour(center, radius, b - a, aspect=aspect, outside=float(min(near, default=0.0))))
    return found


def _extension(values: np.ndarray, error: np.ndarray, at: int, spacing: float) -> float:
    """How far the outer ends reach beyond the last prediction: 2 q95, or half the local spacing."""
    inner = values[: at + 6] if at < 6 else values[-6:]
    local = float(np.ptp(inner)) / max(len(inner) - 1, 1) or spacing
    return max(2 * float(error[at]), 0.5 * local)


def _groups(values: np.ndarray) -> list[tuple[int, int]]:
    """Split at the widest gaps until no group has more than 60."""
    found, pending = [], [(0, len(values))]
    while pending:
        a, b = pending.pop()
        if b - a <= GROUP:
            found.append((a, b))
            continue
        # Of the middle half of the group, so that no group is a sliver.
        quarter = (b - a) // 4
        gaps = np.diff(values[a + quarter : b - quarter])
        cut = a + quarter + 1 + int(np.argmax(gaps))
        pending += [(a, cut), (cut, b)]
    return sorted(found)


def _pieces(
    values: np.ndarray, error: np.ndarray, offset: int, w: float | str, max_per: int, min_per: int
) -> list[tuple[int, int]]:
    """Spans of one group: valleys of the density, then the best cuts among them."""
    n = len(values)
    if n <= max(min_per, 1) or np.ptp(values) == 0:
        return [(offset, offset + n)]
    sharpness = SHARPNESS if w == "auto" else float(w)
    while True:
        cuts, heights = valleys(values, sharpness)
        cuts, heights = _admissible(values, error, cuts, heights)
        bounds = np.concatenate([[0], cuts, [n]])
        widest = int(np.diff(bounds).max())
        if w != "auto" or widest <= max_per or sharpness >= SHARPEST:
            break
        sharpness *= 2
    if w == "auto" and len(cuts) == 0:
        return [(offset, offset + n)]
    chosen = best_cuts(n, cuts, heights, max_per, min_per)
    ends = [0, *chosen, n]
    return [(offset + a, offset + b) for a, b in itertools.pairwise(ends)]


def valleys(values: np.ndarray, w: float) -> tuple[np.ndarray, np.ndarray]:
    """Local minima of the density: how many values lie below each, and G there over its maximum."""
    # Between two neighbours G is sampled alike, however close they are.
    steps = np.linspace(0, 1, GRID, endpoint=False)
    t = np.append((values[:-1, None] + np.diff(values)[:, None] * steps).ravel(), values[-1])
    g = density(t, values, w)
    low = np.flatnonzero((g[1:-1] < g[:-2]) & (g[1:-1] <= g[2:])) + 1
    places = np.searchsorted(values, t[low], side="right")
    keep = (places > 0) & (places < len(values))
    places, heights = places[keep], g[low][keep] / g.max()
    # Of several valleys in one gap the lowest.
    best: dict[int, float] = {}
    for place, height in zip(places.tolist(), heights.tolist(), strict=True):
        best[place] = min(height, best.get(place, np.inf))
    cuts = np.array(sorted(best), dtype=int)
    return cuts, np.array([best[c] for c in cuts.tolist()])


def _admissible(
    values: np.ndarray, error: np.ndarray, cuts: np.ndarray, heights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Cuts in gaps wide enough to keep q95 from the predictions on both sides."""
    if len(cuts) == 0:
        return cuts, heights
    room = values[cuts] - values[cuts - 1]
    fine = (room > error[cuts] + error[cuts - 1]) & (room > 0)
    return cuts[fine], heights[fine]


def best_cuts(
    n: int,
    cuts: Sequence[int] | np.ndarray,
    heights: Sequence[float] | np.ndarray,
    max_per: int,
    min_per: int,
) -> list[int]:
    """The cuts that minimise  max_i n_i / max_per + mu sum over the cuts of G(c) / max G.

    Exact, by dynamic programming over the cuts for every possible size of the fullest piece. Pieces below
    `min_per` are allowed only where nothing else is possible.

    Args:
        n: values of the group.
        cuts: candidates; cut c separates value c - 1 from value c.
        heights: G / max G at each.
        max_per: no piece beyond what it takes is preferred, as the cost of a piece stops falling at it.
        min_per: fewest values of a piece.
    """
    ends = [0, *[int(c) for c in cuts], n]
    price = [0.0, *[DEPTH * float(h) for h in heights], 0.0]
    sizes = sorted({b - a for i, a in enumerate(ends) for b in ends[i + 1 :]})
    best: tuple[float, list[int]] | None = None
    for fewest in (min_per, 1):
        for most in sizes:
            if best is not None and most / max_per >= best[0]:
                break
            found = _cheapest(ends, price, most, fewest)
            if found is None:
                continue
            total, chosen = found
            full = max(b - a for a, b in zip([0, *chosen], [*chosen, n], strict=True))
            # Above max_per a piece costs ten times what it exceeds.
            cost = full / max_per + 10 * max(0.0, full / max_per - 1) + total
            if best is None or cost < best[0] - 1e-12:
                best = cost, chosen
        if best is not None:
            return best[1]
    return []


def _cheapest(ends: list[int], price: list[float], most: int, fewest: int) -> tuple[float, list[int]] | None:
    """Least sum of prices with pieces of `fewest` to `most` values."""
    last = len(ends) - 1
    cost, before = [np.inf] * (last + 1), [-1] * (last + 1)
    cost[0] = 0.0
    for j in range(1, last + 1):
        for i in range(j):
            size = ends[j] - ends[i]
            if fewest <= size <= most and cost[i] + price[j] < cost[j]:
                cost[j], before[j] = cost[i] + price[j], i
    if not np.isfinite(cost[last]):
        return None
    chosen, at = [], before[last]
    while at > 0:
        chosen.append(ends[at])
        at = before[at]
    return cost[last], chosen[::-1]


def _joined(values: np.ndarray, error: np.ndarray, spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans where a group was split closer to a prediction than its error."""
    found = [spans[0]]
    for a, b in spans[1:]:
        if values[a] - values[a - 1] <= error[a] + error[a - 1]:
            found[-1] = (found[-1][0], b)
        else:
            found.append((a, b))
    return found
