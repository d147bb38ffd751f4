"""The filter-network convolution on the GPU: basis, network, product and sum of a tile in one program.

One program owns a row and a block of features. It walks the row's pairs by tiles, and for each tile the
hidden layer by blocks, so that no more than a tile of anything is held at a time. The gradient by the
distances needs W', which is carried through the network beside W. Products of matrices keep the
accuracy of float32 (three TF32 products where the hardware has them). The gradients by the weights are
large products of matrices, which torch computes, tile by tile.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.molecules.cfconv_mlp import reference
from icml_kernels.molecules.neighbors import pair_rows

# Pairs of a tile in the gradients by the weights.
TILE = 16384


def forward(
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> Tensor:
    """See ``reference.forward``."""
    x, r, *lists = _contiguous(x, r, ptr, idx, ptr_t, idx_t, pair_t)
    weights = _contiguous(w1, b1, w2, b2, centers, widths)
    out = torch.empty_like(x)
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    grid, sizes, constants = _launch(x, w1, *options)
    if out.numel():
        _forward[grid](x, r, *lists, *weights, out, *sizes, **constants)
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
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
    by_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.backward``."""
    g, x, r, *lists = _contiguous(g, x, r, ptr, idx, ptr_t, idx_t, pair_t)
    weights = _contiguous(w1, b1, w2, b2, centers, widths)
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    grid, sizes, constants = _launch(x, w1, *options)
    gx, parts = torch.empty_like(x), r.new_zeros(grid[1], r.shape[0])
    if gx.numel():
        _backward[grid](g, x, r, *lists, *weights, gx, parts, r.shape[0], *sizes, **constants)
    gr = parts.sum(0) if parts.shape[0] != 1 else parts.reshape(-1)
    by = [torch.zeros_like(w) for w in weights]
    if by_weights:
        i, valid = pair_rows(ptr, idx)
        j, d = torch.where(valid, idx, 0), torch.where(valid, r, cutoff)
        for begin in range(0, len(r), TILE):
            tile = slice(begin, begin + TILE)
            by_filter = g[i[tile]] * x[j[tile]] + g[j[tile]] * x[i[tile]]
            _, _, by_tile = reference.network_backward(by_filter, d[tile], *weights, *options, True)
            for total, part in zip(by, by_tile, strict=True):
                total += part
    return gx, gr, *by


