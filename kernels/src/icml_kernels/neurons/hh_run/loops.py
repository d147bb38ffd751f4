"""The compiled loops of ``hh_run``: one tile of lanes, all steps.

Rows of a tile hold [nodes * lanes] numbers. ``fixed``: capacitance / dt, conductance to the parent, what the
diagonal always has, calcium rate, then gmax of each channel, then each source. A state: V, the gates, Ca.
``work``: diagonal, right side, Ca / (Ca + half), calcium's potential, one conductance, calcium current, and
three more for the way back. Loops name few arrays each, so that the compiler can prove them apart; numbers
are written in the arrays' own precision. A change of ``vector_math`` is not seen by the cache of this file;
change this file too, or empty the cache.
"""

from __future__ import annotations

import numpy as np

from icml_kernels.neurons.hh_run.rows import (
    add_gap_product,
    add_product,
    add_scaled,
    calcium,
    calcium_back,
    calcium_parts,
    conduct,
    conduct_towards,
    gap_product,
    gate,
    gate_back,
    open_back,
    pool_back,
    power_back,
    product,
    pull_back,
    subtract_product,
    weight,
)
from icml_kernels.njit import njit
from icml_kernels.series.soft_elastic.vector_math import exp

DIAGONAL, RIGHT, SHARE, NERNST, ONE, CURRENT, PUSH, BY_SHARE, BY_NERNST = range(9)
WORK = 9


