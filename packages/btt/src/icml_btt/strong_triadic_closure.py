"""Strong and weak ties: the fewest edges to call weak so that no open wedge is strong on both sides (MinSTC).

Of the positive edges, each open wedge a–c–b (a–b is no positive edge) needs a weak one: a bad triangle
transversal whose negative edges may not be chosen. It is a vertex cover of the graph whose vertices are the
positive edges and whose edges are the open wedges, so the linear program has an optimum in {0, ½, 1}, found
by one maximum flow, and choosing x ≥ ½ costs at most twice as much.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Int

from icml_btt.half_integral import half_integral_cover
from icml_btt.linear_program import TRIANGLE_LIMIT
from icml_btt.packing import Packing, pack_rows
from icml_btt.pruning import prune_listed
from icml_btt.signed_graph import SignedGraph, as_signed_graph
from icml_btt.transversals import certified_ratio, proved_bound
from icml_btt.triangles import TriangleSystem, count_bad_triangles

TieMethod: TypeAlias = Literal["lp", "matching"]

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class StrongTies:
    """Which positive edges are weak.

    Attributes:
        edges: the positive edges, each with its smaller end first, in lexicographic order.
        weak: which of them are weak.
        cost: total weight of the weak ones.
        lower_bound: no labelling costs less.
        packing: the open wedges that prove the bound.
        method: the rule that was used.
        lp_value: optimum of the linear program, or None where it was not solved.
        ids: names of the vertices, or None where they are numbers.
    """

    edges: Int[np.ndarray, "edges 2"]
    weak: Bool[np.ndarray, " edges"]
    cost: float
    lower_bound: float
    packing: Packing
    method: TieMethod
    lp_value: float | None
    ids: tuple[Hashable, ...] | None

    @property
    def ratio(self) -> float:
        """Certified: the cost is at most this many times the least."""
        return certified_ratio(self.cost, self.lower_bound)

    def as_dict(self) -> dict[tuple[Hashable, Hashable], str]:
        """``"strong"`` or ``"weak"`` for each positive edge, by the names of its ends."""
        names = (lambda v: v) if self.ids is None else self.ids.__getitem__
        return {
            (names(u), names(v)): "weak" if weak else "strong"
            for (u, v), weak in zip(self.edges.tolist(), self.weak.tolist(), strict=True)
        }

    def verify(self, graph: Any) -> None:
        """Accept the labelling where every open wedge has a weak edge, and cost and bound are as stated.

        Raises:
            ValueError: says what is wrong.
        """
        whole = positive_part(as_signed_graph(graph))
        if not np.array_equal(self.edges, whole.ends) or self.weak.shape != (len(whole.ends),):
            raise ValueError("the edges are not the positive edges of the graph")
        cost = math.fsum(whole.weight[self.weak])
        if not math.isclose(cost, self.cost, rel_tol=1e-9, abs_tol=1e-12):
            raise ValueError(f"the weak edges cost {cost:.9g}, not {self.cost:.9g}")
        system = TriangleSystem.of(whole)
        weak = np.isin(system.keys, whole.keys[self.weak])
        missed = np.flatnonzero(~weak[system.rows[:, 1:]].any(axis=1))
        if len(missed):
            names = tuple(whole.name(v) for v in system.triangles[missed[0]])
            raise ValueError(f"both edges of the open wedge {names}, centre first, are strong")
        verify_wedge_bound(whole, self.packing, self.lower_bound)


def positive_part(graph: SignedGraph) -> SignedGraph:
    """The positive edges with their weights; every other pair, judged or not, is a negative edge."""
    chosen = graph.sign > 0
    return SignedGraph(
        graph.n, graph.ends[chosen], graph.sign[chosen], graph.weight[chosen], "negative", graph.ids
    )


def verify_wedge_bound(graph: SignedGraph, packing: Packing, lower_bound: float) -> None:
    """Refuse a bound that open wedges, loading no positive edge beyond its weight, do not prove.

    Args:
        graph: a graph from :func:`positive_part`.
        packing: wedges ``(centre, a, b)`` with values.
        lower_bound: what they should prove.

    Raises:
        ValueError: says what is wrong.
    """
    values, triangles = packing.values, packing.triangles
    if triangles.shape != (len(values), 3) or not (np.isfinite(values) & (values >= 0)).all():
        raise ValueError("the packing must give each wedge a finite number >= 0")
    if len(values):
        if triangles.min() < 0 or triangles.max() >= graph.n:
            raise ValueError(f"the packing names a vertex outside 0, …, {graph.n - 1}")
        centre, a, b = triangles.T
        if (np.minimum(graph.signs_of(centre, a), graph.signs_of(centre, b)) <= 0).any():
            raise ValueError("the packing names a wedge with an edge that is not positive")
        if (graph.signs_of(a, b) >= 0).any() or (a == b).any():
            raise ValueError("the packing names a wedge that is not open")
        keys, place = np.unique(
            np.concatenate([graph.pair_key(centre, a), graph.pair_key(centre, b)]), return_inverse=True
        )
        load = np.bincount(place.ravel(), weights=np.tile(values, 2))
        if (load > graph.weights_of(keys) * (1 + _ROUNDING)).any():
            raise ValueError("the packing loads an edge beyond its weight")
    proved = proved_bound(graph, packing)
    if lower_bound > proved * (1 + _ROUNDING) + 1e-12:
        raise ValueError(f"the packing proves only {proved:.9g}, not {lower_bound:.9g}")


def minstc(
    graph: Any,
    method: TieMethod = "lp",
    *,
    prune: bool = True,
    triangle_limit: int = TRIANGLE_LIMIT,
    seed: int = 0,
) -> StrongTies:
    """Label positive edges strong or weak, so that two strong edges a–c, c–b imply an edge a–b.

    Args:
        graph: a SignedGraph, networkx graph, SciPy sparse array or square array. Only positive edges matter;
            an edge of an unsigned graph is positive.
        method: ``"lp"`` rounds the linear program (at most twice its value), ``"matching"`` takes the edges
            of a maximal packing of wedges (at most twice, too, and near-linear, with a weaker bound).
        prune: take back weak labels that are not needed.
        triangle_limit: how many open wedges are listed at most.
        seed: of the order of the packing.

    Raises:
        MemoryError: more open wedges than ``triangle_limit``.
        ValueError, TypeError: see :func:`~icml_btt.signed_graph.as_signed_graph`.

    Example:
        >>> from icml_btt import minstc
        >>> import networkx as nx
        >>> minstc(nx.path_graph(4)).as_dict()
        {(0, 1): 'strong', (1, 2): 'weak', (2, 3): 'strong'}
    """
    whole = positive_part(as_signed_graph(graph))
    if method not in get_args(TieMethod):
        raise ValueError(f"method={method!r}; expected 'lp' or 'matching'")
    if (count := count_bad_triangles(whole)) > triangle_limit:
        raise MemoryError(f"{count} open wedges are more than triangle_limit={triangle_limit}; raise it")
    system = TriangleSystem.of(whole)
    positive = system.sign > 0
    x, y = np.zeros(len(positive)), np.zeros(len(system.rows))
    value = None
    if method == "matching":
        # Negative edges can bear any load, so only positive ones are ever full.
        residual = np.where(positive, system.weight, np.inf)
        y = pack_rows(system.rows, residual, np.random.default_rng(seed))
        chosen = positive & (residual <= 0)
    else:
        wedges = (np.cumsum(positive) - 1)[system.rows[:, 1:]]
        cover = half_integral_cover(int(positive.sum()), wedges, system.weight[positive])
        x[positive], y, value = cover.x, cover.y, cover.value
        chosen = x >= 0.5
    if prune:
        chosen = prune_listed(system, chosen, x)
    heavy = np.flatnonzero(y > 0)
    packing = Packing(system.triangles[heavy], y[heavy])
    weak = np.isin(whole.keys, system.keys[chosen])
    return StrongTies(
        edges=whole.ends,
        weak=weak,
        cost=math.fsum(whole.weight[weak]),
        lower_bound=proved_bound(whole, packing),
        packing=packing,
        method=method,
        lp_value=value,
        ids=whole.ids,
    )


class StrongTriadicClosure:
    """Solver that labels ties; its options are those of :func:`minstc`.

    Example:
        >>> from icml_btt import SignedGraph, StrongTriadicClosure
        >>> StrongTriadicClosure().solve(SignedGraph.from_edges([(0, 1), (1, 2)])).cost
        1.0
    """

    def __init__(
        self,
        method: TieMethod = "lp",
        *,
        prune: bool = True,
        triangle_limit: int = TRIANGLE_LIMIT,
        seed: int = 0,
    ) -> None:
        self.options: dict[str, Any] = {
            "method": method,
            "prune": prune,
            "triangle_limit": triangle_limit,
            "seed": seed,
        }

    def solve(self, graph: Any) -> StrongTies:
        """Label the positive edges of ``graph`` (see :func:`minstc`)."""
        return minstc(graph, **self.options)
