"""How many eigenvalues lie in an interval, exactly: two factorizations, no eigenvalue computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp

from icml_deepcontour.factorization import Factorize, Factorizer, ShiftedFactor
from icml_deepcontour.pencil import Pencil

NULL = 1e-11  # of ||B||: an eigenvalue of B below counts as zero
LOOSE = 1e-8  # of a bound: rounding of the factors up to which a value counts as equal to it
BRACKETS = 3  # pairs of counts around a bound at which rounding is large
CLEAR = 16.0  # smallest pivot over its rounding, above which its sign is believed


@dataclass(frozen=True)
class Count:
    """How many eigenvalues there are.

    Attributes:
        n: the number.
        exact: proved by inertia; else an estimate, or the pivots were not those of the diagonal.
        reason: why not exact.
        missed: counted but not among the eigenvalues that were given.
        duplicates: given more often than they exist.
    """

    n: int
    exact: bool
    reason: str = ""
    missed: int = 0
    duplicates: int = 0


@dataclass(frozen=True)
class Definiteness:
    """What is known of B >= 0.

    Attributes:
        infinite: infinite eigenvalues of the pencil, one for each null vector of B.
        base: negative pivots that they contribute at every shift.
        exact: both are proved.
    """

    infinite: int
    base: int
    exact: bool


def certify(
    A: Any,
    B: Any = None,
    a: float = -np.inf,
    b: float = np.inf,
    *,
    eigenvalues: Any = None,
    factorize: Factorize | None = None,
    max_bytes: float | None = None,
) -> Count:
    """Count the eigenvalues in [a, b) of A x = lambda B x by inertia.

    Values closer to a bound than rounding count as equal to it: a is inside, b is not. That is
    `Pencil.rounding`, or the rounding of the factors where it is larger, up to 1e-8 of the bound; beyond, the
    count is exact only where no eigenvalue lies so near.

    Args:
        A: Hermitian, sparse.
        B: positive semi-definite, or None for the identity.
        a: lower end; -inf counts all below b.
        b: upper end.
        eigenvalues: compare with these: how many are missed, and how many too many.
        factorize: see `eigs`.
        max_bytes: see `eigs`.

    Raises:
        ValueError: bounds in the wrong order, matrices that are not a definite Hermitian pencil.

    Example:
        >>> import scipy.sparse as sp
        >>> certify(sp.diags_array([1.0, 2.0, 2.0, 5.0]), None, 2, 5).n
        2
    """
    if np.isnan(a) or np.isnan(b) or a >= b:
        raise ValueError(f"[{a:g}, {b:g}) is empty; give a < b")
    pencil = Pencil.of(A, B, require_hermitian=True)
    factors = Factorizer(pencil, factorize=factorize, max_bytes=max_bytes)
    kind = definiteness(pencil, factors)
    below = [count_below(pencil, factors, kind, s) for s in (a, b)]
    n = below[1].n - below[0].n
    reason = "; ".join(c.reason for c in below if c.reason)
    missed = duplicates = 0
    if eigenvalues is not None:
        values = np.asarray(eigenvalues, dtype=float)
        lo, hi = lower_bound(pencil, a), lower_bound(pencil, b)
        found = int(np.count_nonzero((values >= lo) & (values < hi)))
        missed, duplicates = max(0, n - found), max(0, found - n)
    return Count(n, below[0].exact and below[1].exact, reason, missed, duplicates)


def lower_bound(pencil: Pencil, bound: float) -> float:
    """Where [bound, ... begins in floating point: a little below, so that values equal to it are inside."""
    return bound if np.isinf(bound) else bound - pencil.rounding(bound)


def count_below(pencil: Pencil, factors: Factorizer, kind: Definiteness, bound: float) -> Count:
    """Finite eigenvalues below a bound.

    Where the factors differ from the pencil by more than the rounding that is granted to a bound, or the
    bound had to be left because its factor is singular, counts on both sides of it must agree.
    """
    if bound == -np.inf:
        return Count(0, True)
    if bound == np.inf:
        return Count(pencil.n - kind.infinite, kind.exact)
    near = pencil.rounding(bound)
    factor = factors(lower_bound(pencil, bound), spacing=0.25e8 * near)
    found = of_factor(factor, kind)
    away = max(abs(factor.shift - bound), factor.rounding)
    if not found.exact or (abs(factor.shift - bound) <= 2 * near and factor.rounding <= near):
        return found
    for _ in range(BRACKETS):
        reach = 2 * away
        low = factors(bound - reach)
        if low.exact and max(low.rounding, near) < bound - low.shift <= LOOSE * abs(bound):
            return of_factor(low, kind)  # what lies between equals the bound as far as can be told
        high = factors(bound + reach)
        away = max(low.rounding, high.rounding, reach)
        if not (low.exact and high.exact) or low.negative != high.negative:
            break
        if low.rounding < bound - low.shift and high.rounding < high.shift - bound:
            return of_factor(low, kind)
    reason = f"rounding moves eigenvalues by up to {away:.1e} at {bound:g}, and some may lie as near to it"
    return Count(found.n, False, reason)


def of_factor(factor: ShiftedFactor, kind: Definiteness) -> Count:
    """Finite eigenvalues below the shift of a factorization."""
    reason = factor.reason or ("" if kind.exact else "the null vectors of B could not be counted")
    return Count(factor.negative - kind.base, factor.exact and kind.exact, reason)


def definiteness(pencil: Pencil, factors: Factorizer) -> Definiteness:
    """Whether B >= 0, and how many infinite eigenvalues the pencil has.

    Diagonal B is read; a diagonally dominant one is definite; any other is factorized once as
    B - 1e-11 ||B||. Rows of zeros are the usual null vectors (unknowns without mass); their share of the
    inertia is that of A restricted to them.

    Raises:
        ValueError: B has negative curvature.
    """
    if pencil.identity:
        return Definiteness(0, 0, True)
    diagonal = pencil.b_diagonal
    norm = float(np.max(np.asarray(abs(pencil.B).sum(axis=0)), initial=0.0))
    if norm == 0:
        raise ValueError("B is zero; every eigenvalue is infinite")
    at = int(np.argmin(diagonal))
    if diagonal[at] < -NULL * norm:
        _refuse(float(diagonal[at]))
    empty = np.asarray(abs(pencil.B).sum(axis=0)).ravel() == 0
    rest = sp.csc_array(pencil.B[~empty][:, ~empty])
    inner = diagonal[~empty]
    around = np.asarray(abs(rest).sum(axis=0)).ravel() - np.abs(inner)
    nullity, proved = 0, True
    if not np.all(inner - around > NULL * norm):
        nullity, proved = _nullity(rest, NULL * norm)
    if nullity:
        found = _by_far_shifts(pencil, factors)
        same = found.infinite == nullity + int(empty.sum())
        return replace(found, exact=found.exact and proved and same)
    if not empty.any():
        return Definiteness(0, 0, proved)
    if factors.pencil is not pencil or factors._user is not None:
        return _by_far_shifts(pencil, factors)
    massless = Pencil.of(pencil.A[empty][:, empty])
    own = Factorizer(massless)
    try:
        inner_factor = own(0.0)
    except np.linalg.LinAlgError:
        return _by_far_shifts(pencil, factors)
    if inner_factor.shift != 0.0:
        return _by_far_shifts(pencil, factors)
    fine = inner_factor.exact and inner_factor.clearance > CLEAR and proved
    return Definiteness(int(empty.sum()), inner_factor.negative, fine)


def _nullity(B: sp.csc_array, epsilon: float) -> tuple[int, bool]:
    """Null vectors of B, by the inertia of B - epsilon, and whether that is proved.

    Raises:
        ValueError: negative curvature.
    """
    p = Pencil.of(B)
    factors = Factorizer(p)
    below = factors(epsilon)
    fine = below.exact and below.rounding < epsilon / 2
    if below.negative == 0:
        return 0, fine
    negative = factors(-epsilon)
    if negative.negative:
        x = np.cos(np.arange(1.0, p.n + 1))[:, None].astype(p.dtype)
        for _ in range(30):  # inverse iteration: towards the eigenvalue nearest to -epsilon
            x = negative.solve(x)
            x /= np.linalg.norm(x)
        curvature = float((x.conj().T @ (B @ x)).real.item())
        _refuse(min(curvature, float(B.diagonal().real.min())))
    return below.negative, fine and negative.exact and negative.rounding < epsilon / 2


def _refuse(curvature: float) -> None:
    raise ValueError(
        f"B has negative curvature {curvature:.2e}; a Hermitian pencil needs x^H B x >= 0. Exchange A "
        f"and B if "
        'A is definite, or use which=("contour", ...) with backend="cirr", which needs no definite B'
    )


def _by_far_shifts(pencil: Pencil, factors: Factorizer) -> Definiteness:
    """B is singular off the axes: count at shifts so far out that the counts stand still."""
    far = 100.0 * pencil.scale
    counts: list[tuple[int, int, bool]] = []
    for _ in range(3):
        low, high = factors(-far), factors(far)
        clear = min(low.clearance, high.clearance) > CLEAR  # else a null vector's sign is rounding
        counts.append((low.negative, high.negative, low.exact and high.exact and clear))
        if len(counts) > 1 and counts[-1][:2] == counts[-2][:2]:
            base, top, exact = counts[-1]
            return Definiteness(pencil.n - (top - base), base, exact)
        far *= 100.0
    base, top, _ = counts[-1]
    return Definiteness(pencil.n - (top - base), base, False)
