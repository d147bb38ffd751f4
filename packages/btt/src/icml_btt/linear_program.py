"""The cover program of bad triangles and its dual, solved exactly by HiGHS with rows added as needed.

``min Σ w_e x_e`` with ``x_n + x_p + x_p' ≥ 1`` for every bad triangle, ``x ≥ 0``; the dual packs triangles.
Most rows never matter: of 297,000 triangles of a planted graph, 15,000 were ever added.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse
from scipy.optimize import linprog

from icml_btt import compiled
from icml_btt.packing import Packing, pack_rows
from icml_btt.rounding import COVER_TOLERANCE
from icml_btt.signed_graph import Missing, SignedGraph, as_signed_graph
from icml_btt.triangles import TriangleSystem, count_bad_triangles

Status: TypeAlias = Literal["optimal", "time limit", "approximate"]
CoverMethod: TypeAlias = Literal["auto", "highs", "mwu"]


class Report(Protocol):
    """Told how far a long computation is: the stage, and figures worth showing."""

    def __call__(self, stage: str, /, **figures: float) -> None: ...


TRIANGLE_LIMIT = 2_000_000  # beyond, the explicit list of triangles takes hundreds of megabytes
# Multiplicative weights take so many times more; they need about 100 bytes a triangle.
MWU_FACTOR = 10

# A row counts as violated below this, ten times HiGHS' own feasibility tolerance of 1e-7.
_VIOLATED = 1e-6
# A cover and a packing this close, relative to their size, prove each other optimal.
_EQUAL = 1e-9
# In one round an edge takes part in at most this many new rows; more make each solve slower than they
# save rounds (measured on planted and random graphs of 60 to 1000 vertices).
_NEW_ROWS_AN_EDGE = 2


@dataclass(frozen=True, eq=False)
class CoverSolution:
    """A fractional cover of the bad triangles, and a packing that bounds it from below.

    Attributes:
        edges: the edges that lie in a bad triangle, each with its smaller end first.
        x: the cover, feasible for every bad triangle; at most 1.
        packing: the dual solution.
        value: ``Σ w_e x_e``.
        status: ``"optimal"``, or ``"time limit"`` or ``"approximate"`` where x costs more than the packing
            proves.
        rounds: how many linear programs were solved, or how many phases of multiplicative weights.
    """

    edges: Int[np.ndarray, "edges 2"]
    x: Float[np.ndarray, " edges"]
    packing: Packing
    value: float
    status: Status
    rounds: int

    @property
    def bound(self) -> float:
        """``Σ y_t``, the bound that the packing proves; equal to ``value`` up to rounding where optimal."""
        return self.packing.total

    def verify(self, graph: Any) -> None:
        """Accept the solution where x covers every bad triangle and the packing is one, with equal values.

        Raises:
            ValueError: says what is wrong.
        """
        graph = as_signed_graph(graph)
        keys = graph.pair_key(self.edges[:, 0], self.edges[:, 1])
        system = TriangleSystem.of(graph)
        if not np.array_equal(keys, system.keys):
            raise ValueError("the edges are not those that lie in a bad triangle")
        if self.x.shape != keys.shape or not (np.isfinite(self.x) & (self.x >= 0)).all():
            raise ValueError("x must give each edge a finite number >= 0")
        check_cover(graph, system, self.x)
        if not np.isclose(self.value, system.weight @ self.x, rtol=1e-9, atol=1e-9):
            raise ValueError(f"the cover costs {system.weight @ self.x:.9g}, not {self.value:.9g}")
        self.packing.verify(graph)
        gap = self.value - self.bound
        if self.status == "optimal" and gap > _OPTIMAL * max(1.0, self.value):
            raise ValueError(
                f"called optimal, but the packing proves only {self.bound:.9g} of {self.value:.9g}"
            )


# Cover and packing of equal value prove each other optimal; HiGHS' tolerances leave about 1e-7.
_OPTIMAL = 1e-5


def check_cover(graph: SignedGraph, system: TriangleSystem, x: Float[np.ndarray, " edges"]) -> None:
    """Refuse an x that leaves a bad triangle uncovered.

    Raises:
        ValueError: names the triangle.
    """
    total = x[system.rows].sum(axis=1)
    if len(total) and total.min() < 1 - COVER_TOLERANCE:
        worst = int(np.argmin(total))
        names = tuple(graph.name(v) for v in system.triangles[worst])
        raise ValueError(f"x is no cover: the edges of bad triangle {names} have {total[worst]:.6g} < 1")


def solve_cover(
    graph: SignedGraph,
    system: TriangleSystem,
    *,
    labels: Int[np.ndarray, " n"] | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> CoverSolution:
    """Solve the cover program of ``system``.

    Starts from the rows of a maximal packing, and adds the most violated rows until none is, or until a
    cover at hand costs no more than the packing proves. Covers at hand are the fully loaded edges of the
    first packing, the mistakes of ``labels``, and each solution raised on negative edges until it covers.
    Where time runs out, x is the cheapest of them, and the packing the best one found: a bound all the same.

    Args:
        graph: the signed graph.
        system: its bad triangles.
        labels: a clustering; a good one spares the last rounds, of ten on planted clusters the last six.
        time_limit: in seconds.
        seed: of the starting packing, and of ties between rows.
        report: called after each linear program as ``report("linear program", rows=…, violated=…, bound=…)``.
    """
    rng = np.random.default_rng(seed)
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    weight, rows = system.weight, system.rows
    residual = weight.copy()
    y = pack_rows(rows, residual, rng)
    x = (residual <= 0).astype(np.float64)
    if labels is not None:
        mistaken = mistakes(graph, system, labels)
        x = mistaken.astype(np.float64) if weight @ mistaken < weight @ x else x
    active: Bool[np.ndarray, " triangles"] = y > 0
    jitter = _VIOLATED * rng.random(len(rows))
    rounds = 0
    while weight @ x > y.sum() * (1 + _EQUAL):
        left = deadline - time.perf_counter()
        solved = _solve_rows(weight, rows, np.flatnonzero(active), left) if left > 0 else None
        if solved is None:
            return _solution(graph, system, x, y, "time limit", rounds)
        rounds += 1
        attempt, dual = solved
        dual = feasible_packing(system, dual)
        y = dual if dual.sum() > y.sum() else y
        total = attempt[rows].sum(axis=1)
        violated = np.flatnonzero(total < 1 - _VIOLATED)
        if report is not None:
            report("linear program", rows=int(active.sum()), violated=len(violated), bound=y.sum())
        if not len(violated):
            return _solution(graph, system, _feasible_cover(attempt, total), y, "optimal", rounds)
        raised = _raised(system, attempt, total)
        x = raised if weight @ raised < weight @ x else x
        worst = violated[np.argsort(total[violated] + jitter[violated])]
        active[worst[_first_of_each_edge(rows[worst], _NEW_ROWS_AN_EDGE)]] = True
    return _solution(graph, system, x, y, "optimal", rounds)


def mistakes(
    graph: SignedGraph, system: TriangleSystem, labels: Int[np.ndarray, " n"]
) -> Bool[np.ndarray, " edges"]:
    """Which edges a clustering contradicts, among those in bad triangles: a transversal."""
    u, v = graph.pair_ends(system.keys).T
    return (labels[u] == labels[v]) == (system.sign < 0)


def _solve_rows(
    weight: Float[np.ndarray, " edges"],
    rows: Int[np.ndarray, "triangles 3"],
    chosen: Int[np.ndarray, " rows"],
    seconds: float,
) -> tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " triangles"]] | None:
    """Solve the program with only the chosen rows; None where time ran out.

    The interior-point method, with its crossover to a vertex, was 2 to 20 times as fast as the dual simplex
    method on the instances that take longest, dense with much noise, and up to 1.8 times slower on easy ones.
    """
    used, local = np.unique(rows[chosen], return_inverse=True)
    count = len(chosen)
    matrix: Any = sparse.csr_array(
        (-np.ones(3 * count), local.ravel(), np.arange(0, 3 * count + 1, 3)), shape=(count, len(used))
    )
    scale = float(np.median(weight[used]))
    options: Any = {} if seconds == np.inf else {"time_limit": seconds}
    methods: tuple[Literal["highs-ipm", "highs"], ...] = ("highs-ipm", "highs")
    for method in methods:
        result: Any = linprog(
            weight[used] / scale, A_ub=matrix, b_ub=-np.ones(count), method=method, options=options
        )
        if result.status == 1 and seconds != np.inf:
            return None
        if result.status == 0:
            x = np.zeros(len(weight))
            x[used] = np.clip(result.x, 0.0, 1.0)
            y = np.zeros(len(rows))
            y[chosen] = np.maximum(-result.ineqlin.marginals, 0.0) * scale
            return x, y
    raise RuntimeError(f"HiGHS did not solve the cover program: {result.message}")


def feasible_packing(
    system: TriangleSystem, y: Float[np.ndarray, " triangles"]
) -> Float[np.ndarray, " triangles"]:
    """Make a packing of any amounts: each triangle is divided by the worst overload among its edges."""
    overload = np.maximum(system.load(y) / system.weight, 1.0)
    negative, first, second = (overload[column] for column in system.rows.T)
    return y / np.maximum(np.maximum(negative, first), second)


def _feasible_cover(
    x: Float[np.ndarray, " edges"], total: Float[np.ndarray, " triangles"]
) -> Float[np.ndarray, " edges"]:
    """Take HiGHS' tolerance off: scale up until every triangle has at least 1."""
    return np.minimum(x / min(1.0, float(total.min(initial=1.0))), 1.0)


