"""Neighbour lists with numba: all pairs of small replicas, and a cell list for any triclinic cell.

Pairs are counted first and written afterwards, each thread to places of its own, then put in order by
counting sorts: the list is the same for any number of threads. No ``fastmath`` here: the two passes
must round alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.molecules.radius_pairs.lattice import completed_lattice, heights
from icml_kernels.molecules.radius_pairs.reference import places
from icml_kernels.njit import balanced_rows, njit, prange, threads

ALL_PAIRS_LIMIT = 512
"""Beads of a replica up to which every pair is measured where nothing is periodic."""
CROWDED = 16.0
"""Beads a bin of the width of the reach from which on narrower bins pay (measured at 12 to 30)."""
SHARE = 1 << 16
"""Distances that are worth a thread: about 0.1 ms."""
SHARED_BEADS = 512
"""Beads in a cell list that are worth a thread, likewise."""
MAX_WRAPS = 500_000
"""Cells that a bead may lie away from the origin: shifts are packed into 21 bits."""

_SHIFT_BITS = 21
_SHIFT_ZERO = 1 << (_SHIFT_BITS - 1)
_SHIFT_MASK = (1 << _SHIFT_BITS) - 1
_BINS_PER_BEAD = 4
_MARGIN = 1e-6


def radius_pairs(
    pos: Tensor, ptr: Tensor, reach: float, cell: Tensor | None, pbc: Tensor | None, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The five tensors of a `HalfList` and the shifts [pairs, 3] (no rows without a cell)."""
    x = pos.double().contiguous().numpy()
    bounds = ptr.long().contiguous().numpy()
    sizes = np.diff(bounds)
    if cell is None or pbc is None:
        if sizes.max(initial=0) <= ALL_PAIRS_LIMIT:
            return _all_pairs_list(x, bounds, reach, capacity)
        cells, periodic = np.zeros((len(sizes), 3, 3)), np.zeros((len(sizes), 3), dtype=np.bool_)
    else:
        cells, periodic = cell.double().numpy(), pbc.numpy()
    found = [
        _cell_list_pairs(x[bounds[b] : bounds[b + 1]], bounds[b], cells[b], periodic[b], reach)
        for b in range(len(sizes))
        if sizes[b] > 0
    ]
    empty = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))
    smaller, larger, shift = (
        found[0] if len(found) == 1 else map(np.concatenate, zip(empty, *found, strict=True))
    )
    n_pairs, size = len(smaller), places(len(smaller), capacity)
    out, out_shift = _empty_list(len(x), size, size if cell is not None else 0)
    _sort_pairs(smaller, larger, shift, *(t.numpy() for t in (*out, out_shift)))
    for tensor in (out[1], out[3], out[4], out_shift):
        tensor[n_pairs:] = 0
    return *out, out_shift


def _empty_list(n_beads: int, size: int, n_shifts: int) -> tuple[tuple[Tensor, ...], Tensor]:
    lengths = (n_beads + 1, size, n_beads + 1, size, size)
    return tuple(torch.empty(n, dtype=torch.int32) for n in lengths), torch.empty(
        n_shifts, 3, dtype=torch.int32
    )


