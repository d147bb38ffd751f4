"""Sums over the rows of a ragged list on the GPU: one program a row and block of features."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

PLACES = 8
FEATURES = 128


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.forward``."""
    values, ptr = values.contiguous(), ptr.contiguous()
    out = values.new_empty(ptr.shape[0] - 1, values.shape[1])
    grid, constants = _launch(out)
    if out.numel():
        _sum[grid](values, ptr, out, out.shape[1], **constants)
    return out


def gather(sums: Tensor, ptr: Tensor, places: int) -> Tensor:
    """See ``reference.gather``."""
    sums, ptr = sums.contiguous(), ptr.contiguous()
    out = sums.new_zeros(places, sums.shape[1])
    grid, constants = _launch(sums)
    if sums.numel() and out.numel():
        _spread[grid](sums, ptr, out, sums.shape[1], **constants)
    return out


def _blocks(features: int) -> tuple[dict[str, int], int]:
    block = min(FEATURES, triton.next_power_of_2(max(features, 1)))
    return {"BLOCK_P": PLACES, "BLOCK_F": block}, 4 if block > 32 else 1


def _launch(rows: Tensor) -> tuple[tuple[int, int], dict[str, int | bool]]:
    blocks, warps = _blocks(rows.shape[1])
    grid = (rows.shape[0], triton.cdiv(rows.shape[1], blocks["BLOCK_F"]))
    return grid, {**blocks, "num_warps": warps, "enable_fp_fusion": True}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        types = {"values": kind, "sums": kind, "out": kind, "ptr": "*i32", "features": "i32"}
        for kernel in (_sum, _spread):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            for width in (1, 96, 128):
                blocks, warps = _blocks(width)
                divisible = ("features",) if width % 16 == 0 else ()
                found.append(Specialization(kernel, signature, dict(blocks), warps, divisible))
    return found


@triton.jit
def _sum(values, ptr, out, features, BLOCK_P: tl.constexpr, BLOCK_F: tl.constexpr):
    row = tl.program_id(0)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    fits = f < features
    total = tl.zeros((BLOCK_P, BLOCK_F), dtype=out.dtype.element_ty)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        where = values + p.to(tl.int64)[:, None] * features + f[None, :]
        total += tl.load(where, mask=(p < end)[:, None] & fits[None, :], other=0.0)
    tl.store(out + row.to(tl.int64) * features + f, tl.sum(total, axis=0), mask=fits)


@triton.jit
def _spread(sums, ptr, out, features, BLOCK_P: tl.constexpr, BLOCK_F: tl.constexpr):
    row = tl.program_id(0)
    f = tl.program_id(1) * BLOCK_F + tl.arange(0, BLOCK_F)
    fits = f < features
    own = tl.load(sums + row.to(tl.int64) * features + f, mask=fits, other=0.0)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = begin + tl.arange(0, BLOCK_P)
        where = out + p.to(tl.int64)[:, None] * features + f[None, :]
        spread = tl.zeros((BLOCK_P, BLOCK_F), dtype=own.dtype) + own[None, :]
        tl.store(where, spread, mask=(p < end)[:, None] & fits[None, :])
