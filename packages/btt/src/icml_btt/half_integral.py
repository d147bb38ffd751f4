"""The linear program of vertex cover, whose optima are half-integral, by one maximum flow.

``min Σ w_v x_v`` with ``x_u + x_v ≥ 1`` for every edge, ``x ≥ 0``. Doubling every vertex into a left and a
right copy gives a bipartite graph whose cheapest vertex cover is a minimum cut; the mean of the two copies
is an optimum of the program (Nemhauser and Trotter, Mathematical Programming 8, 1975,
doi.org/10.1007/BF01580444). Of MinSTC, whose rows join two positive edges each, that is the whole program.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse import csgraph

_LARGEST = 2**31 - 1  # SciPy's flows are 32-bit integers
_SCALES = 2.0 ** np.arange(20)  # weights in halves, quarters, … become integers too


@dataclass(frozen=True, eq=False)
class HalfIntegralCover:
    """An optimal fractional vertex cover, with the fractional matching that proves it optimal.

    Attributes:
        x: of each vertex 0, 1/2 or 1.
        y: of each edge; the edges at a vertex carry at most its weight together.
        value: ``Σ w_v x_v``, which equals ``Σ y_e``.
    """

    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, " m"]
    value: float


def vertex_cover_lp(
    n: int, edges: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], float]:
    """Solve the linear program of the cheapest vertex cover.

    Args:
        n: number of vertices.
        edges: pairs of vertices of which one must be covered; a pair of equal ones asks for 1/2.
        weights: of the vertices.

    Returns:
        An optimum with the values 0, 1/2 and 1, and its cost.

    Raises:
        ValueError: a vertex outside 0, …, n−1; a weight that is negative, NaN or infinite.

    Example:
        >>> x, value = vertex_cover_lp(3, np.array([[0, 1], [1, 2], [2, 0]]), np.ones(3))
        >>> x.tolist(), value
        ([0.5, 0.5, 0.5], 1.5)
    """
    cover = half_integral_cover(n, edges, weights)
    return cover.x, cover.value


def half_integral_cover(
    n: int, edges: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " n"]
) -> HalfIntegralCover:
    """Solve the linear program of the cheapest vertex cover, and its dual.

    Weights that are multiples of a power of two go through one maximum flow; others, whose flows are no
    integers, through HiGHS' dual simplex method, whose vertices are half-integral as well.

    Args:
        n: number of vertices.
        edges: pairs of vertices of which one must be covered.
        weights: of the vertices.

    Raises:
        ValueError: a vertex outside 0, …, n−1; a weight that is negative, NaN or infinite.
    """
    edges = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    weights = np.asarray(weights, dtype=np.float64)
    if weights.shape != (n,):
        raise ValueError(f"weights has shape {list(weights.shape)}; expected one weight for each of {n}")
    if not (np.isfinite(weights) & (weights >= 0)).all():
        raise ValueError("a weight is negative, NaN or infinite; expected finite numbers >= 0")
    if edges.size and (edges.min() < 0 or edges.max() >= n):
        raise ValueError(f"an edge names a vertex outside 0, …, {n - 1}")
    if not len(edges):
        return HalfIntegralCover(np.zeros(n), np.zeros(0), 0.0)
    keys, first = np.unique(np.sort(edges, axis=1) @ [n, 1], return_index=True)
    distinct = np.stack(np.divmod(keys, n), axis=1)
    scale = next((s for s in _SCALES if np.all(weights * s == np.floor(weights * s))), None)
    if scale is None or float(weights.sum()) * scale >= _LARGEST:
        x, packed = _by_simplex(n, distinct, weights)
    else:
        x, packed = _by_flow(n, distinct, weights, float(scale))
    y = np.zeros(len(edges))
    y[first] = packed
    return HalfIntegralCover(x, y, float(weights @ x))


def _by_flow(
    n: int, edges: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " n"], scale: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """A minimum cut of source → left copies → right copies → sink."""
    source, sink, vertices = 2 * n, 2 * n + 1, np.arange(n)
    u, v = edges.T
    crossing = u != v
    tail = np.concatenate([np.full(n, source), u, v[crossing], n + vertices])
    head = np.concatenate([vertices, n + v, n + u[crossing], np.full(n, sink)])
    integers = np.rint(weights * scale).astype(np.int32)
    between = np.full(len(tail) - 2 * n, _LARGEST, dtype=np.int32)
    capacity = np.concatenate([integers, between, integers])
    network = sparse.csr_array((capacity, (tail, head)), shape=(2 * n + 2, 2 * n + 2))
    flow = csgraph.maximum_flow(network, source, sink).flow
    # int64, since the capacity of an uncut arc and a flow back along it exceed 32 bits together
    residual: Any = sparse.csr_array(network.astype(np.int64) - flow.astype(np.int64))
    residual.eliminate_zeros()
    reached = np.zeros(2 * n + 2, dtype=bool)
    reached[csgraph.breadth_first_order(residual, source, return_predecessors=False)] = True
    left, right = ~reached[:n], reached[n : 2 * n]
    through = sparse.csr_array(flow)
    carried = np.asarray(through[u, n + v]).ravel().astype(np.float64)
    carried += np.where(crossing, np.asarray(through[v, n + u]).ravel(), 0)
    return (left + right.astype(np.float64)) / 2.0, carried / (2.0 * scale)


def _by_simplex(
    n: int, edges: Int[np.ndarray, "m 2"], weights: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " m"]]:
    """A vertex of the program's polyhedron."""
    m = len(edges)
    rows = np.repeat(np.arange(m), 2)
    matrix: Any = sparse.csr_array((-np.ones(2 * m), (rows, edges.ravel())), shape=(m, n))
    size = float(weights.max())
    result: Any = linprog(weights / size, A_ub=matrix, b_ub=-np.ones(m), method="highs-ds")
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the vertex cover program: {result.message}")
    y = np.maximum(-result.ineqlin.marginals, 0.0) * size
    load = np.bincount(edges.ravel(), weights=np.repeat(y, 2), minlength=n)
    over = np.divide(load, weights, out=np.ones(n), where=weights > 0)
    over[(weights == 0) & (load > 0)] = np.inf
    y = y / np.maximum(over, 1.0)[edges].max(axis=1)
    return np.rint(2.0 * result.x) / 2.0, y