def _raised(
    system: TriangleSystem, x: Float[np.ndarray, " edges"], total: Float[np.ndarray, " triangles"]
) -> Float[np.ndarray, " edges"]:
    """Cover what is left of the violated triangles by their negative edges."""
    x = x.copy()
    lacking = np.maximum(1.0 - total, 0.0)
    extra = np.zeros(len(x))
    np.maximum.at(extra, system.rows[:, 0], lacking)
    return np.minimum(x + extra, 1.0)


def _first_of_each_edge(rows: Int[np.ndarray, "triangles 3"], count: int) -> Int[np.ndarray, " kept"]:
    """Which triangles come among the first ``count`` at each of their edges."""
    kept = np.ones(len(rows), dtype=bool)
    for column in rows.T:
        order = np.argsort(column, kind="stable")
        sorted_edges = column[order]
        begins = np.concatenate([[True], sorted_edges[1:] != sorted_edges[:-1]])
        start = np.maximum.accumulate(np.where(begins, np.arange(len(column)), 0))
        kept[order] &= np.arange(len(column)) - start < count
    return np.flatnonzero(kept)


def _solution(
    graph: SignedGraph,
    system: TriangleSystem,
    x: Float[np.ndarray, " edges"],
    y: Float[np.ndarray, " triangles"],
    status: Status,
    rounds: int,
) -> CoverSolution:
    heavy = np.flatnonzero(y > 0)
    return CoverSolution(
        edges=graph.pair_ends(system.keys),
        x=x,
        packing=Packing(system.triangles[heavy], y[heavy]),
        value=float(system.weight @ x),
        status=status,
        rounds=rounds,
    )


