"""Argument checks shared by the public functions of this family."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import HalfList

FLOATS = (torch.float32, torch.float64)


def require_float(**tensors: Tensor) -> None:
    """All tensors have one dtype, float32 or float64, and lie on one device.

    Raises:
        TypeError: for another dtype, or two different ones.
        ValueError: for two devices.
    """
    (first_name, first), *rest = tensors.items()
    for name, tensor in tensors.items():
        if tensor.dtype not in FLOATS:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected torch.float32 or torch.float64")
    for name, tensor in rest:
        if tensor.dtype != first.dtype:
            raise TypeError(
                f"{name} has dtype {tensor.dtype} but {first_name} has {first.dtype}; convert one"
            )
        if tensor.device != first.device:
            raise ValueError(f"{name} lies on {tensor.device} but {first_name} on {first.device}; move one")


def require_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """The tensor has this shape; None stands for any size.

    Raises:
        ValueError: with both shapes.
    """
    actual = tuple(tensor.shape)
    if len(actual) != len(shape) or any(w is not None and w != a for w, a in zip(shape, actual, strict=True)):
        wanted = ", ".join("any" if w is None else str(w) for w in shape)
        raise ValueError(f"{name} has shape {list(actual)}; expected [{wanted}]")


def require_list(pairs: Any, device: torch.device) -> HalfList:
    """A neighbour list on the given device.

    Raises:
        TypeError: where it is no :class:`HalfList`.
        ValueError: where it lies elsewhere.
    """
    if not isinstance(pairs, HalfList):
        raise TypeError(
            f"pairs is a {type(pairs).__name__}; expected a HalfList, as half_list(i, j, n_atoms) gives"
        )
    if pairs.idx.device != device:
        raise ValueError(
            f"pairs lies on {pairs.idx.device} but the other tensors on {device}; use pairs.to(...)"
        )
    return pairs
