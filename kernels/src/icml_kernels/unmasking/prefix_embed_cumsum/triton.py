"""First-layer sums of all masked prefixes on the GPU: a program takes a path, or a site, and a block of
columns.

Backward the sums over later prefixes come first; then each program owns the rows of one site, and adds the
paths to them one after the other, without atomics.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.unmasking.prefix_embed_cumsum.reference import ranks

BLOCK = 128


def forward(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """See ``reference.forward``."""
    weight, x, order, sizes = (t.contiguous() for t in (weight, x, order, sizes))
    out = weight.new_empty(sizes.shape[0], x.shape[0], weight.shape[2])
    if out.numel():
        base = weight[:, -1].sum(0).contiguous()
        grid = (x.shape[0], triton.cdiv(weight.shape[2], BLOCK))
        shapes = (x.shape[0], weight.shape[0], weight.shape[1], weight.shape[2], sizes.shape[0])
        _sum[grid](weight, base, x, order, sizes, out, *shapes, **_constants())
    return out


def backward(grad: Tensor, x: Tensor, order: Tensor, sizes: Tensor, symbols: int) -> Tensor:
    """See ``reference.backward``."""
    out = grad.new_zeros(x.shape[1], symbols, grad.shape[2])
    if grad.numel() == 0 or out.numel() == 0:
        return out
    later = grad.flip(0).cumsum(0).flip(0)
    out[:, -1] = later[0].sum(0)
    # The first prefix that shows a site; where none does, a row of zeros beyond the last.
    later = torch.cat([later, torch.zeros_like(later[:1])])
    step = torch.searchsorted(sizes.contiguous(), ranks(order), right=True).contiguous()
    grid = (x.shape[1], triton.cdiv(grad.shape[2], BLOCK))
    shapes = (x.shape[0], x.shape[1], symbols, grad.shape[2])
    _spread[grid](later, x.contiguous(), step, out, *shapes, **_constants())
    return out


def _constants() -> dict[str, int | bool]:
    return {"BLOCK_H": BLOCK, "num_warps": 4, "enable_fp_fusion": True}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        types = dict.fromkeys(("weight", "base", "out", "later"), kind)
        types |= dict.fromkeys(("x", "order", "sizes", "step"), "*i64")
        types |= dict.fromkeys(("paths", "sites", "symbols", "hidden", "steps"), "i32")
        for kernel in (_sum, _spread):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            found.append(Specialization(kernel, signature, {"BLOCK_H": BLOCK}, 4))
    return found


@triton.jit
def _sum(weight, base, x, order, sizes, out, paths, sites, symbols, hidden, steps, BLOCK_H: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    kept = h < hidden
    running = tl.load(base + h, mask=kept, other=0.0)
    place = tl.zeros((), dtype=tl.int64)
    for t in range(0, steps):
        size = tl.load(sizes + t)
        for p in range(place, size):
            site = tl.load(order + b * sites + p)
            symbol = tl.load(x + b * sites + site)
            row = weight + site * symbols * hidden + h
            running += tl.load(row + symbol * hidden, mask=kept, other=0.0)
            running -= tl.load(row + (symbols - 1) * hidden, mask=kept, other=0.0)
        place = size
        tl.store(out + (t * paths + b) * hidden + h, running, mask=kept)


@triton.jit
def _spread(later, x, step, out, paths, sites, symbols, hidden, BLOCK_H: tl.constexpr):
    site = tl.program_id(0).to(tl.int64)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    kept = h < hidden
    rows = out + site * symbols * hidden + h
    hiding = tl.load(rows + (symbols - 1) * hidden, mask=kept, other=0.0)
    wide = site * 0 + sites
    for b in range(0, paths):
        t = tl.load(step + b * wide + site)
        symbol = tl.load(x + b * wide + site)
        value = tl.load(later + (t * paths + b) * hidden + h, mask=kept, other=0.0)
        before = tl.load(rows + symbol * hidden, mask=kept, other=0.0)
        tl.store(rows + symbol * hidden, before + value, mask=kept)
        hiding -= value
    tl.store(rows + (symbols - 1) * hidden, hiding, mask=kept)
