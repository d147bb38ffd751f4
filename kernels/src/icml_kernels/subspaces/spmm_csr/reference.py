"""Products of a sparse matrix in compressed rows with a block of vectors, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def rows_of(indptr: Tensor, places: int) -> Tensor:
    """The row of every entry."""
    counts = torch.diff(indptr).long()
    return torch.repeat_interleave(
        torch.arange(len(counts), device=indptr.device), counts, output_size=places
    )


def forward(data: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Tensor:
    """y_i = sum over the entries of row i of data_p x_{indices_p}."""
    rows = rows_of(indptr, data.shape[0])
    out = x.new_zeros(indptr.shape[0] - 1, x.shape[1])
    return out.index_add(0, rows, data[:, None] * x[indices.long()])


def transposed(data: Tensor, indices: Tensor, indptr: Tensor, y: Tensor, columns: int) -> Tensor:
    """x_j = sum over the entries in column j of data_p y_{row of p}."""
    rows = rows_of(indptr, data.shape[0])
    return y.new_zeros(columns, y.shape[1]).index_add(0, indices.long(), data[:, None] * y[rows])


def sampled(indices: Tensor, indptr: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """The product y x^T at the places of the entries."""
    rows = rows_of(indptr, indices.shape[0])
    return (y[rows] * x[indices.long()]).sum(1)