@njit(nogil=True)
def run_tiles(
    first, beyond, lanes, parent, capacitance, axial, gmax, calcium_rate, drive, waveform, v0, gates0,
    calcium0, channels, rates, reversal, pool, record, dt, every, block, limit, trace, v_end, gates_end,
    calcium_end, failed, kept,
):  # fmt: skip
    """All steps of the tiles from ``first`` to ``beyond``."""
    nodes, batch = v0.shape
    gates, steps, size = gates0.shape[0], waveform.shape[1], nodes * lanes
    fixed = np.empty((4 + len(gmax) + len(drive), size), v0.dtype)
    now, new = np.empty((gates + 2, size), v0.dtype), np.empty((gates + 2, size), v0.dtype)
    work = np.empty((WORK, size), v0.dtype)
    lost = np.empty(lanes, np.int32)
    for tile in range(first, beyond):
        start = tile * lanes
        _load_fixed(start, lanes, parent, capacitance, axial, gmax, calcium_rate, drive, dt, fixed)
        _load(v0, start, lanes, now[0])
        for g in range(gates):
            _load(gates0[g], start, lanes, now[1 + g])
        _load(calcium0, start, lanes, now[gates + 1])
        lost[:] = -1
        _sample(now[0], record, start, lanes, trace[0])
        for t in range(steps):
            if block > 0 and t % block == 0:
                for k in range(gates + 2):
                    _store(now[k], start, lanes, kept[t // block, k])
            _step(
                True,
                t,
                lanes,
                parent,
                fixed,
                channels,
                rates,
                reversal,
                pool,
                waveform,
                dt,
                now,
                new,
                work,
                lost,
                limit,
            )
            now, new = new, now
            if (t + 1) % every == 0:
                _sample(now[0], record, start, lanes, trace[(t + 1) // every])
        _store(now[0], start, lanes, v_end)
        for g in range(gates):
            _store(now[1 + g], start, lanes, gates_end[g])
        _store(now[gates + 1], start, lanes, calcium_end)
        for l in range(min(lanes, batch - start)):
            failed[start + l] = lost[l]


@njit(nogil=True)
def back_tiles(
    first, beyond, lanes, by_trace, by_v, by_gates, by_calcium, parent, capacitance, axial, gmax,
    calcium_rate, drive, waveform, channels, rates, reversal, pool, record, failed, kept, dt, every, block,
    by_capacitance, by_axial, by_gmax, by_calcium_rate, by_drive, by_v0, by_gates0, by_calcium0,
):  # fmt: skip
    """The reverse sweep of the tiles from ``first`` to ``beyond``."""
    nodes, batch = by_v.shape
    gates, steps, size = len(rates), waveform.shape[1], nodes * lanes
    fixed = np.empty((4 + len(gmax) + len(drive), size), by_v.dtype)
    grads = np.empty_like(fixed)
    states = np.empty((min(block, steps) + 1, gates + 2, size), by_v.dtype)
    lam, work = np.empty((gates + 2, size), by_v.dtype), np.empty((WORK, size), by_v.dtype)
    lost = np.empty(lanes, np.int32)
    for tile in range(first, beyond):
        start = tile * lanes
        _load_fixed(start, lanes, parent, capacitance, axial, gmax, calcium_rate, drive, dt, fixed)
        for l in range(lanes):
            lost[l] = failed[min(start + l, batch - 1)]
        _load(by_v, start, lanes, lam[0])
        for g in range(gates):
            _load(by_gates[g], start, lanes, lam[1 + g])
        _load(by_calcium, start, lanes, lam[gates + 1])
        for k in range(gates + 2):
            _silence(lam[k], lost, lanes)
        grads[:] = 0
        for begin in range((steps - 1) // block * block, -1, -block) if steps else range(0):
            end = min(begin + block, steps)
            for k in range(gates + 2):
                _load(kept[begin // block, k], start, lanes, states[0, k])
            for t in range(begin, end):
                _step(
                    False, t, lanes, parent, fixed, channels, rates, reversal, pool, waveform, dt,
                    states[t - begin], states[t - begin + 1], work, lost, dt,
                )  # fmt: skip
            for t in range(end - 1, begin - 1, -1):
                if (t + 1) % every == 0:
                    _add_sample(by_trace[(t + 1) // every], record, lost, start, lanes, lam[0])
                _step_back(
                    t, lanes, parent, fixed, channels, rates, reversal, pool, waveform, dt, states[t - begin],
                    states[t - begin + 1], work, lam, grads,
                )  # fmt: skip
        _add_sample(by_trace[0], record, lost, start, lanes, lam[0])
        for j in range(size):
            grads[0, j] /= dt
        _store(grads[0], start, lanes, by_capacitance)
        _store(grads[1], start, lanes, by_axial)
        _store(grads[3], start, lanes, by_calcium_rate)
        for c in range(len(gmax)):
            _store(grads[4 + c], start, lanes, by_gmax[c])
        for k in range(len(drive)):
            _store(grads[4 + len(gmax) + k], start, lanes, by_drive[k])
        _store(lam[0], start, lanes, by_v0)
        for g in range(gates):
            _store(lam[1 + g], start, lanes, by_gates0[g])
        _store(lam[gates + 1], start, lanes, by_calcium0)


@njit(nogil=True)
def _step(
    detect, t, lanes, parent, fixed, channels, rates, reversal, pool, waveform, dt, now, new, work, lost,
    limit,
):  # fmt: skip
    """From the state ``now`` to ``new``; ``lost`` gets the step at which a lane leaves the limit."""
    count, gates = len(channels), len(rates)
    right = work[RIGHT]
    product(fixed[0], now[0], right)
    for k in range(len(waveform)):
        if waveform[k, t] != 0:
            add_scaled(waveform[k, t], fixed[4 + count + k], right)
    wet = _assemble(fixed, channels, reversal, pool, now, work)
    _eliminate(parent, lanes, fixed[1], work[DIAGONAL], right)
    _substitute(parent, lanes, fixed[1], work[DIAGONAL], right, new[0])
    if detect:
        _detect(t, lanes, limit, new[0], work[ONE], lost)
    _freeze(t, lanes, now[0], new[0], lost)
    if wet:
        calcium(now[gates + 1], work[CURRENT], fixed[3], pool[0], pool[1], exp(-dt / pool[1]), new[gates + 1])
    else:
        new[gates + 1] = now[gates + 1]
    for g in range(gates):
        gate(new[0], now[1 + g], new[1 + g], rates[g, 0], rates[g, 1], dt)


@njit(nogil=True)
def _step_back(
    t, lanes, parent, fixed, channels, rates, reversal, pool, waveform, dt, now, new, work, lam, grads
):
    """From derivatives by the state ``new``, in ``lam``, to derivatives by ``now``."""
    count, gates = len(channels), len(rates)
    for g in range(gates):
        gate_back(new[0], now[1 + g], lam[0], lam[1 + g], rates[g, 0], rates[g, 1], dt)
    wet = _assemble(fixed, channels, reversal, pool, now, work)
    _eliminate(parent, lanes, fixed[1], work[DIAGONAL], lam[0])
    mu = work[RIGHT]
    _substitute(parent, lanes, fixed[1], work[DIAGONAL], lam[0], mu)
    gap_product(mu, now[0], new[0], grads[0])
    _edges_back(parent, lanes, mu, new[0], grads[1])
    for k in range(len(waveform)):
        if waveform[k, t] != 0:
            add_scaled(waveform[k, t], mu, grads[4 + count + k])
    product(fixed[0], mu, lam[0])
    if wet:
        # CURRENT becomes the derivative by the calcium current.
        calcium_back(
            work[CURRENT], fixed[3], lam[gates + 1], grads[3], pool[1], exp(-dt / pool[1])
        )  # fmt: skip
        work[BY_SHARE] = 0
        work[BY_NERNST] = 0
    for c in range(count):
        g1, p1, g2, p2 = channels[c, 0], channels[c, 1], channels[c, 2], channels[c, 3]
        nernst, current = channels[c, 4] != 0, channels[c, 5] != 0
        x1, x2 = _gate_row(g1, gates, now, work), _gate_row(g2, gates, now, work)
        push = work[PUSH]
        if nernst:
            potential = work[NERNST]
        else:
            potential = work[DIAGONAL]
            potential[:] = reversal[c]
        pull_back(mu, potential, new[0], push)
        if nernst or current:
            weight(fixed[4 + c], x1, p1, x2, p2, work[ONE])
        if nernst:
            add_product(mu, work[ONE], work[BY_NERNST])
        if current:
            add_gap_product(work[CURRENT], now[0], potential, push)
            add_product(work[CURRENT], work[ONE], lam[0])
            if nernst:
                subtract_product(work[CURRENT], work[ONE], work[BY_NERNST])
        open_back(push, x1, p1, x2, p2, grads[4 + c])
        if p1 > 0:
            target = work[BY_SHARE] if g1 == gates else lam[1 + g1]
            power_back(push, fixed[4 + c], x1, p1, x2, p2, target)
        if p2 > 0:
            target = work[BY_SHARE] if g2 == gates else lam[1 + g2]
            power_back(push, fixed[4 + c], x2, p2, x1, p1, target)
    if wet:
        pool_back(now[gates + 1], work[BY_SHARE], work[BY_NERNST], pool[2], pool[4], lam[gates + 1])


@njit(nogil=True)
def _assemble(fixed, channels, reversal, pool, now, work):
    """Diagonal and right side of the system; whether calcium plays a part."""
    count, gates = len(channels), now.shape[0] - 2
    diagonal, right = work[DIAGONAL], work[RIGHT]
    diagonal[:] = fixed[2]
    wet = False
    for c in range(count):
        if channels[c, 4] != 0 or channels[c, 5] != 0 or channels[c, 0] == gates or channels[c, 2] == gates:
            wet = True
    if wet:
        calcium_parts(now[gates + 1], work[SHARE], work[NERNST], pool[2], pool[3], pool[4])
        work[CURRENT] = 0
    for c in range(count):
        x1, x2 = _gate_row(channels[c, 0], gates, now, work), _gate_row(channels[c, 2], gates, now, work)
        p1, p2 = channels[c, 1], channels[c, 3]
        if channels[c, 4] == 0 and channels[c, 5] == 0:
            conduct(fixed[4 + c], x1, p1, x2, p2, reversal[c], diagonal, right)
            continue
        weight(fixed[4 + c], x1, p1, x2, p2, work[ONE])
        if channels[c, 4] != 0:
            potential = work[NERNST]
        else:
            potential = work[PUSH]
            potential[:] = reversal[c]
        conduct_towards(work[ONE], potential, diagonal, right)
        if channels[c, 5] != 0:
            add_gap_product(work[ONE], now[0], potential, work[CURRENT])
    return wet


@njit(nogil=True)
def _gate_row(gate, gates, now, work):
    """A gate's numbers; any row where there is none, since its power is 0."""
    if gate == gates:
        return work[SHARE]
    return now[1 + gate]


@njit(nogil=True)
def _load_fixed(start, lanes, parent, capacitance, axial, gmax, calcium_rate, drive, dt, fixed):
    _load(capacitance, start, lanes, fixed[0])
    _load(axial, start, lanes, fixed[1])
    _load(calcium_rate, start, lanes, fixed[3])
    for c in range(len(gmax)):
        _load(gmax[c], start, lanes, fixed[4 + c])
    for k in range(len(drive)):
        _load(drive[k], start, lanes, fixed[4 + len(gmax) + k])
    for j in range(fixed.shape[1]):
        fixed[0, j] /= dt
        fixed[2, j] = fixed[0, j]
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            for l in range(lanes):
                fixed[2, i * lanes + l] += fixed[1, i * lanes + l]
                fixed[2, p * lanes + l] += fixed[1, i * lanes + l]


@njit(nogil=True)
def _load(source, start, lanes, row):
    """Columns of [nodes, batch] into a row; lanes beyond the batch repeat the last column."""
    nodes, batch = source.shape
    for i in range(nodes):
        for l in range(lanes):
            row[i * lanes + l] = source[i, min(start + l, batch - 1)]


@njit(nogil=True)
def _store(row, start, lanes, target):
    nodes, batch = target.shape
    for i in range(nodes):
        for l in range(min(lanes, batch - start)):
            target[i, start + l] = row[i * lanes + l]


@njit(nogil=True)
def _sample(v, record, start, lanes, target):
    for r in range(len(record)):
        for l in range(min(lanes, target.shape[1] - start)):
            target[r, start + l] = v[record[r] * lanes + l]


@njit(nogil=True)
def _add_sample(source, record, lost, start, lanes, lam):
    for r in range(len(record)):
        for l in range(min(lanes, source.shape[1] - start)):
            if lost[l] < 0:
                lam[record[r] * lanes + l] += source[r, start + l]


@njit(nogil=True)
def _silence(row, lost, lanes):
    for j in range(len(row)):
        if lost[j % lanes] >= 0:
            row[j] = 0


@njit(nogil=True)
def _detect(t, lanes, bound, v, least, lost):
    """A lane fails where some |V| is above the bound or NaN."""
    kind = v.dtype.type
    worst = least[:lanes]
    worst[:] = 1
    for i in range(len(v) // lanes):
        here = v[i * lanes : (i + 1) * lanes]
        for l in range(lanes):
            worst[l] = worst[l] if abs(here[l]) <= bound else kind(0)
    for l in range(lanes):
        if worst[l] == 0 and lost[l] < 0:
            lost[l] = t


@njit(nogil=True)
def _freeze(t, lanes, old, new, lost):
    for l in range(lanes):
        if 0 <= lost[l] <= t:
            for i in range(len(old) // lanes):
                new[i * lanes + l] = old[i * lanes + l]


@njit(nogil=True)
def _eliminate(parent, lanes, axial, diagonal, right):
    """Children into parents; the diagonal holds inverses afterwards."""
    one = diagonal.dtype.type(1)
    for i in range(len(parent) - 1, -1, -1):
        here = diagonal[i * lanes : (i + 1) * lanes]
        for l in range(lanes):
            here[l] = one / here[l]
        p = parent[i]
        if p >= 0:
            g, own = axial[i * lanes : (i + 1) * lanes], right[i * lanes : (i + 1) * lanes]
            above, target = diagonal[p * lanes : (p + 1) * lanes], right[p * lanes : (p + 1) * lanes]
            for l in range(lanes):
                factor = g[l] * here[l]
                above[l] -= factor * g[l]
                target[l] += factor * own[l]


@njit(nogil=True)
def _substitute(parent, lanes, axial, inverse, right, x):
    for i in range(len(parent)):
        p = parent[i]
        r, scale = right[i * lanes : (i + 1) * lanes], inverse[i * lanes : (i + 1) * lanes]
        out = x[i * lanes : (i + 1) * lanes]
        if p >= 0:
            g, known = axial[i * lanes : (i + 1) * lanes], x[p * lanes : (p + 1) * lanes]
            for l in range(lanes):
                out[l] = (r[l] + g[l] * known[l]) * scale[l]
        else:
            for l in range(lanes):
                out[l] = r[l] * scale[l]


@njit(nogil=True)
def _edges_back(parent, lanes, mu, v, out):
    for i in range(len(parent)):
        p = parent[i]
        if p >= 0:
            m, above = mu[i * lanes : (i + 1) * lanes], mu[p * lanes : (p + 1) * lanes]
            x, known = v[i * lanes : (i + 1) * lanes], v[p * lanes : (p + 1) * lanes]
            target = out[i * lanes : (i + 1) * lanes]
            for l in range(lanes):
                target[l] -= (m[l] - above[l]) * (x[l] - known[l])
