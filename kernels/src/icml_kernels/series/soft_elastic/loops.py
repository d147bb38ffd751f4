"""The compiled loops of the smooth elastic distances; their lanes are pairs.

Where an index is the sum of a slice's start and a loop's counter, the slice is taken first: the compiler then
sees that no index is negative. Numbers are written in the arrays' own precision: 1 itself would turn float32
into float64. A change of ``vector_math`` is not seen by the cache of this file; change this file too, or
empty the cache.
"""

from __future__ import annotations

import numpy as np

from icml_kernels.njit import njit
from icml_kernels.series.recurrence import BIG
from icml_kernels.series.soft_elastic.vector_math import exp, log

# Fewer lanes, and the compiler unrolls the loop over lanes instead of making vectors of it.
LANES = 32


@njit(nogil=True)
def solve_groups(
    begin, end, block, gradients, twed, squared, banded, masked, gamma, nu, smoothing2, x, y, p, q,
    x_times, y_times, x_lengths, y_lengths, reach, value, x_gradient, y_gradient, p_gradient, q_gradient,
    x_times_gradient, y_times_gradient, gamma_gradient, nu_gradient,
):  # fmt: skip
    """Value, and derivatives where wanted, of the groups from ``begin`` to ``end``."""
    columns = y.shape[2] // LANES
    kind = x.dtype.type
    size = (columns + 2) * LANES
    blocks = (x.shape[1] + block - 1) // block
    # The table's rows of one block, after the row before it; that row of every block.
    table, kept = np.empty((block + 1, size), x.dtype), np.empty((blocks, size), x.dtype)
    costs = np.empty((2, size), x.dtype)
    weights = np.empty(4 * columns * LANES if gradients else 1, x.dtype)
    work = np.empty(8 * LANES, x.dtype)
    flow, matched = np.empty((2, size), x.dtype), np.empty((2, size), x.dtype)
    share = np.empty(size, x.dtype)
    for g in range(begin, end):
        n, m, widest, narrowest = 0, 0, 0, x.shape[1] + columns
        for l in range(LANES):
            n, m = max(n, x_lengths[g, l]), max(m, y_lengths[g, l])
            widest, narrowest = max(widest, reach[g, l]), min(narrowest, reach[g, l])
        if not banded:
            widest = narrowest = n + m
        kept[0] = kind(BIG)
        kept[0, :LANES] = 0
        costs[0] = 0
        costs[1, :LANES] = 0
        last = (n - 1) // block
        for b in range(last + 1):
            first, beyond = b * block, min(n, (b + 1) * block)
            table[0] = kept[b]
            for i in range(first, beyond):
                _one_row(
                    i, m, widest, narrowest, twed, squared, masked, gamma, nu, smoothing2, x[g, i], y[g],
                    p[g], q[g], x_times[g], y_times[g], reach[g], table[i - first], table[i - first + 1],
                    costs,
                )  # fmt: skip
                for l in range(LANES):
                    if x_lengths[g, l] == i + 1:
                        value[g, l] = table[i - first + 1, y_lengths[g, l] * LANES + l]
            if b < last:
                kept[b + 1] = table[block]
        if not gradients:
            continue
        flow[:] = 0
        matched[:] = 0
        for b in range(last, -1, -1):
            first, beyond = b * block, min(n, (b + 1) * block)
            if b < last:
                table[0] = kept[b]
                if first > 0:
                    _costs_of(
                        first - 1, m, widest, twed, squared, masked, nu, smoothing2, x[g, first - 1], y[g],
                        x_times[g], y_times[g], costs[first & 1],
                    )  # fmt: skip
                for i in range(first, beyond):
                    _one_row(
                        i, m, widest, narrowest, twed, squared, masked, gamma, nu, smoothing2, x[g, i], y[g],
                        p[g], q[g], x_times[g], y_times[g], reach[g], table[i - first],
                        table[i - first + 1], costs,
                    )  # fmt: skip
            for i in range(beyond - 1, first - 1, -1):
                here, above = flow[i & 1], flow[1 - (i & 1)]
                for l in range(LANES):
                    if x_lengths[g, l] == i + 1:
                        here[y_lengths[g, l] * LANES + l] += 1
                low, high = _band(i, m, widest)
                o, width = low * LANES, high - low
                if i == 0:
                    costs[0] = 0
                _weights_row(
                    table[i - first, o:], table[i - first + 1, o:], costs[i & 1, o:],
                    costs[1 - (i & 1), o:], p[g, i * LANES :], q[g, o:], gamma, twed, width, weights, work,
                )  # fmt: skip
                if i > 1:
                    _costs_of(
                        i - 2, m, widest, twed, squared, masked, nu, smoothing2, x[g, i - 2], y[g],
                        x_times[g], y_times[g], costs[1 - (i & 1)],
                    )  # fmt: skip
                above[o : o + (width + 1) * LANES] = 0
                work[4 * LANES :] = 0
                _flow_row(here[o:], above[o:], weights, matched[i & 1, o:], q_gradient[g, o:], work, width)
                if twed:
                    _join(share, matched[i & 1, o + LANES :], matched[1 - (i & 1), o + 2 * LANES :], width)
                    _times_back(
                        share, x_times[g, i * LANES :], y_times[g, o:], nu, y_times_gradient[g, o:], work,
                        width,
                    )  # fmt: skip
                else:
                    share[: width * LANES] = here[o + LANES : o + (width + 1) * LANES]
                for l in range(LANES):
                    p_gradient[g, i * LANES + l] = work[4 * LANES + l]
                    gamma_gradient[g, l] += work[5 * LANES + l]
                    x_times_gradient[g, i * LANES + l] = work[6 * LANES + l]
                    nu_gradient[g, l] += work[7 * LANES + l]
                _costs_back(
                    share, x[g, i], y[g], o, x_gradient[g, i], y_gradient[g], width, squared, masked,
                    smoothing2,
                )  # fmt: skip
        if not twed:
            p_gradient[g] = 0
            q_gradient[g] = 0


