"""Canonical forms of trees of blocks on the CPU: a thread owns its trees."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

ALONE = 64  # trees that one thread is done with before others have begun


def forward(
    blocks: Tensor,
    parents: Tensor,
    parent_slots: Tensor,
    own_slots: Tensor,
    marks: Tensor,
    sizes: Tensor,
    perm_ptr: Tensor,
    perms: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    n, width = blocks.shape
    out = (
        np.full((n, 4, width), -1, dtype=np.int64),
        np.full((n, width), -1, dtype=np.int64),
        np.full((n, width, perms.shape[1]), -1, dtype=np.int64),
        np.full((n, 2), -1, dtype=np.int64),
    )
    given = tuple(
        t.contiguous().numpy()
        for t in (blocks, parents, parent_slots, own_slots, marks, sizes, perm_ptr, perms)
    )
    if n and (n <= ALONE or threads() == 1):
        _share(0, n, *given, *out)
    elif n:
        _shares(np.linspace(0, n, threads() + 1).astype(np.int64), *given, *out)
    return tuple(torch.from_numpy(array) for array in out)  # type: ignore[return-value]


@njit
def _centres(m, slots, kind, ends, left, degree, found):
    """Take leaves away till one or two nodes are left; how many, and which."""
    for v in range(m):
        left[v] = 1
        degree[v] = 0
        for s in range(slots[kind[v]]):
            if ends[v, s, 0] >= 0:
                degree[v] += 1
    remaining = m
    while remaining > 2:
        for v in range(m):
            if left[v] == 1 and degree[v] <= 1:
                left[v] = 2
        for v in range(m):
            if left[v] == 2:
                left[v] = 0
                remaining -= 1
                for s in range(slots[kind[v]]):
                    if ends[v, s, 0] >= 0:
                        degree[ends[v, s, 0]] -= 1
    count = 0
    for v in range(m):
        if left[v] == 1:
            found[count] = v
            count += 1
    return count


@njit
def _less(a, length_a, b, length_b):
    for k in range(min(length_a, length_b)):
        if a[k] != b[k]:
            return a[k] < b[k]
    return length_a < length_b


@njit
def _branch(v, up, q, kind, slots, ends, marked, marked_slot, perm_ptr, perms, codes, lengths, trial):
    """The least code of the branch at v, its children's codes being known; the number of its permutation."""
    k = slots[kind[v]]
    best = -1
    for g in range(perm_ptr[kind[v]], perm_ptr[kind[v] + 1]):
        trial[0] = kind[v]
        trial[1] = perms[g, q] if q >= 0 else -1
        size = 2
        for place in range(k):
            i = 0
            while perms[g, i] != place:
                i += 1
            if i == q:
                trial[size] = 2
                size += 1
            elif ends[v, i, 0] < 0:
                trial[size] = 1 if (v == marked and i == marked_slot) else 0
                size += 1
            else:
                child = ends[v, i, 0]
                trial[size] = 3
                size += 1
                for c in range(lengths[child]):
                    trial[size + c] = codes[child, c]
                size += lengths[child]
        if best < 0 or _less(trial, size, codes[v], lengths[v]):
            best = g
            for c in range(size):
                codes[v, c] = trial[c]
            lengths[v] = size
    return best


@njit
def _share(
    begin,
    end,
    blocks,
    parents,
    parent_slots,
    own_slots,
    marks,
    sizes,
    perm_ptr,
    perms,
    canonical,
    order,
    slot_map,
    moved,
):
    width, widest = blocks.shape[1], perms.shape[1]
    longest = width * (widest + 3) + 3
    ends = np.empty((width, widest, 2), dtype=np.int64)
    codes = np.empty((width, longest), dtype=np.int64)
    best_code = np.empty(longest, dtype=np.int64)
    trial = np.empty(longest, dtype=np.int64)
    lengths = np.zeros(width, dtype=np.int64)
    left = np.empty(width, dtype=np.int64)
    degree = np.empty(width, dtype=np.int64)
    middles = np.empty(width, dtype=np.int64)
    walk = np.empty(width, dtype=np.int64)
    above = np.empty(width, dtype=np.int64)
    upward = np.empty(width, dtype=np.int64)
    chosen = np.empty(width, dtype=np.int64)
    best_chosen = np.empty(width, dtype=np.int64)
    stack = np.empty((width + 1, 4), dtype=np.int64)
    for row in range(begin, end):
        kind = blocks[row]
        m = 0
        while m < width and kind[m] >= 0:
            m += 1
        if m == 0:
            continue
        ends[:] = -1
        for i in range(1, m):
            p, ps, s = parents[row, i], parent_slots[row, i], own_slots[row, i]
            ends[i, s, 0], ends[i, s, 1] = p, ps
            ends[p, ps, 0], ends[p, ps, 1] = i, s
        count = _centres(m, sizes, kind, ends, left, degree, middles)
        best_root, best_length = -1, 0
        for r in range(count):
            root = middles[r]
            walk[0], above[root], upward[root] = root, -1, -1
            reached = 1
            at = 0
            while at < reached:
                v = walk[at]
                at += 1
                for s in range(sizes[kind[v]]):
                    w = ends[v, s, 0]
                    if w >= 0 and s != upward[v]:
                        above[w], upward[w] = v, ends[v, s, 1]
                        walk[reached] = w
                        reached += 1
            for at in range(m - 1, -1, -1):
                v = walk[at]
                chosen[v] = _branch(
                    v,
                    above[v],
                    upward[v],
                    kind,
                    sizes,
                    ends,
                    marks[row, 0],
                    marks[row, 1],
                    perm_ptr,
                    perms,
                    codes,
                    lengths,
                    trial,
                )
            if best_root < 0 or _less(codes[root], lengths[root], best_code, best_length):
                best_root, best_length = root, lengths[root]
                for c in range(best_length):
                    best_code[c] = codes[root, c]
                for v in range(m):
                    best_chosen[v] = chosen[v]
        stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = best_root, -1, -1, -1
        height, number = 1, 0
        while height > 0:
            height -= 1
            v, up, up_slot, slot = stack[height]
            canonical[row, 0, number] = kind[v]
            canonical[row, 1, number] = up
            canonical[row, 2, number] = up_slot
            canonical[row, 3, number] = slot
            order[row, v] = number
            g = best_chosen[v]
            for place in range(sizes[kind[v]] - 1, -1, -1):
                i = 0
                while perms[g, i] != place:
                    i += 1
                slot_map[row, v, i] = place
                w = ends[v, i, 0]
                if w >= 0 and place != slot:
                    stack[height, 0], stack[height, 1], stack[height, 2] = w, number, place
                    stack[height, 3] = perms[best_chosen[w], ends[v, i, 1]]
                    height += 1
            number += 1
        if marks[row, 0] >= 0:
            moved[row, 0] = order[row, marks[row, 0]]
            moved[row, 1] = slot_map[row, marks[row, 0], marks[row, 1]]


@njit(parallel=True)
def _shares(
    bounds,
    blocks,
    parents,
    parent_slots,
    own_slots,
    marks,
    sizes,
    perm_ptr,
    perms,
    canonical,
    order,
    slot_map,
    moved,
):
    for s in prange(len(bounds) - 1):
        _share(
            bounds[s],
            bounds[s + 1],
            blocks,
            parents,
            parent_slots,
            own_slots,
            marks,
            sizes,
            perm_ptr,
            perms,
            canonical,
            order,
            slot_map,
            moved,
        )
