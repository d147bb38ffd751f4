"""The symmetric product of a Newton-Schulz step in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor


def ns_syrk(x: Tensor, alpha: float, beta: float, c: Tensor | None) -> Tensor:
    """alpha X X^T + beta C for each matrix of the batch."""
    product = alpha * (x @ x.mT)
    return product if c is None else product + beta * c