@njit(nogil=True)
def _costs_of(i, m, widest, twed, squared, masked, nu, smoothing2, point, y, x_times, y_times, out):
    """c[i, j] of the row's allowed cells, at places j + 1 of ``out``."""
    low, high = _band(i, m, widest)
    o, width = low * LANES, high - low
    here = out[o + LANES :]
    channels = y.shape[0]
    if masked:
        _masked_squares(point, y, o, here, width)
    else:
        _squares(point, y[0, o:], here, width, False)
        for c in range(1, channels):
            _squares(point[c * LANES :], y[c, o:], here, width, True)
    if not squared:
        for k in range(width * LANES):
            here[k] = np.sqrt(here[k] + smoothing2)
    if twed:
        _add_times(x_times[i * LANES :], y_times[o:], here, nu, width)


@njit(nogil=True)
def _band(i, m, widest):
    """First allowed column of row i and the one after the last; of series that end earlier there may be
    none."""
    low = min(max(0, i - widest), m)
    return low, max(low, min(m, i + widest + 1))


@njit(nogil=True)
def _squares(point, series, here, width, add):
    for j in range(width):
        o = j * LANES
        if add:
            for l in range(LANES):
                difference = point[l] - series[o + l]
                here[o + l] = here[o + l] + difference * difference
        else:
            for l in range(LANES):
                difference = point[l] - series[o + l]
                here[o + l] = difference * difference


@njit(nogil=True)
def _masked_squares(point, y, first, here, width):
    channels = y.shape[0]
    for j in range(width):
        for l in range(LANES):
            total, seen = here.dtype.type(0), 0
            for c in range(channels):
                difference = point[c * LANES + l] - y[c, first + j * LANES + l]
                if difference == difference:
                    total += difference * difference
                    seen += 1
            here[j * LANES + l] = total * here.dtype.type(channels) / here.dtype.type(max(seen, 1))


@njit(nogil=True)
def _add_times(times, series, here, nu, width):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            here[o + l] = here[o + l] + nu * abs(times[l] - series[o + l])


