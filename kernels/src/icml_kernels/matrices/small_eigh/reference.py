"""Eigenvalues and eigenvectors of small symmetric matrices, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def small_eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues of each matrix, ascending, and its eigenvectors as columns; reads the lower triangle."""
    values, vectors = torch.linalg.eigh(a)
    return values, vectors
