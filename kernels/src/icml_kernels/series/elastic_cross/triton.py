"""Elastic distances on the GPU: one program a pair, from anti-diagonal to anti-diagonal.

As in ``soft_elastic.triton``, whose way forward this is with a hard minimum.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.series.recurrence import BIG, deletions, radius
from icml_kernels.series.soft_elastic.triton import BLOCK, WARPS, candidates_kernel

PAIRS = 2**16  # of one launch, which bounds the work space
_FAR = tl.constexpr(BIG)


def forward(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    metric: str,
    cost: str,
    nu: float,
    lam: float,
    band: float,
    relative: bool,
    masked: bool,
    threads: int,
) -> Tensor:
    """See ``reference.forward``."""
    (rows, n, channels), (columns, m) = x.shape, y.shape[:2]
    out = x.new_empty(rows, columns)
    if not out.numel():
        return out
    edit = x.new_tensor(nu), x.new_tensor(lam)
    p, q = (deletions(s, t, *edit, masked, 0.0).contiguous() for s, t in ((x, x_times), (y, y_times)))
    inputs = (x.mT.contiguous(), y.mT.contiguous(), p, q, x_times.contiguous(), y_times.contiguous())
    reach = radius(x_lengths[:, None], y_lengths[None], band, relative).to(x.device, torch.int32).contiguous()
    lengths = [t.to(x.device, torch.int32) for t in (x_lengths, y_lengths)]
    scalars = torch.stack([edit[0], torch.zeros_like(edit[0])])
    block = min(BLOCK, triton.next_power_of_2(n + 1))
    state = x.new_empty(min(out.numel(), PAIRS), 3, n + 1)
    for first in range(0, out.numel(), PAIRS):
        count = min(PAIRS, out.numel() - first)
        elastic_cross_kernel[(count,)](
            *inputs,
            scalars,
            *lengths,
            reach,
            state,
            out,
            n,
            m,
            channels,
            columns,
            first,
            TWED=metric == "twed",
            SQUARED=cost == "squared",
            MASKED=masked,
            BLOCK=block,
            num_warps=WARPS,
            enable_fp_fusion=True,
        )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    floats = ("x", "y", "p", "q", "x_times", "y_times", "scalars", "state", "out")
    for kind in ("*fp32", "*fp64"):
        signature = dict.fromkeys(floats, kind) | dict.fromkeys(("x_lengths", "y_lengths", "reach"), "*i32")
        signature |= dict.fromkeys(("n_all", "m_all", "channels", "columns"), "i32") | {"first_pair": "i64"}
        for twed in (True, False):
            flags = {"TWED": twed, "SQUARED": not twed, "MASKED": twed, "BLOCK": BLOCK}
            found.append(Specialization(elastic_cross_kernel, signature, flags, WARPS))
    return found


@triton.jit
def elastic_cross_kernel(
    x, y, p, q, x_times, y_times, scalars, x_lengths, y_lengths, reach, state, out,
    n_all, m_all, channels, columns, first_pair,
    TWED: tl.constexpr, SQUARED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The distance of one pair; pairs are numbered along the rows of the result."""
    program = tl.program_id(0).to(tl.int64)
    pair = program + first_pair
    a, b = pair // columns, pair % columns
    n, m, near = tl.load(x_lengths + a), tl.load(y_lengths + b), tl.load(reach + pair)
    nu, smoothing2 = tl.load(scalars), tl.load(scalars + 1)
    width = n_all + 1
    x += a * channels * n_all
    y += b * channels * m_all
    p += a * n_all
    q += b * m_all
    x_times += a * n_all
    y_times += b * m_all
    state += program * 3 * width
    for first in range(0, n_all + 1, BLOCK):
        i = first + tl.arange(0, BLOCK)
        far = tl.zeros(i.shape, dtype=state.dtype.element_ty) + _FAR
        for row in tl.static_range(3):
            tl.store(state + row * width + i, far, mask=i <= n_all)
    tl.debug_barrier()
    for k in range(0, n + m + 1):
        now = state + (k % 3) * width
        last = state + ((k + 2) % 3) * width
        before = state + ((k + 1) % 3) * width
        for first in range(0, n_all + 1, BLOCK):
            i = first + tl.arange(0, BLOCK)
            j = k - i
            valid = (i >= 1) & (j >= 1) & (i <= n) & (j <= m) & (tl.abs(i - j) <= near)
            inner = valid & (i >= 2) & (j >= 2)
            match, up, left, here = candidates_kernel(
                x, y, p, q, x_times, y_times, before, last, i, k, n_all, m_all, channels, nu, smoothing2,
                valid, inner, TWED, SQUARED, MASKED,
            )  # fmt: skip
            found = tl.minimum(match, tl.minimum(up, left))
            if not TWED:
                found += here
            found = tl.where(valid, found, tl.where((i == 0) & (j == 0), 0.0, _FAR)).to(
                state.dtype.element_ty
            )
            tl.store(now + i, found, mask=i <= n_all)
            tl.store(out + pair + i * 0, found, mask=(i == n) & (j == m))
        tl.debug_barrier()
