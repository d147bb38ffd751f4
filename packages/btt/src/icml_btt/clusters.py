"""Clusters rounded from a transversal, their cost, and the bound that its packing proves."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Int
from scipy.sparse import csgraph

from icml_btt.constraints import Constraints
from icml_btt.cost import canonical_labels, component_disagreements, disagreements
from icml_btt.linear_program import Report
from icml_btt.local_search import local_moves
from icml_btt.pivot import kwik_cluster, pivot_rounding
from icml_btt.signed_graph import SignedGraph, as_signed_graph
from icml_btt.transversals import Transversal, certified_ratio, verify_bound

Rounding: TypeAlias = Literal["pivot32", "kwik"]

# Local moves start from the runs in order of cost, and end after so many without gain. On planted graphs of
# 60 to 300 vertices with much noise or few judgements, 8 starts save 1 % over one, and 33 up to 2 % over 8.
_PATIENCE = 8


@dataclass(frozen=True, eq=False)
class Clustering:
    """Clusters with a certified cost.

    Attributes:
        labels: the cluster of each vertex, 0, 1, … in the order of their first vertices.
        cost: weight of the positive edges between clusters and of the negative edges inside.
        transversal: the transversal it was rounded from; its packing proves the bound.
        ids: names of the vertices, or None where they are numbers.
        constraints: what the clusters had to obey, or None; the transversal is then one of the graph
            of records that belong together.
        offset: what obeying costs in any case.
    """

    labels: Int[np.ndarray, " n"]
    cost: float
    transversal: Transversal
    ids: tuple[Hashable, ...] | None
    constraints: Constraints | None = None
    offset: float = 0.0

    @property
    def lower_bound(self) -> float:
        """No clustering, of those that obey the constraints, costs less."""
        return self.transversal.lower_bound + self.offset

    @property
    def ratio(self) -> float:
        """Certified: the cost is at most this many times that of the best clustering."""
        return certified_ratio(self.cost, self.lower_bound)

    @property
    def n_clusters(self) -> int:
        """How many clusters there are."""
        return int(self.labels.max(initial=-1)) + 1

    def clusters(self) -> list[list[Hashable]]:
        """The names in each cluster."""
        names = range(len(self.labels)) if self.ids is None else self.ids
        members: list[list[Hashable]] = [[] for _ in range(self.n_clusters)]
        for name, label in zip(names, self.labels.tolist(), strict=True):
            members[label].append(name)
        return members

    def as_dict(self) -> dict[Hashable, int]:
        """The cluster of each name."""
        names = range(len(self.labels)) if self.ids is None else self.ids
        return dict(zip(names, self.labels.tolist(), strict=True))

    def verify(self, graph: Any) -> None:
        """Accept the clustering where every vertex has a cluster, and cost and bound are as stated.

        Raises:
            ValueError: says what is wrong.
        """
        graph = as_signed_graph(graph)
        cost = float(disagreements(graph, self.labels))
        if not np.array_equal(self.labels, canonical_labels(self.labels)):
            raise ValueError("clusters must be numbered 0, 1, … in the order of their first vertices")
        if not np.isclose(cost, self.cost, rtol=1e-9, atol=1e-9):
            raise ValueError(f"the clusters cost {cost:.9g}, not {self.cost:.9g}")
        if self.constraints is not None:
            self.constraints.check(self.labels)
            graph, offset = self.constraints.contract(graph)
            if not np.isclose(offset, self.offset, rtol=1e-9, atol=1e-9):
                raise ValueError(f"obeying the constraints costs {offset:.9g}, not {self.offset:.9g}")
        verify_bound(graph, self.transversal.packing, self.transversal.lower_bound)


def best_labels(
    graph: SignedGraph, labels: Int[np.ndarray, "runs n"], place: int = 0
) -> Int[np.ndarray, " n"]:
    """Put together, from several clusterings, the best one of each component along positive edges.

    Args:
        graph: the signed graph.
        labels: clusterings that join no two components.
        place: 0 takes the best run in each component, 1 the second best, and so on.
    """
    component = graph.components
    count = int(component.max(initial=-1)) + 1
    cost = component_disagreements(graph, labels, component, count)
    order = np.argsort(cost, axis=0, kind="stable")
    chosen = order[min(place, len(labels) - 1)]
    return labels[chosen[component], np.arange(graph.n)]


def round_transversal(
    graph: SignedGraph,
    found: Transversal,
    *,
    rounding: Rounding = "pivot32",
    runs: int = 32,
    local_search: bool = True,
    time_limit: float | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Clustering:
    """Turn a transversal into clusters: pivot rounding, the best of several runs, then local moves.

    Among the starts is also, as it costs nothing, the clustering into components of positive edges outside
    the transversal. The best is chosen for each component of the graph apart.

    Args:
        graph: the signed graph.
        found: a transversal of it.
        rounding: ``"pivot32"`` (the paper's) or ``"kwik"`` (no use of the transversal).
        runs: how many times to round.
        local_search: improve the best runs by local moves.
        time_limit: for the local moves of each run, in seconds.
        seed: of orders and coins.
        report: told the cost after rounding and after local moves.

    Raises:
        ValueError: ``runs`` below one, an unknown rounding.
    """
    if runs < 1:
        raise ValueError(f"runs={runs}; at least one is needed")
    if rounding not in get_args(Rounding):
        raise ValueError(f"rounding={rounding!r}; expected 'pivot32' or 'kwik'")
    keys = found.keys(graph)
    if rounding == "kwik":
        labels = kwik_cluster(graph, runs=runs, seed=seed)
    else:
        apart = csgraph.connected_components(graph.without(keys).positive, directed=False)[1]
        labels = np.concatenate([apart[None, :], pivot_rounding(graph, keys, runs=runs, seed=seed)])
    best = best_labels(graph, labels)
    if report is not None:
        report("pivot rounding", cost=float(disagreements(graph, best)))
    if local_search:
        best = _improved(graph, labels, found.lower_bound, time_limit)
    best = canonical_labels(best)
    cost = float(disagreements(graph, best))
    if report is not None:
        report("local moves", cost=cost)
    return Clustering(best, cost, found, graph.ids)


def _improved(
    graph: SignedGraph, labels: Int[np.ndarray, "runs n"], bound: float, time_limit: float | None
) -> Int[np.ndarray, " n"]:
    """The best of what local moves make of the runs, from the cheapest run on, in each component."""
    results: list[Int[np.ndarray, " n"]] = []
    least, since = np.inf, 0
    for place in range(len(labels)):
        results.append(local_moves(graph, best_labels(graph, labels, place), time_limit=time_limit))
        cost = float(disagreements(graph, results[-1]))
        since = 0 if cost < least else since + 1
        least = min(least, cost)
        if since == _PATIENCE or least <= bound:
            break
    return _joined(graph, results)


def better(graph: SignedGraph, first: Clustering, second: Clustering) -> Clustering:
    """The better clustering of each component, with the better bound."""
    labels = canonical_labels(_joined(graph, [second.labels, first.labels]))
    found = max((second.transversal, first.transversal), key=lambda t: t.lower_bound)
    return Clustering(labels, float(disagreements(graph, labels)), found, graph.ids)


def _joined(graph: SignedGraph, labels: list[Int[np.ndarray, " n"]]) -> Int[np.ndarray, " n"]:
    """The best of several clusterings in each component, whatever numbers their clusters have."""
    firsts = []
    for run in labels:
        _, first, inverse = np.unique(run, return_index=True, return_inverse=True)
        firsts.append(first[inverse])  # the first vertex of a cluster is a name that no other component uses
    return best_labels(graph, np.stack(firsts))