class CoverProgram:
    """Solver of the linear program: fractional covers of bad triangles with their dual packing.

    Args:
        time_limit: in seconds.
        triangle_limit: how many bad triangles HiGHS is given at most.
        missing: what a pair is that a matrix or networkx graph does not hold.
        seed: of ties.
        lp: ``"highs"`` for an optimum; ``"mwu"`` for multiplicative weights, within ``eps``; ``"auto"`` for
            HiGHS up to ``triangle_limit``, and up to ten times as many multiplicative weights where
            icml-kernels is there.
        eps: how close cover and packing come by multiplicative weights: ``Σ w x ≤ (1 + eps) Σ y``.

    Raises:
        ValueError: another ``lp``, or ``eps`` below 0.001 or not below 1.

    Example:
        >>> from icml_btt import CoverProgram, SignedGraph
        >>> CoverProgram().solve(SignedGraph.from_edges([(0, 1), (1, 2)])).value
        1.0
    """

    def __init__(
        self,
        time_limit: float | None = None,
        triangle_limit: int = TRIANGLE_LIMIT,
        missing: Missing = "negative",
        seed: int = 0,
        *,
        lp: CoverMethod = "auto",
        eps: float = 0.05,
    ) -> None:
        if lp not in get_args(CoverMethod):
            raise ValueError(f"lp={lp!r}; expected one of {', '.join(get_args(CoverMethod))}")
        if not 1e-3 <= eps < 1.0:
            raise ValueError(f"eps={eps!r}; expected at least 0.001 and less than 1")
        self.time_limit = time_limit
        self.triangle_limit = triangle_limit
        self.missing = missing
        self.seed = seed
        self.lp: CoverMethod = lp
        self.eps = eps

    def solve(self, graph: Any, *, report: Report | None = None) -> CoverSolution:
        """Solve the cover program of ``graph``: a SignedGraph, networkx graph, sparse or square array.

        Raises:
            MemoryError: more bad triangles than ``triangle_limit``, unless multiplicative weights take them.
            ValueError, TypeError: see :func:`~icml_btt.signed_graph.as_signed_graph`.
        """
        graph = as_signed_graph(graph, missing=self.missing)
        lp = resolve_lp(graph, self.lp, self.triangle_limit)
        system = TriangleSystem.of(graph)
        return solve_by(
            lp,
            graph,
            system,
            eps=self.eps,
            time_limit=self.time_limit,
            seed=self.seed,
            report=report,
        )


