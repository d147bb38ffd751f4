"""The adjoint of sparse factors solved against a block, in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor


def forward(
    l_data: Tensor,
    l_indices: Tensor,
    l_indptr: Tensor,
    u_data: Tensor,
    u_indices: Tensor,
    u_indptr: Tensor,
    diagonal: Tensor,
    order: Tensor,
    b: Tensor,
) -> Tensor:
    """Y with U^H Y = P B from the first row on, then P X with L^H P X = Y from the last row back."""
    x = b[order.long()]
    starts, stops = u_indptr.tolist(), u_indptr.tolist()[1:]
    for i, stop in enumerate(stops):
        own = slice(starts[i], stop)
        x[i] = _less(x, i, u_indices[own].long(), u_data[own]) / diagonal[i].conj()
    starts, stops = l_indptr.tolist(), l_indptr.tolist()[1:]
    for i in reversed(range(len(stops))):
        own = slice(starts[i], stops[i])
        x[i] = _less(x, i, l_indices[own].long(), l_data[own])
    out = b.new_empty(b.shape[1], b.shape[0]).T
    out[order.long()] = x
    return out


def _less(x: Tensor, i: int, rows: Tensor, values: Tensor) -> Tensor:
    """Row i less the others of its column of the factor."""
    others = rows != i
    return x[i] - values[others].conj() @ x[rows[others]]
