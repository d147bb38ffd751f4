"""Autoregressive forecasts that are refined at every step before they are fed back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor


def rollout(
    step: Callable[[Tensor], Tensor], x: Float[Tensor, "batch frames_fields *space"], steps: int
) -> list[Float[Tensor, "batch fields *space"]]:
    """Forecasts at lead times 1 ... steps.

    The input holds frames of fields, oldest first, as in training; each forecast pushes the oldest frame out.

    Args:
        step: [batch, frames fields, *space] -> [batch, fields, *space], such as an ``IRNO`` (refined), its
            base (not refined), or ``lambda x: model(x, K=8)``.
        x: the first input.
        steps: number of lead times.

    Raises:
        ValueError: steps below 1, or a forecast whose channels do not divide the input's.

    Example:
        >>> [int(h) for h in rollout(lambda x: x[:, -1:] + x[:, -2:-1], torch.ones(1, 2, 1), 4)]
        [2, 3, 5, 8]
    """
    if steps < 1:
        raise ValueError(f"steps={steps}; expected at least 1")
    found = []
    with torch.no_grad():
        for _ in range(steps):
            h = step(x)
            fields = h.shape[1]
            if x.shape[1] % fields or h.shape[2:] != x.shape[2:]:
                raise ValueError(
                    f"a forecast of shape {list(h.shape)} cannot follow an input of shape "
                    f"{list(x.shape)}; its channels must divide the input's"
                )
            found.append(h)
            x = torch.cat([x[:, fields:], h], 1)
    return found
