"""Batches of matrices times a vector each, at the speed of memory.

CPU libraries give a batch of thin products to their general routine for small matrices, which is 10 to 30
times as slow as one product of matrix and vector after another.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def matvec(
    m: Float[Tensor, "batch rows columns"], x: Float[Tensor, "batch columns"]
) -> Float[Tensor, "batch rows"]:
    """M x for each matrix of the batch. Not written for gradients."""
    # One matrix is not treated apart: a batch rounds as its members do.
    if m.is_cuda or torch.compiler.is_compiling():
        return torch.bmm(m, x[:, :, None])[:, :, 0]
    out = m.new_empty(m.shape[0], m.shape[1])
    for row, matrix, vector in zip(out, m, x, strict=True):
        torch.mv(matrix, vector, out=row)
    return out


def thin_product(
    m: Float[Tensor, "batch rows columns"], x: Float[Tensor, "batch columns few"]
) -> Float[Tensor, "batch rows few"]:
    """M X for each matrix of the batch and a few vectors X."""
    if m.is_cuda or torch.compiler.is_compiling():
        return torch.bmm(m, x)
    return torch.stack([matvec(m, column.contiguous()) for column in x.unbind(2)], dim=2)
