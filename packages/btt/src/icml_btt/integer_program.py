"""Exact optima of small instances by integer programming: the yardstick for everything else.

Transversals: one 0/1 variable for each edge in a bad triangle, one row for each triangle. Clusterings: one
0/1 variable "apart" for each pair of vertices, with the triangle inequalities ``x_uw ≤ x_uv + x_vw``, which
are added as solutions violate them. Cliques (cluster deletion): the same, where pairs that are not positive
are apart to begin with. Weak ties (MinSTC): a 0/1 variable for each positive edge, a row for each open wedge.
HiGHS solves all, or CP-SAT where OR-Tools is installed.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.optimize import linprog
from scipy.sparse import csgraph

from icml_btt.binary_program import Backend, check_backend, solve_binary
from icml_btt.clique_partition import check_cliques, cluster_deletion
from icml_btt.clusters import round_transversal
from icml_btt.cost import canonical_labels, disagreements
from icml_btt.linear_program import check_triangle_count
from icml_btt.local_search import local_moves
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.strong_triadic_closure import minstc, positive_part
from icml_btt.transversals import BadTriangleTransversal, certified_ratio, transversal
from icml_btt.triangles import TriangleSystem, bad_triangles

Problem: TypeAlias = Literal["btt", "cc", "cd", "minstc"]

_TRIANGLE_LIMIT = 200_000
_VERTEX_LIMIT = 300  # of one component; 45,000 pairs
_VIOLATED = 1e-6


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best solution found, and the best bound proved.

    Attributes:
        problem: ``"btt"``, ``"cc"``, ``"cd"`` or ``"minstc"``.
        cost: of the solution.
        bound: no solution costs less.
        status: ``"optimal"`` where the two are equal, else ``"time limit"``.
        edges: (``"btt"``, ``"minstc"``) the transversal, or the weak edges; else None.
        labels: (``"cc"``, ``"cd"``) the cluster of each vertex, else None.
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

        The bound itself is the solver's word: proving it again takes as long as solving.

        Raises:
            ValueError: says what is wrong.
        """
        graph = as_signed_graph(graph)
        if self.problem in ("cd", "minstc"):
            graph = positive_part(graph)
        if self.problem in ("cc", "cd"):
            if self.labels is None:
                raise ValueError(f"a solution of {self.problem!r} has labels")
            cost = float(disagreements(graph, self.labels))
            if self.problem == "cd":
                check_cliques(graph, self.labels)
        else:
            if self.edges is None:
                raise ValueError(f"a solution of {self.problem!r} has edges")
            keys = graph.pair_key(self.edges[:, 0], self.edges[:, 1])
            if self.problem == "minstc" and (graph.signs_of(*self.edges.T) <= 0).any():
                raise ValueError("only positive edges can be weak")
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
        problem: ``"cc"`` (clusters), ``"btt"`` (transversal), ``"cd"`` (cliques) or ``"minstc"`` (weak ties).
        backend: ``"highs"``, or ``"cpsat"`` (OR-Tools) for the integer programs.
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
        backend: Backend = "highs",
        time_limit: float = 60.0,
        missing: Missing = "negative",
        seed: int = 0,
    ) -> None:
        if problem not in get_args(Problem):
            raise ValueError(f"problem={problem!r}; expected 'btt', 'cc', 'cd' or 'minstc'")
        check_backend(backend)
        self.problem: Problem = problem
        self.backend: Backend = backend
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
        solve = {
            "btt": optimal_transversal,
            "cc": optimal_clustering,
            "cd": optimal_cliques,
            "minstc": optimal_ties,
        }[self.problem]
        return solve(graph, time_limit=self.time_limit, backend=self.backend, seed=self.seed)


def exact(
    graph: Any,
    problem: Problem = "btt",
    *,
    time_limit: float = 60.0,
    backend: Backend = "highs",
    missing: Missing = "negative",
    seed: int = 0,
) -> Optimum:
    """Solve a small instance to optimality, or say how close it came (see :class:`ExactOptimum`)."""
    solver = ExactOptimum(problem, backend=backend, time_limit=time_limit, missing=missing, seed=seed)
    return solver.solve(graph)


