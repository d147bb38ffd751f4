"""Cluster deletion: delete few positive edges so that what is left is disjoint cliques.

The clusters are pivots with their strong neighbours: two strong ties at one vertex imply the third edge, so
they are a clique (Balmaseda et al., ICML 2024, arXiv 2404.16131; the pivot of largest strong degree first).
Each is then extended greedily by vertices adjacent to all of it. Every cluster deletion is a labelling of
ties, so what bounds those bounds this.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from icml_btt.clusters import best_labels
from icml_btt.cost import canonical_labels, disagreements
from icml_btt.linear_program import TRIANGLE_LIMIT
from icml_btt.packing import Packing
from icml_btt.randomness import hashes
from icml_btt.signed_graph import SignedGraph, as_signed_graph
from icml_btt.strong_triadic_closure import TieMethod, minstc, positive_part, verify_wedge_bound
from icml_btt.transversals import certified_ratio

_ORDER = 3  # stream of random numbers
_LEAST_GAIN = 1e-12


@dataclass(frozen=True, eq=False)
class CliquePartition:
    """Disjoint cliques of positive edges.

    Attributes:
        labels: the clique of each vertex, 0, 1, … in the order of their first vertices.
        cost: weight of the positive edges between cliques, which are deleted.
        lower_bound: no partition into cliques costs less.
        packing: the open wedges that prove the bound.
        ids: names of the vertices, or None where they are numbers.
    """

    labels: Int[np.ndarray, " n"]
    cost: float
    lower_bound: float
    packing: Packing
    ids: tuple[Hashable, ...] | None

    @property
    def ratio(self) -> float:
        """Certified: the cost is at most this many times the least."""
        return certified_ratio(self.cost, self.lower_bound)

    def clusters(self) -> list[list[Hashable]]:
        """The names in each clique."""
        names = range(len(self.labels)) if self.ids is None else self.ids
        members: list[list[Hashable]] = [[] for _ in range(int(self.labels.max(initial=-1)) + 1)]
        for name, label in zip(names, self.labels.tolist(), strict=True):
            members[label].append(name)
        return members

    def deleted(self, graph: Any) -> Int[np.ndarray, "edges 2"]:
        """The positive edges between cliques."""
        whole = positive_part(as_signed_graph(graph))
        u, v = whole.ends.T
        return whole.ends[self.labels[u] != self.labels[v]]

    def verify(self, graph: Any) -> None:
        """Accept the partition where every part is a clique, and cost and bound are as stated.

        Raises:
            ValueError: says what is wrong.
        """
        whole = positive_part(as_signed_graph(graph))
        cost = float(disagreements(whole, self.labels))  # also refuses labels of another length
        check_cliques(whole, self.labels)
        if not np.isclose(cost, self.cost, rtol=1e-9, atol=1e-9):
            raise ValueError(f"the deleted edges cost {cost:.9g}, not {self.cost:.9g}")
        verify_wedge_bound(whole, self.packing, self.lower_bound)


def check_cliques(graph: SignedGraph, labels: Int[np.ndarray, " n"]) -> None:
    """Refuse clusters that lack a positive edge.

    Raises:
        ValueError: names a cluster that is no clique.
    """
    u, v = graph.ends[graph.sign > 0].T
    inside = labels[u][labels[u] == labels[v]]
    edges = np.bincount(inside, minlength=graph.n)
    size = np.bincount(labels, minlength=graph.n)
    lacking = np.flatnonzero(edges != size * (size - 1) // 2)
    if len(lacking):
        names = [graph.name(v) for v in np.flatnonzero(labels == lacking[0])[:10]]
        raise ValueError(f"the cluster of {names} is no clique of positive edges")


def cluster_deletion(
    graph: Any,
    *,
    method: TieMethod = "lp",
    runs: int = 8,
    local_search: bool = True,
    triangle_limit: int = TRIANGLE_LIMIT,
    seed: int = 0,
) -> CliquePartition:
    """Partition the positive edges into cliques, deleting few of the others.

    Args:
        graph: a SignedGraph, networkx graph, SciPy sparse array or square array. Only positive edges matter:
            all other pairs, judged or not, are kept apart.
        method: how ties are labelled first (see :func:`~icml_btt.strong_triadic_closure.minstc`).
        runs: orders of pivots to choose the best from in each component; the first is by strong degree.
        local_search: move vertices between cliques, and merge cliques, while that gains.
        triangle_limit: how many open wedges are listed at most.
        seed: of the orders.

    Raises:
        MemoryError: more open wedges than ``triangle_limit``.
        ValueError, TypeError: ``runs`` below one; see :func:`~icml_btt.signed_graph.as_signed_graph`.

    Example:
        >>> from icml_btt import cluster_deletion
        >>> cluster_deletion(SignedGraph.from_edges([(0, 1), (1, 2), (0, 2), (2, 3)])).clusters()
        [[0, 1, 2], [3]]
    """
    if runs < 1:
        raise ValueError(f"runs={runs}; at least one is needed")
    whole = positive_part(as_signed_graph(graph))
    ties = minstc(whole, method, triangle_limit=triangle_limit, seed=seed)
    near = _neighbours(whole.n, whole.ends, whole.weight)
    strong = _neighbours(whole.n, whole.ends[~ties.weak], whole.weight[~ties.weak])
    degree = np.array([sum(row.values()) for row in strong])
    random = hashes(whole.vertex_keys, seed, _ORDER, range(runs - 1))
    orders = [np.lexsort((whole.vertex_keys, -degree)), *np.argsort(random, axis=1, kind="stable")]
    found = np.stack([_pivot_cliques(order.tolist(), near, strong) for order in orders])
    labels = best_labels(whole, found)
    if local_search:
        labels = _clique_moves(near, labels)
    labels = canonical_labels(labels)
    cost = float(disagreements(whole, labels))
    return CliquePartition(labels, cost, ties.lower_bound, ties.packing, whole.ids)


def _neighbours(n: int, ends: Int[np.ndarray, "k 2"], weight: np.ndarray) -> list[dict[int, float]]:
    near: list[dict[int, float]] = [{} for _ in range(n)]
    for (u, v), w in zip(ends.tolist(), weight.tolist(), strict=True):
        near[u][v] = near[v][u] = w
    return near


def _pivot_cliques(
    order: list[int], near: list[dict[int, float]], strong: list[dict[int, float]]
) -> Int[np.ndarray, " n"]:
    """For each vertex the pivot of its clique."""
    label = [-1] * len(order)
    for pivot in order:
        if label[pivot] >= 0:
            continue
        clique = [pivot, *(v for v in strong[pivot] if label[v] < 0)]
        room = {v for v in near[pivot] if label[v] < 0}
        for member in clique:
            label[member] = pivot
            room.intersection_update(near[member])
        while room:
            # the vertex that the most weight of further candidates can join
            _, best = max((sum(near[v][u] for u in room if u in near[v]), -v) for v in room)
            label[-best] = pivot
            room.intersection_update(near[-best])
    return np.array(label, dtype=np.int64).reshape(len(order))


def _clique_moves(near: list[dict[int, float]], labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Move single vertices, and merge cliques, until nothing gains."""
    label = labels.tolist()
    members: dict[int, set[int]] = {}
    for v, mine in enumerate(label):
        members.setdefault(mine, set()).add(v)
    changed = True
    while changed:
        changed = False
        for v, row in enumerate(near):
            weight: dict[int, float] = {}
            count: dict[int, int] = {}
            for u, w in row.items():
                weight[label[u]] = weight.get(label[u], 0.0) + w
                count[label[u]] = count.get(label[u], 0) + 1
            here = weight.get(label[v], 0.0)
            full = [(weight[c], -c) for c in weight if c != label[v] and count[c] == len(members[c])]
            best, target = max(full, default=(0.0, 0))
            if best - here > _LEAST_GAIN * max(best, 1.0):
                members[label[v]].discard(v)
                members[-target].add(v)
                label[v] = -target
                changed = True
        between: dict[tuple[int, int], int] = {}
        for v, row in enumerate(near):
            for u in row:
                if label[v] < label[u]:
                    pair = (label[v], label[u])
                    between[pair] = between.get(pair, 0) + 1
        merged: set[int] = set()
        for (a, b), edges in sorted(between.items()):
            if edges == len(members[a]) * len(members[b]) and not {a, b} & merged:
                for v in members.pop(b):
                    label[v] = a
                    members[a].add(v)
                merged |= {a, b}
                changed = True
    return np.array(label, dtype=np.int64).reshape(len(near))


class ClusterDeletion:
    """Solver of cluster deletion; its options are those of :func:`cluster_deletion`.

    Example:
        >>> from icml_btt import ClusterDeletion, SignedGraph
        >>> ClusterDeletion().solve(SignedGraph.from_edges([(0, 1), (1, 2)])).ratio
        1.0
    """

    def __init__(
        self,
        *,
        method: TieMethod = "lp",
        runs: int = 8,
        local_search: bool = True,
        triangle_limit: int = TRIANGLE_LIMIT,
        seed: int = 0,
    ) -> None:
        self.options: dict[str, Any] = {
            "method": method,
            "runs": runs,
            "local_search": local_search,
            "triangle_limit": triangle_limit,
            "seed": seed,
        }

    def solve(self, graph: Any) -> CliquePartition:
        """Partition ``graph`` into cliques (see :func:`cluster_deletion`)."""
        return cluster_deletion(graph, **self.options)
