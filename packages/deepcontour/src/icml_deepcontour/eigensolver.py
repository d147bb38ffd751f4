"""`eigs`: certified eigenpairs of A x = lambda B x, with or without predictions.

predict (ENO, an array of guesses, or the basis of the last pencil) -> place shifts or contours
-> solve to the tolerance -> count by inertia -> look on where one is missing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float, Inexact

from icml_deepcontour.constraints import eliminated
from icml_deepcontour.contour_search import with_contours
from icml_deepcontour.errors import EigenConvergenceError, TooManyEigenvaluesError
from icml_deepcontour.factorization import Factorize, Factorizer
from icml_deepcontour.inertia import (
    Count,
    Definiteness,
    count_below,
    definiteness,
    lower_bound,
    of_factor,
)
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.slices import (
    Slicer,
    count_interval,
    divide,
    independent,
    orthonormal,
    real_ends,
    residuals,
    solve_pieces,
)
from icml_deepcontour.smallest import CERTAIN, Answer, nearest, smallest
from icml_deepcontour.targets import Target

DENSE = 500  # rows below which LAPACK solves the whole
MAX_COUNT = 2000
CLUSTER = 1e-6  # of |lambda|: values closer than this are reported as one cluster
BACKENDS = ("auto", "slice", "cirr", "feast", "ssm")


@dataclass(frozen=True)
class EigsStats:
    """How a call of `eigs` went.

    Attributes:
        backend: what solved: dense, slice, cirr, feast or ssm.
        residuals: of every pair, see `slices.residuals`.
        orthogonality: largest entry of |X^H B X - I|.
        count: by inertia where these eigenpairs are; None without ``certify``.
        infinite: infinite eigenvalues, left out: null vectors of B.
        factorizations: how many.
        solves: right-hand sides.
        shifts: real shifts that served to solve.
        restarts: how often a slice had to look on.
        slices: slices or contours.
        clusters: (first, last + 1) of runs of nearly equal values, of which only the span is meaningful.
        ordering: order of elimination, for ``ordering=`` of the next pencil with the same pattern.
        basis: Ritz vectors of these and their neighbours, for ``X0=`` of the next pencil.
        seconds: wall time of predict, solve and the whole.
    """

    backend: str
    residuals: np.ndarray
    orthogonality: float
    count: Count | None
    infinite: int = 0
    factorizations: int = 0
    solves: int = 0
    shifts: tuple[float, ...] = ()
    restarts: int = 0
    slices: int = 1
    clusters: tuple[tuple[int, int], ...] = ()
    ordering: np.ndarray | None = None
    basis: np.ndarray | None = None
    seconds: dict[str, float] = field(default_factory=dict)


def eigs(
    A: Any,
    B: Any = None,
    which: tuple[Any, ...] = ("SA", 6),
    *,
    predictor: Any = None,
    fields: Any = None,
    X0: Inexact[np.ndarray, "n p"] | None = None,
    backend: str = "auto",
    tol: float = 1e-8,
    certify: bool = True,
    workers: int = 1,
    eliminate: Any = None,
    factorize: Factorize | None = None,
    ordering: np.ndarray | None = None,
    max_count: int = MAX_COUNT,
    max_bytes: float | None = None,
    random_state: int = 0,
    return_stats: bool = False,
) -> Any:
    """Eigenpairs of A x = lambda B x, sorted, with proof that none is missing.

    Args:
        A: Hermitian, sparse or dense, [n, n]; any matrix with ``("contour", ...)``.
        B: Hermitian positive semi-definite, or None for the identity. Infinite eigenvalues are left out.
        which: ``("SA", k)`` smallest, ``("range", a, b)`` in [a, b), ``("below", b)``, ``("nearest", sigma,
            k)``,
            or ``("contour", contour)`` for any pencil. Values equal to a bound within rounding count as
            equal.
        predictor: predicted eigenvalues, or a `Predictor` that makes them of `fields`. Wrong ones cost time
            only.
        fields: of this instance, [c, H, W]; goes with a `Predictor`.
        X0: basis of a similar pencil (``stats.basis``), which replaces the random start.
        backend: ``"slice"`` is shift-invert block Lanczos; ``"cirr"``, ``"feast"`` and ``"ssm"`` integrate
            along
            contours. ``"auto"`` takes LAPACK below 500 rows, ``"slice"`` for Hermitian pencils, else
            ``"cirr"``.
        tol: largest residual ||A x - lambda B x|| / ||A x|| of every pair that is returned
            (`slices.residuals`).
        certify: count by inertia, and look on until nothing is missing; for pencils that are not
            Hermitian the count is an estimate by winding numbers, and ``stats.count`` says so.
        workers: slices or nodes at the same time, in threads; the result is the same to the bit. Up to 128
            eigenvalues (the smallest: up to 256 of 50 times as many rows) are one slice, for one worker.
        eliminate: constraints C of C x = 0, [m, n]; vectors are returned in the unknowns of A.
        factorize: factors of your own, ``f(sigma) -> (solve, negative_count)``: solve takes and gives [n,
            b], and
            the count is that of negative pivots of A - sigma B, or None where it is not known.
        ordering: order of elimination of an earlier call (``stats.ordering``): one pattern, many pencils.
        max_count: refuse intervals with more eigenvalues.
        max_bytes: refuse factors that are predicted to be larger; None for what is free.
        random_state: of random columns. The same input gives the same bits.
        return_stats: also return `EigsStats`.

    Returns:
        Eigenvalues [k] rising and eigenvectors [n, k], B-orthonormal for Hermitian pencils, the largest entry
        of each positive; with ``return_stats`` the statistics as well.

    Raises:
        TypeError: a `LinearOperator`, or options of the wrong type.
        ValueError: matrices or options that do not fit together.
        FillError: the factors would not fit; nothing was allocated.
        TooManyEigenvaluesError: more than `max_count`.
        EigenConvergenceError: not everything was found; holds what was.

    Example:
        >>> import scipy.sparse as sp
        >>> w, x = eigs(sp.diags_array([4.0, 1.0, 3.0, 2.0]), which=("SA", 2))
        >>> w.tolist()
        [1.0, 2.0]
    """
    begin = time.perf_counter()
    _check_options(backend, tol, workers, max_count, predictor, fields)
    lift = None
    if eliminate is not None:
        if factorize is not None or X0 is not None:
            raise ValueError("eliminate= changes the unknowns; it cannot go with factorize= or X0=")
        A, B, lift = eliminated(A, B, eliminate)
    hermitian = which[0] != "contour" if isinstance(which, tuple) and which else True
    pencil = Pencil.of(A, B, require_hermitian=hermitian or backend == "slice")
    target = Target.of(which, pencil.n)
    if predictor is not None and target.kind in ("nearest", "contour"):
        raise ValueError(f"predictor= has no use with which={which[:1]!r}; leave it out")
    guesses, q95 = _guesses(predictor, fields)
    start = _start(pencil, X0)
    predicted = time.perf_counter() - begin
    if target.kind == "contour" or backend in ("cirr", "feast", "ssm"):
        for name, value in (("X0", X0), ("factorize", factorize), ("ordering", ordering)):
            if value is not None:
                raise ValueError(f'{name}= has no use with backend="{backend}" on contours; leave it out')
    if target.kind == "contour" and backend == "slice":
        raise ValueError('which=("contour", ...) is solved by backend "cirr", "feast" or "ssm"')
    estimate = False
    if not pencil.hermitian and target.kind == "contour" and certify:
        certify, estimate = False, True  # a count of eigenvalues inside is estimated, not proved
    dense = None
    if _whole(pencil, target, backend, factorize, X0, max_bytes):
        dense_factors = Factorizer(pencil, max_bytes=max_bytes, order=ordering)
        dense = _dense(pencil, dense_factors, target, tol, certify, max_count)
    if dense is not None:
        answer = dense
        values, vectors, used, effort = answer.values, answer.vectors, "dense", None
        factorizations, infinite, order = dense_factors.count, 0, dense_factors.order
    elif target.kind == "contour" or backend in ("cirr", "feast", "ssm"):
        method = "cirr" if backend == "auto" else backend
        found = with_contours(
            pencil, target, guesses, method, tol=tol, certify=certify, workers=workers, seed=random_state,
            max_count=max_count, max_bytes=max_bytes, q95=q95, estimate=estimate,
        )  # fmt: skip
        answer, effort, factorizations, infinite = (
            found.answer,
            found.effort,
            found.factorizations,
            found.infinite,
        )
        values, vectors, used, order = answer.values, answer.vectors, method, None
    else:
        factors = Factorizer(pencil, max_bytes=max_bytes, factorize=factorize, order=ordering)
        kind = definiteness(pencil, factors)
        rough = None
        if start is not None:
            rough, start = _rayleigh_ritz(pencil, start)
            guesses = rough if guesses is None else guesses
        slicer = Slicer(
            pencil, factors, kind, tol=tol, seed=random_state, start=start, rough=rough,
            threads=workers, basis=return_stats,
        )  # fmt: skip
        answer = _sliced(slicer, target, guesses, certify, max_count)
        values, vectors = answer.values, answer.vectors
        used, effort, factorizations = "slice", slicer.effort, factors.count
        infinite, order = kind.infinite, factors.order
    if lift is not None:
        vectors = lift @ vectors
        top = vectors[np.argmax(np.abs(vectors), axis=0), np.arange(vectors.shape[1])]
        vectors = vectors * (np.abs(top) / np.where(top == 0, 1, top))
    whole = time.perf_counter() - begin
    if not return_stats:
        return values, vectors
    reduced = answer.vectors
    gram = reduced.conj().T @ pencil.times_b(reduced)
    stats = EigsStats(
        used,
        residuals(pencil, values, reduced, tol),
        float(np.abs(gram - np.eye(len(values))).max(initial=0.0)) if pencil.hermitian else float("nan"),
        answer.count,
        infinite,
        factorizations,
        0 if effort is None else effort.solves,
        () if effort is None else tuple(effort.shifts),
        0 if effort is None else effort.restarts,
        answer.slices,
        clusters(values),
        order,
        answer.basis,
        {"predict": predicted, "solve": whole - predicted, "total": whole},
    )
    return values, vectors, stats


def clusters(values: Float[np.ndarray, " k"]) -> tuple[tuple[int, int], ...]:
    """Runs of values closer than 1e-6 of their size, as (first, last + 1)."""
    if len(values) < 2 or np.iscomplexobj(values):
        return ()
    scale = np.maximum(np.abs(values), 1e-9 * np.abs(values).max())
    close = np.diff(values) <= CLUSTER * scale[1:]
    found, first = [], None
    for at, joined in enumerate([*close.tolist(), False]):
        if joined and first is None:
            first = at
        if not joined and first is not None:
            found.append((first, at + 1))
            first = None
    return tuple(found)


def _sliced(
    slicer: Slicer, target: Target, guesses: np.ndarray | None, certify: bool, max_count: int
) -> Answer:
    p = slicer.pencil
    finite = p.n - slicer.kind.infinite
    if target.kind in ("smallest", "nearest") and target.k >= finite:
        raise ValueError(
            f"k={target.k}, but the pencil has {finite} finite eigenvalues; at most {finite - 1} can be found"
        )
    if target.kind == "smallest":
        return smallest(slicer, target.k, guesses, certify)
    if target.kind == "nearest":
        return nearest(slicer, target.sigma, target.k, certify)
    before, count, exact, reason = count_interval(slicer, target.a, target.b)
    if not exact:
        raise ValueError(
            f"the eigenvalues in [{target.a:g}, {target.b:g}) cannot be counted ({reason}); ask for "
            '("nearest", sigma, k) or pass factorize= with counts'
        )
    if count > max_count:
        raise TooManyEigenvaluesError(
            f"[{target.a:g}, {target.b:g}) holds {count} eigenvalues by inertia, more than "
            f"max_count={max_count}; "
            "raise max_count or narrow the interval",
            count,
        )
    proof = Count(count, True)
    if count == 0:
        none = np.zeros((p.n, 0), dtype=p.dtype)
        return Answer(np.zeros(0), none, proof, none)
    low, high = real_ends(slicer, target.a, target.b)
    if np.isinf(low):
        return _below(slicer, high, count, guesses, proof)
    pieces = divide(slicer, low, high, before, count, guesses)
    values, vectors, bases = solve_pieces(slicer, pieces)
    proof = independent(p, vectors, proof) or proof
    return Answer(values, vectors, proof, np.concatenate(bases, axis=1), len(pieces))


def _below(slicer: Slicer, high: float, count: int, guesses: np.ndarray | None, proof: Count) -> Answer:
    """The `count` smallest, of which inertia has said that they are all below the bound."""
    answer = smallest(slicer, count, guesses, certify=False)
    values, vectors = answer.values, answer.vectors
    if values[-1] >= high:
        # A value beyond the bound stands in the place of one that is missing.
        answer = smallest(slicer, count, guesses, certify=True)
        values, vectors = answer.values, answer.vectors
        if values[-1] >= high:
            inside = values < high
            raise EigenConvergenceError(
                f"{int(inside.sum())} of the {count} eigenvalues below {high:g} were found",
                values[inside],
                vectors[:, inside],
            )
    proof = independent(slicer.pencil, vectors, proof) or proof
    return Answer(values, vectors, proof, answer.basis, answer.slices)


def _whole(
    pencil: Pencil, target: Target, backend: str, factorize: Any, start: Any, max_bytes: float | None
) -> bool:
    """LAPACK may solve the whole: it is small, or most of it is wanted.

    Raises:
        ValueError: all eigenvalues of a pencil too large for it.
    """
    n = pencil.n
    if not pencil.hermitian or target.kind == "contour" or factorize is not None:
        return False
    if backend not in ("auto", "slice"):
        return False
    if max_bytes is not None and 3.0 * pencil.dtype.itemsize * n * n > max_bytes:
        return False
    most = target.kind in ("smallest", "nearest") and target.k > n // 2
    if (n < DENSE and backend == "auto" and start is None) or (most and n <= 6 * DENSE) or n <= 16:
        return True
    if target.kind in ("smallest", "nearest") and target.k > n - 1:
        raise ValueError(
            f"k={target.k} of {n} eigenvalues; beyond {6 * DENSE} rows at most n - 1 can be found"
        )
    return False


def _dense(
    pencil: Pencil, factors: Factorizer, target: Target, tol: float, certify: bool, max_count: int
) -> Answer | None:
    """LAPACK on the whole, judged like any other back end; None where it is not good enough.

    Raises:
        ValueError: B has negative curvature.
        TooManyEigenvaluesError: more than `max_count` in an interval.
    """
    kind = definiteness(pencil, factors)
    if kind.infinite or not kind.exact:
        return None  # B is singular: shifts take it
    try:
        w, x = scipy.linalg.eigh(pencil.A.toarray(), None if pencil.identity else pencil.B.toarray())
    except np.linalg.LinAlgError:
        return None  # B is nearly singular
    if target.kind == "smallest":
        kept = np.arange(target.k)
    elif target.kind == "nearest":
        kept = np.sort(np.argsort(np.abs(w - target.sigma), kind="stable")[: target.k])
    else:
        ends = [lower_bound(pencil, b) for b in (target.a, target.b)]
        kept = np.flatnonzero((w >= ends[0]) & (w < ends[1]))
        if len(kept) > max_count:
            raise TooManyEigenvaluesError(
                f"[{target.a:g}, {target.b:g}) holds {len(kept)} eigenvalues, more than "
                f"max_count={max_count}; raise max_count or narrow the interval",
                len(kept),
            )
    values, vectors = orthonormal(pencil, w[kept], x[:, kept])
    if residuals(pencil, values, vectors, tol).max(initial=0.0) > tol:
        return None
    if not certify:
        return Answer(values, vectors, None, vectors)
    proof = _counted(pencil, factors, kind, target, w, kept)
    return None if proof is None else Answer(values, vectors, independent(pencil, vectors, proof), vectors)


def _counted(
    pencil: Pencil,
    factors: Factorizer,
    kind: Definiteness,
    target: Target,
    w: Float[np.ndarray, " n"],
    kept: np.ndarray,
) -> Count | None:
    """LAPACK's answer counted by inertia; None where the numbers differ.

    For k values the count is made at the next gaps outside of them that are wider than rounding.
    """
    k, n = len(kept), len(w)
    if target.kind == "interval":
        below = [count_below(pencil, factors, kind, b) for b in (target.a, target.b)]
        exact = below[0].exact and below[1].exact
        reason = "; ".join(c.reason for c in below if c.reason)
        if exact and below[1].n - below[0].n != k:
            return None
        return Count(k, exact, reason)
    first, last = (0, k) if target.kind == "smallest" else (int(kept[0]), int(kept[-1]) + 1)
    if first == 0 and last == n:
        return Count(k, True)  # all n
    blur = pencil.rounding(float(np.abs(w[[first, last - 1]]).max()))
    gaps = np.diff(w) > 4 * CERTAIN * blur
    while first > 0 and not gaps[first - 1]:
        first -= 1
    while last < n and not gaps[last - 1]:
        last += 1
    for at in (first, last):
        if at in (0, n):
            continue
        cut = factors((w[at - 1] + w[at]) / 2, spacing=float(w[at] - w[at - 1]))
        if not cut.exact:
            return Count(k, False, cut.reason)
        if CERTAIN * cut.rounding > min(cut.shift - w[at - 1], w[at] - cut.shift):
            reason = f"rounding moves eigenvalues by up to {cut.rounding:.1e} at {cut.shift:g}"
            return Count(k, False, reason)
        if of_factor(cut, kind).n != at:
            return None
    return Count(k, True)


def _check_options(
    backend: str, tol: float, workers: int, max_count: int, predictor: Any, fields: Any
) -> None:
    if backend not in BACKENDS:
        raise ValueError(f"backend={backend!r} is none of {', '.join(BACKENDS)}")
    if not 0 < tol < 1:
        raise ValueError(f"tol={tol!r} must lie between 0 and 1")
    if isinstance(workers, bool) or int(workers) != workers or workers < 1:
        raise ValueError(f"workers={workers!r} must be a whole number from 1 on")
    if max_count < 1:
        raise ValueError(f"max_count={max_count!r} must be at least 1")
    if fields is not None and not hasattr(predictor, "predict"):
        raise ValueError("fields= is read by a Predictor; give predictor=Predictor, or leave fields out")
    if fields is None and hasattr(predictor, "predict"):
        raise ValueError("a Predictor needs fields= of this instance")


def _guesses(predictor: Any, fields: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Predicted eigenvalues, rising, and the quantile of their errors that a Predictor gives."""
    q95 = None
    if predictor is None:
        return None, None
    if hasattr(predictor, "predict"):
        predictor, q95 = predictor.predict(np.asarray(fields)[None])
        predictor = np.asarray(predictor)[0]
    found = np.asarray(predictor, dtype=float).ravel()
    if len(found) == 0 or not np.isfinite(found).all():
        raise ValueError("predictor= must be a Predictor or finite predicted eigenvalues, at least one")
    order = np.argsort(found, kind="stable")
    if q95 is not None:
        q95 = np.broadcast_to(np.asarray(q95, dtype=float), found.shape)[order]
    return found[order], q95


def _start(pencil: Pencil, X0: Any) -> np.ndarray | None:
    if X0 is None:
        return None
    start = np.asarray(X0)
    if start.ndim != 2 or start.shape[0] != pencil.n or start.shape[1] == 0:
        raise ValueError(f"X0 has shape {list(start.shape)}; expected [{pencil.n}, p] with p >= 1")
    if not np.isfinite(start).all():
        raise ValueError("X0 has entries that are not finite")
    if np.iscomplexobj(start) and pencil.dtype.kind != "c":
        raise ValueError("X0 is complex but the pencil real; give real vectors")
    return start.astype(pencil.dtype)


def _rayleigh_ritz(pencil: Pencil, x: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
    """Ritz values of a basis, which are guesses, and its Ritz vectors, the lowest first."""
    gram, small = x.conj().T @ pencil.times_b(x), x.conj().T @ pencil.times_a(x)
    try:
        values, y = scipy.linalg.eigh((small + small.conj().T) / 2, (gram + gram.conj().T) / 2)
    except np.linalg.LinAlgError:
        return None, x  # columns depend on each other
    return values, x @ y
