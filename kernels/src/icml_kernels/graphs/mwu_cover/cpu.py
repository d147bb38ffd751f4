"""The multiplicative weights pass on the CPU: one core, since each triple sees the lengths left by the last.

No fused operations and no reordering, so that the bits are those of the definition.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit


def cover_pass(
    rows: Tensor,
    weight: Tensor,
    lengths: Tensor,
    packing: Tensor,
    threshold: float,
    step: float,
    phases: int,
) -> tuple[Tensor, Tensor]:
    """See ``reference.cover_pass``."""
    lengths, packing = lengths.clone(), packing.clone()
    arguments = rows.contiguous().numpy(), weight.contiguous().numpy(), lengths.numpy(), packing.numpy()
    for _ in range(phases):
        _pass(*arguments, threshold, step)
        threshold *= 1.0 + step
    return lengths, packing


def raised(rows: Tensor, x: Tensor) -> Tensor:
    """See ``reference.raised``."""
    out = x.clone()
    _raise(rows.contiguous().numpy(), out.numpy())
    return out


@njit(fastmath=False)
def _pass(rows, weight, lengths, packing, threshold, step):
    for t in range(len(rows)):
        a, b, c = rows[t, 0], rows[t, 1], rows[t, 2]
        if lengths[a] + lengths[b] + lengths[c] < threshold:
            amount = min(weight[a], weight[b], weight[c])
            while lengths[a] + lengths[b] + lengths[c] < threshold:
                packing[t] += amount
                lengths[a] *= 1.0 + step * amount / weight[a]
                lengths[b] *= 1.0 + step * amount / weight[b]
                lengths[c] *= 1.0 + step * amount / weight[c]


@njit(fastmath=False)
def _raise(rows, x):
    for t in range(len(rows)):
        x[rows[t, 0]] = 0.0
    for t in range(len(rows)):
        lacking = 1.0 - x[rows[t, 1]] - x[rows[t, 2]]
        if lacking > x[rows[t, 0]]:
            x[rows[t, 0]] = lacking


def costs(rows: Tensor, weight: Tensor, others: Tensor, values: Tensor) -> Tensor:
    """See ``reference.costs``."""
    found = values.new_empty(values.shape[0])
    arguments = (t.contiguous().numpy() for t in (rows, weight, others, values))
    _costs(*arguments, found.numpy())
    return found


def scaled(rows: Tensor, weight: Tensor, packing: Tensor) -> Tensor:
    """See ``reference.scaled``."""
    out = torch.empty_like(packing)
    arguments = (t.contiguous().numpy() for t in (rows, weight, packing))
    _scale(*arguments, out.numpy())
    return out


@njit(fastmath=False)
def _costs(rows, weight, others, values, found):
    x = np.zeros(len(weight))
    for k in range(len(values)):
        x[:] = 0.0
        for j in range(len(others)):
            x[others[j]] = values[k, j]
        for t in range(len(rows)):
            lacking = 1.0 - x[rows[t, 1]] - x[rows[t, 2]]
            if lacking > x[rows[t, 0]]:
                x[rows[t, 0]] = lacking
        total = 0.0
        for e in range(len(weight)):
            total += weight[e] * x[e]
        found[k] = total


@njit(fastmath=False)
def _scale(rows, weight, packing, out):
    over = np.zeros(len(weight))
    for t in range(len(rows)):
        if packing[t] > 0.0:
            for k in range(3):
                over[rows[t, k]] += packing[t]
    for e in range(len(weight)):
        over[e] = max(over[e] / weight[e], 1.0)
    for t in range(len(rows)):
        out[t] = packing[t] / max(over[rows[t, 0]], over[rows[t, 1]], over[rows[t, 2]])
