"""Distances and directions of pairs in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows


def forward(
    positions: Tensor, shift: Tensor, ptr: Tensor, idx: Tensor, ptr_t: Tensor, pair_t: Tensor
) -> tuple[Tensor, Tensor]:
    """d = x_j - x_i + shift, r = |d|, u = d / r (0 where r = 0); an empty shift stands for zeros."""
    first, valid = pair_rows(ptr, idx)
    d = positions[torch.where(valid, idx, 0)] - positions[first]
    if shift.shape[0]:
        d = torch.where(valid[:, None], d + shift, 0)
    squared = (d * d).sum(1)
    apart = squared > 0
    # The mask stands before the root, so that the derivative at r = 0 is 0 and not NaN.
    r = torch.where(apart, torch.where(apart, squared, 1).sqrt(), squared)
    return r, d / torch.where(apart, r, 1)[:, None]


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
    """dL/dd = g_r u + (g_u - (g_u . u) u) / r, which the shift and x_j receive, and x_i its negative."""
    first, valid = pair_rows(ptr, idx)
    apart = (r > 0) & valid
    across = grad_u - (grad_u * u).sum(1, keepdim=True) * u
    grad_d = grad_r[:, None] * u + across / torch.where(apart, r, 1)[:, None]
    # NaN distances are not apart either, and must be seen.
    grad_d = torch.where(((r == 0) | ~valid)[:, None], 0, grad_d)
    grad_x = grad_d.new_zeros(ptr.shape[0] - 1, 3)
    grad_x = grad_x.index_add(0, torch.where(valid, idx, 0), grad_d).index_add(0, first, -grad_d)
    return grad_x, grad_d


def tangent(
    positions_t: Tensor | None,
    shift_t: Tensor | None,
    r: Tensor,
    u: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    pair_t: Tensor,
) -> tuple[Tensor, Tensor]:
    """Directional derivative of r and u: dr = u . dd, du = (dd - dr u) / r."""
    first, valid = pair_rows(ptr, idx)
    d_t = torch.zeros_like(u)
    if positions_t is not None:
        d_t = d_t + positions_t[torch.where(valid, idx, 0)] - positions_t[first]
    if shift_t is not None:
        d_t = d_t + shift_t
    apart = (r != 0) & valid
    d_t = torch.where(apart[:, None], d_t, 0)
    r_t = (u * d_t).sum(1)
    return r_t, (d_t - r_t[:, None] * u) / torch.where(apart, r, 1)[:, None]


def backward_tangent(
    grad_r_t: Tensor,
    grad_u_t: Tensor,
    r_t: Tensor,
    u_t: Tensor,
    grad_r: Tensor,
    grad_u: Tensor,
    r: Tensor,
    u: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    pair_t: Tensor,
) -> tuple[Tensor, Tensor]:
    """Directional derivative of ``backward``."""
    first, valid = pair_rows(ptr, idx)
    apart = (r != 0) & valid
    safe = torch.where(apart, r, 1)[:, None]
    along, along_t = (grad_u * u).sum(1, keepdim=True), (grad_u_t * u + grad_u * u_t).sum(1, keepdim=True)
    across, across_t = grad_u - along * u, grad_u_t - along_t * u - along * u_t
    d_t = grad_r_t[:, None] * u + grad_r[:, None] * u_t + across_t / safe - across / safe**2 * r_t[:, None]
    d_t = torch.where(apart[:, None], d_t, 0)
    x_t = d_t.new_zeros(ptr.shape[0] - 1, 3)
    return x_t.index_add(0, torch.where(valid, idx, 0), d_t).index_add(0, first, -d_t), d_t
