"""Packings of bad triangles: a weighting that loads no edge beyond its weight.

Its total is a lower bound on every transversal and every clustering, by weak duality of the cover program
``min Σ w_e x_e`` with ``x_n + x_p + x_p' ≥ 1`` for each bad triangle, and the packing program ``max Σ y_t``
with ``Σ_{t∋e} y_t ≤ w_e`` for each edge. A maximal packing also gives the textbook 3-approximation: all
edges that it loads fully hit every bad triangle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from icml_btt.signed_graph import TABLE_LIMIT, SignedGraph
from icml_btt.triangles import TriangleSystem, bad_triangle_blocks, triangle_keys

# Triangles packed together. Smaller than what fits into memory: fewer are then looked at in vain.
_BLOCK = 2**19

# What rounding may take away from the sum of a packing, relative to its size.
_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Packing:
    """Bad triangles with positive values, small enough together to load no edge beyond its weight.

    Attributes:
        triangles: rows ``(centre, a, b)``; centre–a and centre–b are positive, a–b is negative.
        values: one for each triangle.
    """

    triangles: Int[np.ndarray, "triangles 3"]
    values: Float[np.ndarray, " triangles"]

    @property
    def total(self) -> float:
        """The sum of the values: a lower bound on the cost of any transversal or clustering."""
        return math.fsum(self.values)

    def lower_bound(self, graph: SignedGraph) -> float:
        """The bound that the packing proves; rounded up where all weights, so all costs, are integers."""
        total = self.total
        return float(math.ceil(total - _ROUNDING * max(total, 1.0))) if graph.integral else total

    def verify(self, graph: SignedGraph) -> None:
        """Accept the packing where it is one.

        Raises:
            ValueError: a triangle that is not bad in ``graph``, a negative value, an overloaded edge.
        """
        if self.triangles.shape != (len(self.values), 3):
            raise ValueError(f"{len(self.values)} values for triangles of shape {self.triangles.shape}")
        if not len(self.values):
            return
        if self.triangles.min() < 0 or self.triangles.max() >= graph.n:
            raise ValueError(f"the packing names a vertex outside 0, …, {graph.n - 1}")
        if not (np.isfinite(self.values) & (self.values >= 0)).all():
            raise ValueError("the packing has a negative or infinite value")
        centre, a, b = self.triangles.T
        wrong = (
            (graph.signs_of(centre, a) <= 0) | (graph.signs_of(centre, b) <= 0) | (graph.signs_of(a, b) >= 0)
        )
        if wrong.any():
            names = tuple(graph.name(v) for v in self.triangles[int(np.argmax(wrong))])
            raise ValueError(f"{names} is not a bad triangle with its centre first")
        system = TriangleSystem.of(graph, self.triangles)
        over = system.load(self.values) - system.weight
        if (over > _ROUNDING * system.weight).any():
            worst = graph.pair_ends(system.keys[[int(np.argmax(over))]])[0]
            names = tuple(graph.name(v) for v in worst)
            raise ValueError(f"the packing loads edge {names} by {over.max():.3g} beyond its weight")


def maximal_packing(graph: SignedGraph, seed: int = 0) -> tuple[Packing, Int[np.ndarray, " edges"]]:
    """Pack greedily until every bad triangle has a fully loaded edge.

    With unit weights this is a maximal set of edge-disjoint bad triangles. Triangles are generated in blocks
    and never held together, so memory grows with the edges that are loaded, not with the triangles.

    Args:
        graph: the signed graph.
        seed: of the order in which triangles are tried.

    Returns:
        The packing, and the fully loaded edges by number: a transversal of at most three times the bound.
    """
    rng = np.random.default_rng(seed)
    full = _PairSet(graph)
    keys = np.zeros(0, dtype=np.int64)
    residual = np.zeros(0)
    chosen: list[np.ndarray] = [np.zeros((0, 3), dtype=np.int64)]
    values: list[np.ndarray] = [np.zeros(0)]
    for triangles in bad_triangle_blocks(graph, _BLOCK):
        edges = triangle_keys(graph, triangles)
        free = ~full.holds(edges).any(axis=1)
        triangles = triangles[free]
        local, rows = np.unique(edges[free], return_inverse=True)
        rows = rows.reshape(-1, 3)
        left = graph.weights_of(local)
        known = np.isin(local, keys, assume_unique=True)
        left[known] = residual[np.searchsorted(keys, local[known])]
        value = pack_rows(rows, left, rng)
        picked = np.flatnonzero(value)
        chosen.append(triangles[picked])
        values.append(value[picked])
        loaded = np.unique(rows[picked])
        full.add(local[loaded[left[loaded] <= 0]])
        partly = loaded[left[loaded] > 0]
        keys, residual = _merge(keys, residual, local[loaded], local[partly], left[partly])
    return Packing(np.concatenate(chosen), np.concatenate(values)), full.keys


class _PairSet:
    """A growing set of edges: a table of bits for small graphs, a sorted array for large ones."""

    def __init__(self, graph: SignedGraph) -> None:
        self.keys = np.zeros(0, dtype=np.int64)
        self._table = np.zeros(graph.n**2, dtype=bool) if graph.n <= TABLE_LIMIT else None

    def add(self, keys: Int[np.ndarray, " k"]) -> None:
        self.keys = np.sort(np.concatenate([self.keys, keys]))
        if self._table is not None:
            self._table[keys] = True

    def holds(self, keys: Int[np.ndarray, "triangles 3"]) -> Bool[np.ndarray, "triangles 3"]:
        if self._table is not None:
            return self._table[keys]
        if not len(self.keys):
            return np.zeros(keys.shape, dtype=bool)
        return self.keys[np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)] == keys


def pack_rows(
    rows: Int[np.ndarray, "triangles 3"], residual: Float[np.ndarray, " edges"], rng: np.random.Generator
) -> Float[np.ndarray, " triangles"]:
    """Pack triangles given as rows of edge positions; takes what is packed off ``residual``, in place.

    Equal to trying them one by one in random order, each taking the least of its three residuals: in every
    round all triangles that come first at each of their edges are taken together.
    """
    value = np.zeros(len(rows))
    rank = np.empty(len(rows), dtype=np.int64)
    rank[rng.permutation(len(rows))] = np.arange(len(rows))
    alive = np.flatnonzero((residual[rows] > 0).all(axis=1))
    first = np.empty(len(residual), dtype=np.int64)
    while len(alive):
        edges = rows[alive]
        first[edges] = len(rows)
        np.minimum.at(first, edges.ravel(), np.repeat(rank[alive], 3))
        wins: Bool[np.ndarray, " alive"] = (first[edges] == rank[alive][:, None]).all(axis=1)
        winner, its_edges = alive[wins], edges[wins]
        value[winner] = residual[its_edges].min(axis=1)
        residual[its_edges] -= value[winner][:, None]
        alive = alive[(residual[edges] > 0).all(axis=1)]
    return value


def _merge(
    keys: Int[np.ndarray, " k"],
    residual: Float[np.ndarray, " k"],
    gone: Int[np.ndarray, " l"],
    new_keys: Int[np.ndarray, " m"],
    new_residual: Float[np.ndarray, " m"],
) -> tuple[Int[np.ndarray, " all"], Float[np.ndarray, " all"]]:
    """Sorted keys with residuals, without those gone and with the new ones."""
    kept = ~np.isin(keys, gone, assume_unique=True)
    keys = np.concatenate([keys[kept], new_keys])
    residual = np.concatenate([residual[kept], new_residual])
    order = np.argsort(keys)
    return keys[order], residual[order]
