"""Wedges on the CPU.

Each entry centre–a marks the neighbours of a in a table of n stamps, and then looks up the later entries of
the centre: one test a wedge, without a search. Where those are few beside a's neighbours, they are looked for
by bisection instead.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads


def closed_wedges(indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor) -> Tensor:
    """See ``reference.closed_wedges``."""
    graph = indptr.contiguous().numpy(), indices.contiguous().numpy()
    closing = closing_indptr.contiguous().numpy(), closing_indices.contiguous().numpy()
    bounds = balanced_rows(closing[0], threads())
    return torch.tensor(int(_count_closed(bounds, *graph, *closing)))


def enumerate_wedges(
    indptr: Tensor,
    indices: Tensor,
    closing_indptr: Tensor,
    closing_indices: Tensor,
    closed: bool,
    first: int,
    last: int,
) -> Tensor:
    """See ``reference.enumerate_wedges``."""
    graph = indptr.contiguous().numpy(), indices.contiguous().numpy()
    closing = closing_indptr.contiguous().numpy(), closing_indices.contiguous().numpy()
    work = _work(graph[0], first, last)
    bounds = balanced_rows(work, threads()) + first
    # A share writes from where it would begin if all wedges before were kept.
    begins = work[bounds - first]
    out = np.empty((int(work[-1]), 3), dtype=graph[1].dtype)
    arguments = (*graph, *closing, closed)
    if threads() == 1:
        stamps = np.full(len(graph[0]) - 1, -1, dtype=graph[1].dtype)
        counts = [_list_share(first, last, 0, *arguments, stamps, out.ravel())]
    else:
        counts = _enumerate(bounds, begins, *arguments, out.ravel())
    parts = [out[b : b + c] for b, c in zip(begins, counts, strict=False)]
    if len(parts) == 1:
        # A view would keep the whole block; what is left of it is worth a copy where it is little.
        return torch.from_numpy(parts[0] if 2 * len(parts[0]) > len(out) else parts[0].copy())
    return torch.from_numpy(np.concatenate(parts))


def scan(
    indptr: Tensor, indices: Tensor, closing_indptr: Tensor, closing_indices: Tensor, closed: bool
) -> Tensor:
    """See ``reference.scan``."""
    graph = indptr.contiguous().numpy(), indices.contiguous().numpy()
    closing = closing_indptr.contiguous().numpy(), closing_indices.contiguous().numpy()
    out = np.full(3, -1, dtype=graph[1].dtype)
    _scan(*graph, *closing, closed, out)
    return torch.from_numpy(out)


@njit
def _work(indptr, first, last):
    """How many wedges begin before each entry of the block, and altogether."""
    work = np.zeros(last - first + 1, dtype=np.int64)
    row = np.searchsorted(indptr, first, side="right") - 1
    for entry in range(first, last):
        while indptr[row + 1] <= entry:
            row += 1
        work[entry - first + 1] = work[entry - first] + indptr[row + 1] - entry - 1
    return work


@njit
def _has(indices, begin, end, value):
    """Whether a rising row holds a value."""
    while begin < end:
        middle = (begin + end) // 2
        if indices[middle] < value:
            begin = middle + 1
        else:
            end = middle
    return begin < len(indices) and indices[begin] == value


@njit
def _by_bisection(tests, length):
    """Whether so few tests in a row are cheaper by bisection, which mispredicts, than by marks."""
    steps = 1
    while length >> steps:
        steps += 1
    return 8 * tests * steps < length


@njit
def _list_share(begin, end, place, indptr, indices, shut_ptr, shut, closed, stamps, out):
    """List the wedges of the entries from ``begin`` to ``end``; how many there are.

    Unsigned indices, since numba tests signed ones for counting from the end, at every access.
    """
    first = np.uint64(3 * place)
    slot = first
    row = np.searchsorted(indptr, begin, side="right") - 1
    for entry in range(begin, end):
        while indptr[row + 1] <= entry:
            row += 1
        last = indptr[row + 1]
        a = indices[entry]
        low, high = shut_ptr[a], shut_ptr[a + 1]
        if _by_bisection(last - entry - 1, high - low):
            for other in range(entry + 1, last):
                b = indices[other]
                if (low < high and _has(shut[low:high], 0, high - low, b)) == closed:
                    out[slot] = row
                    out[slot + np.uint64(1)] = a
                    out[slot + np.uint64(2)] = b
                    slot += np.uint64(3)
        elif entry + 1 < last:
            for k in range(low, high):
                stamps[np.uint64(shut[np.uint64(k)])] = entry
            for other in range(entry + 1, last):
                b = indices[np.uint64(other)]
                if (stamps[np.uint64(b)] == entry) == closed:
                    out[slot] = row
                    out[slot + np.uint64(1)] = a
                    out[slot + np.uint64(2)] = b
                    slot += np.uint64(3)
    return np.int64(slot - first) // 3


@njit(parallel=True)
def _enumerate(bounds, begins, indptr, indices, shut_ptr, shut, closed, out):
    shares = len(bounds) - 1
    counts = np.zeros(shares, dtype=np.int64)
    for s in prange(shares):
        if bounds[s] < bounds[s + 1]:
            stamps = np.full(len(indptr) - 1, -1, dtype=indices.dtype)
            counts[s] = _list_share(
                bounds[s],
                bounds[s + 1],
                begins[s],
                indptr,
                indices,
                shut_ptr,
                shut,
                closed,
                stamps,
                out,
            )
    return counts


@njit(parallel=True)
def _count_closed(bounds, indptr, indices, shut_ptr, shut):
    shares = len(bounds) - 1
    counts = np.zeros(shares, dtype=np.int64)
    for s in prange(shares):
        stamps = np.full(len(indptr) - 1, -1, dtype=np.int64)
        count = 0
        for a in range(bounds[s], bounds[s + 1]):
            degree = indptr[a + 1] - indptr[a]
            if shut_ptr[a] < shut_ptr[a + 1]:
                for k in range(indptr[a], indptr[a + 1]):
                    stamps[indices[k]] = a
            for k in range(shut_ptr[a], shut_ptr[a + 1]):
                b = shut[k]
                other = indptr[b + 1] - indptr[b]
                # Of the two ends, the one with more neighbours owns the pair, and the other one is walked.
                if other < degree or (other == degree and b < a):
                    for j in range(indptr[b], indptr[b + 1]):
                        count += np.int64(stamps[np.uint64(indices[np.uint64(j)])] == a)
        counts[s] = count
    return counts.sum()


@njit
def _scan(indptr, indices, shut_ptr, shut, closed, out):
    stamps = np.full(len(indptr) - 1, -1, dtype=np.int64)
    for row in range(len(indptr) - 1):
        for entry in range(indptr[row], indptr[row + 1] - 1):
            a = indices[entry]
            low, high = shut_ptr[a], shut_ptr[a + 1]
            for k in range(low, high):
                stamps[np.uint64(shut[np.uint64(k)])] = entry
            for other in range(entry + 1, indptr[row + 1]):
                if (stamps[np.uint64(indices[np.uint64(other)])] == entry) == closed:
                    out[0], out[1], out[2] = row, a, indices[other]
                    return
