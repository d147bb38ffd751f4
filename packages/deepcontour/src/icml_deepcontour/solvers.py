"""The solvers as objects: a problem in, a solution out that can be checked without trusting them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Num

from icml_deepcontour.contour import Contour
from icml_deepcontour.contour_solvers import METHODS, contour_eigs
from icml_deepcontour.density import kde_contours
from icml_deepcontour.eigensolver import EigsStats, eigs
from icml_deepcontour.errors import EigenConvergenceError
from icml_deepcontour.inertia import certify
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.slices import residuals

ORTHOGONAL = 1e-8  # largest entry of X^H B X - I that is accepted


@dataclass(frozen=True)
class EigenProblem:
    """What is asked.

    Attributes:
        A, B: the pencil.
        which: see `eigs`.
        guesses: predicted eigenvalues.
    """

    A: Any
    B: Any = None
    which: tuple[Any, ...] = ("SA", 6)
    guesses: Any = None


@dataclass(frozen=True)
class EigenSolution:
    """Eigenpairs.

    Attributes:
        values: [k], rising.
        vectors: [n, k].
        tol: residual that they claim to meet.
    """

    values: Num[np.ndarray, " k"]
    vectors: Num[np.ndarray, "n k"]
    tol: float
    stats: EigsStats | None = None

    def verify(self, problem: EigenProblem) -> None:
        """Residuals, orthogonality, and completeness by inertia where the pencil allows.

        Raises:
            ValueError: saying what is wrong.
        """
        pencil = Pencil.of(problem.A, problem.B)
        if self.vectors.shape != (pencil.n, len(self.values)):
            raise ValueError(f"{len(self.values)} values but vectors of shape {list(self.vectors.shape)}")
        r = residuals(pencil, self.values, self.vectors, self.tol)
        if len(r) and not r.max() <= self.tol:
            raise ValueError(f"pair {int(np.argmax(r))} has residual {r.max():.1e}, above {self.tol:g}")
        if not pencil.hermitian:
            return
        gram = self.vectors.conj().T @ pencil.times_b(self.vectors)
        off = float(np.abs(gram - np.eye(len(self.values))).max(initial=0.0))
        if off > ORTHOGONAL:
            raise ValueError(f"X^H B X differs from I by {off:.1e}")
        kind, *rest = problem.which
        if kind in ("range", "below"):
            low, high = rest if kind == "range" else (-np.inf, rest[0])
            self._counted(problem, low, high)
        if kind == "SA":
            if len(self.values) != rest[0]:
                raise ValueError(f"{len(self.values)} values where {rest[0]} were asked for")
            margin = 1e-6 * max(float(np.ptp(self.values)), abs(float(self.values[-1])))
            count = certify(problem.A, problem.B, -np.inf, float(self.values[-1]) - margin)
            found = int((self.values < self.values[-1] - margin).sum())
            if count.exact and count.n != found:
                raise ValueError(f"inertia counts {count.n} eigenvalues below the last, {found} are here")

    def _counted(self, problem: EigenProblem, low: float, high: float) -> None:
        count = certify(problem.A, problem.B, low, high, eigenvalues=self.values)
        if count.exact and (count.missed or count.duplicates or len(self.values) != count.n):
            raise ValueError(
                f"inertia counts {count.n} eigenvalues in [{low:g}, {high:g}), {len(self.values)} are here"
            )


class EigsSolver:
    """`eigs` with its options fixed.

    Args:
        options: keywords of `eigs`.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options

    def solve(self, problem: EigenProblem) -> EigenSolution:
        """Solve.

        Raises:
            ValueError, TypeError, EigenConvergenceError, FillError: as `eigs`.
        """
        values, vectors, stats = eigs(
            problem.A, problem.B, problem.which, predictor=problem.guesses, return_stats=True, **self.options
        )
        return EigenSolution(values, vectors, self.options.get("tol", 1e-8), stats)


class SliceSolver(EigsSolver):
    """Shift-invert block Lanczos on slices between inertia counts, whatever the size of the pencil."""

    def __init__(self, **options: Any) -> None:
        super().__init__(backend="slice", **options)


