"""The tabulated convolution on the CPU.

The rows are split into shares of equal work, one a thread, and a share writes to its own rows alone. A
pair inside one share is interpolated once and serves both atoms; a pair across two shares is
interpolated by both owners. Either way a row receives its partners in rising order, so that the result
is the same to the last bit for any number of threads.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads


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
    """See ``reference.forward``."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    lists = _arrays(ptr, idx, ptr_t, idx_t, pair_t)
    grid = _grid(x, table, cutoff, r_min)
    _run(_forward, _forward_shares, lists, (*_arrays(x, r), *lists, *grid, out.numpy()))
    return out


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
    """See ``reference.backward``."""
    gx, gr = torch.empty_like(x, memory_format=torch.contiguous_format), torch.zeros_like(r)
    lists = _arrays(ptr, idx, ptr_t, idx_t, pair_t)
    grid = _grid(x, table, cutoff, r_min)
    _run(_backward, _backward_shares, lists, (*_arrays(g, x, r), *lists, *grid, gx.numpy(), gr.numpy()))
    return gx, gr


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
    """See ``reference.second_backward``."""
    gg = torch.empty_like(x, memory_format=torch.contiguous_format)
    gx, gr = torch.empty_like(gg), torch.zeros_like(r)
    lists = _arrays(ptr, idx, ptr_t, idx_t, pair_t)
    grid = _grid(x, table, cutoff, r_min)
    arguments = (*_arrays(hx, hr, g, x, r), *lists, *grid, gg.numpy(), gx.numpy(), gr.numpy())
    _run(_second_backward, _second_backward_shares, lists, arguments)
    return gg, gx, gr


def _arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(t.contiguous().numpy() for t in tensors)


def _grid(x: Tensor, table: Tensor, cutoff: float, r_min: float) -> tuple[np.ndarray, np.floating, ...]:
    number = np.float32 if x.dtype == torch.float32 else np.float64
    spacing = (cutoff - r_min) / (table.shape[0] - 1)
    return *_arrays(table.to(x.dtype)), number(cutoff), number(r_min), number(1 / spacing)


def _run(alone, shared, lists, arguments) -> None:
    """Without a second thread numba's thread pool is not even started."""
    ptr = lists[0]
    shares = min(threads(), max(1, len(ptr) - 1))
    if shares == 1:
        alone(0, len(ptr) - 1, *arguments)
    else:
        shared(balanced_rows(ptr, shares), *arguments)


# Without leave to reassociate, every loop over the features gives a feature the same rounding, whether the
# loop serves one atom or both; and where two products meet, they are added one after the other, so that
# the compiler has no choice which of the two to fuse.
ORDERED = {"contract", "nsz"}

# In the loops below: h00, h10, h01, h11 weigh the entries y0, d0, y1, d1 of the two nodes of an interval
# (the cubic Hermite basis in t); d.. and dd.. are its derivatives by r. Every constant is made a number of
# the features' precision, since float32 times an integer is float64 in numba.


@njit(inline="always")
def _place(d, r_min, inverse_spacing, intervals, number):
    s = (d - r_min) * inverse_spacing
    node = min(max(int(s), 0), intervals - 1)
    return node, s - number(node)


@njit(inline="always")
def _values(t, number):
    h01 = t * t * (number(3) - number(2) * t)
    h10 = t * (number(1) - t) * (number(1) - t)
    return number(1) - h01, h10, h01, t * t * (t - number(1))


@njit(inline="always")
def _slopes(t, inverse_spacing, number):
    d01 = number(6) * t * (number(1) - t) * inverse_spacing
    d10 = (number(1) + t * (number(3) * t - number(4))) * inverse_spacing
    return -d01, d10, d01, t * (number(3) * t - number(2)) * inverse_spacing


@njit(inline="always")
def _curvatures(t, inverse_spacing, number):
    scale = inverse_spacing * inverse_spacing
    dd01 = (number(6) - number(12) * t) * scale
    return -dd01, (number(6) * t - number(4)) * scale, dd01, (number(6) * t - number(2)) * scale


@njit
def _total(terms):
    total = terms.dtype.type(0)
    for f in range(len(terms)):
        total += terms[f]
    return total


