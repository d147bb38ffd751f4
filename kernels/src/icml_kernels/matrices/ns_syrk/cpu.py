"""The symmetric product of a Newton-Schulz step on the CPU: one call of BLAS, the sum inside it."""

from __future__ import annotations

import torch
from torch import Tensor


def ns_syrk(x: Tensor, alpha: float, beta: float, c: Tensor | None) -> Tensor:
    """See ``reference.ns_syrk``."""
    if c is None:
        product = torch.bmm(x, x.mT)
        return product if alpha == 1.0 else product.mul_(alpha)
    return torch.baddbmm(c, x, x.mT, beta=beta, alpha=alpha)
