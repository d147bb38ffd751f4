"""Mixtures of stored distributions on the GPU: one program a group, every stored row read once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.language.rows_triton import LOWEST

BLOCK, WARPS = 1024, 4


def forward(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``. A row that is not there gives NaN: looking would make the host wait."""
    groups = len(index)
    entropy, divergence, top = (rows_logp.new_empty(groups) for _ in range(3))
    argmax = rows_logp.new_empty(groups, dtype=torch.int64)
    if groups:
        _mix[(groups,)](
            rows_logp.contiguous(),
            weights.contiguous(),
            index.contiguous(),
            entropy,
            argmax,
            divergence,
            top,
            index.shape[1],
            *rows_logp.shape,
            LOW=LOWEST[rows_logp.dtype],
            BLOCK=_block(rows_logp.shape[1]),
            num_warps=WARPS,
            enable_fp_fusion=True,
        )
    return entropy, argmax, divergence, top


def _block(vocabulary: int) -> int:
    return min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for dtype, kind in ((torch.float32, "*fp32"), (torch.float64, "*fp64")):
        signature = dict.fromkeys(("rows_logp", "weights", "entropies", "divergences", "tops"), kind)
        signature |= {"index": "*i64", "argmax": "*i64"}
        signature |= dict.fromkeys(("members", "there", "vocabulary"), "i32")
        for vocabulary in (49_152, 77):
            constants = {"LOW": LOWEST[dtype], "BLOCK": _block(vocabulary)}
            divisible = ("vocabulary",) if vocabulary % 16 == 0 else ()
            found.append(Specialization(_mix, signature, constants, WARPS, divisible))
    return found


@triton.jit
def _mix(
    rows_logp,
    weights,
    index,
    entropies,
    argmax,
    divergences,
    tops,
    members,
    there,
    vocabulary,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kind = rows_logp.dtype.element_ty
    group = tl.program_id(0)
    lanes = tl.arange(0, BLOCK)
    entropy = tl.zeros((), dtype=tl.float64)
    divergence = tl.zeros((), dtype=tl.float64)
    wrong = tl.zeros((), dtype=tl.float64)
    found = tl.zeros((), dtype=tl.int32)
    highest = tl.full((BLOCK,), -1.0, dtype=kind)
    first = tl.zeros((BLOCK,), dtype=tl.int32)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        mean = tl.zeros((BLOCK,), dtype=kind)
        term = tl.zeros((BLOCK,), dtype=kind)
        for k in range(0, members):
            row = tl.load(index + group * members + k)
            wrong += tl.where(row >= there, float("nan"), 0.0)
            found += (row >= 0).to(tl.int32)
            w = tl.load(weights + group * members + k)
            inside = (row >= 0) & (row < there)
            begin = rows_logp + tl.where(inside, row, 0).to(tl.int64) * vocabulary
            s = tl.load(begin + v, mask=v < vocabulary, other=-float("inf"))
            s = tl.where(inside, s, -float("inf"))
            s = tl.where(s < LOW, LOW, s)
            share = tl.where(s == LOW, 0.0, tl.exp(s)) * tl.where(inside, w, 0.0)
            mean += share
            term += share * s
        t = tl.where(mean > 0.0, mean * tl.log(tl.where(mean > 0.0, mean, 1.0)), mean)
        entropy -= tl.sum(t, axis=0).to(tl.float64)
        divergence += tl.sum(term - t, axis=0).to(tl.float64)
        inside_v = v < vocabulary
        first = tl.where(inside_v & (mean > highest), v, first)
        highest = tl.where(inside_v, tl.maximum(highest, mean), highest)
    top = tl.max(highest, axis=0)
    token = tl.min(tl.where(highest == top, first, vocabulary), axis=0)
    wrong += tl.where(found == 0, float("nan"), 0.0)
    tl.store(entropies + group, (entropy + wrong).to(kind))
    tl.store(divergences + group, (divergence + wrong).to(kind))
    tl.store(tops + group, (top.to(tl.float64) + wrong + 0.0 * entropy).to(kind))
    tl.store(argmax + group, tl.where(token < vocabulary, token, 0).to(tl.int64))
