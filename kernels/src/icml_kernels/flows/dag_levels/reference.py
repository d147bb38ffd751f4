"""Longest distance of every vertex of a directed graph from the sources, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(ptr: Tensor, children: Tensor) -> Tensor:
    """Level after level: a vertex is placed once all its parents are; -1 for those on or behind a cycle."""
    n = ptr.shape[0] - 1
    parents = torch.repeat_interleave(torch.arange(n, device=ptr.device), torch.diff(ptr))
    waiting = torch.zeros(n, dtype=torch.int64, device=ptr.device)
    waiting = waiting.index_add(0, children, torch.ones_like(children))
    levels = torch.full_like(waiting, -1)
    front, level = waiting == 0, 0
    while bool(front.any()):
        levels[front] = level
        leaving = front[parents]
        waiting = waiting.index_add(0, children[leaving], -torch.ones_like(children[leaving]))
        front, level = (waiting == 0) & (levels < 0), level + 1
    return levels
