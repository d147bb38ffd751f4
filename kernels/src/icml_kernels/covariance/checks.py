"""What the operations on covariances check at their entrance."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def require_floats(name: str, x: Tensor, dimensions: int, shape: str) -> None:
    """Refuse anything but a non-empty floating tensor of at least so many dimensions.

    Raises:
        TypeError: for no tensor, or another dtype.
        ValueError: for another number of dimensions, or one of length 0.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is {type(x).__name__}; expected a tensor {shape}")
    if x.dtype not in FLOATS:
        raise TypeError(f"{name} has dtype {x.dtype}; expected one of {', '.join(map(str, FLOATS))}")
    if x.dim() < dimensions or 0 in x.shape:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected {shape}, none of them 0")


def working_dtype(dtype: torch.dtype, wide: bool = False) -> torch.dtype:
    """In which products are summed: float64 where asked for or given, else float32."""
    return torch.float64 if wide or dtype == torch.float64 else torch.float32