@njit(nogil=True)
def _one_row(
    i, m, widest, narrowest, twed, squared, masked, gamma, nu, smoothing2,
    point, y, p, q, x_times, y_times, reach, above, row, costs,
):  # fmt: skip
    """Row i of the dynamic programme, from the row before."""
    _costs_of(
        i, m, widest, twed, squared, masked, nu, smoothing2, point, y, x_times, y_times, costs[1 - (i & 1)]
    )
    low, high = _band(i, m, widest)
    o, width = low * LANES, high - low
    above, row = above[o:], row[o:]
    before, here = costs[i & 1, o:], costs[1 - (i & 1), o:]
    far = row.dtype.type(BIG)
    for l in range(LANES):
        row[l] = far
        row[(width + 1) * LANES + l] = far
    # Where bands differ within the group, each cell is closed to some lanes before its right neighbour is
    # met.
    step = width if narrowest == widest else 1
    for j in range(0, width, max(step, 1)):
        k = j * LANES
        if twed:
            edits = p[i * LANES :], q[o + k :]
            _twed_values(above[k:], row[k:], before[k:], here[k:], *edits, gamma, step)
        else:
            _dtw_values(above[k:], row[k:], here[k:], gamma, step)
        if narrowest < widest:
            for l in range(LANES):
                if abs(i - low - j) > reach[l]:
                    row[k + LANES + l] = far


@njit(nogil=True)
def _twed_values(above, row, before, here, p, q, gamma, width):
    one = row.dtype.type(1)  # 1 itself would turn float32 into float64
    inverse = one / gamma
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            match = above[o + l] + (here[o + LANES + l] + before[o + l])
            up, left = above[o + LANES + l] + p[l], row[o + l] + q[o + l]
            row[o + LANES + l] = _soft_minimum(match, up, left, gamma, inverse, one)


@njit(nogil=True)
def _dtw_values(above, row, here, gamma, width):
    one = row.dtype.type(1)
    inverse = one / gamma
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            least = _soft_minimum(above[o + l], above[o + LANES + l], row[o + l], gamma, inverse, one)
            row[o + LANES + l] = here[o + LANES + l] + least


@njit(nogil=True, forceinline=True)
def _soft_minimum(a, b, c, gamma, inverse, one):
    """The least of three has exponent 0: two exponentials."""
    low, high = min(a, b), max(a, b)
    least, middle, most = min(low, c), max(low, min(high, c)), max(high, c)
    total = exp((least - middle) * inverse) + exp((least - most) * inverse) + one
    return least - gamma * log(total)


# The loops below are cut into short ones over ``work``: the compiler makes no vectors where more than eight
# pairs of arrays might overlap.
@njit(nogil=True)
def _weights_row(above, row, before, here, p, q, gamma, twed, width, weights, work):
    """The weights of the three arguments of every soft minimum of a finished row, from the table."""
    inverse = row.dtype.type(1) / gamma
    for j in range(width):
        o = j * LANES
        result = row[o + LANES :]
        if twed:
            for l in range(LANES):
                match = above[o + l] + (here[o + LANES + l] + before[o + l])
                up, left = above[o + LANES + l] + p[l], row[o + l] + q[o + l]
                work[l], work[LANES + l], work[2 * LANES + l], work[3 * LANES + l] = (
                    match, up, left, result[l],
                )  # fmt: skip
        else:
            for l in range(LANES):
                work[l], work[LANES + l], work[2 * LANES + l] = above[o + l], above[o + LANES + l], row[o + l]
                work[3 * LANES + l] = result[l] - here[o + LANES + l]
        _weigh(inverse, weights[4 * o :], work)


@njit(nogil=True)
def _weigh(inverse, weights, work):
    """From three arguments and their soft minimum the arguments' weights, and minus the weights' entropy: the
    soft minimum's derivative by gamma."""
    one = weights.dtype.type(1)  # 1 itself would turn float32 into float64
    for l in range(LANES):
        a, b, c = work[l], work[LANES + l], work[2 * LANES + l]
        least = min(a, min(b, c))
        u, v, w = (least - a) * inverse, (least - b) * inverse, (least - c) * inverse
        e, f, g = exp(u), exp(v), exp(w)
        scale = one / (e + f + g)
        e, f, g = e * scale, f * scale, g * scale
        weights[l], weights[LANES + l], weights[2 * LANES + l] = e, f, g
        # Where a weight is 0 its exponent may be huge, but is finite.
        weights[3 * LANES + l] = e * u + f * v + g * w - (least - work[3 * LANES + l]) * inverse


