"""Correlation clustering with a certificate: clusters, their cost, and how far from optimal it can be.

Every clustering's mistakes hit every bad triangle, so a packing of bad triangles bounds the cost of all
clusterings; rounding a transversal gives one that is close to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Int
from scipy.sparse import csgraph
from sklearn.base import BaseEstimator, ClusterMixin

from icml_btt.cost import canonical_labels, component_disagreements, disagreements
from icml_btt.linear_program import TRIANGLE_LIMIT, Report
from icml_btt.local_search import local_moves
from icml_btt.pivot import kwik_cluster, pivot_rounding
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.transversals import (
    LP,
    Method,
    Transversal,
    certified_ratio,
    check_options,
    transversal,
    verify_bound,
)

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
    """

    labels: Int[np.ndarray, " n"]
    cost: float
    transversal: Transversal
    ids: tuple[Hashable, ...] | None

    @property
    def lower_bound(self) -> float:
        """No clustering costs less."""
        return self.transversal.lower_bound

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
        verify_bound(graph, self.transversal.packing, self.lower_bound)


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


def _better(graph: SignedGraph, first: Clustering, second: Clustering) -> Clustering:
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


class CorrelationClustering(ClusterMixin, BaseEstimator):
    """Cluster pairwise "same" and "different" judgements without choosing the number of clusters.

    Args:
        method: how the transversal is found (see :func:`~icml_btt.transversals.transversal`).
        lp: ``"auto"`` or ``"highs"``.
        rounding: ``"pivot32"``, or ``"kwik"`` for the baseline KwikCluster.
        runs: roundings to choose the best from.
        local_search: improve by local moves, never for the worse.
        prune: take edges that are not needed out of the transversal.
        time_limit: in seconds, for the linear program, and again for each start of the local moves. Results
            are reproducible where it is not reached.
        triangle_limit: how many bad triangles are listed at most.
        missing: what a pair is that a matrix or networkx graph does not hold: ``"negative"`` or ``"free"``.
        random_state: an integer; the same one gives the same clusters, in whatever order rows come.

    Attributes:
        labels_: the cluster of each vertex.
        cost_: weight of the edges that the clusters contradict.
        lower_bound_: no clustering costs less.
        ratio_: certified: ``cost_`` is at most this many times the least.
        clustering_: all of it as a :class:`Clustering`.

    Example:
        >>> from icml_btt import CorrelationClustering, SignedGraph
        >>> graph = SignedGraph.from_edges([("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
        >>> clustering = CorrelationClustering().solve(graph)
        >>> clustering.clusters(), clustering.cost, clustering.ratio
        ([['a', 'b', 'c'], ['d']], 1.0, 1.0)
    """

    def __init__(
        self,
        *,
        method: Method = "threshold",
        lp: LP = "auto",
        rounding: Rounding = "pivot32",
        runs: int = 32,
        local_search: bool = True,
        prune: bool = True,
        time_limit: float | None = 60.0,
        triangle_limit: int = TRIANGLE_LIMIT,
        missing: Missing = "negative",
        random_state: int = 0,
    ) -> None:
        self.method = method
        self.lp = lp
        self.rounding = rounding
        self.runs = runs
        self.local_search = local_search
        self.prune = prune
        self.time_limit = time_limit
        self.triangle_limit = triangle_limit
        self.missing = missing
        self.random_state = random_state

    def solve(self, graph: Any, *, report: Report | None = None) -> Clustering:
        """Cluster a SignedGraph, networkx graph, signed SciPy sparse array or signed square array.

        Args:
            graph: what to cluster.
            report: told the stage and figures worth showing while it works.

        Raises:
            ValueError, TypeError: bad input or options, with what was expected.
            MemoryError: ``lp="highs"`` and too many bad triangles.
        """
        graph = as_signed_graph(graph, missing=self.missing)
        check_options(self.method, self.lp)
        if isinstance(self.random_state, bool) or not isinstance(self.random_state, (int, np.integer)):
            raise TypeError(f"random_state={self.random_state!r}; expected an integer")
        if self.rounding == "pivot32" and not graph.complete:
            warnings.warn(
                "no factor on incomplete graphs: the bound of 3/2 times the transversal is proved where "
                "every pair has a sign; the certified ratio holds all the same",
                UserWarning,
                stacklevel=2,
            )
        seed = int(self.random_state)

        def clusters(found: Transversal) -> Clustering:
            return round_transversal(
                graph,
                found,
                rounding=self.rounding,
                runs=self.runs,
                local_search=self.local_search,
                time_limit=self.time_limit,
                seed=seed,
                report=report,
            )

        def search(method: Method, labels: Int[np.ndarray, " n"] | None = None) -> Transversal:
            return transversal(
                graph,
                method,
                lp=self.lp,
                prune=self.prune,
                time_limit=self.time_limit,
                triangle_limit=self.triangle_limit,
                labels=labels,
                seed=seed,
                report=report,
            )

        if self.method == "disjoint":
            return clusters(search("disjoint"))
        # A first clustering without the linear program: it may be certified at once, and speeds that up.
        first = clusters(search("disjoint"))
        if first.ratio == 1.0 and self.lp == "auto":
            return first
        found = search(self.method, first.labels)
        return _better(graph, first, clusters(found)) if found.method != "disjoint" else first

    def fit(self, X: Any, y: Any = None) -> CorrelationClustering:
        """Cluster ``X`` (see :meth:`solve`); ``y`` is ignored."""
        self.clustering_ = self.solve(X)
        self.labels_ = self.clustering_.labels
        self.cost_ = self.clustering_.cost
        self.lower_bound_ = self.clustering_.lower_bound
        self.ratio_ = self.clustering_.ratio
        return self

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that rows and columns of the input are the same things."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.sparse = True
        return tags
