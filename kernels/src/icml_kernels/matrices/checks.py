"""What every operation on matrices checks at its entrance."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def require_matrices(name: str, x: Tensor) -> None:
    """Refuse anything but a non-empty real floating tensor of at least two dimensions.

    Raises:
        TypeError: for another dtype.
        ValueError: for fewer than two dimensions, or a matrix without rows or columns.
    """
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} has dtype {x.dtype}; expected one of {', '.join(map(str, FLOATS))}")
    if x.dim() < 2:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected (..., rows, columns)")
    if x.shape[-1] == 0 or x.shape[-2] == 0:
        raise ValueError(f"{name} has shape {list(x.shape)}; a matrix needs at least one row and column")


def require_vectors(name: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape.

    Raises:
        ValueError: naming both shapes.
    """
    if tuple(x.shape) != shape:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected {list(shape)}")
