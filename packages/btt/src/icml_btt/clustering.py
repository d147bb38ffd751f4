"""Correlation clustering with a certificate: clusters, their cost, and how far from optimal it can be.

Every clustering's mistakes hit every bad triangle, so a packing of bad triangles bounds the cost of all
clusterings; rounding a transversal gives one that is close to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Int
from sklearn.base import BaseEstimator, ClusterMixin

from icml_btt.clusters import Clustering, Rounding, better, round_transversal
from icml_btt.constraints import Pairs, Sources, resolve_constraints
from icml_btt.cost import canonical_labels, disagreements
from icml_btt.incremental import extended, renamed
from icml_btt.linear_program import TRIANGLE_LIMIT, Report
from icml_btt.packing import Packing
from icml_btt.review import ReviewItem, agreement, review
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.small_components import SMALL, solve_small
from icml_btt.transversals import (
    LP,
    Method,
    Transversal,
    check_options,
    join_transversals,
    transversal,
)


def _open_components(graph: SignedGraph) -> list[Int[np.ndarray, " k"]]:
    """The vertices of each component along positive edges that holds a negative pair."""
    component = graph.components
    size = np.bincount(component, minlength=1)
    u, v = graph.ends.T
    inside = component[u] == component[v]
    if graph.missing == "free":
        negative = np.bincount(component[u[inside & (graph.sign < 0)]], minlength=len(size))
    else:
        other = np.bincount(component[u[inside & (graph.sign >= 0)]], minlength=len(size))
        negative = size * (size - 1) // 2 - other
    order = np.argsort(component, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(size)])
    return [order[bounds[index] : bounds[index + 1]] for index in np.flatnonzero(negative)]


def _fingerprint(members: Int[np.ndarray, " k"], part: SignedGraph) -> bytes:
    """What decides how a component is solved: its vertices, pairs and weights."""
    digest = blake2b(digest_size=16)
    for array in (members, part.ends, part.sign, part.weight):
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b"/")
    return digest.digest()


class CorrelationClustering(ClusterMixin, BaseEstimator):
    """Cluster pairwise "same" and "different" judgements without choosing the number of clusters.

    Args:
        method: how the transversal is found (see :func:`~icml_btt.transversals.transversal`).
        lp: ``"auto"``, ``"highs"`` or ``"mwu"``.
        rounding: ``"pivot32"``, or ``"kwik"`` for the baseline KwikCluster.
        runs: roundings to choose the best from.
        local_search: improve by local moves, never for the worse.
        prune: take edges that are not needed out of the transversal.
        time_limit: in seconds, for the linear program, and again for each start of the local moves. Results
            are reproducible where it is not reached.
        triangle_limit: how many bad triangles are listed at most.
        missing: what a pair is that a matrix or networkx graph does not hold: ``"negative"`` or ``"free"``.
        confidence: also give ``confidence_``.
        random_state: an integer; the same one gives the same clusters, in whatever order rows come.

    Attributes:
        labels_: the cluster of each vertex.
        cost_: weight of the edges that the clusters contradict.
        lower_bound_: no clustering costs less.
        ratio_: certified: ``cost_`` is at most this many times the least.
        clustering_: all of it as a :class:`Clustering`.
        confidence_: of each vertex, the share of its judgements' weight that the clusters agree with (with
            ``confidence``; see :func:`~icml_btt.review.agreement`).
        changes_: what :meth:`partial_fit` changed.

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
        confidence: bool = False,
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
        self.confidence = confidence
        self.random_state = random_state

    def solve(
        self,
        graph: Any,
        *,
        sources: Sources | None = None,
        must_link: Pairs | None = None,
        cannot_link: Pairs | None = None,
        report: Report | None = None,
    ) -> Clustering:
        """Cluster a SignedGraph, networkx graph, signed SciPy sparse array or signed square array.

        Components along positive edges are solved apart, so that nothing in one changes another.

        Args:
            graph: what to cluster.
            sources: of each record (a mapping, or a sequence in the order of vertices): a cluster holds at
                most one record of each source.
            must_link: pairs that must be in one cluster, as must pairs of infinite positive weight.
            cannot_link: pairs that must not, as must not pairs of infinite negative weight.
            report: told the stage and figures worth showing while it works on the largest component.

        Raises:
            ValueError, TypeError: bad input or options, with what was expected; constraints that
                contradict each other, with the offending path.
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
        constraints = resolve_constraints(graph, must_link, cannot_link, sources)
        if constraints is None:
            return self._solve_parts(graph, report)
        small, offset = constraints.contract(graph)
        inner = self._solve_parts(small, report)
        labels = canonical_labels(constraints.mended(small, inner.labels)[constraints.group])
        cost = float(disagreements(graph, labels))
        return Clustering(labels, cost, inner.transversal, graph.ids, constraints, offset)

    def _solve_parts(
        self, graph: SignedGraph, report: Report | None, known: dict[bytes, Clustering] | None = None
    ) -> Clustering:
        """Solve each component that holds a negative pair; others are one cluster each.

        Args:
            graph: without constraints.
            report: for the largest component.
            known: components solved before, which are looked up here and added to.
        """
        parts = _open_components(graph)
        if len(parts) == 1 and len(parts[0]) == graph.n and known is None:
            return self._solve_part(graph, report)
        # a component is named by its first vertex, and so are clusters
        labels = np.unique(graph.components, return_index=True)[1][graph.components]
        largest = max(map(len, parts), default=0)
        found = []
        for members in parts:
            part = graph.induced(members)
            key = _fingerprint(members, part)
            solved = None if known is None else known.get(key)
            if solved is None:
                solved = self._solve_part(part, report if len(members) == largest else None)
            if known is not None:
                known[key] = solved
            first = np.unique(solved.labels, return_index=True)[1]
            labels[members] = members[first[solved.labels]]
            found.append((members, solved.transversal))
        labels = canonical_labels(labels)
        whole = join_transversals(graph, found, self.method)
        return Clustering(labels, float(disagreements(graph, labels)), whole, graph.ids)

    def _solve_part(self, graph: SignedGraph, report: Report | None) -> Clustering:
        seed = int(self.random_state)
        usual = self.rounding == "pivot32" and self.local_search and self.prune and self.runs > 0
        if usual and graph.n <= SMALL and self.method != "krivelevich" and self.lp == "auto":
            return solve_small(graph, seed)

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
        return better(graph, first, clusters(found)) if found.method != "disjoint" else first

    def fit(
        self,
        X: Any,
        y: Any = None,
        *,
        sources: Sources | None = None,
        must_link: Pairs | None = None,
        cannot_link: Pairs | None = None,
    ) -> CorrelationClustering:
        """Cluster ``X`` (see :meth:`solve`); ``y`` is ignored."""
        graph = as_signed_graph(X, missing=self.missing)
        found = self.solve(graph, sources=sources, must_link=must_link, cannot_link=cannot_link)
        return self._take(graph, found, found.labels)

    def _take(
        self, graph: SignedGraph, found: Clustering, labels: Int[np.ndarray, " n"]
    ) -> CorrelationClustering:
        self.graph_ = graph
        self.clustering_ = found
        self.labels_ = labels
        self.cost_ = found.cost
        self.lower_bound_ = found.lower_bound
        self.ratio_ = found.ratio
        if self.confidence:
            self.confidence_ = agreement(graph, labels)
        return self

    def partial_fit(
        self,
        positive: Pairs,
        negative: Pairs = (),
        *,
        positive_weight: Iterable[float] | None = None,
        negative_weight: Iterable[float] | None = None,
        ids: Iterable[Hashable] | None = None,
    ) -> CorrelationClustering:
        """Take new judgements, and solve again only the components that they touch.

        Clusters elsewhere keep their numbers in ``labels_``, and so does, of a cluster that changes, its
        largest part; ``changes_`` lists what merged, split and came. A pair judged before is judged anew. The
        first call is a fit.

        Args:
            positive: pairs now judged "same"; records may be new.
            negative: pairs now judged "different".
            positive_weight: as in :meth:`~icml_btt.signed_graph.SignedGraph.from_edges`.
            negative_weight: the same.
            ids: further records, without judgements.

        Raises:
            ValueError: after a fit with constraints; names after a fit with numbers, or the reverse.
        """
        edges = (positive, negative, positive_weight, negative_weight, ids)
        if not hasattr(self, "graph_"):
            graph = extended(None, *edges, missing=self.missing)[0]
            return self._take(graph, found := self.solve(graph), found.labels)
        if self.clustering_.constraints is not None:
            raise ValueError("constraints may reach any component: fit again with all judgements")
        graph, old, touched = extended(self.graph_, *edges, missing=self.missing)
        component = graph.components
        inside = np.isin(component, component[touched])
        members = np.flatnonzero(inside)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            part = self.solve(graph.induced(members))
        before = np.full(graph.n, -1, dtype=np.int64)
        before[old] = self.labels_
        labels, self.changes_ = renamed(before, members, part.labels)
        earlier = self.clustering_.transversal
        # What was found elsewhere still stands: no triangle there has changed.
        kept = replace(
            earlier,
            edges=earlier.edges[~inside[old[earlier.edges[:, 0]]]],
            packing=Packing(
                earlier.packing.triangles[(away := ~inside[old[earlier.packing.triangles[:, 0]]])],
                earlier.packing.values[away],
            ),
            lp_value=None,
            support=None,
        )
        whole = join_transversals(graph, [(old, kept), (members, part.transversal)], self.method)
        cost = float(disagreements(graph, canonical := canonical_labels(labels)))
        return self._take(graph, Clustering(canonical, cost, whole, graph.ids), labels)

    @property
    def review_(self) -> list[ReviewItem]:
        """Judgements that a person should look at, the most doubtful first (see :mod:`icml_btt.review`)."""
        if not hasattr(self, "graph_"):
            raise AttributeError("fit first")
        return review(self.graph_, self.clustering_)

    def path(
        self, similarity: Any, thresholds: Iterable[float], *, ids: Sequence[Hashable] | None = None
    ) -> list[Clustering]:
        """Cluster a similarity at many thresholds; components that do not change are solved once.

        Args:
            similarity: as in :meth:`~icml_btt.signed_graph.SignedGraph.from_similarity`.
            thresholds: "same" from here on, in any order.
            ids: a name for each row.

        Returns:
            For each threshold what :meth:`solve` gives.
        """
        known: dict[bytes, Clustering] = {}
        found = []
        for threshold in thresholds:
            graph = SignedGraph.from_similarity(similarity, threshold, missing=self.missing, ids=ids)
            found.append(self._solve_parts(graph, None, known))
        return found

    def __sklearn_tags__(self) -> Any:
        """Tell scikit-learn that rows and columns of the input are the same things."""
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = True
        tags.input_tags.sparse = True
        return tags
