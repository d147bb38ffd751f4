"""Transversals: sets of edges that hit every bad triangle, with a certified ratio to the cheapest one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float, Int, Int8

from icml_btt.krivelevich import krivelevich
from icml_btt.linear_program import (
    TRIANGLE_LIMIT,
    CoverSolution,
    Report,
    check_cover,
    check_triangle_count,
    mistakes,
    prefers_weights,
    solve_by,
)
from icml_btt.packing import Packing, maximal_packing
from icml_btt.pruning import prune_listed, prune_unlisted
from icml_btt.rounding import COVER_TOLERANCE, exact_lp_rule, threshold_rule
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.triangles import TriangleSystem, bad_triangles, count_bad_triangles

Method: TypeAlias = Literal["threshold", "exact_lp", "disjoint", "krivelevich"]
LP: TypeAlias = Literal["auto", "highs", "mwu"]


@dataclass(frozen=True, eq=False)
class Transversal:
    """Edges that hit every bad triangle.

    Attributes:
        edges: each with its smaller end first, in lexicographic order.
        sign: their signs.
        cost: their total weight.
        lower_bound: no transversal, and no clustering, costs less.
        packing: the bad triangles that prove the bound.
        method: the rule that was used in the end.
        lp_value: the optimum of the linear program, or None where it was not solved to the end.
        support: the edges with x > 0 in the fractional cover that was rounded, and x; None where none was.
    """

    edges: Int[np.ndarray, "edges 2"]
    sign: Int8[np.ndarray, " edges"]
    cost: float
    lower_bound: float
    packing: Packing
    method: Method
    lp_value: float | None
    support: tuple[Int[np.ndarray, "k 2"], Float[np.ndarray, " k"]] | None = None

    @property
    def ratio(self) -> float:
        """Certified: the cost is at most this many times that of the cheapest transversal."""
        return certified_ratio(self.cost, self.lower_bound)

    def keys(self, graph: SignedGraph) -> Int[np.ndarray, " edges"]:
        """The edges by number."""
        return graph.pair_key(self.edges[:, 0], self.edges[:, 1])

    def verify(self, graph: Any) -> None:
        """Accept the solution where it hits every bad triangle, and cost and bound are as stated.

        Raises:
            ValueError: says what is wrong.
        """
        graph = as_signed_graph(graph)
        u, v = self.edges.T
        if len(u) and (u.min() < 0 or v.max() >= graph.n or (u >= v).any()):
            raise ValueError(f"edges must be pairs u < v of the vertices 0, …, {graph.n - 1}")
        keys = self.keys(graph)
        if len(np.unique(keys)) != len(keys):
            raise ValueError("an edge is listed twice")
        if not np.array_equal(graph.signs_of(u, v), self.sign) or (self.sign == 0).any():
            raise ValueError("the signs are not those of the graph, or a pair is no edge")
        cost = math.fsum(graph.weights_of(keys))
        if not math.isclose(cost, self.cost, rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError(f"the edges cost {cost:.9g}, not {self.cost:.9g}")
        missed = bad_triangles(graph.without(keys), limit=1)
        if len(missed):
            names = tuple(graph.name(v) for v in missed[0])
            raise ValueError(f"bad triangle {names} is not hit")
        verify_bound(graph, self.packing, self.lower_bound)


def certified_ratio(cost: float, lower_bound: float) -> float:
    """How many times the optimum a solution can cost; 1 where it costs nothing."""
    if cost <= lower_bound:
        return 1.0
    return cost / lower_bound if lower_bound > 0 else math.inf


def proved_bound(graph: SignedGraph, packing: Packing) -> float:
    """The bound that a packing proves; where weights are integers, rounded up in each component.

    A bad triangle lies in one component along positive edges, and costs of components add up.
    """
    if not graph.integral or not len(packing.values):
        return packing.lower_bound(graph)
    component = graph.components[packing.triangles[:, 0]]
    total = np.bincount(component, weights=packing.values)
    return float(np.ceil(total - 1e-9 * np.maximum(total, 1.0)).sum())


def verify_bound(graph: SignedGraph, packing: Packing, lower_bound: float) -> None:
    """Refuse a bound that its packing does not prove.

    Raises:
        ValueError: says what is wrong.
    """
    packing.verify(graph)
    proved = proved_bound(graph, packing)
    if lower_bound > proved * (1 + 1e-9) + 1e-12:
        raise ValueError(f"the packing proves only {proved:.9g}, not {lower_bound:.9g}")


def transversal(
    graph: Any,
    method: Method = "threshold",
    *,
    lp: LP = "auto",
    eps: float = 0.05,
    prune: bool = True,
    time_limit: float | None = None,
    triangle_limit: int = TRIANGLE_LIMIT,
    missing: Missing = "negative",
    labels: Int[np.ndarray, " n"] | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> Transversal:
    """Find a cheap set of edges that hits every bad triangle.

    Args:
        graph: a SignedGraph, networkx graph, SciPy sparse array or square array.
        method: ``"threshold"`` (Algorithm 3, at most twice the optimum), ``"exact_lp"`` (Algorithm 2, at most
            twice), ``"disjoint"`` (a maximal packing, at most three times, needs no linear program),
            ``"krivelevich"`` (Algorithm 1, the baseline: at most twice, by many linear programs).
        lp: ``"highs"`` solves the linear program or fails; ``"mwu"`` approximates it by
            multiplicative weights, and the threshold rule rounds the cover; ``"auto"`` takes ``"mwu"`` where
            the triangles are more than ``triangle_limit``, up to ten times as many and with icml-kernels,
            else ``"disjoint"`` with a warning.
        eps: how close multiplicative weights come: the cover costs at most 1 + eps times the packing.
        prune: take back edges that are not needed.
        time_limit: for the linear program, in seconds. After it the threshold rule rounds the best cover
            found; the bound is then the best packing found.
        triangle_limit: how many bad triangles are listed at most.
        missing: what a pair is that a matrix or networkx graph does not hold.
        labels: a clustering. A good one makes the linear program faster; with ``prune``, its mistakes are
            returned where, pruned, they cost less (not by ``"disjoint"``).
        seed: of the packing's order.
        report: called with the stage and figures after each linear program.

    Raises:
        MemoryError: ``lp="highs"`` and more bad triangles than ``triangle_limit``.
        ValueError, TypeError: see :func:`~icml_btt.signed_graph.as_signed_graph`.

    Example:
        >>> from icml_btt import SignedGraph, transversal
        >>> transversal(SignedGraph.from_edges([(0, 1), (1, 2)])).cost
        1.0
    """
    graph = as_signed_graph(graph, missing=missing)
    check_options(method, lp)
    count = count_bad_triangles(graph) if method != "disjoint" and lp == "auto" else 0
    if method in ("threshold", "exact_lp") and prefers_weights(count, triangle_limit):
        lp = "mwu"
    elif count > triangle_limit:
        warnings.warn(
            f"{count} bad triangles are more than triangle_limit={triangle_limit}: "
            "a maximal packing replaces the linear program",
            RuntimeWarning,
            stacklevel=2,
        )
        method = "disjoint"
    if method == "disjoint":
        return _disjoint(graph, prune, seed)
    if lp != "mwu" or method == "krivelevich":
        check_triangle_count(graph, triangle_limit)
    system = TriangleSystem.of(graph)
    if method == "krivelevich":
        options: Any = {"labels": labels, "time_limit": time_limit, "seed": seed, "report": report}
        chosen, cover, _ = krivelevich(graph, system, **options)
        if prune:
            chosen = _pruned(graph, system, chosen, cover, labels)
        value = cover.value if cover.status == "optimal" else None
        return assembled(graph, system.keys[chosen], cover.packing, method, value, _support(cover))
    cover = solve_by(
        "mwu" if lp == "mwu" else "highs",
        graph,
        system,
        eps=eps,
        labels=labels,
        time_limit=time_limit,
        seed=seed,
        report=report,
    )
    return round_cover(graph, cover, method, prune=prune, labels=labels, system=system)


def check_options(method: str, lp: str) -> None:
    """Refuse a method or treatment of the linear program that there is not.

    Raises:
        ValueError: names those there are.
    """
    if method not in get_args(Method):
        raise ValueError(f"method={method!r}; expected one of {', '.join(get_args(Method))}")
    if lp not in get_args(LP):
        raise ValueError(f"lp={lp!r}; expected 'auto', 'highs' or 'mwu'")


def round_cover(
    graph: SignedGraph,
    cover: CoverSolution,
    method: Literal["threshold", "exact_lp"] = "threshold",
    *,
    prune: bool = True,
    labels: Int[np.ndarray, " n"] | None = None,
    system: TriangleSystem | None = None,
) -> Transversal:
    """Round a fractional cover of the bad triangles to a transversal.

    Args:
        graph: the signed graph.
        cover: a solution of the linear program, or one whose ``x`` was replaced by another cover.
        method: as in :func:`transversal`; a cover that is not optimal is rounded by ``"threshold"``.
        prune: take back edges that are not needed.
        labels: a clustering whose mistakes, pruned, are an alternative.
        system: the bad triangles of ``graph``, where they are at hand.

    Raises:
        ValueError: x leaves a bad triangle uncovered (names it), or is not of the edges in bad triangles.
    """
    system = TriangleSystem.of(graph) if system is None else system
    if not np.array_equal(cover.edges, graph.pair_ends(system.keys)) or len(cover.x) != len(system.keys):
        raise ValueError("the cover is not one of this graph: its edges must be those in a bad triangle")
    check_cover(graph, system, cover.x)
    optimal = cover.status == "optimal"
    if method == "exact_lp" and not optimal:
        method = "threshold"
    rule = exact_lp_rule if method == "exact_lp" else threshold_rule
    chosen: Bool[np.ndarray, " edges"] = rule(system, cover.x)
    if prune:
        chosen = _pruned(graph, system, chosen, cover, labels)
    value = cover.value if optimal else None
    return assembled(graph, system.keys[chosen], cover.packing, method, value, _support(cover))


def _support(cover: CoverSolution) -> tuple[Int[np.ndarray, "k 2"], Float[np.ndarray, " k"]]:
    dropped = cover.x > COVER_TOLERANCE
    return cover.edges[dropped], cover.x[dropped]


def _pruned(
    graph: SignedGraph,
    system: TriangleSystem,
    chosen: Bool[np.ndarray, " edges"],
    cover: CoverSolution,
    labels: Int[np.ndarray, " n"] | None,
) -> Bool[np.ndarray, " edges"]:
    """What is needed of the edges chosen, or of a clustering's mistakes where those cost less."""
    chosen = prune_listed(system, chosen, cover.x)
    if labels is None:
        return chosen
    other = prune_listed(system, mistakes(graph, system, labels), cover.x)
    return min(chosen, other, key=lambda edges: system.weight @ edges)


