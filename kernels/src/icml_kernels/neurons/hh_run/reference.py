"""Hodgkin-Huxley cells in time, and the adjoint of their steps, in plain torch: the definition.

One step from (V, gates, Ca) to (V', gates', Ca'), in NEURON's order, all arrays [nodes, batch]:

    w_c = gmax_c gate_1^p_1 gate_2^p_2;   E_c constant, or calcium's Nernst potential s log(outside / Ca)
    A V' = C/dt V + sum_c w_c E_c + I,    A = C/dt + sum_c w_c + Laplacian of the tree's conductances
    Ca'   = Ca_inf + (Ca - Ca_inf) exp(-dt / tau),   Ca_inf = rest + tau max(0, -rate i_Ca(V, gates, Ca))
    gate' = inf + (gate - inf) exp(-dt (alpha + beta)) at V',   inf = alpha / (alpha + beta)

A rate is A (c_1 + c_x x + c_e e) / (1 + d_e e) with x = (V - center) slope and e = exp(-x): an exponential, a
sigmoid, x / (1 - exp(-x)) or a constant. A gate with the number of gates as its index is Ca / (Ca + half).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icml_kernels.neurons.hines_solve.reference import forward as solve

LARGEST = 200.0  # mV: beyond it a lane has failed, where no other limit is given
LARGEST_EXPONENT = 80.0
# |x| below which x / (1 - exp(-x)) is summed as a series.
NEAR = {torch.float64: 1e-4, torch.float32: 3e-2}

State = tuple[Tensor, Tensor, Tensor]


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """V at the recorded nodes [steps // every + 1, nodes recorded, batch]; the last V, gates and Ca; the step
    at which each lane failed, or -1 [batch]; the state at the start of each block of steps [blocks,
    gates + 2, nodes, batch], none where ``block`` is 0."""
    steps = waveform.shape[1]
    v, gates, calcium = v0, gates0, calcium0
    failed = torch.full((v.shape[1],), -1, dtype=torch.int32, device=v.device)
    rows, decay_ca = record.long(), calcium_decay(channels, pool, len(gates0), dt)
    trace, kept = [v[rows]], []
    for t in range(steps):
        if block and t % block == 0:
            kept.append(torch.cat([v[None], gates, calcium[None]]))
        injected = (drive * waveform[:, t, None, None]).sum(0)
        parts = _currents(gmax, channels, reversal, pool, v, gates, calcium)
        new = _new_voltage(parent, capacitance / dt, axial, parts, v, injected)
        bad = ~(new.abs() <= limit).all(0)
        failed = torch.where((failed < 0) & bad, torch.full_like(failed, t), failed)
        new = torch.where(failed >= 0, v, new)
        calcium = _new_calcium(calcium, parts[2], calcium_rate, pool, decay_ca)
        gates = _new_gates(new, gates, rates, dt)
        v = new
        if (t + 1) % every == 0:
            trace.append(v[rows])
    shape = (-(-steps // block) if block else 0, gates.shape[0] + 2, *v.shape)
    blocks = torch.stack(kept) if kept else v.new_empty(shape)
    return torch.stack(trace), v.clone(), gates.clone(), calcium.clone(), failed, blocks


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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by capacitance, axial, gmax, calcium_rate, drive, v0, gates0 and calcium0; 0 where a lane
    failed."""
    steps, count = waveform.shape[1], rates.shape[0]
    whole = failed < 0
    lam_v, lam_gates, lam_calcium = (torch.where(whole, g, 0) for g in (by_v, by_gates, by_calcium))
    by_trace = torch.where(whole, by_trace, 0)
    has, above = parent >= 0, parent.clamp(min=0).long()
    grads = [torch.zeros_like(t) for t in (capacitance, axial, gmax, calcium_rate, drive)]
    per_dt, rows = capacitance / dt, record.long()
    decay_ca = calcium_decay(channels, pool, count, dt)
    for first in range((steps - 1) // block * block, -1, -block) if steps else ():
        start = kept[first // block]
        states: list[State] = [(start[0], start[1:-1], start[-1])]
        for t in range(first, min(first + block, steps)):
            v, gates, calcium = states[-1]
            injected = (drive * waveform[:, t, None, None]).sum(0)
            parts = _currents(gmax, channels, reversal, pool, v, gates, calcium)
            new = _new_voltage(parent, per_dt, axial, parts, v, injected)
            new = torch.where((failed >= 0) & (failed <= t), v, new)
            fresh = _new_calcium(calcium, parts[2], calcium_rate, pool, decay_ca)
            states.append((new, _new_gates(new, gates, rates, dt), fresh))
        for t in range(min(first + block, steps) - 1, first - 1, -1):
            (v, gates, calcium), (new, _, _) = states[t - first], states[t - first + 1]
            if (t + 1) % every == 0:
                lam_v = lam_v.index_add(0, rows, by_trace[(t + 1) // every])
            # Gates.
            lam_old = torch.empty_like(lam_gates)
            for g in range(count):
                total, inf, d_total, d_inf = _kinetics(new, rates[g])
                decay = torch.exp(-dt * total)
                slope = d_inf * (1 - decay) - (gates[g] - inf) * dt * d_total * decay
                lam_v = lam_v + lam_gates[g] * slope
                lam_old[g] = lam_gates[g] * decay
            # The solve.
            parts = _currents(gmax, channels, reversal, pool, v, gates, calcium)
            diagonal = per_dt + parts[0] + _degrees(parent, axial)
            mu = solve(parent, diagonal, -axial, -axial, lam_v)
            grads[0] = grads[0] + mu * (v - new) / dt
            jump = (mu - mu[above]) * (new - new[above])
            grads[1] = grads[1] - torch.where(has[:, None], jump, 0)
            grads[4] = grads[4] + waveform[:, t, None, None] * mu
            lam_v = mu * per_dt
            # Calcium.
            share, nernst = _calcium_parts(calcium, pool)
            _, tau, half, _, scale = pool.tolist()
            entering = -calcium_rate * parts[2] > 0
            lam_entry = torch.where(entering, lam_calcium * tau * (1 - decay_ca), 0)
            grads[3] = grads[3] - parts[2] * lam_entry
            lam_current = -calcium_rate * lam_entry
            lam_calcium = lam_calcium * decay_ca
            lam_share, lam_nernst = torch.zeros_like(v), torch.zeros_like(v)
            # Channels.
            by_gmax = torch.zeros_like(gmax)
            for c, (g1, p1, g2, p2, is_nernst, is_calcium) in enumerate(channels.tolist()):
                x1, x2 = (_gate(k, gates, share, v) for k in (g1, g2))
                open_share = x1**p1 * x2**p2
                w = gmax[c] * open_share
                potential = nernst if is_nernst else reversal[c]
                lam_w = mu * (potential - new)
                if is_nernst:
                    lam_nernst = lam_nernst + mu * w
                if is_calcium:
                    lam_w = lam_w + lam_current * (v - potential)
                    lam_v = lam_v + lam_current * w
                    if is_nernst:
                        lam_nernst = lam_nernst - lam_current * w
                by_gmax[c] = lam_w * open_share
                for k, p, x, other in ((g1, p1, x1, x2**p2), (g2, p2, x2, x1**p1)):
                    if p:
                        push = lam_w * gmax[c] * p * x ** (p - 1) * other
                        if k == count:
                            lam_share = lam_share + push
                        else:
                            lam_old[k] = lam_old[k] + push
            grads[2] = grads[2] + by_gmax
            lam_gates = lam_old
            lam_calcium = (
                lam_calcium + lam_share * half / (calcium + half) ** 2 - lam_nernst * scale / calcium
            )
    lam_v = lam_v.index_add(0, rows, by_trace[0])
    return grads[0], grads[1], grads[2], grads[3], grads[4], lam_v, lam_gates, lam_calcium


def calcium_decay(channels: Tensor, pool: Tensor, gates: int, dt: float) -> float:
    """exp(-dt / tau); 1 where no channel has to do with calcium, which then stays as it is."""
    wet = bool((channels[:, 4:] != 0).any() | (channels[:, [0, 2]] == gates).any())
    return math.exp(-dt / float(pool[1])) if wet else 1.0


def steady_gates(v: Tensor, rates: Tensor) -> Tensor:
    """inf of every gate at V, [gates, nodes, batch]."""
    if not len(rates):
        return v.new_zeros((0, *v.shape))
    return torch.stack([_kinetics(v, row)[1] for row in rates])


def _rate(v: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
    """A rate, per ms, and its derivative by V."""
    amplitude, center, slope, c_one, c_x, c_e, d_e = row.tolist()
    x = ((v - center) * slope).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT)
    near = (x.abs() < NEAR[v.dtype]) if d_e < 0 else torch.zeros_like(x, dtype=torch.bool)
    e = torch.exp(-x)
    one = torch.ones_like(x)
    numerator = torch.where(near, 1 + x / 2 + x * x / 12, c_one + c_x * x + c_e * e)
    denominator = torch.where(near, one, 1 + d_e * e)
    d_numerator = torch.where(near, 0.5 + x / 6, c_x - c_e * e)
    d_denominator = torch.where(near, torch.zeros_like(x), -d_e * e)
    value = numerator / denominator
    return amplitude * value, amplitude * slope * (d_numerator - value * d_denominator) / denominator


def _kinetics(v: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """alpha + beta, alpha / (alpha + beta), and the derivatives of both by V."""
    (alpha, d_alpha), (beta, d_beta) = (_rate(v, row) for row in rows)
    total = alpha + beta
    inf = alpha / total
    d_total = d_alpha + d_beta
    return total, inf, d_total, (d_alpha - inf * d_total) / total


def _calcium_parts(calcium: Tensor, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Ca / (Ca + half), and the Nernst potential in mV."""
    _, _, half, outside, scale = pool.tolist()
    return calcium / (calcium + half), scale * torch.log(outside / calcium)


def _gate(index: int, gates: Tensor, share: Tensor, like: Tensor) -> Tensor:
    if index < 0:
        return torch.ones_like(like)
    return share if index == len(gates) else gates[index]


def _currents(
    gmax: Tensor,
    channels: Tensor,
    reversal: Tensor,
    pool: Tensor,
    v: Tensor,
    gates: Tensor,
    calcium: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """sum w_c, sum w_c E_c, and the calcium current, of one step."""
    share, nernst = _calcium_parts(calcium, pool)
    conductance, pull, current = (torch.zeros_like(v) for _ in range(3))
    for c, (g1, p1, g2, p2, is_nernst, is_calcium) in enumerate(channels.tolist()):
        x1, x2 = (_gate(k, gates, share, v) for k in (g1, g2))
        w = gmax[c] * x1**p1 * x2**p2
        potential = nernst if is_nernst else reversal[c]
        conductance = conductance + w
        pull = pull + w * potential
        if is_calcium:
            current = current + w * (v - potential)
    return conductance, pull, current


def _degrees(parent: Tensor, axial: Tensor) -> Tensor:
    """Sum of the conductances at each node."""
    own = torch.where((parent >= 0)[:, None], axial, 0)
    return own + torch.zeros_like(own).index_add(0, parent.clamp(min=0).long(), own)


def _new_voltage(
    parent: Tensor,
    per_dt: Tensor,
    axial: Tensor,
    parts: tuple[Tensor, Tensor, Tensor],
    v: Tensor,
    injected: Tensor,
) -> Tensor:
    diagonal = per_dt + parts[0] + _degrees(parent, axial)
    return solve(parent, diagonal, -axial, -axial, per_dt * v + parts[1] + injected)


def _new_calcium(calcium: Tensor, current: Tensor, rate: Tensor, pool: Tensor, decay: float) -> Tensor:
    rest, tau, *_ = pool.tolist()
    level = rest + tau * (-rate * current).clamp(min=0)
    return level + (calcium - level) * decay


def _new_gates(v: Tensor, gates: Tensor, rates: Tensor, dt: float) -> Tensor:
    fresh = []
    for g in range(len(gates)):
        total, inf, _, _ = _kinetics(v, rates[g])
        fresh.append(inf + (gates[g] - inf) * torch.exp(-dt * total))
    return torch.stack(fresh) if fresh else gates
