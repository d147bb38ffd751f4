"""The continuous-filter convolution with a tabulated filter in plain torch: the definition.

W(r) is a cubic Hermite interpolant on a uniform grid r_g = r_min + g h, h = (cutoff - r_min) / G, from
W(r_g) and h W'(r_g); 0 from the cutoff on; the first interval's cubic below r_min.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows


def interpolate(
    distances: Tensor, table: Tensor, cutoff: float, r_min: float
) -> tuple[Tensor, Tensor, Tensor]:
    """W, W' and W'' of every distance, [pairs, filters] each (the exact derivatives of the interpolant)."""
    intervals = table.shape[0] - 1
    h = (cutoff - r_min) / intervals
    s = (distances - r_min) / h
    g = torch.nan_to_num(s.detach(), nan=0.0, posinf=0.0, neginf=0.0).floor().long().clamp(0, intervals - 1)
    t = (s - g)[:, None]
    table = table.to(distances.dtype)
    y0, d0 = table[g, 0], table[g, 1]
    delta, d1 = table[g + 1, 0] - y0, table[g + 1, 1]
    c2, c3 = 3 * delta - 2 * d0 - d1, d0 + d1 - 2 * delta
    beyond = (distances >= cutoff)[:, None]
    w = torch.where(beyond, 0, y0 + t * (d0 + t * (c2 + t * c3)))
    dw = torch.where(beyond, 0, (d0 + t * (2 * c2 + 3 * t * c3)) / h)
    ddw = torch.where(beyond, 0, (2 * c2 + 6 * t * c3) / h**2)
    return w, dw, ddw


def _filters(
    r: Tensor, ptr: Tensor, idx: Tensor, table: Tensor, cutoff: float, r_min: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    first, valid = pair_rows(ptr, idx)
    # Spare places are treated as beyond the cutoff.
    w, dw, ddw = interpolate(torch.where(valid, r, cutoff), table, cutoff, r_min)
    return first, torch.where(valid, idx, 0).long(), w, dw, ddw


def _convolve(w: Tensor, v: Tensor, i: Tensor, j: Tensor) -> Tensor:
    """out_i += w v_j and out_j += w v_i."""
    return torch.zeros_like(v).index_add(0, j, w * v[i]).index_add(0, i, w * v[j])


def forward(
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    table: Tensor,
    cutoff: float,
    r_min: float,
) -> Tensor:
    """out_i = sum over the partners j of x_j W(r_ij)."""
    i, j, w, _, _ = _filters(r, ptr, idx, table, cutoff, r_min)
    return _convolve(w, x, i, j)


def backward(
    g: Tensor,
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    table: Tensor,
    cutoff: float,
    r_min: float,
) -> tuple[Tensor, Tensor]:
    """gx_i = sum_j g_j W_ij, and gr_ij = sum_f (g_i x_j + g_j x_i) W'_ij."""
    i, j, w, dw, _ = _filters(r, ptr, idx, table, cutoff, r_min)
    return _convolve(w, g, i, j), ((g[i] * x[j] + g[j] * x[i]) * dw).sum(1)


def second_backward(
    hx: Tensor,
    hr: Tensor,
    g: Tensor,
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    table: Tensor,
    cutoff: float,
    r_min: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of <hx, gx> + <hr, gr> with respect to g, x and r.

    gg_i = sum_j (hx_j W + hr x_j W'),  gx_i = sum_j hr g_j W',
    gr = sum_f ((hx_i g_j + hx_j g_i) W' + hr (g_i x_j + g_j x_i) W'').
    """
    i, j, w, dw, ddw = _filters(r, ptr, idx, table, cutoff, r_min)
    # Whatever stands at spare places: 0 times infinity is not 0.
    hr = torch.where(pair_rows(ptr, idx)[1], hr, 0)
    sloped = hr[:, None] * dw
    grad_r = (hx[i] * g[j] + hx[j] * g[i]) * dw + hr[:, None] * (g[i] * x[j] + g[j] * x[i]) * ddw
    return _convolve(w, hx, i, j) + _convolve(sloped, x, i, j), _convolve(sloped, g, i, j), grad_r.sum(1)
