"""Hodgkin-Huxley cells on the GPU: a thread owns a lane and goes through all its steps.

States lie as [gates + 2, nodes, batch] (V, gates, calcium), so that neighbouring threads read neighbouring
addresses. The way back computes the states of a block of steps anew into work space, lanes in groups that
fit.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.neurons.hh_run.reference import LARGEST, LARGEST_EXPONENT, NEAR, calcium_decay

LANES = 32
WORK_BYTES = 2**31  # of the states of one block of steps
_MOST = tl.constexpr(LARGEST_EXPONENT)
# Rows of work space: diagonal, right side, adjoint solution, derivative by V, calcium current.
ROWS = 5


def forward(
    parent: Tensor,
    capacitance: Tensor,
    axial: Tensor,
    gmax: Tensor,
    calcium_rate: Tensor,
    drive: Tensor,
    waveform: Tensor,
    v0: Tensor,
    gates0: Tensor,
    calcium0: Tensor,
    channels: Tensor,
    rates: Tensor,
    reversal: Tensor,
    pool: Tensor,
    record: Tensor,
    dt: float,
    every: int,
    block: int,
    limit: float = LARGEST,
) -> tuple[Tensor, ...]:
    """See ``reference.forward``."""
    nodes, batch = v0.shape
    steps, gates = waveform.shape[1], len(rates)
    blocks = -(-steps // block) if block else 0
    trace = v0.new_empty(steps // every + 1, record.shape[0], batch)
    kept = v0.new_empty(blocks, gates + 2, nodes, batch)
    failed = torch.full((batch,), -1, dtype=torch.int32, device=v0.device)
    states = torch.stack([torch.cat([v0[None], gates0, calcium0[None]])] * 2).contiguous()
    fixed = _fixed(parent, capacitance, axial, calcium_rate, gmax, drive, dt)
    work = v0.new_empty(ROWS, nodes, batch)
    tables = _tables(channels, rates, reversal, pool, dt, limit, v0.dtype)
    if batch:
        forward_kernel[(triton.cdiv(batch, LANES),)](
            parent, fixed, waveform.contiguous(), states, work, *tables, record, trace, kept, failed,
            nodes, batch, steps, gates, len(channels), len(waveform), len(record), every, max(block, 1),
            KEEP=block > 0, BLOCK_B=LANES, num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    last = states[steps % 2]
    return trace, last[0].clone(), last[1:-1].clone(), last[-1].clone(), failed, kept


def backward(
    by_trace: Tensor,
    by_v: Tensor,
    by_gates: Tensor,
    by_calcium: Tensor,
    parent: Tensor,
    capacitance: Tensor,
    axial: Tensor,
    gmax: Tensor,
    calcium_rate: Tensor,
    drive: Tensor,
    waveform: Tensor,
    channels: Tensor,
    rates: Tensor,
    reversal: Tensor,
    pool: Tensor,
    record: Tensor,
    failed: Tensor,
    kept: Tensor,
    dt: float,
    every: int,
    block: int,
) -> tuple[Tensor, ...]:
    """See ``reference.backward``."""
    nodes, batch = by_v.shape
    steps, gates, count = waveform.shape[1], len(rates), len(channels)
    fixed = _fixed(parent, capacitance, axial, calcium_rate, gmax, drive, dt)
    whole = failed < 0
    lam = torch.cat([by_v[None], by_gates, by_calcium[None]])
    lam = torch.where(whole, lam, 0).contiguous()
    grads = torch.zeros_like(fixed)
    tables = _tables(channels, rates, reversal, pool, dt, LARGEST, by_v.dtype)
    wave, given = waveform.contiguous(), torch.where(whole, by_trace, 0).contiguous()
    each = (min(block, max(steps, 1)) + 1) * (gates + 2) * nodes * by_v.element_size()
    group = max(LANES, min(batch, WORK_BYTES // max(each, 1) // LANES * LANES))
    states = by_v.new_empty(min(block, max(steps, 1)) + 1, gates + 2, nodes, min(group, batch))
    work = by_v.new_empty(ROWS, nodes, min(group, batch))
    for first in range(0, batch, group):
        width = min(group, batch - first)
        backward_kernel[(triton.cdiv(width, LANES),)](
            parent, fixed, wave, states, work, *tables, record, given, kept.contiguous(), failed, lam, grads,
            nodes, batch, steps, gates, count, len(waveform), len(record), every, block, first, width,
            states.shape[3], BLOCK_B=LANES, num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    by_fixed = (grads[0] / dt, grads[1], grads[4 : 4 + count], grads[3], grads[4 + count :])
    return (*(t.clone() for t in by_fixed), lam[0].clone(), lam[1:-1].clone(), lam[-1].clone())


def _fixed(
    parent: Tensor, capacitance: Tensor, axial: Tensor, rate: Tensor, gmax: Tensor, drive: Tensor, dt: float
) -> Tensor:
    """Capacitance / dt, conductance to the parent, what the diagonal always has, calcium rate, gmax,
    sources."""
    per_dt = capacitance / dt
    has, above = (parent >= 0)[:, None], parent.clamp(min=0).long()
    own = torch.where(has, axial, 0)
    diagonal = per_dt + own + torch.zeros_like(own).index_add(0, above, own)
    return torch.cat([torch.stack([per_dt, own, diagonal, rate]), gmax, drive]).contiguous()


def _tables(
    channels: Tensor,
    rates: Tensor,
    reversal: Tensor,
    pool: Tensor,
    dt: float,
    limit: float,
    dtype: torch.dtype,
) -> tuple[Any, ...]:
    more = [NEAR[dtype], dt, calcium_decay(channels, pool, len(rates), dt), limit]
    numbers = torch.cat([pool, pool.new_tensor(more)])
    return channels.contiguous(), rates.contiguous(), reversal.contiguous(), numbers.contiguous()


def specializations() -> list[Specialization]:
    """What is compiled ahead of time.

    The way back in double precision is left out: around its divisions it keeps up to 80 bytes of a thread in
    local memory (sm_80 and sm_90), whatever the number of warps.
    """
    found = []
    whole = ("nodes", "batch", "steps", "gates", "count", "sources", "recorded", "every", "block")
    whole += ("first", "width", "stride")
    ints = ("parent", "channels", "record", "failed")
    for kind in ("*fp32", "*fp64"):
        for kernel in (forward_kernel, backward_kernel) if kind == "*fp32" else (forward_kernel,):
            constants: dict[str, Any] = {"BLOCK_B": LANES}
            if kernel is forward_kernel:
                constants["KEEP"] = True
            types = dict.fromkeys(ints, "*i32") | dict.fromkeys(whole, "i32")
            names = [n for n in kernel.arg_names if n not in constants]
            found.append(Specialization(kernel, {n: types.get(n, kind) for n in names}, constants, 1))
    return found


@triton.jit
def rate_kernel(v, row, near):
    """Numerator and denominator of a rate, and the derivatives of both by V, without the amplitude."""
    center, slope = tl.load(row + 1), tl.load(row + 2)
    c_one, c_x, c_e, d_e = tl.load(row + 3), tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    x = (v - center) * slope
    x = tl.minimum(tl.maximum(x, -_MOST), _MOST)
    e = tl.exp(-x)
    close = (tl.abs(x) < near) & (x * 0.0 + d_e < 0)
    top = tl.where(close, 1.0 + x * 0.5 + x * x / 12.0, c_one + c_x * x + c_e * e)
    below = tl.where(close, 1.0, 1.0 + d_e * e)
    d_top = tl.where(close, 0.5 + x / 6.0, c_x - c_e * e)
    d_below = tl.where(close, 0.0, -d_e * e)
    value = top / below
    amplitude = tl.load(row)
    return amplitude * value, amplitude * slope * (d_top - value * d_below) / below


@triton.jit
def power_kernel(x, p):
    """x to the power p, 0 to 4."""
    square = x * x
    low = tl.where(p == 0, 1.0, tl.where(p == 1, x, square))
    return tl.where(p <= 2, low, tl.where(p == 3, square * x, square * square))


@triton.jit
def gate_value_kernel(gate, gates, now, plane, at, kept, share):
    """A gate's value; 1 where there is none."""
    there = (at * 0 + gate >= 0) & (at * 0 + gate < gates)
    value = tl.load(now + (1 + gate) * plane + at, mask=kept & there, other=1.0)
    return tl.where(gate == gates, share, value)


