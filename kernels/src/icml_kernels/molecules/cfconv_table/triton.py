"""The tabulated convolution on the GPU: one program a row and block of features, no atomic additions.

A program walks the pairs of its row, first those in which it is the larger index, by tiles; the table
stays in the second-level cache. The gradient by the distances belongs to the smaller index; with several
blocks of features each leaves a part of it, and the parts are added in order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

# Pairs of a tile: as many as fit into registers, hence fewer in the derivatives, which hold more per pair.
PAIRS = {torch.float32: 8, torch.float64: 4}
PAIRS_BACKWARD = 4
FEATURES = 128


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
    x, r, table, lists = *_contiguous(x, r, table), _contiguous(ptr, idx, ptr_t, idx_t, pair_t)
    out = torch.empty_like(x)
    grid, filters, constants = _launch(x, PAIRS[x.dtype], table, cutoff, r_min)
    if out.numel():
        _forward[grid](x, r, *lists, table, out, filters, **constants)
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
    g, x, r, table = _contiguous(g, x, r, table)
    lists = _contiguous(ptr, idx, ptr_t, idx_t, pair_t)
    grid, filters, constants = _launch(x, PAIRS_BACKWARD, table, cutoff, r_min)
    gx, parts = torch.empty_like(x), r.new_zeros(grid[1], r.shape[0])
    if gx.numel():
        _backward[grid](g, x, r, *lists, table, gx, parts, r.shape[0], filters, **constants)
    return gx, _added(parts)


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
    hx, hr, g, x, r, table = _contiguous(hx, hr, g, x, r, table)
    lists = _contiguous(ptr, idx, ptr_t, idx_t, pair_t)
    grid, filters, constants = _launch(x, PAIRS_BACKWARD, table, cutoff, r_min)
    gg, gx, parts = torch.empty_like(x), torch.empty_like(x), r.new_zeros(grid[1], r.shape[0])
    if gx.numel():
        _second_backward[grid](
            hx, hr, g, x, r, *lists, table, gg, gx, parts, r.shape[0], filters, **constants
        )
    return gg, gx, _added(parts)


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)


def _added(parts: Tensor) -> Tensor:
    # A fresh tensor in either case: an operator returns no view of another tensor.
    return parts.sum(0) if parts.shape[0] != 1 else parts.reshape(-1)


def _blocks(filters: int, pairs: int) -> tuple[dict[str, int], int]:
    """Block sizes and number of warps; a narrow block does not fill more than one."""
    features = min(FEATURES, triton.next_power_of_2(max(filters, 1)))
    return {"BLOCK_P": pairs, "BLOCK_F": features}, 4 if features > 32 else 1


def _launch(
    x: Tensor, pairs: int, table: Tensor, cutoff: float, r_min: float
) -> tuple[tuple[int, int], int, dict[str, Any]]:
    n_atoms, filters = x.shape
    blocks, warps = _blocks(filters, pairs)
    intervals = table.shape[0] - 1
    # Constants, not arguments: Triton would round a float argument to float32.
    grid = {"cutoff": cutoff, "r_min": r_min, "inverse_spacing": intervals / (cutoff - r_min)}
    options = {"num_warps": warps, "enable_fp_fusion": True}
    programs = (n_atoms, triton.cdiv(filters, blocks["BLOCK_F"]))
    return programs, filters, {"intervals": intervals, **grid, **blocks, **options}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time: narrow, odd and full blocks, both precisions."""
    grid = {"intervals": 1024, "cutoff": 15.0, "r_min": 0.0, "inverse_spacing": 1024 / 15.0}
    integers = dict.fromkeys(("ptr", "idx", "ptr_t", "idx_t", "pair_t"), "*i32")
    found = []
    for dtype, widths in ((torch.float32, (8, 96, 128, 200)), (torch.float64, (8, 128))):
        kind = {torch.float32: "*fp32", torch.float64: "*fp64"}[dtype]
        floats = dict.fromkeys(("x", "r", "table", "out", "g", "gx", "parts", "hx", "hr", "gg"), kind)
        types = {**floats, **integers, "places": "i32", "filters": "i32"}
        for kernel, pairs in (
            (_forward, PAIRS[dtype]),
            (_backward, PAIRS_BACKWARD),
            (_second_backward, PAIRS_BACKWARD),
        ):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            for width in widths:
                blocks, warps = _blocks(width, pairs)
                divisible = ("filters",) if width % 16 == 0 else ()
                found.append(Specialization(kernel, signature, {**grid, **blocks}, warps, divisible))
    return found


