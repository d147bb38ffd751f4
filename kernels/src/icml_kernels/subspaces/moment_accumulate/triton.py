"""Contour moments on the GPU: a program takes a run of values of Y through all moments."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK = 256


def add(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """See ``reference.add``."""
    s, y = s.contiguous(), y.contiguous()
    out = torch.empty_like(s)
    size = y.numel() // 2
    if out.numel():
        grid = (triton.cdiv(size, BLOCK),)
        _add[grid](
            s, y, out, size, s.shape[0], zr, zi, wr, wi, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return out


def gather(g: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    """See ``reference.gather``."""
    g = g.contiguous()
    out = g.new_empty((*g.shape[1:], 2))
    size = out.numel() // 2
    if out.numel():
        grid = (triton.cdiv(size, BLOCK),)
        _gather[grid](
            g, out, size, g.shape[0], zr, zi, wr, wi, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        types = {"s": kind, "g": kind, "y": kind, "out": kind, "size": "i32", "moments": "i32"}
        types |= dict.fromkeys(("zr", "zi", "wr", "wi"), "fp32")
        for kernel in (_add, _gather):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            found.append(Specialization(kernel, signature, {"BLOCK": BLOCK}, 4, ("size",)))
    return found


@triton.jit
def _add(s, y, out, size, moments, zr, zi, wr, wi, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    fits = i < size
    # w z^k Y by recurrence: after k steps (a, b) holds its real and imaginary part.
    yr = tl.load(y + 2 * i, mask=fits, other=0.0)
    yi = tl.load(y + 2 * i + 1, mask=fits, other=0.0)
    a = wr * yr - wi * yi
    b = wr * yi + wi * yr
    place = i
    for _ in range(moments):
        before = tl.load(s + place, mask=fits, other=0.0)
        tl.store(out + place, (before + a).to(out.dtype.element_ty), mask=fits)
        place += size
        c = zr * a - zi * b
        b = zr * b + zi * a
        a = c


@triton.jit
def _gather(g, out, size, moments, zr, zi, wr, wi, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    fits = i < size
    # Horner's rule from the last moment: conj(z) (...) + g_k, and conj(w) at the end.
    a = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    b = tl.zeros((BLOCK,), dtype=out.dtype.element_ty)
    place = i + (moments - 1).to(tl.int64) * size
    for _ in range(moments):
        value = tl.load(g + place, mask=fits, other=0.0)
        c = zr * a + zi * b + value
        b = zr * b - zi * a
        a = c.to(out.dtype.element_ty)
        b = b.to(out.dtype.element_ty)
        place -= size
    tl.store(out + 2 * i, (wr * a + wi * b).to(out.dtype.element_ty), mask=fits)
    tl.store(out + 2 * i + 1, (wr * b - wi * a).to(out.dtype.element_ty), mask=fits)