@triton.jit
def assemble_kernel(
    fixed, f_plane, f_at, now, plane, at, work, w_plane, channels, reversal, numbers, gates, count, kept
):  # fmt: skip
    """Diagonal and right side of one node; returns the calcium current."""
    v = tl.load(now + at, mask=kept, other=0.0)
    calcium = tl.load(now + (gates + 1) * plane + at, mask=kept, other=1e-4)
    half, outside, scale = tl.load(numbers + 2), tl.load(numbers + 3), tl.load(numbers + 4)
    share = calcium / (calcium + half)
    nernst = scale * tl.log(outside / calcium)
    diagonal = tl.load(fixed + 2 * f_plane + f_at, mask=kept, other=1.0)
    right = tl.load(fixed + f_at, mask=kept, other=0.0) * v
    current = v * 0.0
    for c in range(count):
        row = channels + 6 * c
        x1 = gate_value_kernel(tl.load(row), gates, now, plane, at, kept, share)
        x2 = gate_value_kernel(tl.load(row + 2), gates, now, plane, at, kept, share)
        g = tl.load(fixed + (4 + c) * f_plane + f_at, mask=kept, other=0.0)
        w = g * power_kernel(x1, tl.load(row + 1)) * power_kernel(x2, tl.load(row + 3))
        potential = tl.where(tl.load(row + 4) != 0, nernst, tl.load(reversal + c))
        diagonal += w
        right += w * potential
        current += tl.where(tl.load(row + 5) != 0, w * (v - potential), 0.0)
    tl.store(work + at, diagonal, mask=kept)
    tl.store(work + w_plane + at, right, mask=kept)
    return current


