"""Smooth elastic distances on the GPU: one program a pair, from anti-diagonal to anti-diagonal.

The cells of an anti-diagonal do not depend on each other; lane i of the program has row i of the table.
Diagonals lie in memory that the program alone uses (three of them, and what the way back keeps), so that a
lane finds its upper neighbour's value there after a barrier, and series longer than a block of lanes are
walked in pieces. The way forward keeps two neighbouring diagonals every ``stride`` diagonals; the way back
computes those between anew.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.series.recurrence import BIG, radius

BLOCK = 128
WARPS = 8  # with fewer the way back spills registers
_FAR = tl.constexpr(BIG)


def value(*arguments: Any) -> Tensor:
    """See ``reference.value``."""
    return _run(False, *arguments)[0]


def value_and_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """See ``reference.value_and_gradients``."""
    return _run(True, *arguments)


def _run(
    gradients: bool,
    x: Tensor,
    y: Tensor,
    p: Tensor,
    q: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    gamma: Tensor,
    nu: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    metric: str,
    cost: str,
    smoothing: float,
    band: float,
    relative: bool,
    masked: bool,
) -> tuple[Tensor, ...]:
    pairs, n, channels = x.shape
    m = y.shape[1]
    reach = radius(x_lengths, y_lengths, band, relative).to(x.device, torch.int32)
    lengths = [t.to(x.device, torch.int32) for t in (x_lengths, y_lengths)]
    inputs = [t.contiguous() for t in (x.mT, y.mT, p, q, x_times, y_times)]
    stride = max(2, int((2 * (n + m)) ** 0.5))
    width = n + 1
    kept = (n + m + 1) // stride + 1
    state = x.new_full((pairs, 3 if not gradients else stride + 2, width), BIG)
    saved = x.new_full((pairs, 2 * kept if gradients else 1, width), BIG)
    flow = x.new_zeros((pairs, 3 if gradients else 1, width))
    matched = x.new_zeros((pairs, 3 if gradients else 1, width))
    out = x.new_empty(pairs)
    shapes = [t.shape for t in (*inputs, out, out)] if gradients else [(1,)] * 8
    found = [x.new_zeros(shape) for shape in shapes]
    scalars = torch.stack([gamma.to(x), nu.to(x), x.new_tensor(smoothing) ** 2])
    constants = {"TWED": metric == "twed", "SQUARED": cost == "squared", "MASKED": masked}
    block = min(BLOCK, triton.next_power_of_2(width))
    soft_elastic_kernel[(pairs,)](
        *inputs,
        scalars,
        *lengths,
        reach,
        state,
        saved,
        flow,
        matched,
        out,
        *found,
        n,
        m,
        channels,
        stride,
        kept,
        **constants,
        GRADIENTS=gradients,
        BLOCK=block,
        num_warps=WARPS,
        enable_fp_fusion=True,
    )
    if not gradients:
        return (out,)
    by_x, by_y = found[0].mT.contiguous(), found[1].mT.contiguous()
    if metric == "dtw":
        found[2].zero_()
        found[3].zero_()
    return (out, by_x, by_y, *found[2:])


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    floats = ("x", "y", "p", "q", "x_times", "y_times", "scalars", "state", "saved", "flow", "matched", "out")
    floats += tuple(f"by_{name}" for name in ("x", "y", "p", "q", "x_times", "y_times", "gamma", "nu"))
    whole = ("n_all", "m_all", "channels", "stride", "kept")
    for kind in ("*fp32", "*fp64"):
        signature = dict.fromkeys(floats, kind) | dict.fromkeys(("x_lengths", "y_lengths", "reach"), "*i32")
        signature |= dict.fromkeys(whole, "i32")
        for twed in (True, False):
            for gradients in (True, False):
                flags = {"TWED": twed, "SQUARED": not twed, "MASKED": False, "GRADIENTS": gradients}
                found.append(Specialization(soft_elastic_kernel, signature, flags | {"BLOCK": BLOCK}, WARPS))
    return found


@triton.jit
def _norm_square(x, y, i, j, n_all, m_all, channels, valid, MASKED: tl.constexpr):
    """Sum of squares of x_i - y_j, and what it is multiplied with for missing channels."""
    total = tl.zeros(i.shape, dtype=x.dtype.element_ty)
    seen = tl.zeros(i.shape, dtype=x.dtype.element_ty)
    for c in range(channels):
        u = tl.load(x + c * n_all + i, mask=valid, other=0.0)
        v = tl.load(y + c * m_all + j, mask=valid, other=0.0)
        difference = u - v
        if MASKED:
            present = difference == difference
            seen += tl.where(present, 1.0, 0.0).to(seen.dtype)
            difference = tl.where(present, difference, 0.0)
        total += difference * difference
    scale = total * 0.0 + 1.0
    if MASKED:
        scale = channels / tl.maximum(seen, 1.0)
    return total * scale, scale


@triton.jit
def _cost(
    x, y, x_times, y_times, i, j, n_all, m_all, channels, nu, smoothing2, valid,
    TWED: tl.constexpr, SQUARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    cost, _ = _norm_square(x, y, i, j, n_all, m_all, channels, valid, MASKED)
    if not SQUARED:
        cost = tl.sqrt(cost + smoothing2)
    if TWED:
        t = tl.load(x_times + i, mask=valid, other=0.0)
        s = tl.load(y_times + j, mask=valid, other=0.0)
        cost += nu * tl.abs(t - s)
    return cost


@triton.jit
def candidates_kernel(
    x, y, p, q, x_times, y_times, before, last, i, k, n_all, m_all, channels, nu, smoothing2, valid, inner,
    TWED: tl.constexpr, SQUARED: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """What cells (i, k - i), counted from 1, choose from; ``before`` and ``last`` are diagonals k - 2 and k -
    1."""
    match = tl.load(before + i - 1, mask=valid, other=_FAR)
    up = tl.load(last + i - 1, mask=valid, other=_FAR)
    left = tl.load(last + i, mask=valid, other=_FAR)
    here = _cost(
        x, y, x_times, y_times, i - 1, k - i - 1, n_all, m_all, channels, nu, smoothing2, valid,
        TWED, SQUARED, MASKED,
    )  # fmt: skip
    if TWED:
        previous = _cost(
            x, y, x_times, y_times, i - 2, k - i - 2, n_all, m_all, channels, nu, smoothing2, inner,
            TWED, SQUARED, MASKED,
        )  # fmt: skip
        match += here + tl.where(inner, previous, 0.0)
        up += tl.load(p + i - 1, mask=valid, other=0.0)
        left += tl.load(q + k - i - 1, mask=valid, other=0.0)
    return match, up, left, here


@triton.jit
def _diagonal(
    x, y, p, q, x_times, y_times, before, last, now, out, k, n, m, n_all, m_all, channels, gamma, nu,
    smoothing2, reach,
    TWED: tl.constexpr, SQUARED: tl.constexpr, MASKED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Fill diagonal k; diagonal 0 has the origin, and everything outside the band or the table is far."""
    for first in range(0, n_all + 1, BLOCK):
        i = first + tl.arange(0, BLOCK)
        j = k - i
        valid = (i >= 1) & (j >= 1) & (i <= n) & (j <= m) & (tl.abs(i - j) <= reach)
        inner = valid & (i >= 2) & (j >= 2)
        match, up, left, here = candidates_kernel(
            x, y, p, q, x_times, y_times, before, last, i, k, n_all, m_all, channels, nu, smoothing2, valid,
            inner, TWED, SQUARED, MASKED,
        )  # fmt: skip
        least = tl.minimum(match, tl.minimum(up, left))
        total = (
            tl.exp((least - match) / gamma) + tl.exp((least - up) / gamma) + tl.exp((least - left) / gamma)
        )
        found = least - gamma * tl.log(total)
        if not TWED:
            found += here
        found = tl.where(valid, found, tl.where((i == 0) & (j == 0), 0.0, _FAR)).to(now.dtype.element_ty)
        tl.store(now + i, found, mask=i <= n_all)
        tl.store(out + i * 0, found, mask=(i == n) & (j == m))
    tl.debug_barrier()


