"""Hodgkin-Huxley cells on the CPU: a tile of lanes goes through all steps, and its state stays in the
cache."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.neurons.hh_run.loops import back_tiles, run_tiles
from icml_kernels.neurons.hh_run.reference import LARGEST
from icml_kernels.njit import threads

LANES = 64  # of a full tile
VECTOR = 8  # a tile is filled up to a multiple of this


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
    steps, count = waveform.shape[1], gates0.shape[0]
    blocks = -(-steps // block) if block else 0
    found = (
        v0.new_empty(steps // every + 1, record.shape[0], batch),
        torch.empty_like(v0, memory_format=torch.contiguous_format),
        torch.empty_like(gates0, memory_format=torch.contiguous_format),
        torch.empty_like(v0, memory_format=torch.contiguous_format),
        v0.new_empty(batch, dtype=torch.int32),
        v0.new_empty(blocks, count + 2, nodes, batch),
    )
    inputs = (parent, capacitance, axial, gmax, calcium_rate, drive, waveform, v0, gates0, calcium0)
    tables = (channels, rates, reversal, pool, record)
    arrays = [t.detach().contiguous().numpy() for t in (*inputs, *tables)]
    kind = v0.numpy().dtype.type
    _share(run_tiles, batch, arrays, (kind(dt), every, block, kind(limit)), [t.numpy() for t in found])
    return found


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
    batch = by_v.shape[1]
    like = (capacitance, axial, gmax, calcium_rate, drive, by_v, by_gates, by_calcium)
    found = tuple(torch.empty_like(t, memory_format=torch.contiguous_format) for t in like)
    given = (by_trace, by_v, by_gates, by_calcium, parent, capacitance, axial, gmax, calcium_rate, drive)
    tables = (waveform, channels, rates, reversal, pool, record, failed, kept)
    arrays = [t.detach().contiguous().numpy() for t in (*given, *tables)]
    _share(back_tiles, batch, arrays, (by_v.numpy().dtype.type(dt), every, block), [t.numpy() for t in found])
    return found


def _share(
    work: Callable[..., None], batch: int, arrays: list[np.ndarray], numbers: Any, found: list[np.ndarray]
) -> None:
    """Give each thread a run of tiles. A tile's lanes do not depend on the number of threads."""
    if batch == 0:
        return
    lanes = min(LANES, -(-batch // VECTOR) * VECTOR)
    tiles = -(-batch // lanes)
    shares = max(1, min(threads(), tiles))
    bounds = [s * tiles // shares for s in range(shares + 1)]
    if shares == 1:
        work(0, tiles, lanes, *arrays, *numbers, *found)
        return
    with ThreadPoolExecutor(shares) as pool:
        jobs = [
            pool.submit(work, bounds[s], bounds[s + 1], lanes, *arrays, *numbers, *found)
            for s in range(shares)
        ]
        for job in jobs:
            job.result()
