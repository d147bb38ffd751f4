"""Scale a matrix and add one of rank one with Triton: Theta = u v^T lives in registers only."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK_R, BLOCK_C = 8, 128


def rank1_load(m: Tensor, u: Tensor, v: Tensor, scale: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """See ``reference.rank1_load``."""
    batch, rows, columns = m.shape
    out = torch.empty(batch, rows, columns, dtype=dtype, device=m.device)
    if out.numel():
        grid = (triton.cdiv(rows, BLOCK_R), triton.cdiv(columns, BLOCK_C), batch)
        rank1_load_kernel[grid](
            m,
            u.contiguous(),
            v.contiguous(),
            scale,
            weight,
            out,
            rows,
            columns,
            *m.stride(),
            BLOCK_R=BLOCK_R,
            BLOCK_C=BLOCK_C,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind, rounded in (("*fp32", "*bf16"), ("*fp32", "*fp16"), ("*fp32", "*fp32"), ("*fp64", "*fp64")):
        signature = dict.fromkeys(("m", "u", "v", "scale", "weight"), kind) | {"out": rounded}
        signature |= dict.fromkeys(("rows", "columns", "stride_b", "stride_r", "stride_c"), "i32")
        constants = {"BLOCK_R": BLOCK_R, "BLOCK_C": BLOCK_C}
        divisible = ("columns", "stride_b", "stride_r")
        found.append(Specialization(rank1_load_kernel, signature, constants, 4, divisible))
    return found


@triton.jit
def rank1_load_kernel(
    m,
    u,
    v,
    scale,
    weight,
    out,
    rows,
    columns,
    stride_b,
    stride_r,
    stride_c,
    BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """A block of scale M + weight u v^T."""
    batch = tl.program_id(2).to(tl.int64)
    r = (tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)
    c = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)).to(tl.int64)
    fits = (r < rows)[:, None] & (c < columns)[None, :]
    entry = m + batch * stride_b + r[:, None] * stride_r + c[None, :] * stride_c
    left = tl.load(u + batch * rows + r, mask=r < rows, other=0.0) * tl.load(weight + batch)
    right = tl.load(v + batch * columns + c, mask=c < columns, other=0.0)
    value = tl.load(scale + batch) * tl.load(entry, mask=fits, other=0.0) + left[:, None] * right[None, :]
    place = batch * rows * columns + r[:, None] * columns + c[None, :]
    tl.store(out + place, value.to(out.dtype.element_ty), mask=fits)