@njit(fastmath=ORDERED)
def _forward(begin, end, x, r, ptr, idx, ptr_t, idx_t, pair_t, table, cutoff, r_min, inverse_spacing, out):
    number = x.dtype.type
    filters = x.shape[1]
    intervals = table.shape[0] - 1
    out[begin:end] = number(0)
    for j in range(begin, end):
        for q in range(ptr_t[j], ptr_t[j + 1]):
            i = idx_t[q]
            if i >= begin:
                break
            d = r[pair_t[q]]
            if d >= cutoff:
                continue
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            for f in range(filters):
                w = (
                    h00 * table[n, 0, f]
                    + h10 * table[n, 1, f]
                    + h01 * table[n + 1, 0, f]
                    + h11 * table[n + 1, 1, f]
                )
                out[j, f] += x[i, f] * w
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            d = r[p]
            if d >= cutoff:
                continue
            j = idx[p]
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            if j < end:
                for f in range(filters):
                    w = (
                        h00 * table[n, 0, f]
                        + h10 * table[n, 1, f]
                        + h01 * table[n + 1, 0, f]
                        + h11 * table[n + 1, 1, f]
                    )
                    out[i, f] += x[j, f] * w
                    out[j, f] += x[i, f] * w
            else:
                for f in range(filters):
                    w = (
                        h00 * table[n, 0, f]
                        + h10 * table[n, 1, f]
                        + h01 * table[n + 1, 0, f]
                        + h11 * table[n + 1, 1, f]
                    )
                    out[i, f] += x[j, f] * w


@njit(parallel=True)
def _forward_shares(bounds, x, r, ptr, idx, ptr_t, idx_t, pair_t, table, cutoff, r_min, inverse_spacing, out):
    for s in prange(len(bounds) - 1):
        _forward(
            bounds[s],
            bounds[s + 1],
            x,
            r,
            ptr,
            idx,
            ptr_t,
            idx_t,
            pair_t,
            table,
            cutoff,
            r_min,
            inverse_spacing,
            out,
        )


@njit(fastmath=ORDERED)
def _backward(
    begin, end, g, x, r, ptr, idx, ptr_t, idx_t, pair_t, table, cutoff, r_min, inverse_spacing, gx, gr
):
    number = x.dtype.type
    filters = x.shape[1]
    intervals = table.shape[0] - 1
    gx[begin:end] = number(0)
    terms = np.empty(filters, x.dtype)
    for j in range(begin, end):
        for q in range(ptr_t[j], ptr_t[j + 1]):
            i = idx_t[q]
            if i >= begin:
                break
            d = r[pair_t[q]]
            if d >= cutoff:
                continue
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            for f in range(filters):
                w = (
                    h00 * table[n, 0, f]
                    + h10 * table[n, 1, f]
                    + h01 * table[n + 1, 0, f]
                    + h11 * table[n + 1, 1, f]
                )
                gx[j, f] += g[i, f] * w
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            d = r[p]
            if d >= cutoff:
                continue
            j = idx[p]
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            d00, d10, d01, d11 = _slopes(t, inverse_spacing, number)
            if j < end:
                for f in range(filters):
                    y0, s0, y1, s1 = table[n, 0, f], table[n, 1, f], table[n + 1, 0, f], table[n + 1, 1, f]
                    w = h00 * y0 + h10 * s0 + h01 * y1 + h11 * s1
                    dw = d00 * y0 + d10 * s0 + d01 * y1 + d11 * s1
                    terms[f] = (g[i, f] * x[j, f] + g[j, f] * x[i, f]) * dw
                    gx[i, f] += g[j, f] * w
                    gx[j, f] += g[i, f] * w
            else:
                for f in range(filters):
                    y0, s0, y1, s1 = table[n, 0, f], table[n, 1, f], table[n + 1, 0, f], table[n + 1, 1, f]
                    w = h00 * y0 + h10 * s0 + h01 * y1 + h11 * s1
                    dw = d00 * y0 + d10 * s0 + d01 * y1 + d11 * s1
                    terms[f] = (g[i, f] * x[j, f] + g[j, f] * x[i, f]) * dw
                    gx[i, f] += g[j, f] * w
            gr[p] = _total(terms)


@njit(parallel=True)
def _backward_shares(
    bounds, g, x, r, ptr, idx, ptr_t, idx_t, pair_t, table, cutoff, r_min, inverse_spacing, gx, gr
):
    for s in prange(len(bounds) - 1):
        _backward(
            bounds[s], bounds[s + 1], g, x, r, ptr, idx, ptr_t, idx_t, pair_t,
            table, cutoff, r_min, inverse_spacing, gx, gr,
        )  # fmt: skip


