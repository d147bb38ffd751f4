"""Components of a few vertices, of which record linkage has thousands: every partition is tried."""

from __future__ import annotations

from functools import cache

import numpy as np
from jaxtyping import Int

from icml_btt.clusters import Clustering
from icml_btt.cost import canonical_labels
from icml_btt.linear_program import mistakes, solve_cover
from icml_btt.packing import Packing, pack_rows
from icml_btt.pruning import prune_listed
from icml_btt.signed_graph import SignedGraph
from icml_btt.transversals import assembled, proved_bound, round_cover
from icml_btt.triangles import TriangleSystem

SMALL = 6  # vertices; 203 partitions


@cache
def partitions(n: int) -> Int[np.ndarray, "partitions {n}"]:
    """All partitions of n things, each as labels in the order of first appearance."""
    rows = [[0]] if n else [[]]
    for _ in range(n - 1):
        rows = [[*row, label] for row in rows for label in range(max(row) + 2)]
    return np.array(rows, dtype=np.int64).reshape(len(rows), n)


def solve_small(graph: SignedGraph, seed: int = 0) -> Clustering:
    """The best clustering of at most ``SMALL`` vertices, with the bound of a packing or the linear program.

    Args:
        graph: the signed graph.
        seed: of the packing.
    """
    u, v = np.triu_indices(graph.n, 1)
    sign, weight = graph.signs_of(u, v), graph.weights_of(graph.pair_key(u, v))
    every = partitions(graph.n)
    same = every[:, u] == every[:, v]
    costs = np.where(same, np.where(sign < 0, weight, 0.0), np.where(sign > 0, weight, 0.0)).sum(axis=1)
    best = int(np.argmin(costs))
    labels, cost = canonical_labels(every[best]), float(costs[best])
    system = TriangleSystem.of(graph)
    y = pack_rows(system.rows, system.weight.copy(), np.random.default_rng(seed))
    picked = np.flatnonzero(y)
    packing = Packing(system.triangles[picked], y[picked])
    if proved_bound(graph, packing) < cost * (1 - 1e-12):
        cover = solve_cover(graph, system, labels=labels, seed=seed)
        return Clustering(labels, cost, round_cover(graph, cover, labels=labels, system=system), graph.ids)
    chosen = prune_listed(system, mistakes(graph, system, labels), np.zeros(len(system.keys)))
    found = assembled(graph, system.keys[chosen], packing, "disjoint", None)
    return Clustering(labels, cost, found, graph.ids)