@njit(nogil=True)
def _flow_row(here, above, weights, matched, q_gradient, work, width):
    """Send what flows through the cells of a row to their predecessors; from right to left."""
    for back in range(width):
        o = (width - 1 - back) * LANES
        cell, right, up = weights[4 * o :], here[o:], above[o:]
        left, taken = q_gradient[o:], matched[o:]
        for l in range(LANES):
            through = right[LANES + l]
            a, b, c = through * cell[l], through * cell[LANES + l], through * cell[2 * LANES + l]
            work[l], work[LANES + l], work[2 * LANES + l] = a, b, c
            work[4 * LANES + l] += b
            work[5 * LANES + l] += through * cell[3 * LANES + l]
        for l in range(LANES):
            up[LANES + l] += work[LANES + l]
            up[l] += work[l]
        for l in range(LANES):
            right[l] += work[2 * LANES + l]
            left[l] += work[2 * LANES + l]
            taken[LANES + l] = work[l]


@njit(nogil=True)
def _join(share, matched, matched_below, width):
    """The coefficient of c[i, j]: its own match and the one below and to the right."""
    for k in range(width * LANES):
        share[k] = matched[k] + matched_below[k]


@njit(nogil=True)
def _times_back(share, times, series, nu, series_gradient, work, width):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            difference = times[l] - series[o + l]
            step = share[o + l] * nu
            step = step if difference > 0 else (-step if difference < 0 else share.dtype.type(0))
            work[6 * LANES + l] += step
            series_gradient[o + l] -= step
            work[7 * LANES + l] += share[o + l] * abs(difference)


@njit(nogil=True)
def _costs_back(share, point, y, first, x_gradient, y_gradient, width, squared, masked, smoothing2):
    """Gradients by both points of every cell of a row; ``share`` is overwritten."""
    channels = y.shape[0]
    if masked:
        _masked_costs_back(share, point, y, first, x_gradient, y_gradient, width, squared, smoothing2)
        return
    if squared:
        for k in range(width * LANES):
            share[k] = share[k] + share[k]
    elif channels == 1:
        _over_norms(share, point, y[0, first:], width, smoothing2)
    else:
        lengths = np.empty(width * LANES, share.dtype)
        _squares(point, y[0, first:], lengths, width, False)
        for c in range(1, channels):
            _squares(point[c * LANES :], y[c, first:], lengths, width, True)
        for k in range(width * LANES):
            length = np.sqrt(lengths[k] + smoothing2)
            share[k] = share[k] / length if length > 0 else share.dtype.type(0)
    for c in range(channels):
        _channel_back(
            share, point[c * LANES :], y[c, first:], x_gradient[c * LANES :], y_gradient[c, first:], width
        )


@njit(nogil=True)
def _over_norms(share, point, series, width, smoothing2):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            difference = point[l] - series[o + l]
            length = np.sqrt(difference * difference + smoothing2)
            share[o + l] = share[o + l] / length if length > 0 else share.dtype.type(0)


@njit(nogil=True)
def _channel_back(share, point, series, x_gradient, y_gradient, width):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            step = share[o + l] * (point[l] - series[o + l])
            x_gradient[l] += step
            y_gradient[o + l] -= step


@njit(nogil=True)
def _masked_costs_back(share, point, y, first, x_gradient, y_gradient, width, squared, smoothing2):
    channels = y.shape[0]
    kind = share.dtype.type
    for j in range(width):
        for l in range(LANES):
            k = j * LANES + l
            total, seen = kind(0), 0
            for c in range(channels):
                difference = point[c * LANES + l] - y[c, first + k]
                if difference == difference:
                    total += difference * difference
                    seen += 1
            scale = kind(channels) / kind(max(seen, 1))
            length = np.sqrt(total * scale + smoothing2)
            step = (
                kind(2) * scale * share[k]
                if squared
                else (scale * share[k] / length if length > 0 else kind(0))
            )
            for c in range(channels):
                difference = point[c * LANES + l] - y[c, first + k]
                if difference == difference:
                    x_gradient[c * LANES + l] += step * difference
                    y_gradient[c, first + k] -= step * difference