def join_transversals(
    graph: SignedGraph, parts: Sequence[tuple[Int[np.ndarray, " k"], Transversal]], method: Method
) -> Transversal:
    """Put together the transversals of disjoint sets of vertices that no bad triangle crosses.

    Args:
        graph: the whole graph.
        parts: the vertices of each, in increasing order, with the transversal of the graph on them.
        method: named where some part was found by it, else ``"disjoint"``.
    """
    edges = [np.zeros((0, 2), dtype=np.int64), *(members[found.edges] for members, found in parts)]
    triangles = [np.zeros((0, 3), dtype=np.int64)]
    triangles += [members[found.packing.triangles] for members, found in parts]
    values = [np.zeros(0), *(found.packing.values for _, found in parts)]
    packing = Packing(np.concatenate(triangles), np.concatenate(values))
    known = [found.lp_value for _, found in parts]
    value = None if not known or None in known else math.fsum(v for v in known if v is not None)
    used: Method = method if any(found.method == method for _, found in parts) else "disjoint"
    ends = np.concatenate(edges)
    supports = [(members[s[0]], s[1]) for members, found in parts if (s := found.support) is not None]
    support = None
    if supports:
        support = (np.concatenate([s[0] for s in supports]), np.concatenate([s[1] for s in supports]))
    return assembled(graph, graph.pair_key(ends[:, 0], ends[:, 1]), packing, used, value, support)


