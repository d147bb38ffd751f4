"""What every operation on subspaces checks at its entrance."""

from __future__ import annotations

import torch
from torch import Tensor

REAL = (torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)


def require_dtype(allowed: tuple[torch.dtype, ...], **tensors: Tensor) -> None:
    """Refuse other dtypes, and two dtypes or devices at once.

    Raises:
        TypeError: naming the tensor and what was expected.
        ValueError: tensors on two devices.
    """
    first_name, first = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.dtype not in allowed:
            raise TypeError(
                f"{name} has dtype {tensor.dtype}; expected one of {', '.join(map(str, allowed))}"
            )
        if tensor.dtype != first.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype} but {first_name} {first.dtype}; convert one")
        if tensor.device != first.device:
            raise ValueError(f"{name} is on {tensor.device} but {first_name} on {first.device}; move one")


def require_matrix(name: str, x: Tensor, rows: int | None = None, columns: int | None = None) -> None:
    """Refuse what is no matrix of these sizes.

    Raises:
        ValueError: naming both shapes.
    """
    wanted = ["rows" if rows is None else rows, "columns" if columns is None else columns]
    fits = x.dim() == 2 and rows in (None, x.shape[0]) and columns in (None, x.shape[1])
    if not fits:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected [{wanted[0]}, {wanted[1]}]")
