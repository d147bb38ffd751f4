"""The whole table of one pair's dynamic programme, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.series.recurrence import fill, hard_minimum


def forward(c: Tensor, p: Tensor, q: Tensor, reach: int, metric: str) -> Tensor:
    """R[i, j] for i = 1, …, n and j = 1, …, m, from the pointwise costs [n, m] and the costs of deletions."""
    table = fill(c, p, q, torch.tensor(reach, device=c.device), metric, hard_minimum)
    return torch.stack([torch.stack(row[1:]) for row in table[1:]])