@triton.jit
def eliminate_kernel(parent, fixed, f_plane, f_batch, f_b, work, right, stride, b, nodes, kept):
    """Children into parents; the diagonal holds inverses afterwards."""
    for k in range(nodes):
        i = nodes - 1 - k
        p = tl.load(parent + i)
        inverse = 1.0 / tl.load(work + i * stride + b, mask=kept, other=1.0)
        tl.store(work + i * stride + b, inverse, mask=kept)
        above = kept & (b * 0 + p >= 0)
        g = tl.load(fixed + f_plane + i * f_batch + f_b, mask=above, other=0.0)
        own = tl.load(right + i * stride + b, mask=above, other=0.0)
        old = tl.load(work + p * stride + b, mask=above, other=0.0)
        tl.store(work + p * stride + b, old - g * inverse * g, mask=above)
        old = tl.load(right + p * stride + b, mask=above, other=0.0)
        tl.store(right + p * stride + b, old + g * inverse * own, mask=above)


@triton.jit
def substitute_kernel(
    parent, fixed, f_plane, f_batch, f_b, work, right, x, numbers, stride, b, nodes, kept
):  # fmt: skip
    """The solution from the root on; returns whether all of it is within the limit."""
    fine, limit = b >= 0, tl.load(numbers + 8)
    for i in range(nodes):
        p = tl.load(parent + i)
        above = kept & (b * 0 + p >= 0)
        g = tl.load(fixed + f_plane + i * f_batch + f_b, mask=above, other=0.0)
        known = tl.load(x + p * stride + b, mask=above, other=0.0)
        own = tl.load(right + i * stride + b, mask=kept, other=0.0)
        value = (own + g * known) * tl.load(work + i * stride + b, mask=kept, other=1.0)
        tl.store(x + i * stride + b, value, mask=kept)
        fine = fine & (tl.abs(value) <= limit)
    return fine


