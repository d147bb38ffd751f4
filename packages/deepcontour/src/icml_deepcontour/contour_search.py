"""A request solved by contours: place them, solve each, count between their ends, mend what is missing."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from icml_deepcontour.contour import Contour
from icml_deepcontour.contour_solvers import ContourResult, contour_eigs
from icml_deepcontour.density import kde_contours
from icml_deepcontour.errors import EigenConvergenceError, TooManyEigenvaluesError
from icml_deepcontour.factorization import Factorizer
from icml_deepcontour.inertia import Count, definiteness
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.resolvent import turns
from icml_deepcontour.slices import (
    Effort,
    Piece,
    Slicer,
    count_interval,
    divide,
    independent,
    orthonormal,
    real_ends,
    solve_piece,
)
from icml_deepcontour.smallest import CERTAIN, Answer, smallest
from icml_deepcontour.targets import Target

SCOUT = 1e-2  # tolerance of the Lanczos run that stands in for predictions
SAME_VECTOR = 0.5  # a B-cosine above this, at equal values, is one eigenpair found twice
WOUND = (16, 32, 64)  # nodes of the upper half that are tried for a winding number
CLEAR_TURN = 0.35  # largest turn between two nodes with which it is believed
NEAR = 1e-6  # of the value: what counts as equal there


@dataclass(frozen=True)
class Searched:
    """The eigenpairs and what they cost."""

    answer: Answer
    effort: Effort
    factorizations: int
    infinite: int


def with_contours(
    pencil: Pencil,
    target: Target,
    guesses: np.ndarray | None,
    method: str,
    *,
    tol: float,
    certify: bool,
    workers: int,
    seed: int,
    max_count: int,
    max_bytes: float | None,
    q95: np.ndarray | None = None,
    estimate: bool = False,
) -> Searched:
    """Solve by ``method`` on contours around predictions, or around a scout's estimates.

    Args:
        guesses: predicted eigenvalues, rising.
        q95: quantile of their errors, from which cuts keep away.
        estimate: count inside given contours by winding numbers.

    Raises:
        ValueError: nearest values, which have no contour; an interval whose ends cannot be counted.
        EigenConvergenceError: eigenpairs inside a contour did not converge, and no slice could mend it.
    """
    if target.kind == "nearest":
        raise ValueError(f'("nearest", ...) is solved by backend "slice", not "{method}"')
    moments = 1 if method == "feast" else 4

    def solve(contour: Contour) -> ContourResult:
        return contour_eigs(
            pencil,
            None,
            contour,
            tol,
            method=method,
            moments=moments,
            workers=workers,
            seed=seed,
            max_bytes=max_bytes,
        )

    if target.kind == "contour":
        return _given(pencil, target.contours, solve, certify, estimate)
    factors = Factorizer(pencil, max_bytes=max_bytes)
    kind = definiteness(pencil, factors)
    slicer = Slicer(pencil, factors, kind, tol=tol, seed=seed, threads=workers)
    if target.kind == "smallest":
        if guesses is None or len(guesses) < target.k:
            rough = Slicer(pencil, factors, kind, tol=SCOUT, seed=seed, threads=workers)
            guesses, q95 = smallest(rough, target.k, None, certify=False).values, None
        contours = kde_contours(guesses[: target.k], None if q95 is None else q95[: target.k])
        low, high = contours[0].interval[0], contours[-1].interval[1]
    else:
        before, count, exact, reason = count_interval(slicer, target.a, target.b)
        if not exact:
            raise ValueError(
                f"the eigenvalues in [{target.a:g}, {target.b:g}) cannot be counted ({reason}); ask for "
                '("SA", k), or for ("contour", contour) with certify=False'
            )
        if count > max_count:
            raise TooManyEigenvaluesError(
                f"[{target.a:g}, {target.b:g}) holds {count} eigenvalues by inertia, more than "
                f"max_count={max_count}",
                count,
            )
        low, high = real_ends(slicer, target.a, target.b)
        if count == 0:
            none = np.zeros((pencil.n, 0), dtype=pencil.dtype)
            proof = Answer(np.zeros(0), none, Count(0, True), none)
            return Searched(proof, slicer.effort, factors.count, kind.infinite)
        if np.isinf(low):
            rough = Slicer(pencil, factors, kind, tol=SCOUT, seed=seed, threads=workers)
            estimates = smallest(rough, count, guesses, certify=False).values
            low = float(estimates[0]) - 0.05 * max(high - float(estimates[0]), pencil.rounding(high))
            guesses, q95 = estimates, None
        contours = _contours_between(slicer, low, high, before, count, guesses, q95)
    answer, complex_factors = _mended(slicer, contours, solve, target, low, high, certify)
    return Searched(answer, slicer.effort, factors.count + complex_factors, kind.infinite)


def _contours_between(
    slicer: Slicer,
    low: float,
    high: float,
    before: int,
    count: int,
    guesses: np.ndarray | None,
    q95: np.ndarray | None,
) -> list[Contour]:
    """KDE pieces of the predictions inside, stretched to the ends; else pieces of equal count by inertia."""
    chosen = np.zeros(0, dtype=bool) if guesses is None else (guesses > low) & (guesses < high)
    inside = np.zeros(0) if guesses is None else guesses[chosen]
    error = None if q95 is None else q95[chosen]
    if len(inside) >= max(2, count // 2):
        edges = [low, *[c.interval[1] for c in kde_contours(inside, error)[:-1]], high]
        counts = [int(((inside >= a) & (inside < b)).sum()) for a, b in itertools.pairwise(edges)]
        scale = count / max(len(inside), 1)
        return [
            Contour((a + b) / 2, (b - a) / 2, round(c * max(scale, 1.0)) + 1)
            for a, b, c in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    pieces = divide(slicer, low, high, before, count)
    return [Contour((p.low + p.high) / 2, (p.high - p.low) / 2, p.count) for p in pieces]


def _given(
    pencil: Pencil,
    contours: tuple[Contour, ...],
    solve: Callable[[Contour], ContourResult],
    certify: bool,
    winding: bool,
) -> Searched:
    """Contours of the user's, of any pencil; with ``winding`` each is compared with its winding number."""
    results = [solve(c) for c in contours]
    expected = [max(r.estimate, 0.0) for r in results]
    resolved = winding
    if winding:
        for at, (contour, result) in enumerate(zip(contours, results, strict=True)):
            wound = _wound(pencil, contour, len(result.values))
            if wound is None:
                resolved = False
                continue
            expected[at] = wound
            if wound > len(result.values):  # once more, with room for all of them
                results[at] = solve(replace(contour, expected=2 * max(wound, contour.expected)))
    _complain(results)
    values, vectors = merge(pencil, results)
    total = round(sum(expected))
    missed = max(0, total - sum(len(r.values) for r in results)) if resolved else 0
    how = "winding numbers of det(z B - A)" if resolved else "stochastic trace"
    estimate = Count(total, False, f"estimated: {how}", missed)
    if missed:
        warnings.warn(
            f"the winding numbers of the contours count {total} eigenvalues, {len(values)} were found; raise "
            "the contours' expected, or draw them where no eigenvalue is near",
            RuntimeWarning,
            stacklevel=4,
        )
    if certify and pencil.hermitian and all(c.symmetric for c in contours):
        factors = Factorizer(pencil)
        slicer = Slicer(pencil, factors, definiteness(pencil, factors), tol=1e-8, seed=0)
        counts = [count_interval(slicer, *c.interval) for c in contours]
        total = sum(c[1] for c in counts)
        exact = all(c[2] for c in counts)
        reason = "; ".join(c[3] for c in counts if c[3])
        if not exact:
            estimate = Count(len(values), False, reason)
        else:
            counted = independent(pencil, vectors, Count(total, True, missed=max(0, total - len(values))))
            estimate = counted or estimate
        if exact and total != len(values):
            raise EigenConvergenceError(
                f"inertia counts {total} eigenvalues inside, {len(values)} were found; raise the "
                f"contour's expected",
                values,
                vectors,
            )
    effort = Effort(solves=sum(r.solves for r in results))
    spent = sum(r.factorizations for r in results)
    return Searched(Answer(values, vectors, estimate, vectors, len(contours)), effort, spent, 0)