@triton.jit
def soft_elastic_kernel(
    x, y, p, q, x_times, y_times, scalars, x_lengths, y_lengths, reach, state, saved, flow, matched, out,
    by_x, by_y, by_p, by_q, by_x_times, by_y_times, by_gamma, by_nu, n_all, m_all, channels, stride, kept,
    TWED: tl.constexpr, SQUARED: tl.constexpr, MASKED: tl.constexpr, GRADIENTS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """One pair: its value, and where wanted its derivatives."""
    b = tl.program_id(0).to(tl.int64)
    n, m, near = tl.load(x_lengths + b), tl.load(y_lengths + b), tl.load(reach + b)
    gamma, nu, smoothing2 = tl.load(scalars), tl.load(scalars + 1), tl.load(scalars + 2)
    width = n_all + 1
    x += b * channels * n_all
    y += b * channels * m_all
    p += b * n_all
    q += b * m_all
    x_times += b * n_all
    y_times += b * m_all
    out += b
    if GRADIENTS:
        state += b * (stride + 2) * width
        saved += b * 2 * kept * width
    else:
        state += b * 3 * width
    for k in range(0, n + m + 1):
        now = state + (k % 3) * width
        last = state + ((k + 2) % 3) * width
        before = state + ((k + 1) % 3) * width
        _diagonal(
            x, y, p, q, x_times, y_times, before, last, now, out, k, n, m, n_all, m_all, channels, gamma, nu,
            smoothing2, near, TWED, SQUARED, MASKED, BLOCK,
        )  # fmt: skip
        if GRADIENTS:  # noqa: SIM102 (known when the kernel is compiled, unlike the other)
            # Before the diagonals of block k // stride come those with its remainders 0 and stride - 1.
            if (k + 1) % stride == 0:
                for first in range(0, n_all + 1, BLOCK):
                    i = first + tl.arange(0, BLOCK)
                    place = saved + 2 * ((k + 1) // stride) * width + i
                    inside = i <= n_all
                    tl.store(place, tl.load(last + i, mask=inside), mask=inside)
                    tl.store(place + width, tl.load(now + i, mask=inside), mask=inside)
                tl.debug_barrier()
    if GRADIENTS:
        by_x += b * channels * n_all
        by_y += b * channels * m_all
        by_p += b * n_all
        by_q += b * m_all
        by_x_times += b * n_all
        by_y_times += b * m_all
        flow += b * 3 * width
        matched += b * 3 * width
        gamma_total = gamma * 0.0
        nu_total = gamma * 0.0
        for back in range(0, (n + m) // stride + 1):
            part = (n + m) // stride - back
            for first in range(0, n_all + 1, BLOCK):
                i = first + tl.arange(0, BLOCK)
                inside = i <= n_all
                place = saved + 2 * part * width + i
                tl.store(state + i, tl.load(place, mask=inside), mask=inside)
                tl.store(state + width + i, tl.load(place + width, mask=inside), mask=inside)
            tl.debug_barrier()
            top = tl.minimum((part + 1) * stride, n + m + 1)
            for k in range(part * stride, top):
                row = state + (k - part * stride) * width
                _diagonal(
                    x, y, p, q, x_times, y_times, row, row + width, row + 2 * width, out, k, n, m, n_all,
                    m_all, channels, gamma, nu, smoothing2, near, TWED, SQUARED, MASKED, BLOCK,
                )  # fmt: skip
            for step in range(0, top - part * stride):
                k = top - 1 - step
                row = state + (k - part * stride) * width
                here, above, far = (
                    flow + (k % 3) * width,
                    flow + ((k + 2) % 3) * width,
                    flow + ((k + 1) % 3) * width,
                )
                below = matched + ((k + 2) % 3) * width
                for first in range(0, n_all + 1, BLOCK):
                    i = first + tl.arange(0, BLOCK)
                    j = k - i
                    valid = (i >= 1) & (j >= 1) & (i <= n) & (j <= m) & (tl.abs(i - j) <= near)
                    inner = valid & (i >= 2) & (j >= 2)
                    match, up, left, _ = candidates_kernel(
                        x, y, p, q, x_times, y_times, row, row + width, i, k, n_all, m_all, channels, nu,
                        smoothing2, valid, inner, TWED, SQUARED, MASKED,
                    )  # fmt: skip
                    least = tl.minimum(match, tl.minimum(up, left))
                    u, v, w = (least - match) / gamma, (least - up) / gamma, (least - left) / gamma
                    e, f, g = tl.exp(u), tl.exp(v), tl.exp(w)
                    total = e + f + g
                    through = tl.load(here + i, mask=i <= n_all, other=0.0)
                    through += tl.where((i == n) & (j == m), 1.0, 0.0).to(through.dtype)
                    through = tl.where(valid, through, 0.0)
                    entropy = (e * u + f * v + g * w) / total - tl.log(total)
                    gamma_total += tl.sum(tl.where(valid, through * entropy, 0.0), axis=0)
                    a, up, left = through * e / total, through * f / total, through * g / total
                    # Diagonal k - 1 gets deletions, diagonal k - 2 matches: lanes i - 1 and i of this one.
                    tl.store(matched + (k % 3) * width + i, a, mask=i <= n_all)
                    after = tl.load(below + i + 1, mask=i < n_all, other=0.0)
                    share = a + tl.where(valid & (i < n) & (j < m), after, 0.0)
                    if not TWED:
                        share = through
                    tl.store(by_p + i - 1, tl.load(by_p + i - 1, mask=valid, other=0.0) + up, mask=valid)
                    tl.store(by_q + j - 1, tl.load(by_q + j - 1, mask=valid, other=0.0) + left, mask=valid)
                    if TWED:
                        t = tl.load(x_times + i - 1, mask=valid, other=0.0)
                        s = tl.load(y_times + j - 1, mask=valid, other=0.0)
                        sign = tl.where(t > s, 1.0, tl.where(t < s, -1.0, 0.0)).to(share.dtype)
                        step_t = share * nu * sign
                        old_t = tl.load(by_x_times + i - 1, mask=valid, other=0.0)
                        old_s = tl.load(by_y_times + j - 1, mask=valid, other=0.0)
                        tl.store(by_x_times + i - 1, old_t + step_t, mask=valid)
                        tl.store(by_y_times + j - 1, old_s - step_t, mask=valid)
                        nu_total += tl.sum(tl.where(valid, share * tl.abs(t - s), 0.0), axis=0)
                    squares, scale = _norm_square(x, y, i - 1, j - 1, n_all, m_all, channels, valid, MASKED)
                    if SQUARED:
                        factor = 2.0 * share * scale
                    else:
                        length = tl.sqrt(squares + smoothing2)
                        factor = tl.where(length > 0, share * scale / tl.where(length > 0, length, 1.0), 0.0)
                    for c in range(channels):
                        xi = tl.load(x + c * n_all + i - 1, mask=valid, other=0.0)
                        yj = tl.load(y + c * m_all + j - 1, mask=valid, other=0.0)
                        move = factor * (xi - yj)
                        if MASKED:
                            move = tl.where(move == move, move, 0.0)
                        old_x = tl.load(by_x + c * n_all + i - 1, mask=valid, other=0.0)
                        old_y = tl.load(by_y + c * m_all + j - 1, mask=valid, other=0.0)
                        tl.store(by_x + c * n_all + i - 1, old_x + move, mask=valid)
                        tl.store(by_y + c * m_all + j - 1, old_y - move, mask=valid)
                    # far: no cell of diagonal k - 2 has a value yet but from deletions out of k - 1, later.
                    old = tl.load(above + i, mask=i <= n_all, other=0.0)
                    tl.store(above + i, old + left, mask=i <= n_all)
                tl.debug_barrier()
                for first in range(0, n_all + 1, BLOCK):
                    i = first + tl.arange(0, BLOCK)
                    j = k - i
                    valid = (i >= 1) & (j >= 1) & (i <= n) & (j <= m) & (tl.abs(i - j) <= near)
                    match, up, left, _ = candidates_kernel(
                        x, y, p, q, x_times, y_times, row, row + width, i, k, n_all, m_all, channels, nu,
                        smoothing2, valid, valid & (i >= 2) & (j >= 2), TWED, SQUARED, MASKED,
                    )  # fmt: skip
                    least = tl.minimum(match, tl.minimum(up, left))
                    e, f = tl.exp((least - match) / gamma), tl.exp((least - up) / gamma)
                    total = e + f + tl.exp((least - left) / gamma)
                    through = tl.load(here + i, mask=i <= n_all, other=0.0)
                    through += tl.where((i == n) & (j == m), 1.0, 0.0).to(through.dtype)
                    through = tl.where(valid, through, 0.0)
                    old = tl.load(above + i - 1, mask=(i >= 1) & (i <= n_all), other=0.0)
                    tl.store(above + i - 1, old + through * f / total, mask=(i >= 1) & (i <= n_all))
                    tl.store(far + i - 1, through * e / total, mask=(i >= 1) & (i <= n_all))
                    tl.store(far + n_all + i * 0, through * 0.0, mask=i == 0)
                tl.debug_barrier()
        tl.store(by_gamma + b, gamma_total)
        tl.store(by_nu + b, nu_total)
