"""Small 0/1 programs by HiGHS, which comes with SciPy, or by CP-SAT, where OR-Tools is installed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Bool, Float
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

Backend: TypeAlias = Literal["highs", "cpsat"]

# CP-SAT counts in integers: fractional prices are scaled until their sum is about this.
_INTEGER_RANGE = 2.0**40


@dataclass(frozen=True, eq=False)
class BinarySolution:
    """What a solver found within its time.

    Attributes:
        x: the best solution found, or None.
        bound: no solution costs less; −∞ where nothing was proved.
        optimal: whether the search came to its end.
    """

    x: Bool[np.ndarray, " variables"] | None
    bound: float
    optimal: bool


def check_backend(backend: str) -> None:
    """Refuse a solver that there is not.

    Raises:
        ValueError: names those there are.
        ModuleNotFoundError: CP-SAT without OR-Tools.
    """
    if backend not in get_args(Backend):
        raise ValueError(f"backend={backend!r}; expected 'highs' or 'cpsat'")
    if backend == "cpsat" and find_spec("ortools") is None:
        raise ModuleNotFoundError(
            "backend='cpsat' needs OR-Tools: pip install 'icml-btt[cpsat]', or take backend='highs'"
        )


def solve_binary(
    price: Float[np.ndarray, " variables"],
    rows: sparse.csr_array,
    least: Float[np.ndarray, " rows"],
    *,
    backend: Backend = "highs",
    seconds: float,
    seed: int = 0,
) -> BinarySolution:
    """Minimise ``price · x`` subject to ``rows @ x ≥ least`` over x in {0, 1}.

    Args:
        price: of each variable.
        rows: integers.
        least: integers.
        backend: ``"highs"`` or ``"cpsat"``.
        seconds: after which the best solution found is given.
        seed: of CP-SAT's search, which works on one thread so that it can be repeated.

    Raises:
        RuntimeError: the solver failed, or the program has no solution.
    """
    solve = _by_highs if backend == "highs" else _by_cpsat
    return solve(price, rows, least, max(seconds, 0.01), seed)


def _by_highs(
    price: Float[np.ndarray, " variables"],
    rows: sparse.csr_array,
    least: Float[np.ndarray, " rows"],
    seconds: float,
    seed: int,
) -> BinarySolution:
    result = milp(
        price,
        integrality=np.ones(len(price), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, least, np.inf) if rows.shape[0] else None,
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    if result.status not in (0, 1):
        raise RuntimeError(f"HiGHS did not solve the integer program: {result.message}")
    proved = getattr(result, "mip_dual_bound", None)
    x = None if result.x is None else result.x > 0.5
    return BinarySolution(x, -math.inf if proved is None else float(proved), result.status == 0)


def _by_cpsat(
    price: Float[np.ndarray, " variables"],
    rows: sparse.csr_array,
    least: Float[np.ndarray, " rows"],
    seconds: float,
    seed: int,
) -> BinarySolution:
    from ortools.sat.python import cp_model

    whole = bool(np.all(price == np.floor(price)))
    scale = (
        1.0 if whole else 2.0 ** math.floor(math.log2(_INTEGER_RANGE / max(float(np.abs(price).sum()), 1.0)))
    )
    integer = np.round(price * scale).astype(np.int64)
    model: Any = cp_model.CpModel()
    variables = [model.new_bool_var("") for _ in range(len(price))]
    indptr, indices, data = rows.indptr, rows.indices, rows.data
    for row in range(rows.shape[0]):
        part = slice(indptr[row], indptr[row + 1])
        terms = zip(data[part].tolist(), indices[part].tolist(), strict=True)
        model.add(sum(int(factor) * variables[column] for factor, column in terms) >= int(least[row]))
    model.minimize(cp_model.LinearExpr.weighted_sum(variables, integer.tolist()) if variables else 0)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = seconds
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        raise RuntimeError(f"CP-SAT did not solve the integer program: {solver.status_name(status)}")
    # Each rounded price is off by at most one half.
    slack = 0.0 if whole else 0.5 * len(price)
    found = status != cp_model.UNKNOWN
    x = np.array([bool(solver.value(v)) for v in variables], dtype=bool) if found else None
    return BinarySolution(x, (solver.best_objective_bound - slack) / scale, status == cp_model.OPTIMAL)
