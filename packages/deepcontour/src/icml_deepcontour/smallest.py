"""The k smallest eigenvalues, and the k nearest to a point, with proof that none is left out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from icml_deepcontour.errors import EigenConvergenceError
from icml_deepcontour.factorization import ShiftedFactor
from icml_deepcontour.inertia import Count
from icml_deepcontour.lanczos import BLOCK, BlockLanczos, Wanted
from icml_deepcontour.shifts import SCOUT, better_shift, first_shift, lower_shift
from icml_deepcontour.slices import (
    ENLARGEMENTS,
    LARGEST_SLICE,
    SAME,
    Found,
    Slicer,
    divide,
    orthonormal,
    solve_pieces,
)

NEIGHBOURS = 4  # columns of a warm start beyond the k wanted
MOVES = 3  # times that the shift may move after a scout


@dataclass(frozen=True)
class Answer:
    """Eigenpairs with what is known of their completeness.

    Attributes:
        values, vectors: rising, B-orthonormal.
        count: how many inertia counts where these are; None where nobody asked.
        basis: warm start for the next pencil.
        slices: how many slices there were.
    """

    values: np.ndarray
    vectors: np.ndarray
    count: Count | None
    basis: np.ndarray
    slices: int = 1


def smallest(slicer: Slicer, k: int, guesses: np.ndarray | None, certify: bool) -> Answer:
    """The k smallest eigenvalues.

    Raises:
        EigenConvergenceError: not all converged, or inertia counts more than can be found.
    """
    if k > LARGEST_SLICE:
        return _in_slices(slicer, k, guesses)
    factor = first_shift(slicer, k, guesses)
    moves = 0
    while True:
        below = min(slicer.below(factor), k) if factor.exact else 0
        run = slicer.run(factor, k, 0, _first_block(slicer, k))
        moved = None
        if slicer.start is None and moves < MOVES:
            for _ in range(SCOUT):
                run.step()
            moved = better_shift(run, below, k)
        if moved is None:
            break
        moves += 1
        slicer.effort.solves += run.solves
        factor = slicer.factors(moved)
        if factor.exact and slicer.below(factor) > k:
            factor = lower_shift(slicer, factor, k)
    slicer.effort.shifts.append(factor.shift)
    wanted = Wanted(below, k - below, inside_below=below)
    try:
        return _certified(slicer, run, wanted, k, certify)
    finally:
        slicer.effort.solves += run.solves


def _first_block(slicer: Slicer, k: int) -> np.ndarray | None:
    """A warm start: a block of mixtures of the last basis' lowest vectors, each of which holds all of them.

    A block as wide as the basis would be applied whole in every step, and cost more than it saves.
    """
    if slicer.start is None:
        return None
    x = slicer.start[:, : k + NEIGHBOURS]
    if x.shape[1] <= BLOCK:
        return x
    return x @ np.random.default_rng([slicer.seed, 0, 1]).standard_normal((x.shape[1], BLOCK))


def _certified(slicer: Slicer, run: BlockLanczos, wanted: Wanted, k: int, certify: bool) -> Answer:
    """Solve, count below a cut beside the last value, and look on where something is missing."""
    for _ in range(ENLARGEMENTS + 1):
        found = slicer.solve(run, wanted)
        values, vectors = found.values[:k], found.vectors[:, :k]
        if not certify:
            return Answer(values, vectors, None, found.basis)
        if run.factor.exact and slicer.below(run.factor) == k:
            return Answer(values, vectors, Count(k, slicer.kind.exact), found.basis)
        cut, expected = _cut(run.factor.shift, found, 8 * slicer.pencil.rounding(0.0))
        spacing = float(np.ptp(values)) / k or None
        factor = run.factor if cut == run.factor.shift else slicer.factors(cut, spacing=spacing)
        if not (factor.exact and run.factor.exact):
            return Answer(values, vectors, Count(k, False, factor.reason or run.factor.reason), found.basis)
        count = slicer.below(factor)
        if count == expected:
            exact = slicer.kind.exact
            return Answer(values, vectors, Count(k, exact, "" if exact else "B may be singular"), found.basis)
        if count < expected:
            break
        # One more block of them must show; all of a large cluster are not wanted.
        slicer.effort.restarts += 1
        wanted = replace(
            wanted, high=cut, inside_above=expected + min(count - expected, BLOCK) - wanted.below
        )
        run.grow(run.largest + 4 * BLOCK)
        run.inject(2 * BLOCK)
    raise EigenConvergenceError(
        f"inertia counts {count} eigenvalues below {cut:g}, where {expected} were found after {ENLARGEMENTS} "
        "enlargements; the error holds them",
        values,
        vectors,
    )


def _cut(shift: float, found: Found, blur: float) -> tuple[float, int]:
    """Where to count, and how many should lie below: beside the last value, else below its cluster."""
    values = found.values
    ends = np.append(values[1:], found.above)
    gaps = ends - values
    same = SAME * np.maximum(np.abs(values - shift), np.abs(ends - shift))
    apart = gaps > np.maximum(np.where(np.isfinite(same), same, 0.0), blur)
    if found.cluster:
        apart[-1] = False
    for at in range(len(values) - 1, -1, -1):
        if apart[at]:
            if np.isinf(ends[at]):
                return float(values[at] + max(abs(values[at]), abs(values[at] - shift), 1e-300)), at + 1
            return float(values[at] + ends[at]) / 2, at + 1
    if shift < values[0]:
        return shift, 0
    return float(values[0] - max(float(np.ptp(values)), SAME * abs(values[0] - shift), blur)), 0


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
    exact = factor.exact and lowest.exact and slicer.kind.exact
    basis = np.concatenate(bases, axis=1)
    return Answer(values[:k], vectors[:, :k], Count(k, exact, factor.reason), basis, len(pieces))


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
    slicer.effort.shifts.append(factor.shift)
    run = slicer.run(factor, k, 0, slicer.start)
    wanted = Wanted(nearest=k)
    try:
        for _ in range(ENLARGEMENTS + 1):
            found = slicer.solve(run, wanted)
            order = np.sort(np.argsort(np.abs(found.values - factor.shift), kind="stable")[:k])
            values, vectors = found.values[order], found.vectors[:, order]
            if not certify:
                return Answer(values, vectors, None, found.basis)
            radius, expected = _radius(factor.shift, found, 8 * p.rounding(sigma))
            if expected == 0 and radius <= p.rounding(sigma):
                return Answer(values, vectors, Count(k, True), found.basis)
            ends = [slicer.factors(factor.shift + s * radius, spacing=2 * radius / k) for s in (-1, 1)]
            if not all(end.exact for end in ends):
                reason = "; ".join(end.reason for end in ends if end.reason)
                return Answer(values, vectors, Count(k, False, reason), found.basis)
            count = ends[1].negative - ends[0].negative
            if count == expected:
                return Answer(values, vectors, Count(k, True), found.basis)
            if count < expected:
                break
            slicer.effort.restarts += 1
            wanted = replace(wanted, radius=radius, inside_radius=expected + min(count - expected, BLOCK))
            run.grow(run.largest + 4 * BLOCK)
            run.inject(2 * BLOCK)
    finally:
        slicer.effort.solves += run.solves
    raise EigenConvergenceError(
        f"inertia counts {count} eigenvalues within {radius:g} of {sigma:g}, where {expected} were found",
        *orthonormal(p, values, vectors),
    )


def _radius(shift: float, found: Found, blur: float) -> tuple[float, int]:
    """A distance that no eigenvalue has, and how many are nearer."""
    distance = np.sort(np.abs(found.values - shift))
    ends = np.append(distance[1:], found.beyond)
    apart = (ends - distance) > np.maximum(SAME * np.where(np.isfinite(ends), ends, 0.0), blur)
    if found.cluster:
        apart[-1] = False
    for at in range(len(distance) - 1, -1, -1):
        if apart[at]:
            return float(distance[at] * 2 if np.isinf(ends[at]) else (distance[at] + ends[at]) / 2), at + 1
    return float(distance[0]) / 2, 0
