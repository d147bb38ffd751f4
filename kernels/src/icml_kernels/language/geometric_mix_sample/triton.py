"""The geometric mixture on the GPU: entropies and mixture by one Triton kernel, the nucleus by torch's sort.

One program a row: the rows of p and q are read for the maxima, for the sums, and for the mixture, the last
two times from the cache.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.language.geometric_mix_sample.reference import MODES, RISE, draw, require_numbers
from icml_kernels.language.head import arithmetic

BLOCK = 2048
WARPS = 8
# Where e^x leaves the normal numbers.
LOWEST = {torch.float32: -87.0, torch.float64: -708.0}


def forward(
    logp: Tensor,
    logq: Tensor,
    uniform: Tensor,
    share: Tensor,
    beta: float,
    mode: str,
    log_vocabulary: float,
    top_p: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    dtype = arithmetic(logp.dtype)
    p, q = (t.to(dtype).contiguous() for t in (logp, logq))
    rows, vocabulary = p.shape
    mixture = torch.empty_like(p)
    results = p.new_empty(5, rows)
    if rows:
        constants = {"MODE": MODES.index(mode), "LOW": LOWEST[dtype], **_launch(vocabulary)}
        # Inverses, because a division in double precision calls a function, which takes a stack.
        rule = p.new_tensor([beta, 1 / log_vocabulary, RISE[0], 1 / (RISE[1] - RISE[0])])
        _mixture[(rows,)](p, q, share.contiguous(), rule, mixture, results, rows, vocabulary, **constants)
    of_p, of_q, lam, norm_q, top = results
    require_numbers(of_p, of_q)
    apart = torch.isneginf(top)
    lam = torch.where(apart, 0, lam)
    if bool(apart.any()):
        mixture = torch.where(apart[:, None], p, mixture)
    token = draw(mixture, uniform, top_p, temperature)
    chosen = q.gather(1, token[:, None])[:, 0] - norm_q
    return token, lam, chosen, of_q.clone(), of_p.clone()


def _block(vocabulary: int) -> int:
    return min(BLOCK, max(32, triton.next_power_of_2(vocabulary)))


def _launch(vocabulary: int) -> dict[str, int | bool]:
    return {"BLOCK": _block(vocabulary), "num_warps": WARPS, "enable_fp_fusion": True}


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for dtype, kind in ((torch.float32, "*fp32"), (torch.float64, "*fp64")):
        signature = dict.fromkeys(("p", "q", "share", "rule", "mixture", "results"), kind)
        signature |= {"rows": "i32", "vocabulary": "i32"}
        for vocabulary, mode in ((49_152, 0), (151_936, 1), (77, 2)):
            constants = {"MODE": mode, "LOW": LOWEST[dtype], "BLOCK": _block(vocabulary)}
            divisible = ("vocabulary",) if vocabulary % 16 == 0 else ()
            found.append(Specialization(_mixture, signature, constants, WARPS, divisible))
    return found


@triton.jit
def _sums(begin, vocabulary, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """Maximum, sum of exponentials and their sum times distance from the maximum of one row."""
    lanes = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), -float("inf"), dtype=begin.dtype.element_ty)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        # NaN may be lost here, and comes back through the sums.
        tops = tl.maximum(tops, tl.load(begin + v, mask=v < vocabulary, other=-float("inf")))
    top = tl.max(tops, axis=0)
    e_sum = tl.zeros((), dtype=tl.float64)
    s_sum = tl.zeros((), dtype=tl.float64)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        s = tl.load(begin + v, mask=v < vocabulary, other=-float("inf")) - top
        # 0 log 0 = 0: what underflows, and tokens that are ruled out by -inf, count for nothing.
        s = tl.where(s < LOW, LOW, s)
        e = tl.where(s == LOW, 0.0, tl.exp(s))
        e_sum += tl.sum(e, axis=0).to(tl.float64)
        s_sum += tl.sum(e * s, axis=0).to(tl.float64)
    return top, e_sum, s_sum


@triton.jit
def _mixture(
    p,
    q,
    share,
    rule,
    mixture,
    results,
    rows,
    vocabulary,
    MODE: tl.constexpr,
    LOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    kind = p.dtype.element_ty
    p += row.to(tl.int64) * vocabulary
    q += row.to(tl.int64) * vocabulary
    mixture += row.to(tl.int64) * vocabulary
    top_p, e_p, s_p = _sums(p, vocabulary, LOW, BLOCK)
    top_q, e_q, s_q = _sums(q, vocabulary, LOW, BLOCK)
    # One division for both, and each logarithm once: in double precision they take registers and a stack.
    inverse = 1.0 / (e_p * e_q)
    log_p, log_q = tl.log(e_p), tl.log(e_q)
    entropy_p = log_p - s_p * e_q * inverse
    entropy_q = log_q - s_q * e_p * inverse
    norm_p = (top_p.to(tl.float64) + log_p).to(kind)
    norm_q = (top_q.to(tl.float64) + log_q).to(kind)
    h = entropy_p * tl.load(rule + 1).to(tl.float64)
    beta = tl.load(rule).to(tl.float64)
    if MODE == 0:
        decided = beta * h
    elif MODE == 1:
        decided = 1.0 / (1.0 + tl.exp(-beta * (h - 0.5)))
    else:
        decided = (h - tl.load(rule + 2).to(tl.float64)) * tl.load(rule + 3).to(tl.float64)
    decided = tl.where(decided < 0.0, 0.0, tl.where(decided > 1.0, 1.0, decided))
    given = tl.load(share + row)
    lam = tl.where(given != given, decided.to(kind), given)
    lanes = tl.arange(0, BLOCK)
    tops = tl.full((BLOCK,), -float("inf"), dtype=kind)
    for v0 in range(0, vocabulary, BLOCK):
        v = v0 + lanes
        a = tl.load(p + v, mask=v < vocabulary, other=-float("inf")) - norm_p
        b = tl.load(q + v, mask=v < vocabulary, other=-float("inf")) - norm_q
        # 0 times -inf is 0 here.
        m = tl.where(lam == 0.0, a, tl.where(lam == 1.0, b, (1.0 - lam) * a + lam * b))
        tops = tl.maximum(tops, m)
        tl.store(mixture + v, m, mask=v < vocabulary)
    tl.store(results + row, entropy_p.to(kind))
    tl.store(results + rows + row, entropy_q.to(kind))
    tl.store(results + 2 * rows + row, lam)
    tl.store(results + 3 * rows + row, norm_q)
    tl.store(results + 4 * rows + row, tl.max(tops, axis=0))
