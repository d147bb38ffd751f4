"""Sparse times block on the GPU: one program a row and run of columns, no atomics.

The transposed product, which only derivatives need, runs as the definition does.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

COLUMNS = 64


def forward(data: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Tensor:
    """See ``reference.forward``."""
    data, indices, indptr, x = (t.contiguous() for t in (data, indices, indptr, x))
    out = x.new_empty(indptr.shape[0] - 1, x.shape[1])
    if out.numel():
        block, warps = _block(x.shape[1])
        grid = (out.shape[0], triton.cdiv(x.shape[1], block))
        _multiply[grid](
            data, indices, indptr, x, out, x.shape[1], BLOCK=block, num_warps=warps, enable_fp_fusion=True
        )
    return out


def _block(columns: int) -> tuple[int, int]:
    return min(COLUMNS, triton.next_power_of_2(max(columns, 1))), 1


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        signature = {
            "data": kind,
            "indices": "*i32",
            "indptr": "*i32",
            "x": kind,
            "out": kind,
            "columns": "i32",
        }
        for width in (1, 8, 64):
            block, warps = _block(width)
            divisible = ("columns",) if width % 16 == 0 else ()
            found.append(Specialization(_multiply, signature, {"BLOCK": block}, warps, divisible))
    return found


@triton.jit
def _multiply(data, indices, indptr, x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    fits = c < columns
    total = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    for p in range(tl.load(indptr + row), tl.load(indptr + row + 1)):
        j = tl.load(indices + p).to(tl.int64)
        total += tl.load(data + p) * tl.load(x + j * columns + c, mask=fits, other=0.0)
    tl.store(out + row.to(tl.int64) * columns + c, total, mask=fits)
