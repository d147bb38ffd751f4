"""Trace and squared Frobenius norm of covariances, and their gradient, in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor


def moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor, Tensor]:
    """tr C, ||C||_F^2 and the smaller Gram matrix, C = X^T X / (rows - correction) with centred columns.

    ||X^T X||_F = ||X X^T||_F, so that the smaller of the two products is enough.
    """
    centred = x - x.mean(1, keepdim=True)
    divisor = x.shape[1] - correction
    gram = centred @ centred.mT if x.shape[1] <= x.shape[2] else centred.mT @ centred
    trace = gram.diagonal(dim1=1, dim2=2).sum(1) / divisor
    return trace, gram.square().sum((1, 2)) / divisor**2, gram


def gradient(x: Tensor, gram: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Tensor:
    """2 a X / m + 4 b X C / m, for the gradients a by the trace and b by the square, m = rows -
    correction."""
    centred = x - x.mean(1, keepdim=True)
    divisor = x.shape[1] - correction
    product = gram @ centred if x.shape[1] <= x.shape[2] else centred @ gram
    return (2 / divisor) * by_trace[:, None, None] * centred + (4 / divisor**2) * by_square[
        :, None, None
    ] * product


def hessian_product(x: Tensor, along: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Tensor:
    """Derivative of ``gradient`` by x along a direction; the Hessian is symmetric."""
    centred = x - x.mean(1, keepdim=True)
    step = along - along.mean(1, keepdim=True)
    divisor = x.shape[1] - correction
    if x.shape[1] <= x.shape[2]:
        inner = centred @ centred.mT @ step + (step @ centred.mT + centred @ step.mT) @ centred
    else:
        inner = step @ (centred.mT @ centred) + centred @ (step.mT @ centred + centred.mT @ step)
    return (2 / divisor) * by_trace[:, None, None] * step + (4 / divisor**2) * by_square[
        :, None, None
    ] * inner
