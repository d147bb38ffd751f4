"""Where to put the shift when nobody says: below the spectrum, off its zero modes, then where it pays."""

from __future__ import annotations

import numpy as np

from icml_deepcontour.factorization import ShiftedFactor
from icml_deepcontour.lanczos import BlockLanczos
from icml_deepcontour.slices import Slicer

BELOW = 1e-9  # of the spectral scale: the first shift of a semi-definite A, off its zero modes
SCOUT = 3  # blocks of 8 solves, after which the shift may move
NARROW = 1.5  # a shift is too far down where the first values differ by less than this factor from it
DISTINCT = 1e3  # roundings by which values differ that are no cluster
DOWN = 3  # shifts that are tried where noise leaves too many eigenvalues below
ZERO_MODES = 1e7  # theta of a zero mode over that of the wanted, beyond which the projection loses digits
DROWNED = 1e5  # the same for a shift that was given, which is moved by no more than a hair
HAIR = 1e-3  # of the distance to the next eigenvalue: how far a shift moves off one that it hits


def first_shift(slicer: Slicer, count: int, guesses: np.ndarray | None) -> ShiftedFactor:
    """A factorization with at most `count` eigenvalues below it.

    Predictions put it into a gap near their median. Where noise leaves more than `count` below, it goes down
    by gaps. Where inertia contradicts them, or without them, it lies just below 0, or, for an indefinite A,
    where bisection by inertia finds no more than `count` below.
    """
    p = slicer.pencil
    if guesses is not None and len(guesses) >= 2:
        wanted = guesses[: count + 1]
        place = _median_gap(wanted)
        for _ in range(DOWN):
            if wanted[place] - wanted[place - 1] <= p.rounding(float(wanted[place])):
                break  # equal predictions: no gap, and perhaps an eigenvalue, lies there
            at = float(wanted[place - 1] + wanted[place]) / 2
            factor = slicer.factors(at, spacing=float(np.ptp(wanted)) / len(wanted))
            below = slicer.below(factor)
            if not factor.exact or abs(below - place) > max(3, 0.3 * count):
                break
            if below <= count:
                return factor
            place -= below - count + 1
            if place < 1:
                break
    low = -BELOW * p.scale
    factor = slicer.factors(low)
    if not factor.exact or slicer.below(factor) <= count:
        return factor
    return lower_shift(slicer, factor, count)


def _median_gap(values: np.ndarray) -> int:
    """How many predictions lie below the widest gap among those near their median.

    Unwanted eigenvalues lie above only, so that the last wanted value would converge fastest seen from far
    up. But residuals are judged in units of lambda, and the lowest values, which are far away then, need the
    more digits: of shifts at the quantiles 0.2 to 0.8 those at 0.5 and 0.6 needed the fewest solves.
    """
    n = len(values)
    centre, reach = (n - 1) // 2, max(1, n // 10)
    first, last = max(centre - reach, 0), min(centre + reach, n - 2)
    return first + int(np.argmax(np.diff(values)[first : last + 1])) + 1


def lower_shift(slicer: Slicer, high: ShiftedFactor, count: int) -> ShiftedFactor:
    """Down by powers of 4 until at most `count` eigenvalues lie below, then up by halves while none does."""
    p = slicer.pencil
    top = high.shift
    reach = 1e-4 * p.scale
    low = None
    for _ in range(40):
        factor = slicer.factors(top - reach)
        below = slicer.below(factor)
        if below == 0:
            low = factor
            break
        if below <= count:
            return factor
        top, reach = factor.shift, 4 * reach
    if low is None:
        return factor
    bottom = low.shift
    for _ in range(12):
        middle = slicer.factors((bottom + top) / 2)
        below = slicer.below(middle)
        if 0 < below <= count:
            return middle
        if below == 0:
            bottom, low = middle.shift, middle
        else:
            top = middle.shift
    return low


def better_shift(run: BlockLanczos, below: int, count: int) -> float | None:
    """After the scout: where to move a shift that lies below the spectrum, or None to stay.

    Stay where the first values fan out as seen from the shift. Move up where they bunch together far from it;
    move down where a zero mode is so near that it drowns the others.
    """
    ritz = run.ritz()
    above = np.sort(ritz.values[ritz.theta > 0])
    if below or len(above) < 4:
        return None
    shift = run.factor.shift
    nearest, other = above[0] - shift, above[min(max(count, 4), 8, len(above)) - 1] - shift
    if other > ZERO_MODES * nearest:
        return float(above[0] - 1e-3 * (other - nearest))
    spread = other - nearest
    if other < NARROW * nearest and spread > DISTINCT * run.pencil.rounding(0.0):
        return float(above[0] - 0.25 * (other - nearest))
    return None


def off_eigenvalue(run: BlockLanczos) -> float | None:
    """After the scout: a shift a hair off an eigenvalue that the shift hits, or None to stay.

    The theta of that eigenvalue drowns the others.
    """
    size = -np.sort(-np.abs(run.ritz().theta))
    others = size[(size < size[0] / DROWNED) & (size > 0)]
    return float(run.factor.shift + HAIR / others[0]) if len(others) else None