def _all_pairs_list(x: np.ndarray, bounds: np.ndarray, reach: float, capacity: int) -> tuple[Tensor, ...]:
    n = len(x)
    columns = np.ascontiguousarray(x.T)
    end = np.repeat(bounds[1:], np.diff(bounds))
    work = np.concatenate(([0], np.cumsum(end - np.arange(n))))
    shares = balanced_rows(work, min(threads(), 1 + int(work[-1]) // SHARE))
    count = np.zeros(n + 1, np.int32)
    _run(_count_all_pairs, _count_all_pairs_shares, shares, (columns, end, reach, count))
    n_pairs = int(count.sum())
    size = places(n_pairs, capacity)
    out, shift = _empty_list(n, size, 0)
    row_ptr, idx, row_ptr_t, idx_t, pair_t = (t.numpy() for t in out)
    np.cumsum(count, out=row_ptr)
    _run(_fill_all_pairs, _fill_all_pairs_shares, shares, (columns, end, reach, row_ptr, idx))
    _transpose(row_ptr, idx, row_ptr_t, idx_t, pair_t)
    for part in (idx, idx_t, pair_t):
        part[n_pairs:] = 0
    return *out, shift


def _cell_list_pairs(
    x: np.ndarray, first: int, cell: np.ndarray, periodic: np.ndarray, reach: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unsorted pairs of one replica: the smaller bead, the larger bead, the packed shift."""
    n = len(x)
    lattice = completed_lattice(cell, periodic)
    frac = x @ np.linalg.inv(lattice)
    wraps = np.where(periodic, np.floor(frac), 0.0)
    if np.abs(wraps).max() > MAX_WRAPS:
        bead = int(np.abs(wraps).max(1).argmax())
        raise ValueError(
            f"bead {first + bead} lies {wraps[bead].tolist()} cells away; wrap the positions first"
        )
    frac -= wraps
    low = np.where(periodic, 0.0, frac.min(0))
    # An open axis has a unit vector, so that its extent is a length; it may well be 0.
    extent = np.where(periodic, 1.0, np.maximum(frac.max(0) - low, reach))
    bins, stencil = _bins(n, heights(lattice) * extent, reach)
    order, start = np.empty(n, np.int64), np.zeros(bins.prod() + 1, np.int64)
    _bin_beads(frac, low, bins / extent, bins, start, order)
    columns = np.ascontiguousarray((x - wraps @ lattice)[order].T)
    shares = balanced_rows(start[:: bins[2]], min(threads(), 1 + n // SHARED_BEADS))
    offset = np.zeros(bins[0] * bins[1] + 1, np.int64)
    geometry = (columns, start, bins, periodic, stencil, lattice, reach)
    owners = ((order + first).astype(np.int32), wraps[order].astype(np.int64))
    no_pairs = (np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0, np.int64))
    _run(_cell_pairs, _cell_pairs_shares, shares, (*geometry, True, offset, *owners, *no_pairs))
    np.cumsum(offset, out=offset)
    pairs = tuple(np.empty(offset[-1], part.dtype) for part in no_pairs)
    _run(_cell_pairs, _cell_pairs_shares, shares, (*geometry, False, offset, *owners, *pairs))
    return pairs


def _run(
    alone: Callable[..., None], shared: Callable[..., None], bounds: np.ndarray, arguments: tuple[Any, ...]
) -> None:
    """Without a second thread numba's thread pool is not even started."""
    if len(bounds) == 2:
        alone(bounds[0], bounds[1], *arguments)
    else:
        shared(bounds, *arguments)


def _bins(n: int, widths: np.ndarray, reach: float) -> tuple[np.ndarray, np.ndarray]:
    """Bins along each axis and how many of them the reach spans; `widths` are the cell's heights."""
    # Slightly wider bins than the reach keep the span at 1 whatever the rounding.
    bins = np.clip(np.floor(widths / (reach * (1.0 + _MARGIN))), 1, 1 << 20).astype(np.int64)
    if n / bins.prod() > CROWDED:
        bins[:2] = np.maximum(bins[:2], np.floor(2.0 * widths[:2] / (reach * (1.0 + _MARGIN))))
    while bins.prod() > max(64, _BINS_PER_BEAD * n):
        bins[bins.argmax()] = (bins.max() + 1) // 2
    return bins, np.ceil(reach / widths * bins * (1.0 + 1e-3 * _MARGIN)).clip(max=1e6).astype(np.int64)


@njit(fastmath=False)
def _count_all_pairs(first, last, columns, end, reach, count):
    """count[i + 1] = number of beads j > i of the same replica within reach of bead i."""
    x, y, z = columns[0], columns[1], columns[2]
    limit = reach * reach
    for i in range(first, last):
        xi, yi, zi = x[i], y[i], z[i]
        found = 0
        for j in range(i + 1, end[i]):
            dx, dy, dz = x[j] - xi, y[j] - yi, z[j] - zi
            found += dx * dx + dy * dy + dz * dz < limit
        count[i + 1] = found


@njit(fastmath=False)
def _fill_all_pairs(first, last, columns, end, reach, row_ptr, idx):
    x, y, z = columns[0], columns[1], columns[2]
    limit = reach * reach
    for i in range(first, last):
        xi, yi, zi = x[i], y[i], z[i]
        place, stop = row_ptr[i], row_ptr[i + 1]
        for j in range(i + 1, end[i]):
            if place == stop:
                break
            dx, dy, dz = x[j] - xi, y[j] - yi, z[j] - zi
            idx[place] = j
            place += dx * dx + dy * dy + dz * dz < limit


@njit(parallel=True, fastmath=False)
def _count_all_pairs_shares(bounds, columns, end, reach, count):
    for s in prange(len(bounds) - 1):
        _count_all_pairs(bounds[s], bounds[s + 1], columns, end, reach, count)


@njit(parallel=True, fastmath=False)
def _fill_all_pairs_shares(bounds, columns, end, reach, row_ptr, idx):
    for s in prange(len(bounds) - 1):
        _fill_all_pairs(bounds[s], bounds[s + 1], columns, end, reach, row_ptr, idx)


@njit(fastmath=False)
def _bin_beads(frac, low, scale, bins, start, order):
    """Counting sort: `order` lists the beads bin by bin, those of bin b from start[b] on."""
    n = frac.shape[0]
    home = np.empty(n, np.int64)
    for i in range(n):
        flat = 0
        for axis in range(3):
            b = int((frac[i, axis] - low[axis]) * scale[axis])
            flat = flat * bins[axis] + max(0, min(b, bins[axis] - 1))
        home[i] = flat
        start[flat + 1] += 1
    for b in range(len(start) - 1):
        start[b + 1] += start[b]
    cursor = start[:-1].copy()
    for i in range(n):
        order[cursor[home[i]]] = i
        cursor[home[i]] += 1


@njit(fastmath=False)
def _column_pairs(
    columns,
    start,
    bins,
    periodic,
    stencil,
    lattice,
    reach,
    column,
    place,
    stop,
    beads,
    wraps,
    smaller,
    larger,
    shift,
):
    """Visit the bins of one column and, once for each pair of bins, what the reach touches around them.

    With place == stop == -1 the pairs are only counted. Half of the offsets suffice, since the other half
    are the same pairs seen from the other bead: those after (0, 0, 0) in lexicographic order, and in the
    bin itself the beads that follow. That also holds where bins meet their own periodic images.
    """
    x, y, z = columns[0], columns[1], columns[2]
    limit = reach * reach
    nx, ny, nz = bins[0], bins[1], bins[2]
    bx, by = column // ny, column % ny
    counting = stop < 0
    found = 0
    for ox in range(stencil[0] + 1):
        sx = (bx + ox) // nx
        if sx != 0 and not periodic[0]:
            continue
        for oy in range(-stencil[1] if ox > 0 else 0, stencil[1] + 1):
            sy = (by + oy) // ny
            if sy != 0 and not periodic[1]:
                continue
            base = ((bx + ox - sx * nx) * ny + by + oy - sy * ny) * nz
            own_column = ox == 0 and oy == 0
            for bz in range(nz):
                first, last = start[column * nz + bz], start[column * nz + bz + 1]
                if first == last:
                    continue
                bottom = bz if own_column else bz - stencil[2]
                top = bz + stencil[2]
                while bottom <= top:
                    # Bins that follow each other in the same periodic image lie side by side in memory.
                    sz = bottom // nz
                    ceiling = min(top, sz * nz + nz - 1)
                    if sz == 0 or periodic[2]:
                        begin = start[base + bottom - sz * nz]
                        end = start[base + ceiling - sz * nz + 1]
                        tx = sx * lattice[0, 0] + sy * lattice[1, 0] + sz * lattice[2, 0]
                        ty = sx * lattice[0, 1] + sy * lattice[1, 1] + sz * lattice[2, 1]
                        tz = sx * lattice[0, 2] + sy * lattice[1, 2] + sz * lattice[2, 2]
                        own_bin = own_column and bottom == bz and sz == 0
                        for a in range(first, last):
                            ax, ay, az = x[a] - tx, y[a] - ty, z[a] - tz
                            if own_bin:
                                begin = a + 1
                            if counting:
                                for b in range(begin, end):
                                    dx, dy, dz = x[b] - ax, y[b] - ay, z[b] - az
                                    found += dx * dx + dy * dy + dz * dz < limit
                                continue
                            before = place
                            for b in range(begin, end):
                                if place == stop:
                                    break
                                dx, dy, dz = x[b] - ax, y[b] - ay, z[b] - az
                                larger[place] = b
                                place += dx * dx + dy * dy + dz * dz < limit
                            for p in range(before, place):
                                b = larger[p]
                                s0 = sx + wraps[a, 0] - wraps[b, 0]
                                s1 = sy + wraps[a, 1] - wraps[b, 1]
                                s2 = sz + wraps[a, 2] - wraps[b, 2]
                                i, j = beads[a], beads[b]
                                if i > j or (
                                    i == j and (s0 < 0 or (s0 == 0 and (s1 < 0 or (s1 == 0 and s2 < 0))))
                                ):
                                    i, j, s0, s1, s2 = j, i, -s0, -s1, -s2
                                smaller[p], larger[p] = i, j
                                high = ((s0 + _SHIFT_ZERO) << _SHIFT_BITS) | (s1 + _SHIFT_ZERO)
                                shift[p] = (high << _SHIFT_BITS) | (s2 + _SHIFT_ZERO)
                    bottom = ceiling + 1
    return found


@njit(fastmath=False)
def _cell_pairs(
    first,
    last,
    columns,
    start,
    bins,
    periodic,
    stencil,
    lattice,
    reach,
    counting,
    offset,
    beads,
    wraps,
    smaller,
    larger,
    shift,
):
    """Count the pairs of each column c of bins into offset[c + 1], or write them from place offset[c] on."""
    geometry = (columns, start, bins, periodic, stencil, lattice, reach)
    for column in range(first, last):
        place, stop = (-1, -1) if counting else (offset[column], offset[column + 1])
        found = _column_pairs(*geometry, column, place, stop, beads, wraps, smaller, larger, shift)
        if counting:
            offset[column + 1] = found


@njit(parallel=True, fastmath=False)
def _cell_pairs_shares(
    bounds,
    columns,
    start,
    bins,
    periodic,
    stencil,
    lattice,
    reach,
    counting,
    offset,
    beads,
    wraps,
    smaller,
    larger,
    shift,
):
    for s in prange(len(bounds) - 1):
        _cell_pairs(
            bounds[s],
            bounds[s + 1],
            columns,
            start,
            bins,
            periodic,
            stencil,
            lattice,
            reach,
            counting,
            offset,
            beads,
            wraps,
            smaller,
            larger,
            shift,
        )


@njit(fastmath=False)
def _sort_pairs(smaller, larger, shift, row_ptr, idx, row_ptr_t, idx_t, pair_t, out_shift):
    """Two stable counting sorts, by j and then by i, and the transpose of the result."""
    n, n_pairs = len(row_ptr) - 1, len(smaller)
    row_ptr[:] = 0
    row_ptr_t[:] = 0
    for p in range(n_pairs):
        row_ptr[smaller[p] + 1] += 1
        row_ptr_t[larger[p] + 1] += 1
    for i in range(n):
        row_ptr[i + 1] += row_ptr[i]
        row_ptr_t[i + 1] += row_ptr_t[i]
    cursor = row_ptr_t[:-1].copy()
    by_larger = np.empty(n_pairs, np.int32)
    shift_by_larger = np.empty(n_pairs, np.int64)
    for p in range(n_pairs):
        t = cursor[larger[p]]
        cursor[larger[p]] += 1
        by_larger[t] = smaller[p]
        shift_by_larger[t] = shift[p]
    cursor[:] = row_ptr[:-1]
    by_row = np.empty(n_pairs, np.int64)
    for j in range(n):
        for t in range(row_ptr_t[j], row_ptr_t[j + 1]):
            i = by_larger[t]
            p = cursor[i]
            cursor[i] += 1
            # Several images of one pair follow each other here; insert by shift.
            while p > row_ptr[i] and idx[p - 1] == j and by_row[p - 1] > shift_by_larger[t]:
                by_row[p] = by_row[p - 1]
                idx[p] = j
                p -= 1
            idx[p] = j
            by_row[p] = shift_by_larger[t]
    if len(out_shift) > 0:
        for p in range(n_pairs):
            packed = by_row[p]
            out_shift[p, 0] = (packed >> (2 * _SHIFT_BITS)) - _SHIFT_ZERO
            out_shift[p, 1] = ((packed >> _SHIFT_BITS) & _SHIFT_MASK) - _SHIFT_ZERO
            out_shift[p, 2] = (packed & _SHIFT_MASK) - _SHIFT_ZERO
    _transpose(row_ptr, idx, row_ptr_t, idx_t, pair_t)


@njit(fastmath=False)
def _transpose(row_ptr, idx, row_ptr_t, idx_t, pair_t):
    n = len(row_ptr) - 1
    row_ptr_t[:] = 0
    for p in range(row_ptr[n]):
        row_ptr_t[idx[p] + 1] += 1
    for i in range(n):
        row_ptr_t[i + 1] += row_ptr_t[i]
    cursor = row_ptr_t[:-1].copy()
    for i in range(n):
        for p in range(row_ptr[i], row_ptr[i + 1]):
            t = cursor[idx[p]]
            cursor[idx[p]] += 1
            idx_t[t] = i
            pair_t[t] = p
