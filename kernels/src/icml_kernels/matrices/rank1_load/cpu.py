"""Scale a matrix and add one of rank one on the CPU: the outer product is formed inside BLAS.

Piece by piece, so that nothing but the result is as large as the matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.matrices.matvec import PIECE


def rank1_load(m: Tensor, u: Tensor, v: Tensor, scale: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """See ``reference.rank1_load``."""
    batch, rows, columns = m.shape
    out = torch.empty_like(m, dtype=dtype)
    left = (weight[:, None] * u)[:, :, None]
    matrices = max(1, PIECE // (rows * columns))
    height = max(1, min(rows, PIECE // columns))
    for first in range(0, batch, matrices):
        own = slice(first, first + matrices)
        for at in range(0, rows, height):
            piece = m[own, at : at + height] * scale[own, None, None]
            out[own, at : at + height] = piece.baddbmm_(left[own, at : at + height], v[own, None, :])
    return out
