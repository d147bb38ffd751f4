"""Scale a matrix and add one of rank one on the CPU: the outer product is formed inside BLAS."""

from __future__ import annotations

import torch
from torch import Tensor


def rank1_load(m: Tensor, u: Tensor, v: Tensor, scale: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """See ``reference.rank1_load``."""
    scaled = m * scale[:, None, None]
    return scaled.baddbmm_((weight[:, None] * u)[:, :, None], v[:, None, :]).to(dtype)
