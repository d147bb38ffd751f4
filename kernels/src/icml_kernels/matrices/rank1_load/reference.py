"""Scale a matrix, add a matrix of rank one and round, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def rank1_load(m: Tensor, u: Tensor, v: Tensor, scale: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """scale M + weight u v^T for each matrix of the batch, computed as M is and rounded to dtype."""
    outer = u[:, :, None] * v[:, None, :]
    return (scale[:, None, None] * m + weight[:, None, None] * outer).to(dtype)
