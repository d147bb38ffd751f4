"""Exact optima of small instances by integer programming: the yardstick for everything else.

Transversals: one 0/1 variable for each edge in a bad triangle, one row for each triangle. Clusterings: one
0/1 variable "apart" for each pair of vertices, with the triangle inequalities ``x_uw ≤ x_uv + x_vw``, which
are added as solutions violate them. HiGHS solves both.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, linprog, milp
from scipy.sparse import csgraph

from icml_btt.clustering import round_transversal
from icml_btt.cost import canonical_labels, disagreements
from icml_btt.linear_program import check_triangle_count
from icml_btt.local_search import local_moves
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.transversals import BadTriangleTransversal, certified_ratio, transversal
from icml_btt.triangles import TriangleSystem, bad_triangles

Problem: TypeAlias = Literal["btt", "cc"]

_TRIANGLE_LIMIT = 200_000
_VERTEX_LIMIT = 300  # of one component; 45,000 pairs
_VIOLATED = 1e-6


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best solution found, and the best bound proved.

    Attributes:
        problem: ``"btt"`` or ``"cc"``.
        cost: of the solution.
        bound: no solution costs less.
        status: ``"optimal"`` where the two are equal, else ``"time limit"``.
        edges: (``"btt"``) the transversal, else None.
        labels: (``"cc"``) the cluster of each vertex, else None.
    """

    problem: Problem
    cost: float
    bound: float
    status: Literal["optimal", "time limit"]
    edges: Int[np.ndarray, "edges 2"] | None = None
    labels: Int[np.ndarray, " n"] | None = None

    @property
    def ratio(self) -> float:
        """Proved: the cost is at most this many times the optimum."""
        return certified_ratio(self.cost, self.bound)

    def verify(self, graph: Any) -> None:
        """Accept the solution where it is one, costs what it says, and is called optimal only if proved.

        The bound itself is HiGHS' word: proving it again takes as long as solving.

        Raises:
            ValueError: says what is wrong.
        """
        graph = as_signed_graph(graph)
        if self.problem == "cc":
            if self.labels is None:
                raise ValueError("a solution of 'cc' has labels")
            cost = float(disagreements(graph, self.labels))
        else:
            if self.edges is None:
                raise ValueError("a solution of 'btt' has edges")
            keys = graph.pair_key(self.edges[:, 0], self.edges[:, 1])
            missed = bad_triangles(graph.without(keys), limit=1)
            if len(missed):
                names = tuple(graph.name(v) for v in missed[0])
                raise ValueError(f"bad triangle {names} is not hit")
            cost = math.fsum(graph.weights_of(keys))
        if not math.isclose(cost, self.cost, rel_tol=1e-9, abs_tol=1e-9):
            raise ValueError(f"the solution costs {cost:.9g}, not {self.cost:.9g}")
        if self.bound > self.cost + _slack(self.cost):
            raise ValueError(f"the bound {self.bound:.9g} is above the cost {self.cost:.9g}")
        if (self.status == "optimal") != (self.bound >= self.cost - _slack(self.cost)):
            raise ValueError(f"status {self.status!r} with cost {self.cost:.9g} and bound {self.bound:.9g}")


class ExactOptimum:
    """Solver of small instances to proven optimality.

    Args:
        problem: ``"cc"`` (clusters) or ``"btt"`` (transversal).
        time_limit: in seconds; after it the solution is the best found, with the bound proved so far.
        missing: what a pair is that a matrix or networkx graph does not hold.
        seed: of the heuristic that gives the first solution.

    Example:
        >>> from icml_btt import ExactOptimum, SignedGraph
        >>> ExactOptimum("cc").solve(SignedGraph.from_edges([(0, 1), (1, 2), (2, 3)])).cost
        1.0
    """

    def __init__(
        self,
        problem: Problem = "cc",
        *,
        time_limit: float = 60.0,
        missing: Missing = "negative",
        seed: int = 0,
    ) -> None:
        if problem not in get_args(Problem):
            raise ValueError(f"problem={problem!r}; expected 'btt' or 'cc'")
        self.problem = problem
        self.time_limit = time_limit
        self.missing = missing
        self.seed = seed

    def solve(self, graph: Any) -> Optimum:
        """Solve ``graph``: a SignedGraph, networkx graph, sparse or square array.

        Raises:
            MemoryError: too large for this program.
            ValueError, TypeError: see :func:`~icml_btt.signed_graph.as_signed_graph`.
        """
        graph = as_signed_graph(graph, missing=self.missing)
        solve = optimal_clustering if self.problem == "cc" else optimal_transversal
        return solve(graph, time_limit=self.time_limit, seed=self.seed)