def resolve_lp(graph: SignedGraph, lp: CoverMethod, triangle_limit: int) -> Literal["highs", "mwu"]:
    """Choose the solver of the linear program.

    Raises:
        MemoryError: too many triangles for HiGHS where it was asked for, or where icml-kernels is missing.
    """
    if lp == "mwu":
        return "mwu"
    if lp == "auto" and prefers_weights(count_bad_triangles(graph), triangle_limit):
        return "mwu"
    check_triangle_count(graph, triangle_limit)
    return "highs"


def prefers_weights(count: int, triangle_limit: int) -> bool:
    """Whether so many triangles are too many for HiGHS, and not for multiplicative weights where compiled."""
    return compiled.kernels() is not None and triangle_limit < count <= MWU_FACTOR * triangle_limit


def solve_by(
    lp: Literal["highs", "mwu"],
    graph: SignedGraph,
    system: TriangleSystem,
    *,
    eps: float = 0.05,
    labels: Int[np.ndarray, " n"] | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    report: Report | None = None,
) -> CoverSolution:
    """Solve the cover program of ``system`` by the solver named: see :func:`solve_cover` for the rest."""
    if lp == "mwu":
        from icml_btt.multiplicative_weights import approximate_cover

        return approximate_cover(graph, system, eps=eps, labels=labels, time_limit=time_limit, report=report)
    return solve_cover(graph, system, labels=labels, time_limit=time_limit, seed=seed, report=report)


def check_triangle_count(graph: SignedGraph, limit: int) -> None:
    """Refuse a graph whose bad triangles are too many to list.

    Raises:
        MemoryError: names both numbers.
    """
    count = count_bad_triangles(graph)
    if count > limit:
        raise MemoryError(
            f"{count} bad triangles are more than triangle_limit={limit}; raise it, take lp='mwu', "
            "or use method='disjoint', which never lists them"
        )
