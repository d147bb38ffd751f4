"""Softmax statistics and gradients of rows of logits on the GPU.

One program a row for the statistics: the row is read twice, the second time from the cache. One program a
row and block of tokens for the gradient, in place.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK = 2048
WARPS = 8
# Where e^x leaves the normal numbers.
LOWEST = {torch.float32: -87.0, torch.float64: -708.0}


def statistics(x: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``rows_cpu.statistics``."""
    results = x.new_empty(4, x.shape[0])
    if x.shape[0]:
        constants = {"LOW": LOWEST[x.dtype], **_launch(x)}
        _statistics[(x.shape[0],)](x, targets.contiguous(), results, *x.shape, **constants)
    logp, entropy, varentropy, lse = results
    return logp, entropy, varentropy, lse


def gradient_(
    x: Tensor,
    targets: Tensor,
    lse: Tensor,
    entropy: Tensor,
    polynomial: tuple[Tensor, Tensor, Tensor],
    peak: Tensor,
    gain: float,
    reach: float,
) -> None:
    """See ``rows_cpu.gradient_``."""
    scale = gain * reach if reach else gain
    coefficients = (torch.stack([*polynomial, peak]) * scale).contiguous()
    rows = targets.contiguous(), lse.contiguous(), entropy.contiguous(), coefficients
    constants = {"INVERSE": 1 / reach if reach else 0.0, "LOW": LOWEST[x.dtype], **_launch(x)}
    if x.numel():
        grid = (x.shape[0], triton.cdiv(x.shape[1], constants["BLOCK"]))
        _gradient[grid](x, *rows, *x.shape, **constants)


def topk(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """See ``rows_cpu.topk``; torch's own is fast on a GPU."""
    values, idx = x.topk(k, dim=1)
    return values, idx


def _block(vocabulary: int) -> int:
    return min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))


def _launch(x: Tensor) -> dict[str, int | bool]:
    return {"BLOCK": _block(x.shape[1]), "num_warps": WARPS, "enable_fp_fusion": True}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for dtype, kind in ((torch.float32, "*fp32"), (torch.float64, "*fp64")):
        types = dict.fromkeys(("x", "results", "lse", "entropy", "coefficients"), kind)
        types |= {"targets": "*i64", "rows": "i32", "vocabulary": "i32"}
        for kernel in (_statistics, _gradient):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            for vocabulary, inverse in ((49_152, 0.0), (256_000, 1 / 30.0), (77, 0.0)):
                constants = {"LOW": LOWEST[dtype], "BLOCK": _block(vocabulary)}
                if kernel is _gradient:
                    constants["INVERSE"] = inverse
                divisible = ("vocabulary",) if vocabulary % 16 == 0 else ()
                found.append(Specialization(kernel, signature, constants, WARPS, divisible))
    return found


@triton.jit
def _statistics(x, targets, results, rows, vocabulary, LOW: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    begin = x + row.to(tl.int64) * vocabulary
    lanes = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), -float("inf"), dtype=x.dtype.element_ty)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        # NaN may be lost here, and comes back through the sums.
        tops = tl.maximum(tops, tl.load(begin + v, mask=v < vocabulary, other=-float("inf")))
    top = tl.max(tops, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top).to(x.dtype.element_ty)
    e_sum = tl.zeros((), dtype=tl.float64)
    s_sum = tl.zeros((), dtype=tl.float64)
    ss_sum = tl.zeros((), dtype=tl.float64)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        s = tl.load(begin + v, mask=v < vocabulary, other=-float("inf")) - shift
        # 0 log 0 = 0: what underflows, and tokens that are ruled out by -inf, count for nothing.
        s = tl.where(s < LOW, LOW, s)
        e = tl.where(s == LOW, 0.0, tl.exp(s))
        e_sum += tl.sum(e, axis=0).to(tl.float64)
        s_sum += tl.sum(e * s, axis=0).to(tl.float64)
        ss_sum += tl.sum(e * s * s, axis=0).to(tl.float64)
    log_sum = tl.log(e_sum)
    mean = s_sum / e_sum
    spread = ss_sum / e_sum - mean * mean
    own = tl.load(begin + tl.load(targets + row)) - shift
    kind = x.dtype.element_ty
    tl.store(results + row, (own.to(tl.float64) - log_sum).to(kind))
    tl.store(results + rows + row, (log_sum - mean).to(kind))
    tl.store(results + 2 * rows + row, tl.where(spread < 0.0, 0.0, spread).to(kind))
    tl.store(results + 3 * rows + row, (shift.to(tl.float64) + log_sum).to(kind))


@triton.jit
def _gradient(
    x,
    targets,
    lse,
    entropy,
    coefficients,
    rows,
    vocabulary,
    INVERSE: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    v = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    where = x + row.to(tl.int64) * vocabulary + v
    value = tl.load(where, mask=v < vocabulary, other=0.0)
    s = value - tl.load(lse + row)
    s = tl.where(s < LOW, LOW, s)
    e = tl.where(s == LOW, 0.0, tl.exp(s))
    phi = s + tl.load(entropy + row)
    k0 = tl.load(coefficients + row)
    k1 = tl.load(coefficients + rows + row)
    k2 = tl.load(coefficients + 2 * rows + row)
    peak = tl.load(coefficients + 3 * rows + row)
    result = e * (k0 + phi * (k1 + phi * k2)) + tl.where(v == tl.load(targets + row), peak, 0.0)
    if INVERSE != 0.0:
        bend = value * INVERSE
        result *= 1.0 - bend * bend
    tl.store(where, result, mask=v < vocabulary)