class ContourSolver:
    """CIRR, SSM or FEAST on the contour of a problem.

    Args:
        method: ``"cirr"``, ``"ssm"`` or ``"feast"``.
        tol: residual.
        options: of `contour_eigs`.
    """

    method = "cirr"

    def __init__(self, method: str | None = None, *, tol: float = 1e-8, **options: Any) -> None:
        method = self.method if method is None else method
        if method not in METHODS:
            raise ValueError(f"method={method!r} is none of {', '.join(METHODS)}")
        self.chosen, self.tol, self.options = method, tol, options

    def solve(self, problem: EigenProblem) -> EigenSolution:
        """Solve inside the contour of ``which=("contour", contour)`` or ``("range", a, b)``.

        Raises:
            ValueError: another request.
            EigenConvergenceError: pairs inside have not converged.
        """
        kind, *rest = problem.which
        if kind == "range":
            a, b = rest
            if not a < b:
                raise ValueError(f"[{a}, {b}) is empty; give a < b")
            contour = Contour((a + b) / 2, (b - a) / 2)
        elif kind == "contour" and isinstance(rest[0], Contour):
            contour = rest[0]
        else:
            raise ValueError(
                f'which={problem.which!r}; a contour solver takes ("contour", Contour) or ("range", a, b)'
            )
        moments = 1 if self.chosen == "feast" else self.options.get("moments", 4)
        options = {**self.options, "moments": moments}
        found = contour_eigs(problem.A, problem.B, contour, self.tol, method=self.chosen, **options)
        if found.unconverged:
            raise EigenConvergenceError(
                f"{found.unconverged} pairs inside have not reached tol={self.tol:g}; use more nodes",
                found.values,
                found.vectors,
            )
        return EigenSolution(found.values, found.vectors, self.tol)


class CirrSolver(ContourSolver):
    """Contour integral Rayleigh-Ritz."""


class SsmSolver(ContourSolver):
    """Sakurai-Sugiura by Hankel matrices."""

    method = "ssm"


class FeastSolver(ContourSolver):
    """FEAST."""

    method = "feast"


@dataclass(frozen=True)
class ContourPlan:
    """Contours for predicted eigenvalues."""

    contours: tuple[Contour, ...]

    def verify(self, predictions: Float[np.ndarray, " M"]) -> None:
        """Every prediction lies inside exactly one contour, and each holds what it expects.

        Raises:
            ValueError: naming the first that is not.
        """
        values = np.asarray(predictions)
        inside = np.stack([c.contains(values) for c in self.contours])
        covered = inside.sum(axis=0)
        if (covered != 1).any():
            at = int(np.flatnonzero(covered != 1)[0])
            raise ValueError(f"prediction {values[at]:g} lies inside {covered[at]} contours")
        for contour, row in zip(self.contours, inside, strict=True):
            if int(row.sum()) != contour.expected:
                raise ValueError(f"{contour} holds {int(row.sum())} predictions")


class ContourPlanner:
    """`kde_contours` with its options fixed."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def solve(self, predictions: Float[np.ndarray, " M"]) -> ContourPlan:
        """Place contours.

        Raises:
            ValueError: as `kde_contours`.
        """
        return ContourPlan(tuple(kde_contours(predictions, **self.options)))


class CountEvaluator:
    """How many eigenvalues an interval has, and how many of the given ones are missing or too many.

    Args:
        low, high: the interval [low, high).
    """

    def __init__(self, low: float = -np.inf, high: float = np.inf) -> None:
        self.low, self.high = low, high

    def evaluate(self, subject: EigenProblem, eigenvalues: Any = None) -> Mapping[str, float]:
        """Counts of the pencil.

        Raises:
            ValueError: as `certify`.
        """
        count = certify(subject.A, subject.B, self.low, self.high, eigenvalues=eigenvalues)
        return {
            "count": float(count.n),
            "exact": float(count.exact),
            "missed": float(count.missed),
            "duplicates": float(count.duplicates),
        }
