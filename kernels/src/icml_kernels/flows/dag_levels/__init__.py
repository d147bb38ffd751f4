"""Levels of a directed graph: an order in which flows can be summed, or the vertices that forbid one."""

from __future__ import annotations

import torch
from jaxtyping import Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.flows.dag_levels import reference
from icml_kernels.molecules.checks import require_shape

_HERE = "icml_kernels.flows.dag_levels"


def dag_levels(ptr: Int64[Tensor, " n_1"], children: Int64[Tensor, " edges"]) -> Int64[Tensor, " n"]:
    """The longest distance of every vertex from a vertex without parents; -1 on a cycle, and behind one.

    All edges lead from a lower to a higher level, so that a level's vertices can be treated together. Time
    is linear in vertices and edges.

    Args:
        ptr: where each vertex's children begin in the list, rising from 0 to its length.
        children: the ends of the edges; an edge may stand several times.

    Raises:
        TypeError: for other dtypes than int64.
        ValueError: for bounds that fall or end elsewhere, or an end outside the graph.

    Example:
        >>> dag_levels(torch.tensor([0, 2, 3, 3]), torch.tensor([1, 2, 2]))
        tensor([0, 1, 2])
    """
    for name, tensor in (("ptr", ptr), ("children", children)):
        if tensor.dtype != torch.int64:
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected torch.int64")
        require_shape(name, tensor, (None,))
    if len(ptr) == 0 or int(ptr[0]) != 0 or int(ptr[-1]) != len(children):
        raise ValueError(f"ptr must rise from 0 to the number of edges, {len(children)}")
    if bool((torch.diff(ptr) < 0).any()):
        raise ValueError("ptr falls; it holds where each vertex's children begin")
    if len(children) and (int(children.min()) < 0 or int(children.max()) >= len(ptr) - 1):
        raise ValueError(f"children names a vertex outside 0, …, {len(ptr) - 2}")
    return _forward(ptr, children)


def _fake(ptr: Tensor, children: Tensor) -> Tensor:
    return ptr.new_empty(ptr.shape[0] - 1)


_forward = raw_op("dag_levels", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward")