def _wound(pencil: Pencil, contour: Contour, found: int) -> int | None:
    """The winding number, or None where the phase turns too far between the nodes."""
    for N in WOUND:
        if 2 * found > N:
            continue
        wound, largest = turns(pencil, contour, N)
        if largest < CLEAR_TURN:
            return wound
    return None


def _complain(results: list[ContourResult]) -> None:
    waiting = sum(r.unconverged for r in results)
    if waiting:
        raise EigenConvergenceError(
            f"{waiting} eigenpairs inside have not reached the tolerance; use more nodes or a larger "
            f"expected",
            np.concatenate([r.values for r in results]),
            np.concatenate([r.vectors for r in results], axis=1),
        )


def _mended(
    slicer: Slicer,
    contours: list[Contour],
    solve: Callable[[Contour], ContourResult],
    target: Target,
    low: float,
    high: float,
    certify: bool,
) -> tuple[Answer, int]:
    """Solve every contour; where inertia counts another number between its ends, a slice takes its place."""
    results = [solve(c) for c in contours]
    pencil = slicer.pencil
    slicer.effort.solves += sum(r.solves for r in results)
    spent = sum(r.factorizations for r in results)
    if not certify:
        _complain(results)
        values, vectors = merge(pencil, results)
        if target.kind == "smallest":
            values, vectors = values[: target.k], vectors[:, : target.k]
        return Answer(values, vectors, None, vectors, len(contours)), spent
    edges = [c.interval[0] for c in contours] + [contours[-1].interval[1]]
    ends = [slicer.factors(e, spacing=contours[0].radius) for e in edges]
    if not (all(e.exact for e in ends) and slicer.kind.exact):
        # Nothing can be counted, and nothing mended: what the contours gave, without a proof.
        _complain(results)
        values, vectors = merge(pencil, results)
        inside = np.isfinite(values) if target.kind == "smallest" else (values >= low) & (values < high)
        values, vectors = values[inside], vectors[:, inside]
        if target.kind == "smallest":
            values, vectors = values[: target.k], vectors[:, : target.k]
        reason = "; ".join(dict.fromkeys(e.reason for e in ends if e.reason)) or slicer.unproved
        return Answer(values, vectors, Count(len(values), False, reason), vectors, len(contours)), spent
    below = [slicer.below(e) for e in ends]
    pairs = list(zip(contours, results, strict=True))
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    for at, (_, result) in enumerate(pairs):
        count = below[at + 1] - below[at]
        a, b = ends[at].shift, ends[at + 1].shift
        kept = (result.values >= a) & (result.values < b)
        if int(kept.sum()) == count and not result.unconverged:
            parts.append((result.values[kept], result.vectors[:, kept]))
            continue
        slicer.effort.restarts += 1
        found = solve_piece(slicer, Piece(a, b, below[at], count), at + 1)
        parts.append((found.values, found.vectors))
    values = np.concatenate([p[0] for p in parts])
    vectors = np.concatenate([p[1] for p in parts], axis=1)
    if target.kind == "smallest" and (below[0] > 0 or below[-1] < target.k):
        answer = smallest(slicer, target.k, None, certify=True)  # the predictions lay elsewhere
        return answer, spent
    values, vectors = orthonormal(pencil, values, vectors)
    if target.kind == "smallest":
        values, vectors = values[: target.k], vectors[:, : target.k]
    else:
        inside = (values >= low) & (values < high)
        values, vectors = values[inside], vectors[:, inside]
    proof = Count(len(values), True)
    for end in ends:
        away = float(np.abs(values - end.shift).min(initial=np.inf))
        if CERTAIN * end.rounding > away:
            reason = f"an eigenvalue lies within rounding, {end.rounding:.1e}, of the cut at {end.shift:g}"
            proof = Count(len(values), False, reason)
    proof = independent(pencil, vectors, proof) or proof
    return Answer(values, vectors, proof, vectors, len(contours)), spent


