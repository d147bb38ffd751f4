"""Distinct rows of an integer matrix: states that many trajectories share, each to be evaluated once."""

from __future__ import annotations

import torch
from jaxtyping import Int, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.flows.unique_rows import reference
from icml_kernels.molecules.checks import require_shape

_HERE = "icml_kernels.flows.unique_rows"
INTEGERS = (torch.int16, torch.int32, torch.int64)


def unique_rows(rows: Int[Tensor, "n width"]) -> tuple[Int64[Tensor, " distinct"], Int64[Tensor, " n"]]:
    """Where each distinct row stands first, and which of them every row is: ``rows[first][inverse] == rows``.

    Distinct rows keep the order of their first appearance. Rows are compared entry by entry, so that no
    collision of hashes merges two of them. On a CPU the time is linear in the size.

    Args:
        rows: int16, int32 or int64.

    Raises:
        TypeError: for another dtype.
        ValueError: for other numbers of dimensions.

    Example:
        >>> unique_rows(torch.tensor([[5, 1], [2, 2], [5, 1]]))
        (tensor([0, 1]), tensor([0, 1, 0]))
    """
    if rows.dtype not in INTEGERS:
        raise TypeError(f"rows has dtype {rows.dtype}; expected int16, int32 or int64")
    require_shape("rows", rows, (None, None))
    return _forward(rows)


def _fake(rows: Tensor) -> tuple[Tensor, Tensor]:
    distinct = torch.library.get_ctx().new_dynamic_size()
    return rows.new_empty(distinct, dtype=torch.int64), rows.new_empty(rows.shape[0], dtype=torch.int64)


_forward = raw_op("unique_rows", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward")
