"""A - s B factorized once: it solves, and its pivots count the eigenvalues below s.

Sylvester's law of inertia: for B >= 0 the number of eigenvalues below s is the number of negative pivots of
A - s B = L D L^H, less those that infinite eigenvalues always contribute. SuperLU in symmetric mode pivots on
the diagonal, so that the signs of diag(U) are those of D where rows and columns were permuted alike.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp
import torch
from icml_kernels.subspaces.lu_solve_adjoint import lu_solve_adjoint, sparse_factors
from jaxtyping import Float
from scipy.sparse.linalg import SuperLU, splu

from icml_deepcontour.fill import check_fill
from icml_deepcontour.pencil import Pattern, Pencil

log = logging.getLogger(__name__)

SINGULAR = 1e-15  # a pivot below this part of the absolute sum of its row counts as zero
HIT = 4.0  # and so does one below so many times its own rounding error, eps times its row of |L| |U|
REFINED = 1e5  # growth of the entries above which every solve is refined once; below, only eigenvectors are
UNSTABLE = 1e6  # growth above which the signs of the pivots are not believed
DENSE = 3000  # rows up to which a dense LDL^H stands in where the diagonal cannot be the pivot
STABLE = 8.0  # growth that Bunch and Kaufman's pivots are granted
EPS = float(np.finfo(float).eps)
PANEL = (
    4  # columns that SuperLU updates together: fewer than its default, for factors that fit into the caches
)
TRIES = 8  # shifts that are tried where one hits an eigenvalue

Solve = Callable[[np.ndarray], np.ndarray]
Factorize = Callable[[float], tuple[Solve, "int | None"]]


@dataclass(frozen=True)
class ShiftedFactor:
    """A factorization of A - shift B.

    Attributes:
        shift: s, perhaps moved off an eigenvalue.
        negative: pivots below 0.
        exact: the count is proved; else `reason` says why not.
        reason: empty where exact.
        solve: [n, b] -> (A - s B)^-1 of it.
        entries: of L and U.
        rounding: how far the eigenvalues of what was factorized may lie from those of the pencil: the
            largest row of eps D^(-1/2) |L| |U| D^(-1/2), with D of `Pencil.weights`. Only eigenvalues that
            are farther than this from the shift are counted on the right side for certain.
        clearance: smallest pivot over its own rounding error.
    """

    shift: float
    negative: int
    exact: bool
    reason: str
    solve: Solve
    entries: int
    rounding: float = 0.0
    clearance: float = np.inf


class Factorizer:
    """Factorizations of one pencil at many real shifts. The order of elimination is found once.

    Args:
        pencil: Hermitian.
        max_bytes: largest size of one factor, by prediction; None for what is free.
        factorize: the user's own ``f(sigma) -> (solve, negative_count or None)``.
        order: order of elimination of an earlier pencil with the same pattern.
    """

    def __init__(
        self,
        pencil: Pencil,
        *,
        max_bytes: float | None = None,
        factorize: Factorize | None = None,
        order: np.ndarray | None = None,
    ) -> None:
        self.pencil, self._user = pencil, factorize
        self.count = 0
        self._pattern: Pattern | None = None
        if factorize is None:
            check_fill(pencil.pattern.shifted(0.0), max_bytes)
            self._pattern = pencil.pattern
            if order is not None:
                order = np.asarray(order)
                if order.shape != (pencil.n,) or not np.array_equal(np.sort(order), np.arange(pencil.n)):
                    raise ValueError(
                        f"ordering has shape {list(order.shape)}; expected a permutation of {pencil.n} rows"
                    )
                self._pattern = self._pattern.permuted(order)

    @property
    def order(self) -> np.ndarray | None:
        """The order of elimination, for ``order=`` of the next pencil."""
        return None if self._pattern is None else self._pattern.order

    def __call__(self, shift: float, *, spacing: float | None = None) -> ShiftedFactor:
        """Factorize A - shift B; a shift that hits an eigenvalue is moved by 1e-8 of the spacing, and logged.

        Args:
            shift: where.
            spacing: about the distance of neighbouring eigenvalues.

        Raises:
            numpy.linalg.LinAlgError: no shift nearby gives a regular matrix: the pencil itself is singular.
        """
        step = 1e-8 * (spacing or max(abs(shift), 1e-8 * self.pencil.scale))
        at = float(shift)
        for attempt in range(TRIES):
            self.count += 1
            try:
                return self._from_user(at) if self._user is not None else self._from_superlu(at)
            except _SingularError:
                moved = float(shift) - step * 10.0**attempt
                log.info("shift %.17g hits an eigenvalue; moved to %.17g", at, moved)
                at = moved
        raise np.linalg.LinAlgError(
            f"A - s B is singular for s = {shift:g} and {TRIES - 1} shifts below it: A and B share a "
            f"null vector; "
            "remove it with eliminate="
        )

    def _from_user(self, shift: float) -> ShiftedFactor:
        assert self._user is not None
        solve, negative = self._user(shift)
        if not callable(solve):
            raise TypeError("factorize(sigma) must give (solve, negative_count); solve is not callable")

        def blocks(rhs: np.ndarray) -> np.ndarray:
            found = np.asarray(solve(rhs))
            if found.shape != rhs.shape:
                raise ValueError(f"the given solve turned {list(rhs.shape)} into {list(found.shape)}")
            return found

        known = negative is not None
        reason = "" if known else "factorize= gives no negative_count"
        return ShiftedFactor(shift, int(negative) if known else 0, known, reason, blocks, 0)

    def _from_superlu(self, shift: float) -> ShiftedFactor:
        assert self._pattern is not None
        pattern = self._pattern
        matrix = pattern.shifted(shift)
        lu = symmetric_lu(matrix, "NATURAL" if pattern.order is not None else "MMD_AT_PLUS_A")
        order = pattern.order
        if order is None:
            # Later shifts keep this order and leave the search for it out.
            self._pattern = pattern.permuted(np.argsort(lu.perm_c))
        if not np.array_equal(lu.perm_r, lu.perm_c):
            return self._unsymmetric(shift, matrix, order)
        lower, upper = lu.L, lu.U
        pivots = upper.diagonal().real
        sums = np.asarray(abs(matrix).sum(axis=1)).ravel()
        rows = np.empty_like(sums)
        rows[lu.perm_r] = sums
        if not np.isfinite(pivots).all() or (np.abs(pivots) <= SINGULAR * rows).any():
            raise _SingularError
        d = self.pencil.weights if order is None else self.pencil.weights[order]
        coupled = self.pencil.coupled if order is None else self.pencil.coupled[order]
        weight, joined = np.empty_like(d), np.empty_like(coupled)
        weight[lu.perm_r], joined[lu.perm_r] = d, coupled
        plain, scaled = products(lower, upper, weight)
        bound = float(plain.max()) / (float(sums.max(initial=0.0)) or 1.0)
        if bound > UNSTABLE:
            return self._unsymmetric(shift, matrix, order)
        clearance = float((np.abs(pivots) / (EPS * plain)).min())
        if clearance < HIT:
            raise _SingularError
        negative = int(np.count_nonzero(pivots < 0))
        solve = adjoint_solver(lower, upper, lu.perm_r, order)
        if bound > REFINED:
            solve = refined(solve, self.pencil, shift)
        rounding = EPS * float(np.max(scaled[joined], initial=0.0))
        return ShiftedFactor(shift, negative, True, "", solve, int(lu.nnz), rounding, clearance)

    def _unsymmetric(self, shift: float, matrix: sp.csc_array, order: np.ndarray | None) -> ShiftedFactor:
        """Other pivots than the diagonal; a dense LDL^H counts where it is affordable."""
        try:
            lu = splu(matrix)
        except RuntimeError as error:
            raise _SingularError from error
        solve = lu_solver(lu, order)
        if matrix.shape[0] <= DENSE:
            _, d, _ = scipy.linalg.ldl(matrix.toarray(), hermitian=True)
            root = 1 / np.sqrt(self.pencil.weights if order is None else self.pencil.weights[order])
            sizes = abs(matrix)
            rounding = STABLE * EPS * float((root * (sizes @ root)).max())
            pivots = block_eigenvalues(d)
            clearance = float(np.abs(pivots).min()) / (STABLE * EPS * float(sizes.sum(axis=1).max()))
            negative = int(np.count_nonzero(pivots < 0))
            return ShiftedFactor(shift, negative, True, "", solve, int(lu.nnz), rounding, clearance)
        reason = "pivots on the diagonal are zero or lose too many digits (perm_r would differ from perm_c)"
        return ShiftedFactor(shift, 0, False, reason, solve, int(lu.nnz))


class _SingularError(ArithmeticError):
    """A pivot is zero."""


def symmetric_lu(matrix: sp.csc_array, order: str) -> SuperLU:
    """SuperLU in symmetric mode: pivots on the diagonal, whatever their size.

    Raises:
        _SingularError: a pivot is exactly zero.
    """
    try:
        options: Any = {"SymmetricMode": True}
        made: Any = splu
        return made(matrix, permc_spec=order, diag_pivot_thresh=0.0, panel_size=PANEL, options=options)
    except RuntimeError as error:
        if "singular" in str(error):
            raise _SingularError from error
        raise


def products(
    lower: sp.csc_array, upper: sp.csc_array, weight: Float[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Rows of |L| |U| and of D^(-1/2) |L| |U| D^(-1/2), summed.

    The factors are those of a matrix within eps |L| |U| of the one that was given (N. J. Higham, Accuracy and
    Stability of Numerical Algorithms, 2002, theorem 9.3, up to a constant).
    """
    root = 1 / np.sqrt(weight)
    # Not abs(lower): SciPy sorts the entries first, which takes as long as all else here.
    sizes = [sp.csc_array((np.abs(m.data), m.indices, m.indptr), shape=m.shape) for m in (lower, upper)]
    total = sizes[0] @ (sizes[1] @ np.column_stack([np.ones(len(root)), root]))
    return total[:, 0], total[:, 1] * root


