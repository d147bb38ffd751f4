"""Elastic distances on the CPU: the lanes of a vector are pairs.

A block of ``LANES`` series of one side is stored point by point, its lanes side by side, and meets one series
of the other side at a time. Two rows of state are kept. A cell costs one new pointwise distance: that of the
previous match is its diagonal neighbour's, and deletions are known beforehand. Threads share blocks times
series by cells.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit
from icml_kernels.njit import threads as default_threads
from icml_kernels.series.elastic_cross import reference
from icml_kernels.series.recurrence import deletions, radius

LANES = 32  # two vectors of 512 bits in float32, so that one cell waits less for its left neighbour
_FEW_CELLS = 200_000  # below this a thread costs more than it saves
_UNREACHED = 1e30


def forward(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    metric: str,
    cost: str,
    nu: float,
    lam: float,
    band: float,
    relative: bool,
    masked: bool,
    threads: int,
) -> Tensor:
    """See ``reference.forward``. The first call of each precision is compared with it on three small
    pairs."""
    rest = (metric, cost, nu, lam, band, relative, masked)
    if not kernel_is_right(x.dtype):
        return reference.forward(x, y, x_lengths, y_lengths, x_times, y_times, *rest, threads)
    return _compiled(x, y, x_lengths, y_lengths, x_times, y_times, *rest, threads or default_threads())


@cache
def kernel_is_right(dtype: torch.dtype) -> bool:
    """Whether the compiled loop gives what the definition gives; warns once where it does not."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 5, 1, generator=generator, dtype=torch.float64).to(dtype)
    y = torch.randn(3, 4, 1, generator=generator, dtype=torch.float64).to(dtype)
    lengths = torch.tensor([5]), torch.tensor([4, 2, 1])
    times = torch.arange(1, 6, dtype=dtype)[None], torch.arange(1, 5, dtype=dtype).expand(3, -1)
    tail = ("twed", "norm", 0.05, 0.5, -1.0, False, False, 1)
    found = _compiled(x, y, *lengths, *times, *tail)
    wanted = reference.forward(x, y, *lengths, *times, *tail)
    if bool(((found - wanted).abs() <= 1e-4 * wanted.abs()).all()):
        return True
    warnings.warn(
        f"the compiled elastic distances are wrong on this machine ({found.tolist()} instead of "
        f"{wanted.tolist()}); the slow definition runs instead. Empty the numba cache of icml-kernels and "
        "try again",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def _compiled(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    metric: str,
    cost: str,
    nu: float,
    lam: float,
    band: float,
    relative: bool,
    masked: bool,
    threads: int,
) -> Tensor:
    if x.shape[0] == 0 or y.shape[0] == 0:
        return x.new_zeros(x.shape[0], y.shape[0])
    if x.shape[0] * -(-y.shape[0] // LANES) > y.shape[0] * -(-x.shape[0] // LANES):
        sides = (y, x, y_lengths, x_lengths, y_times, x_times)
        return _compiled(*sides, metric, cost, nu, lam, band, relative, masked, threads).mT.contiguous()
    twed = metric == "twed"
    out = x.new_empty(x.shape[0], y.shape[0])
    # Lanes of like length share a block, so that short series do not wait for long ones.
    order = torch.argsort(y_lengths, stable=True)
    lanes = _lanes(order.numpy())
    lane_lengths = y_lengths.numpy()[lanes]
    edit = x.new_tensor(nu), x.new_tensor(lam)
    p = deletions(x, x_times, *edit, masked, 0.0) if twed else x.new_zeros(1, 1)
    q = deletions(y, y_times, *edit, masked, 0.0) if twed else y.new_zeros(1, 1)
    values = _padded_channels(x.numpy())
    blocks = _interleaved(_padded_channels(y.numpy()), lanes)
    deleted = _flat(q, lanes) if twed else np.zeros((1, 1), out.numpy().dtype)
    timed = twed and nu > 0
    moments = _flat(y_times, lanes) if timed else deleted
    reach = radius(x_lengths[:, None, None], torch.from_numpy(lane_lengths)[None], band, relative).numpy()
    work = np.outer(lane_lengths.max(1), x_lengths.numpy()).ravel()
    total = np.concatenate([[0], np.cumsum(work, dtype=np.int64)])
    shares = max(1, min(threads, int(total[-1]) * LANES // _FEW_CELLS, len(work)))
    bounds = np.searchsorted(total, np.linspace(0, total[-1], shares + 1)).astype(np.int64)
    bounds[0], bounds[-1] = 0, len(work)
    scale = x.shape[2] if masked else 0
    flags = (twed, cost == "squared", timed, band >= 0, scale)
    arrays = (values, p.contiguous().numpy(), np.ascontiguousarray(x_times.numpy()), x_lengths.numpy())
    arrays += (blocks, deleted, moments, lanes, lane_lengths, reach, out.numpy())
    weight = out.numpy().dtype.type(nu)
    if shares == 1:
        _pairs(0, len(work), *flags, weight, *arrays)
        return out
    with ThreadPoolExecutor(shares) as pool:
        for done in [
            pool.submit(_pairs, bounds[s], bounds[s + 1], *flags, weight, *arrays) for s in range(shares)
        ]:
            done.result()
    return out


def _lanes(order: np.ndarray) -> np.ndarray:
    """Which series is in which lane, [blocks, LANES]; spare lanes repeat the last series."""
    blocks = -(-len(order) // LANES)
    return np.concatenate([order, np.repeat(order[-1:], blocks * LANES - len(order))]).reshape(blocks, LANES)


def _padded_channels(values: np.ndarray) -> np.ndarray:
    """The values with a channel of zeros where there are three, five, …: two are taken at a time."""
    spare = values.shape[2] % 2 if values.shape[2] > 2 else 0
    return np.ascontiguousarray(np.pad(values, ((0, 0), (0, 0), (0, spare))) if spare else values)


def _interleaved(values: np.ndarray, lanes: np.ndarray) -> np.ndarray:
    """[blocks, channels, points * LANES]"""
    moved = np.ascontiguousarray(values[lanes].transpose(0, 3, 2, 1))
    return moved.reshape(*moved.shape[:2], -1)


def _flat(values: Tensor, lanes: np.ndarray) -> np.ndarray:
    """[blocks, points * LANES] of one number a point."""
    return _interleaved(values.numpy()[:, :, None], lanes)[:, 0]


@njit(nogil=True)
def _pairs(
    begin,
    end,
    twed,
    squared,
    timed,
    banded,
    scale,
    nu,
    x,
    p,
    x_times,
    x_lengths,
    blocks,
    deleted,
    moments,
    lanes,
    lane_lengths,
    reach,
    out,
):
    """The tasks from ``begin`` to ``end``; a task is one block and one series."""
    points = blocks.shape[2] // LANES
    far = x.dtype.type(_UNREACHED)
    rows = np.empty((2, (points + 1) * LANES), x.dtype)
    costs = np.empty((2, (points + 1) * LANES), x.dtype)
    count = x.shape[0]
    for task in range(begin, end):
        b, a = task // count, task % count
        n, m, widest, narrowest = x_lengths[a], 0, 0, points + x.shape[1]
        for l in range(LANES):
            m = max(m, lane_lengths[b, l])
            widest, narrowest = max(widest, reach[a, b, l]), min(narrowest, reach[a, b, l])
        if not banded:
            widest = narrowest = n + m
        # What the first row reads; every row then closes the column after its last.
        for k in range((min(m, widest + 1) + 1) * LANES):
            rows[0, k] = far
            rows[1, k] = far
            costs[0, k] = 0
        for l in range(LANES):
            rows[0, l] = 0
            costs[1, l] = 0
        for i in range(n):
            low = min(max(0, i - widest), m)
            high = max(low, min(m, i + widest + 1))
            # Loops over slices begin at 0, so that the compiler sees that no index is negative.
            first, width = low * LANES, high - low
            above, row = rows[i & 1][first:], rows[1 - (i & 1)][first:]
            before, here = costs[i & 1][first:], costs[1 - (i & 1)][first:]
            _cost_row(x[a, i], blocks[b], first, here[LANES:], width, squared, scale)
            if timed:
                _add_times(x_times[a, i], moments[b, first:], here[LANES:], nu, width)
            for l in range(LANES):
                row[l] = far
            if high < m:
                for l in range(LANES):
                    row[(width + 1) * LANES + l] = far
            # Where bands differ within the block, each cell is closed to some lanes before its right
            # neighbour is met.
            step = width if narrowest == widest else 1
            for j in range(0, width, max(step, 1)):
                o = j * LANES
                if twed:
                    _twed_row(
                        above[o:], row[o:], before[o:], here[o:], deleted[b, first + o :], p[a, i], step
                    )
                else:
                    _dtw_row(above[o:], row[o:], here[o:], step)
                if narrowest < widest:
                    for l in range(LANES):
                        if abs(i - low - j) > reach[a, b, l]:
                            row[o + LANES + l] = far
        last = rows[n & 1]
        for l in range(LANES):
            out[a, lanes[b, l]] = last[lane_lengths[b, l] * LANES + l]


@njit(nogil=True)
def _twed_row(above, row, before, here, deleted, p, width):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            match = above[o + l] + (here[o + LANES + l] + before[o + l])
            up = above[o + LANES + l] + p
            left = row[o + l] + deleted[o + l]
            up = up if up < match else match
            row[o + LANES + l] = left if left < up else up


@njit(nogil=True)
def _dtw_row(above, row, here, width):
    for j in range(width):
        o = j * LANES
        for l in range(LANES):
            diagonal, up, left = above[o + l], above[o + LANES + l], row[o + l]
            up = up if up < diagonal else diagonal
            row[o + LANES + l] = here[o + LANES + l] + (left if left < up else up)


@njit(nogil=True)
def _cost_row(point, block, first, here, width, squared, scale):
    """Cost of one point of x to ``width`` points of every lane, from place ``first`` of block [channels,
    points]."""
    channels = len(point)
    if scale:
        _masked_cost_row(point, block, first, here, width, scale)
    elif channels == 1:
        _one_channel(point[0], block[0, first:], here, width)
    else:
        _two_channels(point[0], point[1], block[0, first:], block[1, first:], here, width)
        for c in range(2, channels, 2):
            _two_more(point[c], point[c + 1], block[c, first:], block[c + 1, first:], here, width)
    if squared == (channels == 1 and scale == 0):
        if squared:
            for k in range(width * LANES):
                here[k] = here[k] * here[k]
        else:
            for k in range(width * LANES):
                here[k] = np.sqrt(here[k])


@njit(nogil=True)
def _one_channel(value, block, here, width):
    for k in range(width * LANES):
        here[k] = abs(value - block[k])


@njit(nogil=True)
def _two_channels(a, b, first, second, here, width):
    for k in range(width * LANES):
        u, v = a - first[k], b - second[k]
        here[k] = u * u + v * v


@njit(nogil=True)
def _two_more(a, b, first, second, here, width):
    for k in range(width * LANES):
        u, v = a - first[k], b - second[k]
        here[k] = here[k] + (u * u + v * v)


@njit(nogil=True)
def _masked_cost_row(point, block, first, here, width, scale):
    """Squares over the channels present. A spare channel is 0 on both sides, and is taken off the count."""
    channels = len(point)
    for k in range(width * LANES):
        total, seen = here.dtype.type(0), scale - channels
        for c in range(channels):
            difference = point[c] - block[c, first + k]
            if difference == difference:
                total += difference * difference
                seen += 1
        here[k] = total * here.dtype.type(scale) / here.dtype.type(max(seen, 1))


@njit(nogil=True)
def _add_times(time, moments, here, nu, width):
    for k in range(width * LANES):
        here[k] += nu * abs(time - moments[k])
