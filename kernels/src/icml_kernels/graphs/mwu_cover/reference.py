"""The multiplicative weights pass in plain torch and Python: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def cover_pass(
    rows: Tensor,
    weight: Tensor,
    lengths: Tensor,
    packing: Tensor,
    threshold: float,
    step: float,
    phases: int,
) -> tuple[Tensor, Tensor]:
    """Pack short triples one after the other; lengths never fall, so those long at first stay so."""
    length, packed, w = lengths.tolist(), packing.tolist(), weight.tolist()
    for _ in range(phases):
        now = lengths.new_tensor(length)
        short = (
            torch.nonzero(now[rows[:, 0]] + now[rows[:, 1]] + now[rows[:, 2]] < threshold).ravel().tolist()
        )
        for t, (a, b, c) in zip(short, rows[short].tolist(), strict=True):
            amount = min(w[a], w[b], w[c])
            while length[a] + length[b] + length[c] < threshold:
                packed[t] += amount
                for edge in (a, b, c):
                    length[edge] *= 1.0 + step * amount / w[edge]
        threshold *= 1.0 + step
    return lengths.new_tensor(length), packing.new_tensor(packed)


def raised(rows: Tensor, x: Tensor) -> Tensor:
    """The least cover with the given values on second and third edges."""
    out = x.clone()
    first = rows[:, 0].long()
    out[first] = 0.0
    lacking = 1.0 - x[rows[:, 1]] - x[rows[:, 2]]
    return out.scatter_reduce(0, first, lacking, "amax")


def costs(rows: Tensor, weight: Tensor, others: Tensor, values: Tensor) -> Tensor:
    """The cost of one cover after the other."""
    found = values.new_empty(values.shape[0])
    for k in range(values.shape[0]):
        x = torch.zeros_like(weight)
        x[others] = values[k]
        found[k] = (weight * raised(rows, x)).sum()
    return found


def scaled(rows: Tensor, weight: Tensor, packing: Tensor) -> Tensor:
    """Every triple over the worst overload of its edges."""
    index = rows.long().ravel()
    load = torch.zeros_like(weight).index_add(0, index, packing.repeat_interleave(3))
    over = torch.clamp(load / weight, min=1.0)
    return packing / over[rows.long()].amax(dim=1) if len(rows) else packing.clone()