def _disjoint(graph: SignedGraph, pruned: bool, seed: int) -> Transversal:
    packing, keys = maximal_packing(graph, seed)
    if pruned:
        keys = prune_unlisted(graph, keys)
    return assembled(graph, keys, packing, "disjoint", None)


def assembled(
    graph: SignedGraph,
    keys: Int[np.ndarray, " edges"],
    packing: Packing,
    method: Method,
    lp_value: float | None,
    support: tuple[Int[np.ndarray, "k 2"], Float[np.ndarray, " k"]] | None = None,
) -> Transversal:
    """A transversal from edges by number and the packing that bounds it; they are not checked."""
    keys = np.sort(keys)
    edges = graph.pair_ends(keys)
    return Transversal(
        edges=edges,
        sign=graph.signs_of(edges[:, 0], edges[:, 1]),
        cost=math.fsum(graph.weights_of(keys)),
        lower_bound=proved_bound(graph, packing),
        packing=packing,
        method=method,
        lp_value=lp_value,
        support=support,
    )


class BadTriangleTransversal:
    """Solver of the transversal problem; its options are those of :func:`transversal`.

    With ``prune`` it also clusters the graph, since the mistakes of a good clustering, pruned, are often the
    cheaper transversal.

    Example:
        >>> from icml_btt import BadTriangleTransversal, SignedGraph
        >>> BadTriangleTransversal().solve(SignedGraph.from_edges([(0, 1), (1, 2)])).ratio
        1.0
    """

    def __init__(
        self,
        method: Method = "threshold",
        *,
        lp: LP = "auto",
        eps: float = 0.05,
        prune: bool = True,
        time_limit: float | None = None,
        triangle_limit: int = TRIANGLE_LIMIT,
        missing: Missing = "negative",
        seed: int = 0,
    ) -> None:
        self.options: dict[str, Any] = {
            "method": method,
            "lp": lp,
            "eps": eps,
            "prune": prune,
            "time_limit": time_limit,
            "triangle_limit": triangle_limit,
            "missing": missing,
            "seed": seed,
        }

    def solve(self, graph: Any) -> Transversal:
        """Find a transversal of ``graph`` (see :func:`transversal`)."""
        from icml_btt.clusters import round_transversal

        graph = as_signed_graph(graph, missing=self.options["missing"])
        labels = None
        if self.options["prune"] and self.options["method"] != "disjoint":
            seed = self.options["seed"]
            labels = round_transversal(graph, transversal(graph, "disjoint", seed=seed), seed=seed).labels
        return transversal(graph, labels=labels, **self.options)
