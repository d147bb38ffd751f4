"""What a field is, and what stands where it has no points."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def fill_masked(
    x: Float[Tensor, "batch channels *space"], mask: Bool[Tensor, ...]
) -> Float[Tensor, "batch channels *space"]:
    """x with every point under the mask set to its channel's mean over the others, whatever stood there."""
    kept = torch.where(mask, x, 0)
    axes = tuple(range(2, x.dim()))
    count = mask.to(x.dtype).sum(axes, keepdim=True).clamp_min(1)
    return torch.where(mask, x, kept.sum(axes, keepdim=True) / count)


def as_mask(mask: Bool[Tensor, ...]) -> Bool[Tensor, "batch 1 *space"]:
    """A mask [*space] or [batch, 1, *space] as the latter; three axes with 1 in the middle are a batch."""
    batched = mask.dim() > 3 or (mask.dim() == 3 and mask.shape[1] == 1)
    return mask.bool() if batched else mask.bool()[None, None]


def check_field(name: str, x: Any) -> None:
    """Refuse what is no real field.

    Raises:
        TypeError: complex, integer, or no tensor.
        ValueError: not one to three spatial axes.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(
            f"{name} is {kind}; expected a real floating tensor [batch, channels, *space] (convert integers, "
            "and split complex fields into two channels)"
        )
    if not 3 <= x.dim() <= 5:
        raise ValueError(
            f"{name} has shape {list(x.shape)}; expected [batch, channels, *space], one to three axes"
        )
