"""Sums over the rows of a ragged list, and their adjoint, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """out_i = sum of the values at the places from ptr[i] up to ptr[i + 1]."""
    rows, valid = pair_rows(ptr, values[:, 0])
    kept = torch.where(valid[:, None], values, 0)
    return values.new_zeros(ptr.shape[0] - 1, values.shape[1]).index_add(0, rows, kept)


def gather(sums: Tensor, ptr: Tensor, places: int) -> Tensor:
    """The row's value at each of its places; 0 at the spare ones. The adjoint of ``forward``."""
    rows, valid = pair_rows(ptr, ptr.new_empty(places))
    return torch.where(valid[:, None], sums[rows], 0)
