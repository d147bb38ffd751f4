"""Retraction and update of weights in one pass, in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor


def retract_axpy(w: Tensor, scale: Tensor, phi: Tensor, alpha: Tensor) -> Tensor:
    """scale W - alpha Phi, in the precision of W, for each matrix of the batch."""
    return scale[:, None, None] * w - alpha[:, None, None] * phi.to(w.dtype)
