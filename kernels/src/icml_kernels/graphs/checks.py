"""Argument checks shared by the public functions of this family."""

from __future__ import annotations

import torch
from torch import Tensor

INTEGERS = (torch.int32, torch.int64)


def require_dtype(dtype: torch.dtype, **tensors: Tensor) -> None:
    """All tensors have this dtype.

    Raises:
        TypeError: for another one.
    """
    for name, tensor in tensors.items():
        if tensor.dtype != dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected {dtype}")


def require_csr(name: str, indptr: Tensor, indices: Tensor) -> None:
    """Rows of a graph in compressed form: int32 or int64, one dtype, ``indptr`` from 0 to the last entry.

    Raises:
        TypeError: for another dtype, or two different ones.
        ValueError: for wrong shapes, bounds that fall or end elsewhere, or columns outside the graph.
    """
    if indptr.dtype not in INTEGERS or indices.dtype != indptr.dtype:
        raise TypeError(
            f"{name} has dtypes {indptr.dtype} and {indices.dtype}; "
            "expected int32 or int64, the same for both"
        )
    if indptr.dim() != 1 or indices.dim() != 1 or len(indptr) == 0:
        shapes = f"{list(indptr.shape)} and {list(indices.shape)}"
        raise ValueError(f"{name} has shapes {shapes}; expected [n + 1] and [entries]")
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(indices) or bool((torch.diff(indptr) < 0).any()):
        raise ValueError(f"the bounds of {name} must rise from 0 to its {len(indices)} entries")
    if len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= len(indptr) - 1):
        raise ValueError(f"{name} names a vertex outside 0, …, {len(indptr) - 2}")
