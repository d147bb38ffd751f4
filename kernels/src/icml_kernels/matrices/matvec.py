"""Batches of matrices times a vector each, at the speed of memory.

The vector is written as a row: CPU libraries take a batch of rows times matrices at full speed, and a batch
of matrices times columns 10 to 30 times more slowly. Matrices in 16 bits are read piece by piece, so that no
copy of a whole one in float32 exists.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

PIECE = 2**16  # entries that are converted at once: they stay in a core's cache


def matvec(
    m: Float[Tensor, "batch rows columns"], x: Float[Tensor, "batch columns"]
) -> Float[Tensor, "batch rows"]:
    """M x for each matrix of the batch, in the precision of ``x``. Not written for gradients."""
    if m.dtype != x.dtype:
        if not m.is_cuda and m.numel() > PIECE and not torch.compiler.is_compiling():
            out = x.new_empty(m.shape[0], m.shape[1])
            for row, matrix, vector in zip(out, m, x, strict=True):
                _converted(matrix, vector, row)
            return out
        m = m.to(x.dtype)
    return torch.bmm(x[:, None], m.mT)[:, 0]


def _converted(matrix: Tensor, vector: Tensor, out: Tensor) -> None:
    """The product with a matrix of another precision, by pieces that lie together in memory."""
    rows, columns = matrix.shape
    if matrix.stride(0) == 1 and rows > 1:  # stored transposed
        step = max(1, PIECE // rows)
        out.zero_()
        for at in range(0, columns, step):
            piece = matrix[:, at : at + step].to(vector.dtype)
            torch.addmv(out, piece, vector[at : at + step], out=out)
        return
    step = max(1, PIECE // columns)
    for at in range(0, rows, step):
        torch.mv(matrix[at : at + step].to(vector.dtype), vector, out=out[at : at + step])
