"""Products of complex matrices, one a mode, on the GPU: a program sums a tile of results for a block of
modes."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK_P, BLOCK_R, BLOCK_M = 4, 8, 32


def mode_product(a: Tensor, b: Tensor, conj_a: bool, conj_b: bool) -> Tensor:
    """See ``reference.mode_product``."""
    a, b = _rows(a), _rows(b)
    p, q, modes = a.shape[:3]
    r = b.shape[1]
    out = a.new_empty(p, r, modes, 2)
    if out.numel() == 0:
        return out
    grid = (triton.cdiv(modes, BLOCK_M), triton.cdiv(p, BLOCK_P) * triton.cdiv(r, BLOCK_R))
    _products[grid](
        a,
        b,
        out,
        p,
        q,
        r,
        modes,
        *a.stride()[:2],
        *b.stride()[:2],
        SIGN_A=-1.0 if conj_a else 1.0,
        SIGN_B=-1.0 if conj_b else 1.0,
        BLOCK_P=BLOCK_P,
        BLOCK_R=BLOCK_R,
        BLOCK_M=BLOCK_M,
        num_warps=4,
    )
    return out


def _rows(t: Tensor) -> Tensor:
    return t if t.stride()[2:] == (2, 1) else t.contiguous()


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        for signs in ((1.0, 1.0), (-1.0, 1.0)):
            signature = dict.fromkeys(("a", "b", "c"), kind)
            signature |= dict.fromkeys(("p", "q", "r", "modes", "a_p", "a_q", "b_q", "b_r"), "i32")
            constants = {"SIGN_A": signs[0], "SIGN_B": signs[1]}
            constants |= {"BLOCK_P": BLOCK_P, "BLOCK_R": BLOCK_R, "BLOCK_M": BLOCK_M}
            found.append(Specialization(_products, signature, constants, 4))
    return found


@triton.jit
def _products(
    a,
    b,
    c,
    p,
    q,
    r,
    modes,
    a_p,
    a_q,
    b_q,
    b_r,
    SIGN_A: tl.constexpr,
    SIGN_B: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_M: tl.constexpr,
):
    tiles = tl.cdiv(r, BLOCK_R)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    i = (tl.program_id(1) // tiles) * BLOCK_P + tl.arange(0, BLOCK_P)
    j = (tl.program_id(1) % tiles) * BLOCK_R + tl.arange(0, BLOCK_R)
    in_a = (i[:, None] < p) & (m[None, :] < modes)
    in_b = (j[:, None] < r) & (m[None, :] < modes)
    at_a = a + i.to(tl.int64)[:, None] * a_p + 2 * m[None, :]
    at_b = b + j.to(tl.int64)[:, None] * b_r + 2 * m[None, :]
    re = tl.zeros((BLOCK_P, BLOCK_R, BLOCK_M), dtype=c.dtype.element_ty)
    im = tl.zeros((BLOCK_P, BLOCK_R, BLOCK_M), dtype=c.dtype.element_ty)
    for _ in range(0, q):
        a_re = tl.load(at_a, mask=in_a, other=0.0)[:, None, :]
        a_im = SIGN_A * tl.load(at_a + 1, mask=in_a, other=0.0)[:, None, :]
        b_re = tl.load(at_b, mask=in_b, other=0.0)[None, :, :]
        b_im = SIGN_B * tl.load(at_b + 1, mask=in_b, other=0.0)[None, :, :]
        re += a_re * b_re - a_im * b_im
        im += a_re * b_im + a_im * b_re
        at_a += a_q
        at_b += b_q
    inside = (i[:, None, None] < p) & (j[None, :, None] < r) & (m[None, None, :] < modes)
    at_c = 2 * ((i.to(tl.int64)[:, None, None] * r + j[None, :, None]) * modes + m[None, None, :])
    tl.store(c + at_c, re, mask=inside)
    tl.store(c + at_c + 1, im, mask=inside)
