"""One symbol a site by inverse cumulated probabilities on the GPU: a program takes a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

LARGEST = 512


def forward(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    logits, uniform = logits.contiguous(), uniform.contiguous()
    rows, sites = uniform.shape
    symbol = torch.empty((rows, sites), dtype=torch.int64, device=uniform.device)
    logp = torch.zeros(rows, dtype=torch.float64, device=uniform.device)
    if rows and sites:
        size = logits.shape[2]
        stride = 0 if logits.shape[0] == 1 else sites * size
        block = min(LARGEST, triton.next_power_of_2(size))
        _draw[(rows,)](
            logits,
            uniform,
            symbol,
            logp,
            stride,
            sites,
            size,
            BLOCK_V=block,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return symbol, logp


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        types = {"logits": kind, "uniform": "*fp64", "symbol": "*i64", "logp": "*fp64"}
        types |= dict.fromkeys(("stride", "sites", "size"), "i32")
        found += [Specialization(_draw, types, {"BLOCK_V": block}, 4) for block in (8, LARGEST)]
    return found


@triton.jit
def _draw(logits, uniform, symbol, logp, stride, sites, size, BLOCK_V: tl.constexpr):
    b = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK_V)
    low = float("-inf")
    summed = tl.zeros((), dtype=tl.float64)
    for j in range(0, sites):
        row = logits + b * stride + j * size
        top = tl.full((), low, dtype=tl.float64)
        for first in range(0, size, BLOCK_V):
            v = first + lanes
            value = tl.load(row + v, mask=v < size, other=low).to(tl.float64)
            top = tl.maximum(top, tl.max(value, axis=0))
        total = tl.zeros((), dtype=tl.float64)
        last = tl.zeros((), dtype=tl.int32)
        for first in range(0, size, BLOCK_V):
            v = first + lanes
            weight = tl.exp(tl.load(row + v, mask=v < size, other=low).to(tl.float64) - top)
            total += tl.sum(weight, axis=0)
            last = tl.maximum(last, tl.max(tl.where(weight > 0, v, 0), axis=0))
        threshold = tl.load(uniform + b * sites + j) * total
        found = tl.zeros((), dtype=tl.int32)
        before = tl.zeros((), dtype=tl.float64)
        for first in range(0, size, BLOCK_V):
            v = first + lanes
            weight = tl.exp(tl.load(row + v, mask=v < size, other=low).to(tl.float64) - top)
            cumulated = before + tl.cumsum(weight, axis=0)
            found += tl.sum(((cumulated <= threshold) & (v < size)).to(tl.int32), axis=0)
            before += tl.sum(weight, axis=0)
        found = tl.minimum(found, last)
        tl.store(symbol + b * sites + j, found.to(tl.int64))
        summed += tl.load(row + found).to(tl.float64) - top - tl.log(total)
    tl.store(logp + b, summed)