# Every kernel below reads W, W' and W'' of a tile of pairs as [BLOCK_P, BLOCK_F]. A pair that is masked
# or lies beyond the cutoff has W = 0 everywhere.


@triton.jit
def _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing):
    s = (d - r_min) * inverse_spacing
    # NaN has no interval of its own, but stays in t.
    node = tl.minimum(tl.maximum(tl.where(s == s, s, 0.0), 0.0), intervals - 1.0).to(tl.int32)
    t = s - node.to(d.dtype)
    entry = table + node.to(tl.int64)[:, None] * (2 * filters) + f[None, :]
    mask = kept[:, None] & fits[None, :]
    y0 = tl.load(entry, mask=mask, other=0.0).to(d.dtype)
    s0 = tl.load(entry + filters, mask=mask, other=0.0).to(d.dtype)
    y1 = tl.load(entry + 2 * filters, mask=mask, other=0.0).to(d.dtype)
    s1 = tl.load(entry + 3 * filters, mask=mask, other=0.0).to(d.dtype)
    # Zero for a pair that is not kept, so that infinite distances leave no NaN.
    return tl.where(kept, t, 0.0)[:, None], y0, s0, y1, s1


@triton.jit
def _value(t, y0, s0, y1, s1):
    h01 = t * t * (3.0 - 2.0 * t)
    rest = 1.0 - t
    return (1.0 - h01) * y0 + t * rest * rest * s0 + h01 * y1 - t * t * rest * s1


@triton.jit
def _slope(t, y0, s0, y1, s1, inverse_spacing):
    d01 = 6.0 * t * (1.0 - t)
    return (d01 * (y1 - y0) + (1.0 + t * (3.0 * t - 4.0)) * s0 + t * (3.0 * t - 2.0) * s1) * inverse_spacing


@triton.jit
def _curvature(t, y0, s0, y1, s1, inverse_spacing):
    c01 = 6.0 - 12.0 * t
    total = c01 * (y1 - y0) + (6.0 * t - 4.0) * s0 + (6.0 * t - 2.0) * s1
    return total * (inverse_spacing * inverse_spacing)


@triton.jit
def _rows(source, rows, f, fits, kept, filters):
    where = source + rows.to(tl.int64)[:, None] * filters + f[None, :]
    return tl.load(where, mask=kept[:, None] & fits[None, :], other=0.0)