@njit(fastmath=ORDERED)
def _second_backward(
    begin,
    end,
    hx,
    hr,
    g,
    x,
    r,
    ptr,
    idx,
    ptr_t,
    idx_t,
    pair_t,
    table,
    cutoff,
    r_min,
    inverse_spacing,
    gg,
    gx,
    gr,
):
    number = x.dtype.type
    filters = x.shape[1]
    intervals = table.shape[0] - 1
    gg[begin:end] = number(0)
    gx[begin:end] = number(0)
    terms = np.empty(filters, x.dtype)
    for j in range(begin, end):
        for q in range(ptr_t[j], ptr_t[j + 1]):
            i = idx_t[q]
            if i >= begin:
                break
            d = r[pair_t[q]]
            if d >= cutoff:
                continue
            h = hr[pair_t[q]]
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            d00, d10, d01, d11 = _slopes(t, inverse_spacing, number)
            for f in range(filters):
                y0, s0, y1, s1 = table[n, 0, f], table[n, 1, f], table[n + 1, 0, f], table[n + 1, 1, f]
                w = h00 * y0 + h10 * s0 + h01 * y1 + h11 * s1
                hdw = h * (d00 * y0 + d10 * s0 + d01 * y1 + d11 * s1)
                gg[j, f] += hx[i, f] * w
                gg[j, f] += x[i, f] * hdw
                gx[j, f] += g[i, f] * hdw
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            d = r[p]
            if d >= cutoff:
                continue
            j = idx[p]
            h = hr[p]
            n, t = _place(d, r_min, inverse_spacing, intervals, number)
            h00, h10, h01, h11 = _values(t, number)
            d00, d10, d01, d11 = _slopes(t, inverse_spacing, number)
            c00, c10, c01, c11 = _curvatures(t, inverse_spacing, number)
            if j < end:
                for f in range(filters):
                    y0, s0, y1, s1 = table[n, 0, f], table[n, 1, f], table[n + 1, 0, f], table[n + 1, 1, f]
                    w = h00 * y0 + h10 * s0 + h01 * y1 + h11 * s1
                    dw = d00 * y0 + d10 * s0 + d01 * y1 + d11 * s1
                    hdw = h * dw
                    hddw = h * (c00 * y0 + c10 * s0 + c01 * y1 + c11 * s1)
                    terms[f] = (hx[i, f] * g[j, f] + hx[j, f] * g[i, f]) * dw + (
                        g[i, f] * x[j, f] + g[j, f] * x[i, f]
                    ) * hddw
                    gg[i, f] += hx[j, f] * w
                    gg[i, f] += x[j, f] * hdw
                    gx[i, f] += g[j, f] * hdw
                    gg[j, f] += hx[i, f] * w
                    gg[j, f] += x[i, f] * hdw
                    gx[j, f] += g[i, f] * hdw
            else:
                for f in range(filters):
                    y0, s0, y1, s1 = table[n, 0, f], table[n, 1, f], table[n + 1, 0, f], table[n + 1, 1, f]
                    w = h00 * y0 + h10 * s0 + h01 * y1 + h11 * s1
                    dw = d00 * y0 + d10 * s0 + d01 * y1 + d11 * s1
                    hdw = h * dw
                    hddw = h * (c00 * y0 + c10 * s0 + c01 * y1 + c11 * s1)
                    terms[f] = (hx[i, f] * g[j, f] + hx[j, f] * g[i, f]) * dw + (
                        g[i, f] * x[j, f] + g[j, f] * x[i, f]
                    ) * hddw
                    gg[i, f] += hx[j, f] * w
                    gg[i, f] += x[j, f] * hdw
                    gx[i, f] += g[j, f] * hdw
            gr[p] = _total(terms)


@njit(parallel=True)
def _second_backward_shares(
    bounds, hx, hr, g, x, r, ptr, idx, ptr_t, idx_t, pair_t, table, cutoff, r_min, inverse_spacing, gg, gx, gr
):
    for s in prange(len(bounds) - 1):
        _second_backward(
            bounds[s], bounds[s + 1], hx, hr, g, x, r, ptr, idx, ptr_t, idx_t, pair_t,
            table, cutoff, r_min, inverse_spacing, gg, gx, gr,
        )  # fmt: skip
