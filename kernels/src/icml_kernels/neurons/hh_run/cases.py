"""Cells on which every route is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.neurons.hh_run import Membrane
from icml_kernels.neurons.hines_solve.cases import random, tree

# Per ms: amplitude, center, slope, c_one, c_x, c_e, d_e.
LINOID = (0.0, 1.0, 0.0, -1.0)
SIGMOID = (1.0, 0.0, 0.0, 1.0)
EXPONENTIAL = (0.0, 0.0, 1.0, 0.0)


def membrane(kind: str = "squid") -> Membrane:
    """The squid's channels, or sodium, calcium, calcium-gated potassium and a leak."""
    m = ((1.0, -40.0, 0.1, *LINOID), (4.0, -65.0, 1 / 18, *EXPONENTIAL))
    h = ((0.07, -65.0, 1 / 20, *EXPONENTIAL), (1.0, -35.0, 0.1, *SIGMOID))
    n = ((0.1, -55.0, 0.1, *LINOID), (0.125, -65.0, 1 / 80, *EXPONENTIAL))
    c = ((15.68, -13.0, 0.1, *LINOID), (52.267, -38.0, 1 / 18, *EXPONENTIAL))
    if kind == "squid":
        rows = [(0, 3, 1, 1, 0, 0), (2, 4, -1, 0, 0, 0), (-1, 0, -1, 0, 0, 0)]
        rates, reversal = (m, h, n), (50.0, -77.0, -54.3)
    elif kind == "calcium":
        rows = [(0, 3, 1, 1, 0, 0), (2, 3, -1, 0, 1, 1), (3, 1, -1, 0, 0, 0), (-1, 0, -1, 0, 0, 0)]
        rates, reversal = (m, h, c), (50.0, 0.0, -77.0, -60.0)
    elif kind == "current":  # calcium comes in at a constant potential, and gates a channel with a gate
        rows = [(2, 2, -1, 0, 0, 1), (1, 1, 3, 1, 0, 0)]
        rates, reversal = (m, h, c), (120.0, -77.0)
    else:
        rows, rates, reversal = [(-1, 0, -1, 0, 0, 0)], (), (-65.0,)
    numbers = torch.tensor(rates, dtype=torch.float64).reshape(-1, 2, 7)
    pool = torch.tensor([1e-4, 1.5, 1e-3, 1.8, 13.4], dtype=torch.float64)
    channels = torch.tensor(rows, dtype=torch.int32)
    return Membrane(channels, numbers, torch.tensor(reversal, dtype=torch.float64), pool)


def arguments(
    kind: str, nodes: int, batch: int, steps: int, *, shape: str = "random", seed: int = 0
) -> tuple[Any, ...]:
    """Arguments of ``hh_run`` up to ``calcium0`` for cells of a few micrometres, one node without area."""
    table = membrane(kind)

    def spread(*size: int, k: int) -> torch.Tensor:
        return torch.exp(0.2 * random(*size, seed=seed + k))

    area = 300 * spread(nodes, batch, k=1)
    if nodes > 3:
        area[nodes // 2] = 0
    largest = torch.tensor([0.12, 0.036, 3e-3, 3e-4])[: len(table.channels)].double()
    gmax = 1e-2 * largest[:, None, None] * area * spread(len(largest), nodes, batch, k=2)
    drive = 0.2 * random(2, nodes, batch, seed=seed + 3).abs()
    waveform = torch.stack([torch.ones(steps), torch.sin(torch.arange(steps) * 0.3)]).double()
    v0 = -65 + 3 * random(nodes, batch, seed=seed + 4)
    return (
        tree(nodes, shape, seed),
        1e-5 * area,
        0.05 * spread(nodes, batch, k=5),
        gmax,
        torch.where(area > 0, 5e1 / area.clamp(min=1), 0),
        drive,
        waveform,
        v0,
        table.steady_gates(v0),
        1e-4 * spread(nodes, batch, k=6),
    )