@triton.jit
def _forward(
    x,
    r,
    ptr,
    idx,
    ptr_t,
    idx_t,
    pair_t,
    table,
    out,
    filters,
    intervals: tl.constexpr,
    cutoff: tl.constexpr,
    r_min: tl.constexpr,
    inverse_spacing: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    row = tl.program_id(0)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    fits = f < filters
    total = tl.zeros((BLOCK_P, BLOCK_F), dtype=out.dtype.element_ty)
    end = tl.load(ptr_t + row + 1)
    for begin in range(tl.load(ptr_t + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx_t + q, mask=q < end, other=0)
        d = tl.load(r + tl.load(pair_t + q, mask=q < end, other=0), mask=q < end, other=0.0)
        kept = (q < end) & ~(d >= cutoff)
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        total += _rows(x, other, f, fits, kept, filters) * _value(t, y0, s0, y1, s1)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx + p, mask=p < end, other=0)
        d = tl.load(r + p, mask=p < end, other=0.0)
        kept = (p < end) & ~(d >= cutoff)
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        total += _rows(x, other, f, fits, kept, filters) * _value(t, y0, s0, y1, s1)
    tl.store(out + row.to(tl.int64) * filters + f, tl.sum(total, axis=0), mask=fits)


@triton.jit
def _backward(
    g,
    x,
    r,
    ptr,
    idx,
    ptr_t,
    idx_t,
    pair_t,
    table,
    gx,
    parts,
    places,
    filters,
    intervals: tl.constexpr,
    cutoff: tl.constexpr,
    r_min: tl.constexpr,
    inverse_spacing: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    f = block * BLOCK_F + tl.arange(0, BLOCK_F)
    fits = f < filters
    own = row.to(tl.int64) * filters + f
    x_row = tl.load(x + own, mask=fits, other=0.0)[None, :]
    g_row = tl.load(g + own, mask=fits, other=0.0)[None, :]
    total = tl.zeros((BLOCK_P, BLOCK_F), dtype=gx.dtype.element_ty)
    end = tl.load(ptr_t + row + 1)
    for begin in range(tl.load(ptr_t + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx_t + q, mask=q < end, other=0)
        d = tl.load(r + tl.load(pair_t + q, mask=q < end, other=0), mask=q < end, other=0.0)
        kept = (q < end) & ~(d >= cutoff)
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        total += _rows(g, other, f, fits, kept, filters) * _value(t, y0, s0, y1, s1)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx + p, mask=p < end, other=0)
        d = tl.load(r + p, mask=p < end, other=0.0)
        kept = (p < end) & ~(d >= cutoff)
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        x_other = _rows(x, other, f, fits, kept, filters)
        g_other = _rows(g, other, f, fits, kept, filters)
        total += g_other * _value(t, y0, s0, y1, s1)
        products = (g_row * x_other + g_other * x_row) * _slope(t, y0, s0, y1, s1, inverse_spacing)
        gr = tl.where(kept, tl.sum(products, axis=1), 0.0)
        tl.store(parts + block.to(tl.int64) * places + p, gr, mask=p < end)
    tl.store(gx + own, tl.sum(total, axis=0), mask=fits)


@triton.jit
def _second_backward(
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
    gg,
    gx,
    parts,
    places,
    filters,
    intervals: tl.constexpr,
    cutoff: tl.constexpr,
    r_min: tl.constexpr,
    inverse_spacing: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    f = block * BLOCK_F + tl.arange(0, BLOCK_F)
    fits = f < filters
    own = row.to(tl.int64) * filters + f
    x_row = tl.load(x + own, mask=fits, other=0.0)[None, :]
    g_row = tl.load(g + own, mask=fits, other=0.0)[None, :]
    h_row = tl.load(hx + own, mask=fits, other=0.0)[None, :]
    total_g = tl.zeros((BLOCK_P, BLOCK_F), dtype=gx.dtype.element_ty)
    total_x = tl.zeros((BLOCK_P, BLOCK_F), dtype=gx.dtype.element_ty)
    end = tl.load(ptr_t + row + 1)
    for begin in range(tl.load(ptr_t + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx_t + q, mask=q < end, other=0)
        pair = tl.load(pair_t + q, mask=q < end, other=0)
        d = tl.load(r + pair, mask=q < end, other=0.0)
        kept = (q < end) & ~(d >= cutoff)
        h = tl.load(hr + pair, mask=kept, other=0.0)[:, None]
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        sloped = h * _slope(t, y0, s0, y1, s1, inverse_spacing)
        total_g += _rows(hx, other, f, fits, kept, filters) * _value(t, y0, s0, y1, s1)
        total_g += _rows(x, other, f, fits, kept, filters) * sloped
        total_x += _rows(g, other, f, fits, kept, filters) * sloped
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx + p, mask=p < end, other=0)
        d = tl.load(r + p, mask=p < end, other=0.0)
        kept = (p < end) & ~(d >= cutoff)
        h = tl.load(hr + p, mask=kept, other=0.0)[:, None]
        t, y0, s0, y1, s1 = _nodes(table, d, kept, f, fits, filters, intervals, r_min, inverse_spacing)
        slope = _slope(t, y0, s0, y1, s1, inverse_spacing)
        h_other = _rows(hx, other, f, fits, kept, filters)
        x_other = _rows(x, other, f, fits, kept, filters)
        g_other = _rows(g, other, f, fits, kept, filters)
        total_g += h_other * _value(t, y0, s0, y1, s1) + x_other * h * slope
        total_x += g_other * h * slope
        products = (h_row * g_other + h_other * g_row) * slope
        products += (g_row * x_other + g_other * x_row) * h * _curvature(t, y0, s0, y1, s1, inverse_spacing)
        gr = tl.where(kept, tl.sum(products, axis=1), 0.0)
        tl.store(parts + block.to(tl.int64) * places + p, gr, mask=p < end)
    tl.store(gg + own, tl.sum(total_g, axis=0), mask=fits)
    tl.store(gx + own, tl.sum(total_x, axis=0), mask=fits)