@triton.jit
def step_kernel(
    t, parent, fixed, f_plane, f_batch, f_b, waveform, now, new, plane, stride, b, work, channels, rates,
    reversal, numbers, nodes, steps, gates, count, sources, lost, kept, DETECT: tl.constexpr,
):  # fmt: skip
    """One step of a lane; returns the step at which it failed, or -1."""
    near, dt, decay = tl.load(numbers + 5), tl.load(numbers + 6), tl.load(numbers + 7)
    rest, tau = tl.load(numbers), tl.load(numbers + 1)
    right = work + plane
    for i in range(nodes):
        at, f_at = i * stride + b, i * f_batch + f_b
        current = assemble_kernel(
            fixed, f_plane, f_at, now, plane, at, work, plane, channels, reversal, numbers, gates, count, kept
        )  # fmt: skip
        total = tl.load(right + at, mask=kept, other=0.0)
        for k in range(sources):
            source = tl.load(fixed + (4 + count + k) * f_plane + f_at, mask=kept, other=0.0)
            total += tl.load(waveform + k * steps + t) * source
        tl.store(right + at, total, mask=kept)
        calcium = tl.load(now + (gates + 1) * plane + at, mask=kept, other=1e-4)
        entry = -tl.load(fixed + 3 * f_plane + f_at, mask=kept, other=0.0) * current
        level = rest + tau * tl.maximum(entry, 0.0)
        tl.store(new + (gates + 1) * plane + at, level + (calcium - level) * decay, mask=kept)
    eliminate_kernel(parent, fixed, f_plane, f_batch, f_b, work, right, stride, b, nodes, kept)
    fine = substitute_kernel(
        parent, fixed, f_plane, f_batch, f_b, work, right, new, numbers, stride, b, nodes, kept
    )  # fmt: skip
    if DETECT:
        lost = tl.where((lost < 0) & (fine == 0), t, lost)
    frozen = (lost >= 0) & (lost <= t)
    for i in range(nodes):
        at = i * stride + b
        old = tl.load(now + at, mask=kept, other=0.0)
        v = tl.load(new + at, mask=kept, other=0.0)
        v = tl.where(frozen, old, v)
        tl.store(new + at, v, mask=kept)
        for g in range(gates):
            alpha, _ = rate_kernel(v, rates + 14 * g, near)
            beta, _ = rate_kernel(v, rates + 14 * g + 7, near)
            total = alpha + beta
            inf = alpha / total
            x = tl.load(now + (1 + g) * plane + at, mask=kept, other=0.0)
            tl.store(new + (1 + g) * plane + at, inf + (x - inf) * tl.exp(-dt * total), mask=kept)
    return lost