def optimal_transversal(graph: SignedGraph, *, time_limit: float = 60.0, seed: int = 0) -> Optimum:
    """Find a cheapest transversal, or as good a one as time allows.

    Raises:
        MemoryError: more than 200,000 bad triangles.
    """
    deadline = time.perf_counter() + time_limit
    check_triangle_count(graph, _TRIANGLE_LIMIT)
    system = TriangleSystem.of(graph)
    first = BadTriangleTransversal(time_limit=time_limit / 2, seed=seed).solve(graph)
    edges, cost, bound = first.edges, first.cost, first.lower_bound
    if len(system.rows) and bound < cost:
        count = len(system.rows)
        result = milp(
            system.weight,
            integrality=np.ones(len(system.weight), dtype=np.int64),
            bounds=Bounds(0, 1),
            constraints=LinearConstraint(sparse.csr_array(system.incidence.T), np.ones(count), np.inf),
            options={"time_limit": max(deadline - time.perf_counter(), 0.01), "mip_rel_gap": 0.0},
        )
        _check_result(result)
        if result.x is not None and system.weight @ (result.x > 0.5) < cost:
            edges = graph.pair_ends(system.keys[result.x > 0.5])
            cost = math.fsum(system.weight[result.x > 0.5])
        bound = max(bound, _proved(result, cost))
    return _optimum(graph, "btt", cost, bound, edges=edges)


def optimal_clustering(graph: SignedGraph, *, time_limit: float = 60.0, seed: int = 0) -> Optimum:
    """Find a cheapest clustering, or as good a one as time allows; components are solved one by one.

    Raises:
        MemoryError: a component along positive edges of more than 300 vertices.
    """
    deadline = time.perf_counter() + time_limit
    component = graph.components
    sizes = np.bincount(component, minlength=1)
    if sizes.max() > _VERTEX_LIMIT:
        raise MemoryError(
            f"a component has {sizes.max()} vertices; the integer program is for at most {_VERTEX_LIMIT}: "
            "use CorrelationClustering, which certifies how far from optimal it can be"
        )
    first = round_transversal(graph, transversal(graph, "disjoint", seed=seed), seed=seed)
    labels = first.labels.copy()
    bound = 0.0
    for index in np.flatnonzero(sizes > 2):
        members = np.flatnonzero(component == index)
        part = _induced(graph, members)
        solved, proved = _solve_component(part, canonical_labels(labels[members]), deadline)
        # Numbers of clusters are vertices, so those of two components never meet.
        labels[members] = graph.n + members[_first_members(solved)]
        bound += proved
    labels = canonical_labels(labels)
    bound = max(bound, first.lower_bound)
    return _optimum(graph, "cc", float(disagreements(graph, labels)), bound, labels=labels)


def _solve_component(
    graph: SignedGraph, labels: Int[np.ndarray, " n"], deadline: float
) -> tuple[Int[np.ndarray, " n"], float]:
    """The best clustering of a connected graph that was found, and the bound proved."""
    u, v = np.triu_indices(graph.n, 1)
    sign = graph.signs_of(u, v)
    weight = graph.weights_of(graph.pair_key(u, v))
    # Apart costs w where positive and saves w where negative.
    price = sign * weight
    constant = float(weight[sign < 0].sum())
    position = np.zeros((graph.n, graph.n), dtype=np.int64)
    position[u, v] = position[v, u] = np.arange(len(u))
    cuts = np.zeros((0, 3), dtype=np.int64)
    cost = float(disagreements(graph, labels))
    bound = 0.0
    fractional = True
    while bound < cost - _slack(cost) and (left := deadline - time.perf_counter()) > 0:
        result = _solve_cuts(price, cuts, fractional, left)
        proved = constant + (result.fun if fractional and result.status == 0 else _dual_bound(result))
        bound = max(bound, _rounded_up(graph, proved))
        if result.x is None or (fractional and result.status != 0):
            break
        apart = result.x[position]
        np.fill_diagonal(apart, 0.0)
        joined = csgraph.connected_components(apart < 0.5, directed=False)[1].astype(np.int64)
        better = local_moves(graph, joined)
        if (improved := float(disagreements(graph, better))) < cost:
            labels, cost = better, improved
        fresh = _violated(apart, position)
        if not len(fresh) and not fractional:
            break
        # Fractional solutions find most of the rows that matter, before integers are asked for.
        fractional = fractional and len(fresh) > 0
        cuts = np.concatenate([cuts, fresh])
    return labels, min(bound, cost)


