"""Distances and directions of pairs on the CPU: a thread owns its rows and their pairs."""

from __future__ import annotations

import math

from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads


def forward(
    positions: Tensor, shift: Tensor, ptr: Tensor, idx: Tensor, ptr_t: Tensor, pair_t: Tensor
) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    r, u = positions.new_zeros(idx.shape[0]), positions.new_zeros(idx.shape[0], 3)
    rows = ptr.contiguous().numpy()
    arguments = (rows, idx.contiguous().numpy(), positions.contiguous().numpy(), shift.contiguous().numpy())
    if threads() == 1:
        _distances(0, len(rows) - 1, *arguments, r.numpy(), u.numpy())
    else:
        _distances_shares(balanced_rows(rows, threads()), *arguments, r.numpy(), u.numpy())
    return r, u


def backward(
    grad_r: Tensor,
    grad_u: Tensor,
    r: Tensor,
    u: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    pair_t: Tensor,
) -> tuple[Tensor, Tensor]:
    """See ``reference.backward``."""
    grad_x, grad_d = r.new_empty(ptr.shape[0] - 1, 3), r.new_zeros(r.shape[0], 3)
    rows = ptr.contiguous().numpy()
    per_pair = (*(t.contiguous().numpy() for t in (grad_r, grad_u, r, u)), grad_d.numpy())
    per_row = (rows, ptr_t.contiguous().numpy(), pair_t.contiguous().numpy(), grad_d.numpy(), grad_x.numpy())
    if threads() == 1:
        _pull_back(0, rows[-1], *per_pair)
        _sum(0, len(rows) - 1, *per_row)
    else:
        _backward_shares(balanced_rows(rows, threads()), *per_pair, *per_row[:3], grad_x.numpy())
    return grad_x, grad_d


@njit
def _distances(begin, end, ptr, idx, positions, shift, r, u):
    number = positions.dtype.type
    shifted = len(shift) > 0
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            j = idx[p]
            dx = positions[j, 0] - positions[i, 0]
            dy = positions[j, 1] - positions[i, 1]
            dz = positions[j, 2] - positions[i, 2]
            if shifted:
                dx, dy, dz = dx + shift[p, 0], dy + shift[p, 1], dz + shift[p, 2]
            d = number(math.sqrt(dx * dx + dy * dy + dz * dz))
            scale = number(1) / d if d != number(0) else number(0)
            r[p] = d
            u[p, 0], u[p, 1], u[p, 2] = dx * scale, dy * scale, dz * scale


@njit(parallel=True)
def _distances_shares(bounds, ptr, idx, positions, shift, r, u):
    for s in prange(len(bounds) - 1):
        _distances(bounds[s], bounds[s + 1], ptr, idx, positions, shift, r, u)


@njit
def _pull_back(first, last, grad_r, grad_u, r, u, grad_d):
    number = r.dtype.type
    for p in range(first, last):
        scale = number(1) / r[p] if r[p] != number(0) else number(0)
        along = grad_u[p, 0] * u[p, 0] + grad_u[p, 1] * u[p, 1] + grad_u[p, 2] * u[p, 2]
        for k in range(3):
            grad_d[p, k] = grad_r[p] * u[p, k] + (grad_u[p, k] - along * u[p, k]) * scale


@njit
def _sum(begin, end, ptr, ptr_t, pair_t, grad_d, grad_x):
    for i in range(begin, end):
        x = y = z = grad_d.dtype.type(0)
        for q in range(ptr_t[i], ptr_t[i + 1]):
            p = pair_t[q]
            x, y, z = x + grad_d[p, 0], y + grad_d[p, 1], z + grad_d[p, 2]
        for p in range(ptr[i], ptr[i + 1]):
            x, y, z = x - grad_d[p, 0], y - grad_d[p, 1], z - grad_d[p, 2]
        grad_x[i, 0], grad_x[i, 1], grad_x[i, 2] = x, y, z


@njit(parallel=True)
def _backward_shares(bounds, grad_r, grad_u, r, u, grad_d, ptr, ptr_t, pair_t, grad_x):
    # Two loops, since a row also sums pairs of other rows.
    for s in prange(len(bounds) - 1):
        _pull_back(ptr[bounds[s]], ptr[bounds[s + 1]], grad_r, grad_u, r, u, grad_d)
    for s in prange(len(bounds) - 1):
        _sum(bounds[s], bounds[s + 1], ptr, ptr_t, pair_t, grad_d, grad_x)
