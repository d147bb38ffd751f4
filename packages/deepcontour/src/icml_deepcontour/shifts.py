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
ZERO_MODES = 1e7  # theta of a zero mode over that of the wanted, beyond which the projection loses digits


def first_shift(slicer: Slicer, count: int, guesses: np.ndarray | None) -> ShiftedFactor:
    """A factorization with at most `count` eigenvalues below it.

    Predictions put it into a gap near their median. Where inertia contradicts them, or without them, it lies
    just below 0, or, for an indefinite A, where bisection by inertia finds no more than `count` below.
    """
    p = slicer.pencil
    if guesses is not None and len(guesses) >= 2:
        wanted = guesses[: count + 1]
        at = _gap_near(wanted, 0.4)
        factor = slicer.factors(at, spacing=float(np.ptp(wanted)) / len(wanted))
        expected = int(np.count_nonzero(guesses < at))
        below = slicer.below(factor)
        if factor.exact and abs(below - expected) <= max(3, 0.3 * count) and below <= count:
            return factor
    low = -BELOW * p.scale
    factor = slicer.factors(low)
    if not factor.exact or slicer.below(factor) <= count:
        return factor
    return lower_shift(slicer, factor, count)


def _gap_near(values: np.ndarray, quantile: float) -> float:
    """The middle of the widest gap among those near a quantile."""
    n = len(values)
    centre, reach = int(quantile * (n - 1)), max(1, n // 10)
    first, last = max(centre - reach, 0), min(centre + reach, n - 2)
    gaps = np.diff(values)[first : last + 1]
    at = first + int(np.argmax(gaps))
    return float(values[at] + values[at + 1]) / 2


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
