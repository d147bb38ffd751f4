"""The k smallest eigenvalues, and the k nearest to a point, with proof that none is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from icml_deepcontour.errors import EigenConvergenceError
from icml_deepcontour.factorization import ShiftedFactor
from icml_deepcontour.inertia import Count
from icml_deepcontour.lanczos import BLOCK, BlockLanczos, Wanted
from icml_deepcontour.shifts import SCOUT, better_shift, first_shift, lower_shift, off_eigenvalue
from icml_deepcontour.slices import (
    ENLARGEMENTS,
    LARGEST_SLICE,
    SAME,
    Found,
    Slicer,
    divide,
    independent,
    orthonormal,
    solve_pieces,
)

LARGEST_RUN = 256  # eigenvalues up to which one run from one shift may find the smallest
SPARSE = 50  # rows an eigenvalue, from which on factorizations cost more than a longer basis
SPARE = 2  # eigenvalues beyond the nearest k that are looked for where the shift is not sigma
MOVES = 3  # times that the shift may move
CERTAIN = 4.0  # roundings between an eigenvalue and a cut, from which on the count is believed
WIDTH = 16.0  # roundings within which values are equal


@dataclass(frozen=True)
class Answer:
    """Eigenpairs with what is known of their completeness.

    Attributes:
        values, vectors: rising, B-orthonormal.
        count: how many inertia counts where these are; None where nobody asked.
        basis: warm start for the next pencil.
        slices: how many slices there were.
        nearer: a shift from which the values could be told apart; None where they are.
    """

    values: np.ndarray
    vectors: np.ndarray
    count: Count | None
    basis: np.ndarray
    slices: int = 1
    nearer: float | None = None


def smallest(slicer: Slicer, k: int, guesses: np.ndarray | None, certify: bool) -> Answer:
    """The k smallest eigenvalues.

    Raises:
        EigenConvergenceError: not all converged, or inertia counts more than can be found.
    """
    if k > max(LARGEST_SLICE, min(LARGEST_RUN, slicer.pencil.n // SPARSE)):
        return _in_slices(slicer, k, guesses)
    factor = first_shift(slicer, k, guesses)
    moves = 0
    while True:
        below = min(slicer.below(factor), k) if factor.exact else 0
        run = slicer.run(factor, k, 0, slicer.first_block(k, 0))
        moved = None
        if below == 0 and moves < MOVES:
            for _ in range(SCOUT):
                run.step()
            moved = better_shift(run, below, k)
        if moved is None:
            slicer.effort.shifts.append(factor.shift)
            wanted = Wanted(below, k - below, guard=0, inside_below=below)
            try:
                answer = _certified(slicer, run, wanted, k, certify)
            finally:
                slicer.effort.solves += run.solves
            if answer.nearer is None or moves >= MOVES:
                return answer
            moved = answer.nearer
        else:
            slicer.effort.solves += run.solves
        moves += 1
        factor = slicer.factors(moved)
        if factor.exact and slicer.below(factor) > k:
            factor = lower_shift(slicer, factor, k)


def _certified(slicer: Slicer, run: BlockLanczos, wanted: Wanted, k: int, certify: bool) -> Answer:
    """Solve, count below a cut just above the last value, and look on where something is missing.

    As many below the cut as were found: nothing is missing. More: either one is missing, or the last value
    has equals beyond k; then a second count, below the values that are equal to the last within rounding,
    must be that of the values there.
    """
    p = slicer.pencil
    for _ in range(ENLARGEMENTS + 1):
        found = slicer.solve(run, wanted)
        values, vectors = found.values[:k], found.vectors[:, :k]

        def answer(
            reason: str = "",
            nearer: float | None = None,
            values: np.ndarray = values,
            vectors: np.ndarray = vectors,
            basis: np.ndarray = found.basis,
        ) -> Answer:
            count = Count(k, not reason and slicer.kind.exact, reason or slicer.unproved)
            return Answer(values, vectors, independent(p, vectors, count), basis, nearer=nearer)

        if not certify:
            return Answer(values, vectors, None, found.basis)
        if not run.factor.exact:
            return answer(run.factor.reason)
        blur = max(p.rounding(float(values[-1])), run.factor.rounding)
        shift = run.factor.shift
        if slicer.below(run.factor) == k and values[-1] < shift - CERTAIN * run.factor.rounding:
            return answer()
        spacing = float(np.ptp(values)) / k
        margin = max(1e-3 * spacing, 2 * CERTAIN * blur)
        factor = slicer.factors(float(values[-1]) + margin, spacing=spacing or None)
        if factor.exact and CERTAIN * factor.rounding > factor.shift - values[-1]:
            margin = 2 * CERTAIN * factor.rounding
            factor = slicer.factors(float(values[-1]) + margin, spacing=spacing or None)
        if not factor.exact:
            return answer(factor.reason)
        if CERTAIN * factor.rounding > factor.shift - values[-1]:
            return answer(f"rounding moves eigenvalues by up to {factor.rounding:.1e} at {factor.shift:g}")
        count, cut = slicer.below(factor), factor.shift
        if count == k:
            return answer()
        if count < k:
            break
        blur = max(blur, factor.rounding)
        equal = _equal_to_last(values, WIDTH * blur)
        lower = slicer.factors(float(values[equal]) - 2 * CERTAIN * blur, spacing=spacing or None)
        if not lower.exact or CERTAIN * lower.rounding > values[equal] - lower.shift:
            return answer(lower.reason or f"rounding moves eigenvalues by up to {lower.rounding:.1e}")
        missing = slicer.below(lower) - equal
        if missing == 0:
            width = float(values[-1] - values[equal])
            if width <= WIDTH * blur:
                return answer()
            # A chain of values, each as near to the next as rounding: look at it from nearby.
            reason = f"the last {k - equal} values lie within {width:.1e}, and are not told apart"
            return answer(reason, float(values[equal]) - max(width, 2 * CERTAIN * blur))
        if missing < 0:
            count, cut = count + missing, lower.shift
            break
        # One more block of them must show; all of a large cluster are not wanted.
        slicer.effort.restarts += 1
        cut = lower.shift
        inside = max(equal + min(missing, BLOCK) - wanted.below, 0)
        wanted = replace(wanted, high=cut, inside_above=inside)
        run.grow(run.largest + 4 * BLOCK)
        run.inject(2 * BLOCK)
    raise EigenConvergenceError(
        f"inertia counts {count} eigenvalues below {cut:g}, where {int((values < cut).sum())} were "
        f"found after {ENLARGEMENTS} enlargements; the error holds them",
        values,
        vectors,
    )


def _equal_to_last(values: np.ndarray, blur: float) -> int:
    """Where the run of values begins that are equal to the last, each within `blur` of the next."""
    apart = np.flatnonzero(np.diff(values) > blur)
    return int(apart[-1]) + 1 if len(apart) else 0


def _in_slices(slicer: Slicer, k: int, guesses: np.ndarray | None) -> Answer:
    """Many eigenvalues: find a bound above the k-th by inertia, then divide what is below it."""
    factor = None
    if guesses is not None and len(guesses) >= k:
        spread = float(np.ptp(guesses[:k]))
        factor = slicer.factors(float(guesses[k - 1]) + 2 * spread / k, spacing=spread / k or None)
        bottom = float(guesses[0])
        if not k <= slicer.below(factor) <= 1.3 * k + 20:
            factor, guesses = None, None  # the predictions lie elsewhere
    if factor is None:
        factor, bottom = _bound_by_growth(slicer, k)
    count = slicer.below(factor)
    step = 0.01 * max(factor.shift - bottom, slicer.pencil.rounding(factor.shift))
    low = bottom - step
    for _ in range(40):
        lowest = slicer.factors(low)
        if slicer.below(lowest) == 0:
            break
        low -= step
        step *= 4
    pieces = divide(slicer, lowest.shift, factor.shift, 0, count, guesses)
    values, vectors, bases = solve_pieces(slicer, pieces)
    reason = factor.reason or lowest.reason or slicer.unproved
    if not reason and slicer.below(lowest) != 0:
        reason = f"eigenvalues lie below {lowest.shift:g}, where none was expected"
    if not reason and values[k - 1] > factor.shift - CERTAIN * factor.rounding:
        reason = f"rounding moves eigenvalues by up to {factor.rounding:.1e} at {factor.shift:g}"
    proof = independent(slicer.pencil, vectors[:, :k], Count(k, not reason, reason))
    return Answer(values[:k], vectors[:, :k], proof, np.concatenate(bases, axis=1), len(pieces))


def _bound_by_growth(slicer: Slicer, k: int) -> tuple[ShiftedFactor, float]:
    """A shift with k or a few more eigenvalues below, and the lowest eigenvalue.

    Weyl: the count grows as a power of the distance from the bottom; read off the first 32 eigenvalues, and
    corrected by inertia.
    """
    known = smallest(slicer, 32, None, certify=False).values
    bottom = float(known[0])
    distance = known - known[0] + (known[-1] - known[0]) / len(known)
    i = np.log(np.arange(1, len(known) + 1))
    slope = float(np.polyfit(i[4:], np.log(np.maximum(distance[4:], 1e-300)), 1)[0])
    reach = float(distance[-1]) * (1.05 * k / len(known)) ** min(max(slope, 0.1), 4.0)
    too_low, too_high = 0.0, np.inf
    for _ in range(30):
        factor = slicer.factors(bottom + reach)
        count = slicer.below(factor)
        if k <= count <= 1.3 * k + 20:
            break
        too_low, too_high = (reach, too_high) if count < k else (too_low, reach)
        if np.isinf(too_high):
            reach *= min(4.0, max(1.1, 1.1 * k / max(count, 1)))
        else:
            reach = (too_low + too_high) / 2
    if count < k:
        factor = slicer.factors(bottom + too_high)
    return factor, bottom


def nearest(slicer: Slicer, sigma: float, k: int, certify: bool) -> Answer:
    """The k eigenvalues nearest to a point.

    Raises:
        EigenConvergenceError: not all converged, or inertia counts more than can be found.
    """
    p = slicer.pencil
    factor = slicer.factors(sigma)
    run = slicer.run(factor, k, 0, slicer.first_block(k, 0, sigma))
    for _ in range(SCOUT):
        run.step()
    moved = off_eigenvalue(run)
    if moved is not None:
        slicer.effort.solves += run.solves
        factor = slicer.factors(moved)
        run = slicer.run(factor, k, 0, slicer.first_block(k, 0, sigma))
    slicer.effort.shifts.append(factor.shift)
    # Seen from a shift beside sigma the last few may come in another order.
    away = abs(factor.shift - sigma)
    finite = p.n - slicer.kind.infinite
    count, expected, radius = 0, 0, 0.0
    wanted = Wanted(nearest=k if away == 0 else min(k + SPARE, finite - 1))
    try:
        for _ in range(ENLARGEMENTS + 1):
            found = slicer.solve(run, wanted)
            order = np.sort(np.argsort(np.abs(found.values - sigma), kind="stable")[:k])
            values, vectors = found.values[order], found.vectors[:, order]
            if not certify:
                return Answer(values, vectors, None, found.basis)
            blur = max(p.rounding(float(values[-1])), p.rounding(sigma), factor.rounding)
            beyond = found.beyond - away
            if np.abs(values - sigma).max() > beyond + WIDTH * blur and wanted.nearest < finite - 1:
                wanted = replace(wanted, nearest=min(wanted.nearest + BLOCK, finite - 1))
                continue  # one of those left out may be nearer to sigma than the last of these
            radius, expected = _radius(sigma, k, found, beyond, 2 * CERTAIN * blur)
            proof = Count(k, slicer.kind.exact and factor.exact, factor.reason or slicer.unproved)
            distance = np.sort(np.abs(values - sigma))
            if expected < k and distance[-1] - distance[expected] > WIDTH * blur:
                reason = "values as far from sigma as the last are not told apart; take a nearer sigma"
                proof = Count(k, False, reason)
            if expected == 0 and radius <= p.rounding(sigma):
                return Answer(values, vectors, independent(p, vectors, proof), found.basis)
            ends = [slicer.factors(sigma + s * radius, spacing=2 * radius / k) for s in (-1, 1)]
            if not all(end.exact for end in ends):
                reason = "; ".join(end.reason for end in ends if end.reason)
                return Answer(values, vectors, Count(k, False, reason), found.basis)
            worst = max(end.rounding for end in ends)
            if CERTAIN * worst > np.abs(distance - radius).min():
                reason = f"rounding moves eigenvalues by up to {worst:.1e} at {radius:g} from {sigma:g}"
                proof = Count(k, False, reason)
            count = ends[1].negative - ends[0].negative
            if count == expected:
                return Answer(values, vectors, independent(p, vectors, proof), found.basis)
            if count < expected:
                break
            slicer.effort.restarts += 1
            inside = expected + min(count - expected, BLOCK)
            wanted = replace(wanted, radius=radius, inside_radius=inside, centre=sigma)
            run.grow(run.largest + 4 * BLOCK)
            run.inject(2 * BLOCK)
    finally:
        slicer.effort.solves += run.solves
    raise EigenConvergenceError(
        f"inertia counts {count} eigenvalues within {radius:g} of {sigma:g}, where {expected} were found",
        *orthonormal(p, values, vectors),
    )


def _radius(sigma: float, k: int, found: Found, beyond: float, blur: float) -> tuple[float, int]:
    """A distance from sigma that no eigenvalue has, and how many are nearer: k if that can be told.

    Args:
        sigma: the point.
        k: how many are wanted of those that were found.
        found: eigenpairs.
        beyond: a distance below which there is no other eigenvalue.
        blur: distances closer than this are equal.
    """
    distance = np.sort(np.abs(found.values - sigma))
    ends = np.minimum(np.append(distance[1:], np.inf), beyond)
    apart = (ends - distance) > np.maximum(SAME * np.where(np.isfinite(ends), ends, 0.0), blur)
    if found.cluster:
        apart[-1] = False
    for at in range(k - 1, -1, -1):
        if apart[at]:
            return float(distance[at] * 2 if np.isinf(ends[at]) else (distance[at] + ends[at]) / 2), at + 1
    return float(distance[0]) / 2, 0
