"""Symmetric products with Triton: a program for each tile on or below the diagonal, stored twice."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.matrices.ns_syrk import reference
from icml_kernels.triangle_triton import triangle_tile

BLOCK_M, BLOCK_K = 64, 32
_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def ns_syrk(x: Tensor, alpha: float, beta: float, c: Tensor | None) -> Tensor:
    """See ``reference.ns_syrk``; float64 is left to it, for want of a dot product on every device."""
    if x.dtype not in _TYPES:
        return reference.ns_syrk(x, alpha, beta, c)
    batch, rows, columns = x.shape
    out = x.new_empty(batch, rows, rows)
    tiles = triton.cdiv(rows, BLOCK_M)
    if out.numel():
        added = out if c is None else c.contiguous()
        ns_syrk_kernel[(tiles * (tiles + 1) // 2, batch)](
            x,
            added,
            out,
            rows,
            columns,
            *x.stride(),
            alpha,
            beta,
            HAS_C=c is not None,
            BLOCK_M=BLOCK_M,
            BLOCK_K=BLOCK_K,
            num_warps=4,
        )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in _TYPES.values():
        for has_c in (False, True):
            signature = {"x": kind, "c": kind, "out": kind, "alpha": "fp32", "beta": "fp32"}
            signature |= dict.fromkeys(("rows", "columns", "stride_b", "stride_r", "stride_c"), "i32")
            constants = {"HAS_C": has_c, "BLOCK_M": BLOCK_M, "BLOCK_K": BLOCK_K}
            divisible = ("rows", "columns", "stride_b", "stride_r")
            found.append(Specialization(ns_syrk_kernel, signature, constants, 4, divisible))
    return found


@triton.jit
def ns_syrk_kernel(
    x,
    c,
    out,
    rows,
    columns,
    stride_b,
    stride_r,
    stride_c,
    alpha,
    beta,
    HAS_C: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tile (i, j) with i >= j of alpha X X^T + beta C, and its mirror image."""
    batch = tl.program_id(1).to(tl.int64)
    i, j = triangle_tile(tl.program_id(0))
    at_i = i * BLOCK_M + tl.arange(0, BLOCK_M)
    at_j = j * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    base = x + batch * stride_b
    left = base + at_i.to(tl.int64)[:, None] * stride_r
    right = base + at_j.to(tl.int64)[:, None] * stride_r
    total = tl.zeros((BLOCK_M, BLOCK_M), dtype=tl.float32)
    for begin in range(0, columns, BLOCK_K):
        column = (begin + k).to(tl.int64)[None, :]
        inside = column < columns
        a = tl.load(left + column * stride_c, mask=(at_i < rows)[:, None] & inside, other=0.0)
        b = tl.load(right + column * stride_c, mask=(at_j < rows)[:, None] & inside, other=0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    total = alpha * total
    place = batch * rows * rows + at_i.to(tl.int64)[:, None] * rows + at_j[None, :]
    fits = (at_i < rows)[:, None] & (at_j < rows)[None, :]
    if HAS_C:
        total += beta * tl.load(c + place, mask=fits, other=0.0).to(tl.float32)
    value = total.to(out.dtype.element_ty)
    tl.store(out + place, value, mask=fits)
    if i != j:
        mirror = batch * rows * rows + at_j.to(tl.int64)[:, None] * rows + at_i[None, :]
        tl.store(out + mirror, tl.trans(value), mask=(at_j < rows)[:, None] & (at_i < rows)[None, :])