def _solve_cuts(
    price: Float[np.ndarray, " pairs"], cuts: Int[np.ndarray, "rows 3"], fractional: bool, seconds: float
) -> OptimizeResult:
    """Minimise the price subject to ``x_i − x_j − x_k ≤ 0`` for each row (i, j, k) and 0 ≤ x ≤ 1."""
    count = len(cuts)
    signs = np.tile([1.0, -1.0, -1.0], count)
    matrix = sparse.csr_array(
        (signs, cuts.ravel(), np.arange(0, 3 * count + 1, 3)), shape=(count, len(price))
    )
    if fractional:
        rows: Any = {"A_ub": matrix, "b_ub": np.zeros(count)} if count else {}
        return linprog(price, bounds=(0, 1), method="highs", options={"time_limit": seconds}, **rows)
    result = milp(
        price,
        integrality=np.ones(len(price), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, -np.inf, np.zeros(count)) if count else None,
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    _check_result(result)
    return result


def _violated(apart: Float[np.ndarray, "n n"], position: Int[np.ndarray, "n n"]) -> Int[np.ndarray, "rows 3"]:
    """For each pair u, w the most violated inequality ``x_uw ≤ x_uv + x_vw``, where there is one."""
    detour = np.full(apart.shape, np.inf)
    by_way_of = np.zeros(apart.shape, dtype=np.int64)
    for middle in range(len(apart)):
        length = apart[:, middle, None] + apart[middle]
        length[middle, :] = length[:, middle] = np.inf
        shorter = length < detour
        detour[shorter] = length[shorter]
        by_way_of[shorter] = middle
    u, w = np.nonzero(np.triu(apart - detour > _VIOLATED, 1))
    v = by_way_of[u, w]
    return np.stack([position[u, w], position[u, v], position[v, w]], axis=1)


def _induced(graph: SignedGraph, members: Int[np.ndarray, " k"]) -> SignedGraph:
    """The graph on some of the vertices, renumbered 0, 1, … in the same order."""
    number = np.full(graph.n, -1, dtype=np.int64)
    number[members] = np.arange(len(members))
    ends = number[graph.ends]
    inside = (ends >= 0).all(axis=1)
    return SignedGraph(
        len(members), ends[inside], graph.sign[inside], graph.weight[inside], graph.missing, None
    )


def _first_members(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The first vertex of each vertex's cluster."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


def _check_result(result: OptimizeResult) -> None:
    """Refuse anything but an optimum (0) or the end of time (1)."""
    if result.status not in (0, 1):
        raise RuntimeError(f"HiGHS did not solve the integer program: {result.message}")


def _dual_bound(result: OptimizeResult) -> float:
    proved = getattr(result, "mip_dual_bound", None)
    return -math.inf if proved is None else float(proved)


def _proved(result: OptimizeResult, cost: float) -> float:
    return cost if result.status == 0 else _dual_bound(result)


def _rounded_up(graph: SignedGraph, bound: float) -> float:
    """The bound, rounded up where all costs are integers."""
    if not graph.integral or not math.isfinite(bound):
        return bound
    return float(math.ceil(bound - _slack(bound)))


def _slack(cost: float) -> float:
    """Costs closer than this are equal: HiGHS' tolerance."""
    return 1e-6 * max(1.0, abs(cost))


def _optimum(graph: SignedGraph, problem: Problem, cost: float, bound: float, **solution: Any) -> Optimum:
    bound = min(_rounded_up(graph, bound), cost)
    status: Literal["optimal", "time limit"] = "optimal" if bound >= cost - _slack(cost) else "time limit"
    return Optimum(problem, cost, bound, status, **solution)