def _contiguous(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(t.contiguous() for t in tensors)


def _blocks(dtype: torch.dtype, hidden: int, filters: int) -> tuple[dict[str, int], int]:
    """Block sizes and number of warps, as registers allow."""

    def block(size: int, limit: int) -> int:
        return min(limit, max(16, triton.next_power_of_2(max(size, 1))))

    if dtype == torch.float64:
        return {"BLOCK_P": 16, "BLOCK_K": 16, "BLOCK_H": 16, "BLOCK_F": 32}, 8
    return {"BLOCK_P": 16, "BLOCK_K": 32, "BLOCK_H": block(hidden, 32), "BLOCK_F": block(filters, 64)}, 4


def _launch(
    x: Tensor,
    w1: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> tuple[tuple[int, int], tuple[int, int, int], dict[str, Any]]:
    sizes = w1.shape[1], w1.shape[0], x.shape[1]
    blocks, warps = _blocks(x.dtype, *sizes[1:])
    constants = {
        "cutoff": cutoff,
        "wave": math.pi / cutoff,
        "alpha": alpha,
        "origin": origin,
        "EXPNORM": basis == "expnorm",
        "SSP": activation == "ssp",
        "BASIS_ENVELOPE": basis_envelope,
        "FILTER_ENVELOPE": filter_envelope,
        "PRECISION": _precision(x.dtype, torch.version.hip is not None),
        **blocks,
        "num_warps": warps,
        "enable_fp_fusion": True,
    }
    return (x.shape[0], triton.cdiv(x.shape[1], blocks["BLOCK_F"])), sizes, constants


def _precision(dtype: torch.dtype, hip: bool) -> str:
    """Plain TF32 has three digits; three products of halves have those of float32."""
    return "ieee" if dtype == torch.float64 or hip else "tf32x3"


def specializations(*, hip: bool = False) -> list[Specialization]:
    """What is compiled ahead of time; ``hip`` for AMD's targets, whose products differ."""
    names = ["x", "r", "w1", "b1", "w2", "b2", "centers", "widths", "out", "g", "gx", "parts"]
    integers = dict.fromkeys(("ptr", "idx", "ptr_t", "idx_t", "pair_t"), "*i32")
    sizes = dict.fromkeys(("places", "n_basis", "hidden", "filters"), "i32")
    options = {"cutoff": 15.0, "wave": math.pi / 15.0, "alpha": -0.3, "origin": 0.0}
    found = []
    for dtype, kind in ((torch.float32, "*fp32"), (torch.float64, "*fp64")):
        types = {**dict.fromkeys(names, kind), **integers, **sizes}
        for kernel in (_forward, _backward):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            for n_basis, hidden, filters in ((20, 8, 8), (64, 128, 128), (50, 200, 200)):
                switches = {
                    "EXPNORM": n_basis == 64,
                    "SSP": n_basis == 50,
                    "BASIS_ENVELOPE": True,
                    "FILTER_ENVELOPE": True,
                    "PRECISION": _precision(dtype, hip),
                }
                blocks, warps = _blocks(dtype, hidden, filters)
                constants = {**options, **switches, **blocks}
                divisible = ("n_basis", "hidden", "filters") if n_basis == 64 else ()
                found.append(Specialization(kernel, signature, constants, warps, divisible))
    return found


@triton.jit
def _sine_and_cosine(s):
    """By their power series, to float64's precision on 0..pi/2; the library's need local memory."""
    z = s * s
    sine = 1.0 - z * (1.0 / 420.0) * (1.0 - z * (1.0 / 506.0))
    sine = 1.0 - z * (1.0 / 272.0) * (1.0 - z * (1.0 / 342.0) * sine)
    sine = 1.0 - z * (1.0 / 156.0) * (1.0 - z * (1.0 / 210.0) * sine)
    sine = 1.0 - z * (1.0 / 72.0) * (1.0 - z * (1.0 / 110.0) * sine)
    sine = 1.0 - z * (1.0 / 20.0) * (1.0 - z * (1.0 / 42.0) * sine)
    cosine = 1.0 - z * (1.0 / 380.0) * (1.0 - z * (1.0 / 462.0))
    cosine = 1.0 - z * (1.0 / 240.0) * (1.0 - z * (1.0 / 306.0) * cosine)
    cosine = 1.0 - z * (1.0 / 132.0) * (1.0 - z * (1.0 / 182.0) * cosine)
    cosine = 1.0 - z * (1.0 / 56.0) * (1.0 - z * (1.0 / 90.0) * cosine)
    cosine = 1.0 - z * (1.0 / 12.0) * (1.0 - z * (1.0 / 30.0) * cosine)
    return s * (1.0 - z * (1.0 / 6.0) * sine), 1.0 - z * (1.0 / 2.0) * cosine


@triton.jit
def _envelope(d, kept, cutoff: tl.constexpr, wave: tl.constexpr, ON: tl.constexpr):
    """C = sin^2(s) and C' with s = (cutoff - r) wave / 2; 1 and 0 where the envelope is off. NaN passes."""
    c = tl.where(kept, 1.0, 0.0).to(d.dtype)
    dc = tl.zeros_like(d)
    if ON:
        sine, cosine = _sine_and_cosine(tl.where(kept, cutoff - d, 0.0) * (0.5 * wave))
        c = sine * sine
        dc = -wave * sine * cosine
    return c, dc


@triton.jit
def _basis(d, c, dc, center, width, alpha: tl.constexpr, origin: tl.constexpr, EXPNORM: tl.constexpr):
    """C e and (C e)' of some basis functions, as [BLOCK_P, BLOCK_K]."""
    if EXPNORM:
        z = tl.exp((d - origin) * alpha)
        dz = z * alpha
    else:
        z = d
        dz = tl.full(d.shape, 1.0, d.dtype)
    offset = z[:, None] - center[None, :]
    gaussians = tl.exp(-width[None, :] * offset * offset)
    e = gaussians * c[:, None]
    return e, gaussians * dc[:, None] - 2.0 * width[None, :] * offset * dz[:, None] * e


@triton.jit
def _activate(a, SSP: tl.constexpr):
    """The activation and its derivative."""
    if SSP:
        decay = tl.exp(-tl.abs(a))
        q = tl.maximum(a, 0.0) + tl.log(1.0 + decay) - 0.6931471805599453
        dq = tl.where(a >= 0.0, 1.0, decay) / (1.0 + decay)
    else:
        decay = tl.exp(-2.0 * tl.abs(a))
        size = (1.0 - decay) / (1.0 + decay)
        q = tl.where(a >= 0.0, size, -size)
        dq = 1.0 - q * q
    return q, dq


@triton.jit
def _network(
    d,
    kept,
    w1,
    b1,
    w2,
    b2,
    centers,
    widths,
    f,
    n_basis,
    hidden,
    filters,
    SLOPE: tl.constexpr,
    cutoff: tl.constexpr,
    wave: tl.constexpr,
    alpha: tl.constexpr,
    origin: tl.constexpr,
    EXPNORM: tl.constexpr,
    SSP: tl.constexpr,
    BASIS_ENVELOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """The network's output and, where SLOPE is set, its derivative by the distance, as [BLOCK_P, BLOCK_F]."""
    fits = f < filters
    c, dc = _envelope(d, kept, cutoff, wave, BASIS_ENVELOPE)
    d = tl.where(kept, d, 0.0)
    total = tl.zeros((d.shape[0], f.shape[0]), dtype=d.dtype)
    slope = tl.zeros((d.shape[0], f.shape[0]), dtype=d.dtype)
    for h0 in range(0, hidden, BLOCK_H):
        h = h0 + tl.arange(0, BLOCK_H)
        a = tl.zeros((d.shape[0], BLOCK_H), dtype=d.dtype)
        da = tl.zeros((d.shape[0], BLOCK_H), dtype=d.dtype)
        # The basis is evaluated anew for each block of the hidden layer: that is cheaper than to hold it.
        for k0 in range(0, n_basis, BLOCK_K):
            k = k0 + tl.arange(0, BLOCK_K)
            center = tl.load(centers + k, mask=k < n_basis, other=0.0)
            width = tl.load(widths + k, mask=k < n_basis, other=0.0)
            e, de = _basis(d, c, dc, center, width, alpha, origin, EXPNORM)
            # Beyond the last basis function the weights are 0.
            first = tl.load(
                w1 + h[None, :] * n_basis + k[:, None],
                mask=(h < hidden)[None, :] & (k < n_basis)[:, None],
                other=0.0,
            )
            a += tl.dot(e, first, input_precision=PRECISION, out_dtype=d.dtype)
            if SLOPE:
                da += tl.dot(de, first, input_precision=PRECISION, out_dtype=d.dtype)
        q, dq = _activate(a + tl.load(b1 + h, mask=h < hidden, other=0.0)[None, :], SSP)
        second = tl.load(
            w2 + f[None, :] * hidden + h[:, None], mask=fits[None, :] & (h < hidden)[:, None], other=0.0
        )
        total += tl.dot(q, second, input_precision=PRECISION, out_dtype=d.dtype)
        if SLOPE:
            slope += tl.dot(dq * da, second, input_precision=PRECISION, out_dtype=d.dtype)
    return total + tl.load(b2 + f, mask=fits, other=0.0)[None, :], slope


@triton.jit
def _rows(source, rows, f, kept, filters):
    where = source + rows.to(tl.int64)[:, None] * filters + f[None, :]
    return tl.load(where, mask=kept[:, None] & (f < filters)[None, :], other=0.0)


@triton.jit
def _forward(
    x,
    r,
    ptr,
    idx,
    ptr_t,
    idx_t,
    pair_t,
    w1,
    b1,
    w2,
    b2,
    centers,
    widths,
    out,
    n_basis,
    hidden,
    filters,
    cutoff: tl.constexpr,
    wave: tl.constexpr,
    alpha: tl.constexpr,
    origin: tl.constexpr,
    EXPNORM: tl.constexpr,
    SSP: tl.constexpr,
    BASIS_ENVELOPE: tl.constexpr,
    FILTER_ENVELOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    row = tl.program_id(0)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    total = tl.zeros((BLOCK_F,), dtype=out.dtype.element_ty)
    before = tl.load(ptr_t + row)
    smaller = tl.load(ptr_t + row + 1) - before
    after = tl.load(ptr + row)
    partners = smaller + tl.load(ptr + row + 1) - after
    # Both sides of the list in one walk: the row's smaller partners, then its larger ones.
    for begin in range(0, partners, BLOCK_P):
        n = begin + tl.arange(0, BLOCK_P)
        left = n < smaller
        right = ~left & (n < partners)
        q = before + n
        p = after + n - smaller
        other = tl.load(idx_t + q, mask=left, other=0) + tl.load(idx + p, mask=right, other=0)
        p = tl.where(left, tl.load(pair_t + q, mask=left, other=0), p)
        d = tl.load(r + p, mask=n < partners, other=cutoff)
        kept = (n < partners) & ~(d >= cutoff)
        w, _ = _network(
            d, kept, w1, b1, w2, b2, centers, widths, f, n_basis, hidden, filters, False, cutoff, wave,
            alpha, origin, EXPNORM, SSP, BASIS_ENVELOPE, PRECISION, BLOCK_K, BLOCK_H,
        )  # fmt: skip
        c, _ = _envelope(d, kept, cutoff, wave, FILTER_ENVELOPE)
        total += tl.sum(w * c[:, None] * _rows(x, other, f, kept, filters), axis=0)
    tl.store(out + row.to(tl.int64) * filters + f, total, mask=f < filters)


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
    w1,
    b1,
    w2,
    b2,
    centers,
    widths,
    gx,
    parts,
    places,
    n_basis,
    hidden,
    filters,
    cutoff: tl.constexpr,
    wave: tl.constexpr,
    alpha: tl.constexpr,
    origin: tl.constexpr,
    EXPNORM: tl.constexpr,
    SSP: tl.constexpr,
    BASIS_ENVELOPE: tl.constexpr,
    FILTER_ENVELOPE: tl.constexpr,
    PRECISION: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_F: tl.constexpr,
):
    row = tl.program_id(0)
    block = tl.program_id(1)
    f = block * BLOCK_F + tl.arange(0, BLOCK_F)
    own = row.to(tl.int64) * filters + f
    x_row = tl.load(x + own, mask=f < filters, other=0.0)[None, :]
    g_row = tl.load(g + own, mask=f < filters, other=0.0)[None, :]
    total = tl.zeros((BLOCK_F,), dtype=gx.dtype.element_ty)
    end = tl.load(ptr_t + row + 1)
    for begin in range(tl.load(ptr_t + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx_t + q, mask=q < end, other=0)
        p = tl.load(pair_t + q, mask=q < end, other=0)
        d = tl.load(r + p, mask=q < end, other=cutoff)
        kept = (q < end) & ~(d >= cutoff)
        w, _ = _network(
            d, kept, w1, b1, w2, b2, centers, widths, f, n_basis, hidden, filters, False, cutoff, wave,
            alpha, origin, EXPNORM, SSP, BASIS_ENVELOPE, PRECISION, BLOCK_K, BLOCK_H,
        )  # fmt: skip
        c, _ = _envelope(d, kept, cutoff, wave, FILTER_ENVELOPE)
        total += tl.sum(w * c[:, None] * _rows(g, other, f, kept, filters), axis=0)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        other = tl.load(idx + p, mask=p < end, other=0)
        d = tl.load(r + p, mask=p < end, other=cutoff)
        kept = (p < end) & ~(d >= cutoff)
        w, dw = _network(
            d, kept, w1, b1, w2, b2, centers, widths, f, n_basis, hidden, filters, True, cutoff, wave,
            alpha, origin, EXPNORM, SSP, BASIS_ENVELOPE, PRECISION, BLOCK_K, BLOCK_H,
        )  # fmt: skip
        c, dc = _envelope(d, kept, cutoff, wave, FILTER_ENVELOPE)
        x_other = _rows(x, other, f, kept, filters)
        g_other = _rows(g, other, f, kept, filters)
        total += tl.sum(w * c[:, None] * g_other, axis=0)
        products = (g_row * x_other + g_other * x_row) * (dw * c[:, None] + w * dc[:, None])
        tl.store(parts + block.to(tl.int64) * places + p, tl.sum(products, axis=1), mask=p < end)
    tl.store(gx + own, total, mask=f < filters)