def adjoint_solver(lower: sp.csc_array, upper: sp.csc_array, place: np.ndarray, order: Any) -> Solve:
    """Blocks of right-hand sides against factors of a Hermitian matrix with rows and columns permuted alike.

    SuperLU reads its factors once for every column of a block, the kernel once for eight.

    Args:
        lower, upper: factors.
        place: row of the factors where each row of the matrix went.
        order: of the rows of the matrix; None where they are in place.
    """
    made: list[Any] = []  # at the first solve: a factorization that only counts needs none

    def solve(rhs: np.ndarray) -> np.ndarray:
        if not made:
            parts = (lower.data, lower.indices, lower.indptr, upper.data, upper.indices, upper.indptr)
            rows = np.argsort(place) if order is None else order[np.argsort(place)]
            arrays = (*parts, upper.diagonal(), rows)
            made.append(sparse_factors(*(torch.from_numpy(np.ascontiguousarray(x)) for x in arrays)))
        b = np.asarray(rhs, dtype=lower.dtype)
        found: np.ndarray = lu_solve_adjoint(made[0], torch.from_numpy(b)).numpy()
        return found

    return solve


def refined(solve: Solve, pencil: Pencil, shift: float) -> Solve:
    """A solve with one step of refinement."""

    def twice(rhs: np.ndarray) -> np.ndarray:
        x = solve(rhs)
        return x + solve(rhs - (pencil.times_a(x) - shift * pencil.times_b(x)))

    return twice


def lu_solver(lu: SuperLU, order: np.ndarray | None) -> Solve:
    """Blocks of right-hand sides, in the original order of rows."""

    def solve(rhs: np.ndarray) -> np.ndarray:
        if order is None:
            return lu.solve(np.asfortranarray(rhs))
        out = np.empty_like(rhs, order="F")
        out[order] = lu.solve(np.asfortranarray(rhs[order]))
        return out

    return solve


def block_eigenvalues(d: Any) -> Float[np.ndarray, " n"]:
    """Eigenvalues of a block-diagonal Hermitian matrix of blocks of 1 and 2 rows."""
    n, i = len(d), 0
    found: list[np.ndarray] = []
    while i < n:
        size = 2 if i + 1 < n and d[i + 1, i] != 0 else 1
        found.append(np.linalg.eigvalsh(d[i : i + size, i : i + size]))
        i += size
    return np.concatenate(found)
