"""log-sum-exp over the rows of a ragged list on the GPU: a program takes a block of rows, a lane one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

ROWS = 32
PLACES = 4


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.forward``."""
    values, ptr = values.contiguous(), ptr.contiguous()
    out = values.new_empty(ptr.shape[0] - 1)
    if out.numel():
        _logsumexp[(triton.cdiv(out.shape[0], ROWS),)](values, ptr, out, out.shape[0], **_constants())
    return out


def backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.backward``."""
    grad, values, out, ptr = (t.contiguous() for t in (grad, values, out, ptr))
    spread = values.new_zeros(values.shape)
    if out.numel() and values.numel():
        grid = (triton.cdiv(out.shape[0], ROWS),)
        _share[grid](grad, values, out, ptr, spread, out.shape[0], **_constants())
    return spread


def _constants() -> dict[str, int | bool]:
    return {"BLOCK_R": ROWS, "BLOCK_P": PLACES, "num_warps": 1, "enable_fp_fusion": True}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    blocks = {"BLOCK_R": ROWS, "BLOCK_P": PLACES}
    for kind in ("*fp32", "*fp64"):
        types = dict.fromkeys(("values", "out", "grad", "spread"), kind) | {"ptr": "*i32", "rows": "i32"}
        for kernel in (_logsumexp, _share):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            found.append(Specialization(kernel, signature, dict(blocks), 1))
    return found


@triton.jit
def _logsumexp(values, ptr, out, rows, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    kept = r < rows
    begin = tl.load(ptr + r, mask=kept, other=0)
    end = tl.load(ptr + r + 1, mask=kept, other=0)
    longest = tl.max(end - begin, axis=0)
    low = float("-inf")
    top = tl.full((BLOCK_R,), low, dtype=out.dtype.element_ty)
    total = tl.zeros((BLOCK_R,), dtype=out.dtype.element_ty)
    for first in range(0, longest, BLOCK_P):
        p = begin[:, None] + first + tl.arange(0, BLOCK_P)[None, :]
        v = tl.load(values + p, mask=p < end[:, None], other=low)
        above = tl.maximum(top, tl.max(v, axis=1))
        # A row of nothing but -inf so far keeps the sum 0; its shift must be finite.
        shift = tl.where(above == low, 0.0, above)
        scale = tl.where(top == low, 0.0, tl.exp(top - shift))
        # Without a finite value the scale is 0, and a NaN in the sum stays one.
        total = tl.where(total != total, total, total * scale) + tl.sum(tl.exp(v - shift[:, None]), axis=1)
        top = above
    shift = tl.where(top == low, 0.0, top)
    found = shift + tl.log(total)
    found = tl.where(top == float("inf"), top, found)
    tl.store(out + r, found, mask=kept)


@triton.jit
def _share(grad, values, out, ptr, spread, rows, BLOCK_R: tl.constexpr, BLOCK_P: tl.constexpr):
    r = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    kept = r < rows
    begin = tl.load(ptr + r, mask=kept, other=0)
    end = tl.load(ptr + r + 1, mask=kept, other=0)
    g = tl.load(grad + r, mask=kept, other=0.0)
    own = tl.load(out + r, mask=kept, other=0.0)
    low = float("-inf")
    empty = own == low
    longest = tl.max(end - begin, axis=0)
    for first in range(0, longest, BLOCK_P):
        p = begin[:, None] + first + tl.arange(0, BLOCK_P)[None, :]
        inside = p < end[:, None]
        v = tl.load(values + p, mask=inside, other=low)
        shares = g[:, None] * tl.exp(v - tl.where(empty, 0.0, own)[:, None])
        tl.store(spread + p, tl.where(empty[:, None], 0.0, shares), mask=inside)
