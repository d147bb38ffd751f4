"""Retraction and update on the CPU."""

from __future__ import annotations

from torch import Tensor


def retract_axpy(w: Tensor, scale: Tensor, phi: Tensor, alpha: Tensor) -> Tensor:
    """See ``reference.retract_axpy``; the second factor is added without a product of its own."""
    return (w * scale[:, None, None]).addcmul_(phi.to(w.dtype), alpha[:, None, None], value=-1.0)