def optimal_transversal(
    graph: SignedGraph, *, time_limit: float = 60.0, backend: Backend = "highs", seed: int = 0
) -> Optimum:
    """Find a cheapest transversal, or as good a one as time allows.

    Raises:
        MemoryError: more than 200,000 bad triangles.
    """
    deadline = time.perf_counter() + time_limit
    check_triangle_count(graph, _TRIANGLE_LIMIT)
    first = BadTriangleTransversal(time_limit=time_limit / 2, seed=seed).solve(graph)
    system = TriangleSystem.of(graph)
    start = (first.keys(graph), first.cost, first.lower_bound)
    return _optimal_cover(graph, "btt", system, system.rows, start, deadline, backend, seed)


def optimal_ties(
    graph: SignedGraph, *, time_limit: float = 60.0, backend: Backend = "highs", seed: int = 0
) -> Optimum:
    """Find a cheapest labelling of ties, or as good a one as time allows.

    Raises:
        MemoryError: more than 200,000 open wedges.
    """
    deadline = time.perf_counter() + time_limit
    whole = positive_part(graph)
    check_triangle_count(whole, _TRIANGLE_LIMIT)
    first = minstc(whole, seed=seed)
    system = TriangleSystem.of(whole)
    start = (whole.keys[first.weak], first.cost, first.lower_bound)
    return _optimal_cover(whole, "minstc", system, system.rows[:, 1:], start, deadline, backend, seed)


def _optimal_cover(
    graph: SignedGraph,
    problem: Problem,
    system: TriangleSystem,
    rows: Int[np.ndarray, "triangles k"],
    start: tuple[Int[np.ndarray, " edges"], float, float],
    deadline: float,
    backend: Backend,
    seed: int,
) -> Optimum:
    """The cheapest edges such that every row has one, from edges, cost and bound at hand."""
    keys, cost, bound = start
    if len(rows) and bound < cost:
        columns, place = np.unique(rows, return_inverse=True)
        count, width = rows.shape
        matrix = sparse.csr_array(
            (np.ones(place.size), place.ravel(), np.arange(0, place.size + 1, width)),
            shape=(count, len(columns)),
        )
        weight = system.weight[columns]
        left = deadline - time.perf_counter()
        found = solve_binary(weight, matrix, np.ones(count), backend=backend, seconds=left, seed=seed)
        if found.x is not None and weight @ found.x < cost:
            keys = system.keys[columns[found.x]]
            cost = math.fsum(weight[found.x])
        bound = max(bound, cost if found.optimal else found.bound)
    return _optimum(graph, problem, cost, bound, edges=graph.pair_ends(np.sort(keys)))


def optimal_clustering(
    graph: SignedGraph, *, time_limit: float = 60.0, backend: Backend = "highs", seed: int = 0
) -> Optimum:
    """Find a cheapest clustering, or as good a one as time allows; components are solved one by one.

    Raises:
        MemoryError: a component along positive edges of more than 300 vertices.
    """
    _check_components(graph)
    first = round_transversal(graph, transversal(graph, "disjoint", seed=seed), seed=seed)
    start = (first.labels, first.lower_bound)
    return _optimal_partition(graph, "cc", start, time.perf_counter() + time_limit, backend, seed)


def optimal_cliques(
    graph: SignedGraph, *, time_limit: float = 60.0, backend: Backend = "highs", seed: int = 0
) -> Optimum:
    """Find a cheapest partition into cliques of positive edges, or as good a one as time allows.

    Raises:
        MemoryError: a component along positive edges of more than 300 vertices.
    """
    deadline = time.perf_counter() + time_limit
    whole = positive_part(graph)
    _check_components(whole)
    first = cluster_deletion(whole, seed=seed)
    return _optimal_partition(whole, "cd", (first.labels, first.lower_bound), deadline, backend, seed)


def _check_components(graph: SignedGraph) -> None:
    largest = int(np.bincount(graph.components, minlength=1).max())
    if largest > _VERTEX_LIMIT:
        raise MemoryError(
            f"a component has {largest} vertices; the integer program is for at most {_VERTEX_LIMIT}: "
            "use CorrelationClustering, which certifies how far from optimal it can be"
        )


def _optimal_partition(
    graph: SignedGraph,
    problem: Problem,
    start: tuple[Int[np.ndarray, " n"], float],
    deadline: float,
    backend: Backend,
    seed: int,
) -> Optimum:
    """The cheapest clusters, component by component, from labels and a bound at hand."""
    labels, known = start[0].copy(), start[1]
    component = graph.components
    bound = 0.0
    for index in np.flatnonzero(np.bincount(component, minlength=1) > 2):
        members = np.flatnonzero(component == index)
        part = graph.induced(members)
        mine = canonical_labels(labels[members])
        solved, proved = _solve_component(part, mine, deadline, problem == "cd", backend, seed)
        # Numbers of clusters are vertices, so those of two components never meet.
        labels[members] = graph.n + members[_first_members(solved)]
        bound += proved
    labels = canonical_labels(labels)
    return _optimum(graph, problem, float(disagreements(graph, labels)), max(bound, known), labels=labels)