@triton.jit
def forward_kernel(
    parent, fixed, waveform, states, work, channels, rates, reversal, numbers, record, trace, kept_states,
    failed,
    nodes, batch, steps, gates, count, sources, recorded, every, block,
    KEEP: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """All steps; ``states`` holds the first state twice, and alternates."""
    b = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    kept = b < batch
    batch = tl.cast(batch, tl.int64)  # offsets go beyond 2^31
    plane = nodes * batch
    whole = (gates + 2) * plane
    lost = tl.load(failed + b, mask=kept, other=-1)
    for r in range(recorded):
        v = tl.load(states + tl.load(record + r) * batch + b, mask=kept, other=0.0)
        tl.store(trace + r * batch + b, v, mask=kept)
    for t in range(steps):
        now = states + (t % 2) * whole
        new = states + (1 - t % 2) * whole
        if KEEP:  # noqa: SIM102 one is a constant of the compilation
            if t % block == 0:
                target = kept_states + (t // block) * whole
                for k in range((gates + 2) * nodes):
                    value = tl.load(now + k * batch + b, mask=kept, other=0.0)
                    tl.store(target + k * batch + b, value, mask=kept)
        lost = step_kernel(
            t, parent, fixed, plane, batch, b, waveform, now, new, plane, batch, b, work, channels, rates,
            reversal, numbers, nodes, steps, gates, count, sources, lost, kept, True,
        )  # fmt: skip
        if (t + 1) % every == 0:
            for r in range(recorded):
                v = tl.load(new + tl.load(record + r) * batch + b, mask=kept, other=0.0)
                tl.store(trace + (((t + 1) // every) * recorded + r) * batch + b, v, mask=kept)
    tl.store(failed + b, lost, mask=kept)


@triton.jit
def node_back_kernel(
    t, fixed, f_plane, f_at, waveform, now, new, plane, at, work, channels, reversal, numbers, steps, gates,
    count, sources, lam, grads, kept,
):  # fmt: skip
    """What one node adds to the derivatives, once mu (row 2 of ``work``) is known."""
    half, outside, scale = tl.load(numbers + 2), tl.load(numbers + 3), tl.load(numbers + 4)
    v = tl.load(now + at, mask=kept, other=0.0)
    after = tl.load(new + at, mask=kept, other=0.0)
    mu = tl.load(work + 2 * plane + at, mask=kept, other=0.0)
    calcium = tl.load(now + (gates + 1) * plane + at, mask=kept, other=1e-4)
    share = calcium / (calcium + half)
    nernst = scale * tl.log(outside / calcium)
    old = tl.load(grads + f_at, mask=kept, other=0.0)
    tl.store(grads + f_at, old + mu * (v - after), mask=kept)
    for k in range(sources):
        place = (4 + count + k) * f_plane + f_at
        old = tl.load(grads + place, mask=kept, other=0.0)
        tl.store(grads + place, old + tl.load(waveform + k * steps + t) * mu, mask=kept)
    lam_v = mu * tl.load(fixed + f_at, mask=kept, other=0.0)
    current = tl.load(work + 4 * plane + at, mask=kept, other=0.0)
    rate = tl.load(fixed + 3 * f_plane + f_at, mask=kept, other=0.0)
    lam_ca = tl.load(lam + (gates + 1) * f_plane + f_at, mask=kept, other=0.0)
    tau, decay = tl.load(numbers + 1), tl.load(numbers + 7)
    entry = tl.where(-rate * current > 0, lam_ca * tau * (1.0 - decay), 0.0)
    old = tl.load(grads + 3 * f_plane + f_at, mask=kept, other=0.0)
    tl.store(grads + 3 * f_plane + f_at, old - current * entry, mask=kept)
    lam_i = -rate * entry
    lam_ca = lam_ca * decay
    lam_share, lam_nernst = v * 0.0, v * 0.0
    for c in range(count):
        row = channels + 6 * c
        g1, p1, g2, p2 = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
        is_nernst, is_calcium = tl.load(row + 4) != 0, tl.load(row + 5) != 0
        x1 = gate_value_kernel(g1, gates, now, plane, at, kept, share)
        x2 = gate_value_kernel(g2, gates, now, plane, at, kept, share)
        q1, q2 = power_kernel(x1, p1), power_kernel(x2, p2)
        g = tl.load(fixed + (4 + c) * f_plane + f_at, mask=kept, other=0.0)
        w = g * q1 * q2
        potential = tl.where(is_nernst, nernst, tl.load(reversal + c))
        push = mu * (potential - after) + tl.where(is_calcium, lam_i * (v - potential), 0.0)
        lam_v += tl.where(is_calcium, lam_i * w, 0.0)
        lam_nernst += tl.where(is_nernst, mu * w - tl.where(is_calcium, lam_i * w, 0.0), 0.0)
        place = (4 + c) * f_plane + f_at
        old = tl.load(grads + place, mask=kept, other=0.0)
        tl.store(grads + place, old + push * q1 * q2, mask=kept)
        first = push * g * p1 * power_kernel(x1, tl.maximum(p1 - 1, 0)) * q2
        second = push * g * p2 * power_kernel(x2, tl.maximum(p2 - 1, 0)) * q1
        lam_share += tl.where((at * 0 + g1 == gates) & (at * 0 + p1 > 0), first, 0.0)
        lam_share += tl.where((at * 0 + g2 == gates) & (at * 0 + p2 > 0), second, 0.0)
        own = kept & (at * 0 + p1 > 0) & (at * 0 + g1 < gates)
        old = tl.load(lam + (1 + g1) * f_plane + f_at, mask=own, other=0.0)
        tl.store(lam + (1 + g1) * f_plane + f_at, old + first, mask=own)
        own = kept & (at * 0 + p2 > 0) & (at * 0 + g2 < gates)
        old = tl.load(lam + (1 + g2) * f_plane + f_at, mask=own, other=0.0)
        tl.store(lam + (1 + g2) * f_plane + f_at, old + second, mask=own)
    half, scale = tl.load(numbers + 2), tl.load(numbers + 4)
    calcium = tl.load(now + (gates + 1) * plane + at, mask=kept, other=1e-4)
    total = calcium + half
    lam_ca += lam_share * half / (total * total) - lam_nernst * scale / calcium
    tl.store(lam + f_at, lam_v, mask=kept)
    tl.store(lam + (gates + 1) * f_plane + f_at, lam_ca, mask=kept)


@triton.jit
def backward_kernel(
    parent, fixed, waveform, states, work, channels, rates, reversal, numbers, record, by_trace, kept_states,
    failed, lam, grads, nodes, batch, steps, gates, count, sources, recorded, every, block, first, width,
    stride, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """The reverse sweep of the lanes from ``first`` to ``first + width``; ``lam`` begins as the derivatives
    by the last state and ends as those by the first."""
    b = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    kept = b < width
    batch, stride = tl.cast(batch, tl.int64), tl.cast(stride, tl.int64)  # offsets go beyond 2^31
    f_b = first + b
    plane, f_plane = nodes * stride, nodes * batch
    whole = (gates + 2) * plane
    lost = tl.load(failed + f_b, mask=kept, other=-1)
    lam_right = work + 3 * plane
    blocks = (steps + block - 1) // block
    for number in range(blocks):
        begin = (blocks - 1 - number) * block
        end = tl.minimum(begin + block, steps)
        source = kept_states + (begin // block) * (gates + 2) * f_plane
        for k in range((gates + 2) * nodes):
            value = tl.load(source + k * batch + f_b, mask=kept, other=0.0)
            tl.store(states + k * stride + b, value, mask=kept)
        for t in range(begin, end):
            now = states + (t - begin) * whole
            lost = step_kernel(
                t, parent, fixed, f_plane, batch, f_b, waveform, now, now + whole, plane, stride, b, work,
                channels, rates, reversal, numbers, nodes, steps, gates, count, sources, lost, kept, False,
            )  # fmt: skip
        for back in range(end - begin):
            t = end - 1 - back
            now = states + (t - begin) * whole
            new = now + whole
            if (t + 1) % every == 0:
                for r in range(recorded):
                    place = tl.load(record + r) * batch + f_b
                    old = tl.load(lam + place, mask=kept, other=0.0)
                    row = ((t + 1) // every) * recorded + r
                    old += tl.load(by_trace + row * batch + f_b, mask=kept, other=0.0)
                    tl.store(lam + place, old, mask=kept)
            for i in range(nodes):
                at, f_at = i * stride + b, i * batch + f_b
                # Loaded anew for each node: kept over the loops they would spill.
                near, dt = tl.load(numbers + 5), tl.load(numbers + 6)
                v = tl.load(new + at, mask=kept, other=0.0)
                total_v = tl.load(lam + f_at, mask=kept, other=0.0)
                for g in range(gates):
                    alpha, d_alpha = rate_kernel(v, rates + 14 * g, near)
                    beta, d_beta = rate_kernel(v, rates + 14 * g + 7, near)
                    total = alpha + beta
                    inf = alpha / total
                    d_total = d_alpha + d_beta
                    d_inf = (d_alpha - inf * d_total) / total
                    decay = tl.exp(-dt * total)
                    x = tl.load(now + (1 + g) * plane + at, mask=kept, other=0.0)
                    here = tl.load(lam + (1 + g) * f_plane + f_at, mask=kept, other=0.0)
                    total_v += here * (d_inf * (1.0 - decay) - (x - inf) * dt * d_total * decay)
                    tl.store(lam + (1 + g) * f_plane + f_at, here * decay, mask=kept)
                current = assemble_kernel(
                    fixed, f_plane, f_at, now, plane, at, work, plane, channels, reversal, numbers, gates,
                    count, kept,
                )  # fmt: skip
                tl.store(work + 4 * plane + at, current, mask=kept)
                tl.store(lam_right + at, total_v, mask=kept)
            eliminate_kernel(parent, fixed, f_plane, batch, f_b, work, lam_right, stride, b, nodes, kept)
            mu = work + 2 * plane
            substitute_kernel(
                parent, fixed, f_plane, batch, f_b, work, lam_right, mu, numbers, stride, b, nodes, kept
            )  # fmt: skip
            for i in range(nodes):
                at, f_at = i * stride + b, i * batch + f_b
                node_back_kernel(
                    t, fixed, f_plane, f_at, waveform, now, new, plane, at, work, channels, reversal, numbers,
                    steps, gates, count, sources, lam, grads, kept,
                )  # fmt: skip
            for i in range(nodes):  # a loop of its own: together with the above it would spill
                at, f_at = i * stride + b, i * batch + f_b
                p = tl.load(parent + i)
                above = kept & (b * 0 + p >= 0)
                jump = tl.load(mu + at, mask=above, other=0.0) - tl.load(
                    mu + p * stride + b, mask=above, other=0.0
                )
                step = tl.load(new + at, mask=above, other=0.0) - tl.load(
                    new + p * stride + b, mask=above, other=0.0
                )
                old = tl.load(grads + f_plane + f_at, mask=above, other=0.0)
                tl.store(grads + f_plane + f_at, old - jump * step, mask=above)
    for r in range(recorded):
        place = tl.load(record + r) * batch + f_b
        old = tl.load(lam + place, mask=kept, other=0.0)
        tl.store(lam + place, old + tl.load(by_trace + r * batch + f_b, mask=kept, other=0.0), mask=kept)