def merge(pencil: Pencil, results: list[ContourResult]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenpairs of several contours, each once.

    Two are the same where their values agree and their vectors do: a true double eigenvalue has two vectors
    that are orthogonal, and stays.
    """
    values = np.concatenate([r.values for r in results])
    vectors = np.concatenate([r.vectors for r in results], axis=1)
    order = np.lexsort((values.imag, values.real))
    values, vectors = values[order], vectors[:, order]
    images = pencil.times_b(vectors) if pencil.hermitian else vectors
    kept: list[int] = []
    for i in range(len(values)):
        near = [
            j for j in kept if abs(values[j] - values[i]) <= NEAR * max(abs(values[i]), 1e-12 * pencil.scale)
        ]
        rest = vectors[:, i].copy()
        length = np.sqrt(abs(np.vdot(rest, images[:, i])))
        for j in near:
            rest -= vectors[:, j] * (np.vdot(images[:, j], rest) / np.vdot(images[:, j], vectors[:, j]))
        left = np.sqrt(abs(np.vdot(rest, pencil.times_b(rest[:, None])[:, 0] if pencil.hermitian else rest)))
        if not near or left > SAME_VECTOR * length:
            kept.append(i)
    values, vectors = values[kept], vectors[:, kept]
    return (
        orthonormal(pencil, values, vectors)
        if pencil.hermitian and np.isrealobj(values)
        else (values, vectors)
    )
