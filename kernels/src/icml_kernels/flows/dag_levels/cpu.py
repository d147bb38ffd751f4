"""Kahn's algorithm on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit


def forward(ptr: Tensor, children: Tensor) -> Tensor:
    """See ``reference.forward``."""
    return torch.from_numpy(_levels(ptr.contiguous().numpy(), children.contiguous().numpy()))


@njit
def _levels(ptr, children):
    n = len(ptr) - 1
    waiting = np.zeros(n, dtype=np.int64)
    for child in children:
        waiting[child] += 1
    levels = np.full(n, -1, dtype=np.int64)
    queue = np.empty(n, dtype=np.int64)
    end = 0
    for v in range(n):
        if waiting[v] == 0:
            levels[v] = 0
            queue[end] = v
            end += 1
    begin = 0
    while begin < end:
        v = queue[begin]
        begin += 1
        for e in range(ptr[v], ptr[v + 1]):
            child = children[e]
            waiting[child] -= 1
            if waiting[child] == 0:
                # The last parent to arrive is the deepest, since the queue rises in level.
                levels[child] = levels[v] + 1
                queue[end] = child
                end += 1
    return levels
