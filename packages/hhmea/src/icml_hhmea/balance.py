"""Membrane currents from voltages alone: what flows through capacitance and channels, without any solve.

    im_i = C_i (V_i' - V_i) / dt + sum_c g_ci(gates, Ca) (V_i' - E_ci)

In the implicit scheme gates and calcium are those before the step. They follow from the voltages, so that
the sum can be formed for any trajectory; only for the right one does it equal the axial and injected
currents, node by node.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.cell import Cable, CellModel
from icml_hhmea.channels import Rate
from icml_hhmea.simulation import State


def ionic_currents(
    cell: CellModel, cable: Cable, v: Float[Tensor, "samples nodes batch"], start: State, dt: float
) -> Float[Tensor, "steps nodes batch"]:
    """nA out of each node in each step of dt ms, for voltages in mV at every step, the start included."""
    gates = [g for c in cell.channels for g in c.gates]
    values, calcium, pool = list(start.gates), start.calcium, cell.pool
    rows = []
    for before, after in pairwise(v):
        total = cable.capacitance * (after - before) / dt
        entering, place = torch.zeros_like(before), 0
        for k, channel in enumerate(cell.channels):
            conductance = cable.gmax[k]
            for gate in channel.gates:
                conductance = conductance * values[place] ** gate.power
                place += 1
            if channel.gated_by_calcium:
                conductance = conductance * calcium / (calcium + pool.half)
            if isinstance(channel.reversal, str):
                potential: Tensor | float = pool.nernst_mv * torch.log(pool.outside / calcium)
            else:
                potential = channel.reversal
            total = total + conductance * (after - potential)
            if channel.carries_calcium:
                entering = entering - conductance * (before - potential)
        rows.append(total)
        level = pool.rest + pool.tau * (cable.calcium_rate * entering).clamp(min=0)
        calcium = level + (calcium - level) * math.exp(-dt / pool.tau)
        for k, gate in enumerate(gates):
            alpha, beta = _rate(gate.alpha, after), _rate(gate.beta, after)
            steady = alpha / (alpha + beta)
            values[k] = steady + (values[k] - steady) * torch.exp(-dt * (alpha + beta))
    return torch.stack(rows) if rows else v[:0]


def _rate(rate: Rate, v: Tensor) -> Tensor:
    """Of ``Rate``, for tensors: per ms."""
    x = (v - rate.center) / rate.width
    if rate.form == "linoid":
        return rate.amplitude * torch.where(x.abs() > 1e-9, x / -torch.expm1(-x), 1 + x / 2)
    if rate.form == "constant":
        return torch.full_like(v, rate.amplitude)
    return rate.amplitude * (torch.exp(-x) if rate.form == "exponential" else torch.sigmoid(x))
