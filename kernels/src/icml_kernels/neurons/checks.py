"""Argument checks shared by the public functions of this family."""

from __future__ import annotations

import torch
from torch import Tensor

NO_PARENT = -1


def require_tree(parent: Tensor) -> None:
    """Every node's parent stands before it, or is -1 for a root.

    Raises:
        TypeError: not int32.
        ValueError: not one-dimensional, empty, or a node whose parent is itself or stands behind it.
    """
    if parent.dtype != torch.int32:
        raise TypeError(f"parent has dtype {parent.dtype}; expected torch.int32")
    if parent.dim() != 1 or parent.numel() == 0:
        raise ValueError(f"parent has shape {list(parent.shape)}; expected [nodes], at least one")
    if parent.device.type == "meta" or torch.compiler.is_compiling():  # values are not known
        return
    wrong = (parent < NO_PARENT) | (parent >= torch.arange(len(parent), device=parent.device))
    if bool(wrong.any()):
        i = int(wrong.nonzero()[0])
        raise ValueError(
            f"parent[{i}] = {int(parent[i])}; a parent stands before its children (0 <= parent[i] < i), "
            f"and a "
            "root has -1. Put the nodes in such an order first"
        )
