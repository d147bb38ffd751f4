"""Sparse times block on the CPU: a thread owns its rows, and reads whole rows of the block."""

from __future__ import annotations

from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads


def forward(data: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Tensor:
    """See ``reference.forward``."""
    out = x.new_zeros(indptr.shape[0] - 1, x.shape[1])
    bounds = indptr.contiguous().numpy()
    shares = balanced_rows(bounds, threads())
    _multiply(
        shares,
        bounds,
        indices.contiguous().numpy(),
        data.contiguous().numpy(),
        x.contiguous().numpy(),
        out.numpy(),
    )
    return out


def transposed(data: Tensor, indices: Tensor, indptr: Tensor, y: Tensor, columns: int) -> Tensor:
    """See ``reference.transposed``."""
    out = y.new_zeros(columns, y.shape[1])
    _scatter(
        indptr.contiguous().numpy(),
        indices.contiguous().numpy(),
        data.contiguous().numpy(),
        y.contiguous().numpy(),
        out.numpy(),
    )
    return out


def sampled(indices: Tensor, indptr: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """See ``reference.sampled``."""
    out = y.new_empty(indices.shape[0])
    bounds = indptr.contiguous().numpy()
    shares = balanced_rows(bounds, threads())
    _dots(
        shares,
        bounds,
        indices.contiguous().numpy(),
        y.contiguous().numpy(),
        x.contiguous().numpy(),
        out.numpy(),
    )
    return out


@njit(parallel=True)
def _multiply(shares, indptr, indices, data, x, out):
    for s in prange(len(shares) - 1):
        for i in range(shares[s], shares[s + 1]):
            for p in range(indptr[i], indptr[i + 1]):
                j, value = indices[p], data[p]
                for c in range(x.shape[1]):
                    out[i, c] += value * x[j, c]


@njit
def _scatter(indptr, indices, data, y, out):
    for i in range(len(indptr) - 1):
        for p in range(indptr[i], indptr[i + 1]):
            j, value = indices[p], data[p]
            for c in range(y.shape[1]):
                out[j, c] += value * y[i, c]


@njit(parallel=True)
def _dots(shares, indptr, indices, y, x, out):
    for s in prange(len(shares) - 1):
        for i in range(shares[s], shares[s + 1]):
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                total = y.dtype.type(0)
                for c in range(y.shape[1]):
                    total += y[i, c] * x[j, c]
                out[p] = total
