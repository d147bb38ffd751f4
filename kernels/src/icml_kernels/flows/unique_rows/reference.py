"""Distinct rows of an integer matrix in order of first appearance, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
    """first [u]: where each distinct row stands first, rising; inverse [n]: which of them a row is."""
    places = torch.arange(rows.shape[0], device=rows.device)
    if rows.shape[0] == 0:
        return places.clone(), places.clone()
    if rows.shape[1] == 0:  # rows of nothing are all alike; torch.unique refuses them
        return places[:1].clone(), torch.zeros_like(places)
    _, group = torch.unique(rows, dim=0, return_inverse=True)
    count = int(group.max()) + 1
    earliest = places.new_full((count,), rows.shape[0]).scatter_reduce(0, group, places, "amin")
    first, order = torch.sort(earliest)
    rank = torch.empty_like(order).scatter(0, order, torch.arange(count, device=rows.device))
    return first, rank[group]
