"""Gram matrices of layers with Triton: a program for each tile on or below the diagonal, stored twice.

Means are subtracted as tiles are loaded, so that nothing of the size of the embeddings is written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.covariance.batched_gram import reference
from icml_kernels.triangle_triton import triangle_tile

BLOCK_M, BLOCK_K = 64, 32
_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32"}


def batched_gram(embeddings: Tensor, center: bool, wide: bool) -> Tensor:
    """See ``reference.batched_gram``; float64 is left to it, for want of a dot product on every device."""
    if wide or embeddings.dtype not in _TYPES:
        return reference.batched_gram(embeddings, center, wide)
    n, layers, dim = embeddings.shape
    out = embeddings.new_empty(layers, n, n, dtype=torch.float32)
    mean = embeddings.mean(0, dtype=torch.float32) if center else out
    tiles = triton.cdiv(n, BLOCK_M)
    gram_kernel[(tiles * (tiles + 1) // 2, layers)](
        embeddings,
        mean,
        out,
        n,
        dim,
        *embeddings.stride(),
        CENTER=center,
        BLOCK_M=BLOCK_M,
        BLOCK_K=BLOCK_K,
        num_warps=4,
    )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in _TYPES.values():
        for center in (False, True):
            signature = {"x": kind, "mean": "*fp32", "out": "*fp32"}
            signature |= dict.fromkeys(("rows", "columns", "stride_r", "stride_l", "stride_c"), "i32")
            constants = {"CENTER": center, "BLOCK_M": BLOCK_M, "BLOCK_K": BLOCK_K}
            divisible = ("rows", "columns", "stride_r", "stride_l")
            found.append(Specialization(gram_kernel, signature, constants, 4, divisible))
    return found


@triton.jit
def gram_kernel(
    x,
    mean,
    out,
    rows,
    columns,
    stride_r,
    stride_l,
    stride_c,
    CENTER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Tile (i, j) with i >= j of one layer's Gram matrix, and its mirror image."""
    layer = tl.program_id(1).to(tl.int64)
    i, j = triangle_tile(tl.program_id(0))
    at_i = i * BLOCK_M + tl.arange(0, BLOCK_M)
    at_j = j * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tl.arange(0, BLOCK_K)
    base = x + layer * stride_l
    left = base + at_i.to(tl.int64)[:, None] * stride_r
    right = base + at_j.to(tl.int64)[:, None] * stride_r
    total = tl.zeros((BLOCK_M, BLOCK_M), dtype=tl.float32)
    for begin in range(0, columns, BLOCK_K):
        column = (begin + k).to(tl.int64)[None, :]
        inside = column < columns
        inside_i = (at_i < rows)[:, None] & inside
        inside_j = (at_j < rows)[:, None] & inside
        a = tl.load(left + column * stride_c, mask=inside_i, other=0.0).to(tl.float32)
        b = tl.load(right + column * stride_c, mask=inside_j, other=0.0).to(tl.float32)
        if CENTER:
            centre = tl.load(mean + layer * columns + column, mask=inside, other=0.0)
            a = tl.where(inside_i, a - centre, 0.0)
            b = tl.where(inside_j, b - centre, 0.0)
        total = tl.dot(a, tl.trans(b), total, input_precision="ieee")
    place = layer * rows * rows + at_i.to(tl.int64)[:, None] * rows + at_j[None, :]
    tl.store(out + place, total, mask=(at_i < rows)[:, None] & (at_j < rows)[None, :])
    if i != j:
        mirror = layer * rows * rows + at_j.to(tl.int64)[:, None] * rows + at_i[None, :]
        tl.store(out + mirror, tl.trans(total), mask=(at_j < rows)[:, None] & (at_i < rows)[None, :])