def _solve_component(
    graph: SignedGraph,
    labels: Int[np.ndarray, " n"],
    deadline: float,
    cliques: bool,
    backend: Backend,
    seed: int,
) -> tuple[Int[np.ndarray, " n"], float]:
    """The best clustering of a connected graph that was found, and the bound proved."""
    u, v = np.triu_indices(graph.n, 1)
    sign = graph.signs_of(u, v)
    weight = graph.weights_of(graph.pair_key(u, v))
    # Apart costs w where positive and saves w where negative; between cliques a negative pair is always.
    least = (sign < 0).astype(np.float64) if cliques else np.zeros(len(u))
    price = np.where(least > 0, 0.0, sign * weight)
    constant = 0.0 if cliques else float(weight[sign < 0].sum())
    position = np.zeros((graph.n, graph.n), dtype=np.int64)
    position[u, v] = position[v, u] = np.arange(len(u))
    cuts = np.zeros((0, 3), dtype=np.int64)
    cost = float(disagreements(graph, labels))
    bound = 0.0
    fractional = True
    while bound < cost - _slack(cost) and (left := deadline - time.perf_counter()) > 0:
        program = (price, least, cuts)
        x, proved = _relaxed(*program, left) if fractional else _integral(*program, left, backend, seed)
        bound = max(bound, _rounded_up(graph, constant + proved))
        if x is None:
            break
        apart = x[position]
        np.fill_diagonal(apart, 0.0)
        fresh = _violated(apart, position)
        joined = csgraph.connected_components(apart < 0.5, directed=False)[1].astype(np.int64)
        better = joined if cliques else local_moves(graph, joined)
        improved = float(disagreements(graph, better))
        # Joined pairs of negative sign are no cliques, except where nothing is violated.
        if improved < cost and not (cliques and (fractional or len(fresh))):
            labels, cost = better, improved
        if not len(fresh) and not fractional:
            break
        # Fractional solutions find most of the rows that matter, before integers are asked for.
        fractional = fractional and len(fresh) > 0
        cuts = np.concatenate([cuts, fresh])
    return labels, min(bound, cost)


def _cut_rows(cuts: Int[np.ndarray, "rows 3"], variables: int) -> sparse.csr_array:
    """``−x_i + x_j + x_k`` for each row (i, j, k)."""
    count = len(cuts)
    return sparse.csr_array(
        (np.tile([-1.0, 1.0, 1.0], count), cuts.ravel(), np.arange(0, 3 * count + 1, 3)),
        shape=(count, variables),
    )


def _relaxed(
    price: Float[np.ndarray, " pairs"],
    least: Float[np.ndarray, " pairs"],
    cuts: Int[np.ndarray, "rows 3"],
    seconds: float,
) -> tuple[Float[np.ndarray, " pairs"] | None, float]:
    """Minimise the price over least ≤ x ≤ 1 with ``x_i ≤ x_j + x_k`` for each row: x, and its price."""
    rows: Any = {"A_ub": -_cut_rows(cuts, len(price)), "b_ub": np.zeros(len(cuts))} if len(cuts) else {}
    limits = np.stack([least, np.ones(len(price))], axis=1)
    options: Any = {"bounds": limits, "options": {"time_limit": seconds}} | rows
    result: Any = linprog(price, method="highs", **options)
    return (result.x, float(result.fun)) if result.status == 0 else (None, -math.inf)


def _integral(
    price: Float[np.ndarray, " pairs"],
    least: Float[np.ndarray, " pairs"],
    cuts: Int[np.ndarray, "rows 3"],
    seconds: float,
    backend: Backend,
    seed: int,
) -> tuple[Float[np.ndarray, " pairs"] | None, float]:
    """The same over whole numbers: the best x found, and the bound proved."""
    free = np.flatnonzero(least == 0)
    rows = _cut_rows(cuts, len(price))
    right = -(rows @ least)
    found = solve_binary(price[free], rows[:, free], right, backend=backend, seconds=seconds, seed=seed)
    if found.x is None:
        return None, found.bound
    x = least.copy()
    x[free] = found.x
    return x, found.bound


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


def _first_members(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The first vertex of each vertex's cluster."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return first[inverse]


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
