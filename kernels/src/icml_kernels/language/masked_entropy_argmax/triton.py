"""Scores of chosen rows on the GPU: one program a row, read for its maximum and again from the cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.language import rows_triton
from icml_kernels.language.head import arithmetic
from icml_kernels.language.row_blocks import BUFFER
from icml_kernels.language.rows_triton import LOWEST, WARPS

BLOCK = 2048
_TYPES = {torch.float32: "*fp32", torch.float64: "*fp64", torch.bfloat16: "*bf16", torch.float16: "*fp16"}


def forward(
    logits: Tensor, rows: Tensor, temperature: float, exclude: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``. A row that is not there gives NaN: looking would make the host wait."""
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    dtype = arithmetic(logits.dtype)
    neg_entropy, maxprob, lse = (logits.new_empty(len(rows), dtype=dtype) for _ in range(3))
    argmax = logits.new_empty(len(rows), dtype=torch.int64)
    if len(rows):
        _scores[(len(rows),)](
            logits,
            rows.contiguous(),
            neg_entropy,
            maxprob,
            lse,
            argmax,
            1 / temperature,
            *logits.shape,
            logits.stride(0),
            exclude,
            LOW=LOWEST[dtype],
            WIDE=dtype == torch.float64,
            BLOCK=_block(logits.shape[1]),
            num_warps=WARPS,
            enable_fp_fusion=True,
        )
    return neg_entropy, maxprob, argmax, lse


def backward(
    g_entropy: Tensor,
    g_max: Tensor,
    g_lse: Tensor,
    logits: Tensor,
    rows: Tensor,
    neg_entropy: Tensor,
    maxprob: Tensor,
    argmax: Tensor,
    lse: Tensor,
    temperature: float,
    exclude: int,
) -> Tensor:
    """See ``reference.backward``; the softmax's kernel works on one block of rows at a time."""
    by = torch.zeros_like(logits, dtype=lse.dtype, memory_format=torch.contiguous_format)
    peak = g_max * maxprob
    constant = g_lse - peak
    size = max(1, BUFFER // logits.shape[1])
    for begin in range(0, len(rows), size):
        part = slice(begin, begin + size)
        x = (logits[rows[part]].to(lse.dtype) / temperature).contiguous()
        if exclude >= 0:
            x[:, exclude] = -torch.inf
        polynomial = (constant[part], g_entropy[part], torch.zeros_like(constant[part]))
        stats = (argmax[part], lse[part], -neg_entropy[part])
        rows_triton.gradient_(x, *stats, polynomial, peak[part], 1 / temperature, 0.0)
        by.index_add_(0, rows[part], x)
    return by


def _block(vocabulary: int) -> int:
    return min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for dtype, kind in _TYPES.items():
        result = _TYPES[arithmetic(dtype)]
        signature = {"logits": kind, "rows": "*i64", "argmax": "*i64", "inverse": "fp32"}
        signature |= dict.fromkeys(("neg_entropy", "maxprob", "lse"), result)
        signature |= dict.fromkeys(("there", "vocabulary", "stride", "exclude"), "i32")
        for vocabulary in (49_152, 77):
            constants = {
                "LOW": LOWEST[arithmetic(dtype)],
                "WIDE": dtype == torch.float64,
                "BLOCK": _block(vocabulary),
            }
            divisible = ("vocabulary", "stride") if vocabulary % 16 == 0 else ()
            found.append(Specialization(_scores, signature, constants, WARPS, divisible))
    return found


@triton.jit
def _scores(
    logits,
    rows,
    neg_entropy,
    maxprob,
    lse,
    argmax,
    inverse,
    there,
    vocabulary,
    stride,
    exclude,
    LOW: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kind: tl.constexpr = tl.float64 if WIDE else tl.float32
    place = tl.program_id(0)
    row = tl.load(rows + place)
    inside = (row >= 0) & (row < there)
    begin = logits + tl.where(inside, row, 0).to(tl.int64) * stride
    lanes = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), -float("inf"), dtype=kind)
    first = tl.zeros((BLOCK,), dtype=tl.int32)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        x = tl.load(begin + v, mask=(v < vocabulary) & (v != exclude), other=-float("inf")).to(kind)
        # NaN may be lost here, and comes back through the sums.
        first = tl.where(x > tops, v, first)
        tops = tl.maximum(tops, x)
    top = tl.max(tops, axis=0)
    token = tl.min(tl.where(tops == top, first, vocabulary), axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top).to(kind)
    e_sum = tl.zeros((), dtype=tl.float64)
    s_sum = tl.zeros((), dtype=tl.float64)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        x = tl.load(begin + v, mask=(v < vocabulary) & (v != exclude), other=-float("inf")).to(kind)
        s = (x - shift) * inverse
        # 0 log 0 = 0: what underflows, and tokens that are ruled out by -inf, count for nothing.
        s = tl.where(s < LOW, LOW, s)
        e = tl.where(s == LOW, 0.0, tl.exp(s))
        e_sum += tl.sum(e, axis=0).to(tl.float64)
        s_sum += tl.sum(e * s, axis=0).to(tl.float64)
    log_sum = tl.log(e_sum)
    none = tl.where(inside, 0.0, float("nan"))
    out = lse.dtype.element_ty
    tl.store(neg_entropy + place, (s_sum / e_sum - log_sum + none).to(out))
    tl.store(maxprob + place, (1.0 / e_sum + none).to(out))
    tl.store(lse + place, (shift.to(tl.float64) * inverse + log_sum + none).to(out))
    tl.store(argmax + place, tl.where(token < vocabulary, token, 0).to(tl.int64))
