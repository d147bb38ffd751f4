"""Bad triangles: three vertices with exactly one negative edge among their three edges.

A bad triangle is an open wedge a–c–b of positive edges whose ends a, b disagree; c is its centre. (Three
negative edges are no contradiction here: a, b and c are then in three clusters.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, Int8
from scipy import sparse

from icml_btt import compiled
from icml_btt.signed_graph import SignedGraph

# Wedges looked at together: 4 million, some 200 MB of temporary arrays.
_BLOCK = 2**22
# Pairs of vertices for each edge of a triangle, up to which edges are numbered by a table of all pairs.
_DENSE = 4


def bad_triangles(graph: SignedGraph, limit: int | None = None) -> Int[np.ndarray, "triangles 3"]:
    """List the bad triangles, or the first ``limit`` of them.

    Args:
        graph: the signed graph.
        limit: stop there.

    Returns:
        One row ``(centre, a, b)`` for each: edges centre–a and centre–b are positive, a–b is negative, a < b.
    """
    kernels = compiled.kernels(graph.positive.nnz)
    if limit == 1 and kernels is not None and not _by_pairs(graph):
        return _scanned(graph, kernels)
    found: list[np.ndarray] = [np.zeros((0, 3), dtype=np.int64)]
    room = np.inf if limit is None else limit
    for block in bad_triangle_blocks(graph):
        if room <= 0:
            break
        found.append(block[: int(min(room, len(block)))])
        room -= len(block)
    return np.concatenate(found)


def count_bad_triangles(graph: SignedGraph) -> int:
    """Count the bad triangles.

    On a complete graph: all open or closed positive wedges Σ C(deg, 2), less those whose ends are a stored
    pair that is not negative. The negative edges of weight 1 are never listed.
    """
    if (kernels := compiled.kernels(graph.positive.nnz)) is not None:
        closing, closed = _closing_rows(graph)
        return kernels.wedge_count(
            *compiled.graph_tensors(graph.positive), closing, closed=closed, trusted=True
        )
    negative = graph.sign < 0
    if graph.missing == "free":
        return _common_neighbours(graph, graph.ends[negative])
    degree = np.diff(graph.positive.indptr).astype(np.int64)
    return int(np.sum(degree * (degree - 1) // 2)) - _common_neighbours(graph, graph.ends[~negative])


def bad_triangle_blocks(graph: SignedGraph, size: int = _BLOCK) -> Iterator[Int[np.ndarray, "triangles 3"]]:
    """Give the bad triangles in blocks, from ``size`` wedges each, so that they are never held together."""
    if _by_pairs(graph):
        degree = np.diff(graph.positive.indptr).astype(np.int64)
        ends = graph.ends[graph.sign < 0]
        for part in _parts(np.minimum(degree[ends[:, 0]], degree[ends[:, 1]]), size):
            pair, centre = _closing(graph, ends[part])
            yield np.concatenate([centre[:, None], ends[part][pair]], axis=1)
        return
    yield from _open_wedges(graph, size)


def _by_pairs(graph: SignedGraph) -> bool:
    """Whether it is less work to look for the third vertices of the negative edges than for open wedges."""
    if graph.missing == "negative":
        return False
    degree = np.diff(graph.positive.indptr).astype(np.int64)
    ends = graph.ends[graph.sign < 0]
    work = np.minimum(degree[ends[:, 0]], degree[ends[:, 1]])
    return bool(work.sum() <= np.sum(degree * (degree - 1) // 2))


def _closing_rows(graph: SignedGraph) -> tuple[tuple[Any, Any] | None, bool]:
    """For the compiled loops: the pairs that decide, and whether they close the bad wedges or the others.

    Where a pair that is not stored is negative, the others decide; None stands for the positive ones alone.
    """
    if graph.missing == "free":
        return compiled.graph_tensors(_rows_of(graph, graph.sign < 0)), True
    others = graph.sign >= 0
    alone = not (graph.sign[others] == 0).any()
    return (None if alone else compiled.graph_tensors(_rows_of(graph, others))), False


def _rows_of(graph: SignedGraph, chosen: Bool[np.ndarray, " pairs"]) -> sparse.csr_array:
    """The chosen pairs as a symmetric matrix, its column indices sorted."""
    u, v = graph.ends[chosen].T
    ones = np.ones(2 * len(u), dtype=np.int8)
    both = (ones, (np.concatenate([u, v]), np.concatenate([v, u])))
    matrix = sparse.csr_array(both, shape=(graph.n, graph.n))
    matrix.sort_indices()
    return matrix


def _scanned(graph: SignedGraph, kernels: Any) -> Int[np.ndarray, "triangles 3"]:
    """The first bad triangle, if there is one."""
    closing, closed = _closing_rows(graph)
    found = kernels.bad_triangle_scan(
        *compiled.graph_tensors(graph.positive), closing, closed=closed, trusted=True
    )
    return np.zeros((0, 3), dtype=np.int64) if found is None else found.numpy().astype(np.int64)[None]


def _open_wedges(graph: SignedGraph, size: int) -> Iterator[Int[np.ndarray, "triangles 3"]]:
    """Pairs of neighbours of each vertex, kept where they disagree."""
    kernels = compiled.kernels(graph.positive.nnz)
    rows, closing, closed = None, None, False
    if kernels is not None:
        rows = compiled.graph_tensors(graph.positive)
        closing, closed = _closing_rows(graph)
    indptr, indices = graph.positive.indptr.astype(np.int64), graph.positive.indices.astype(np.int64)
    row = np.repeat(np.arange(graph.n, dtype=np.int64), np.diff(indptr))
    later = indptr[row + 1] - np.arange(len(indices)) - 1
    for part in _parts(later, size):
        if kernels is not None and rows is not None:
            block = (part.start, part.stop)
            found = kernels.wedge_enumerate(*rows, closing, closed=closed, block=block, trusted=True)
            yield found.numpy().astype(np.int64)
            continue
        repeat = later[part]
        first = np.repeat(np.arange(part.start, part.stop), repeat)
        second = first + 1 + _within(repeat)
        a, b = indices[first], indices[second]
        bad = graph.signs_of(a, b) < 0
        yield np.stack([row[first[bad]], a[bad], b[bad]], axis=1)


def _common_neighbours(graph: SignedGraph, ends: Int[np.ndarray, "pairs 2"]) -> int:
    """How many common positive neighbours pairs have, altogether."""
    degree = np.diff(graph.positive.indptr).astype(np.int64)
    work = np.minimum(degree[ends[:, 0]], degree[ends[:, 1]])
    return sum(len(_closing(graph, ends[part])[0]) for part in _parts(work, _BLOCK))


def _closing(
    graph: SignedGraph, ends: Int[np.ndarray, "pairs 2"]
) -> tuple[Int[np.ndarray, " wedges"], Int[np.ndarray, " wedges"]]:
    """The common positive neighbours of pairs: which pair, which vertex. Walks the shorter row."""
    indptr, indices = graph.positive.indptr.astype(np.int64), graph.positive.indices.astype(np.int64)
    degree = np.diff(indptr)
    swap = degree[ends[:, 0]] > degree[ends[:, 1]]
    near = np.where(swap, ends[:, 1], ends[:, 0])
    far = np.where(swap, ends[:, 0], ends[:, 1])
    repeat = degree[near]
    pair = np.repeat(np.arange(len(ends)), repeat)
    centre = indices[np.repeat(indptr[near], repeat) + _within(repeat)]
    both = (centre != far[pair]) & (graph.signs_of(centre, far[pair]) > 0)
    return pair[both], centre[both]


def _within(repeat: Int[np.ndarray, " k"]) -> Int[np.ndarray, " total"]:
    """0, 1, …, r−1 for each r of ``repeat``, one after the other."""
    total = int(repeat.sum())
    return np.arange(total) - np.repeat(np.cumsum(repeat) - repeat, repeat)


def _parts(work: Int[np.ndarray, " k"], size: int) -> Iterator[slice]:
    """Consecutive slices with about ``size`` work each, and at least one item."""
    done = np.cumsum(work)
    start = 0
    while start < len(work):
        target = (done[start - 1] if start else 0) + size
        stop = max(int(np.searchsorted(done, target, side="right")), start + 1)
        yield slice(start, stop)
        start = stop


@dataclass(frozen=True, eq=False)
class TriangleSystem:
    """The bad triangles as a set-cover problem over the edges that lie in one.

    Attributes:
        keys: those edges, by number (:meth:`SignedGraph.pair_key`), in increasing order.
        sign: their signs.
        weight: their weights.
        rows: for each triangle, the positions in ``keys`` of its negative and its two positive edges.
        triangles: the same triangles as ``(centre, a, b)``.
    """

    keys: Int[np.ndarray, " edges"]
    sign: Int8[np.ndarray, " edges"]
    weight: Float[np.ndarray, " edges"]
    rows: Int[np.ndarray, "triangles 3"]
    triangles: Int[np.ndarray, "triangles 3"]

    @classmethod
    def of(
        cls, graph: SignedGraph, triangles: Int[np.ndarray, "triangles 3"] | None = None
    ) -> TriangleSystem:
        """The system of all bad triangles of ``graph``, or of those given."""
        if triangles is None:
            triangles = bad_triangles(graph)
        numbers = triangle_keys(graph, triangles)
        if graph.n**2 <= _DENSE * numbers.size:
            # A table of all pairs is then no larger than what sorting takes, and several times faster.
            taken = np.zeros(graph.n**2, dtype=bool)
            taken[numbers.ravel()] = True
            keys = np.flatnonzero(taken)
            place = np.empty(graph.n**2, dtype=np.int32 if len(keys) < 2**31 else np.int64)
            place[keys] = np.arange(len(keys))
            rows = place[numbers]
        else:
            keys, rows = np.unique(numbers, return_inverse=True)
            rows = rows.reshape(-1, 3).astype(np.int32 if len(keys) < 2**31 else np.int64)
        sign = np.ones(len(keys), dtype=np.int8)
        sign[rows[:, 0]] = -1
        return cls(keys, sign, graph.weights_of(keys), rows, triangles)

    @cached_property
    def incidence(self) -> sparse.csr_array:
        """Edges × triangles, 1 where the edge belongs to the triangle."""
        count = len(self.rows)
        ones = np.ones(3 * count, dtype=np.int8)
        columns = np.repeat(np.arange(count, dtype=np.int32), 3)
        return sparse.csr_array((ones, (self.rows.ravel(), columns)), shape=(len(self.keys), count))

    def load(self, packing: Float[np.ndarray, " triangles"]) -> Float[np.ndarray, " edges"]:
        """How much of a weighting of triangles lies on each edge: Σ over its triangles."""
        heavy = np.flatnonzero(packing)
        return np.bincount(
            self.rows[heavy].ravel(), weights=np.repeat(packing[heavy], 3), minlength=len(self.keys)
        )


def triangle_keys(
    graph: SignedGraph, triangles: Int[np.ndarray, "triangles 3"]
) -> Int[np.ndarray, "triangles 3"]:
    """The three edges of each triangle ``(centre, a, b)``, by number: a–b, then centre–a, then centre–b."""
    centre, a, b = triangles.T
    return np.stack(
        [graph.pair_key(a, b), graph.pair_key(centre, a), graph.pair_key(centre, b)], axis=1
    ).reshape(-1, 3)
