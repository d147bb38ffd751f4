"""Several processes as one training: each sees its share of the windows, gradients are averaged, counts are
summed.

Everything here does nothing where ``torch.distributed`` is not initialised, or there is one process.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from jaxtyping import Shaped
from torch import Tensor

BUCKET = 1 << 25
"""Elements that are averaged in one message."""


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def process() -> int:
    """The number of this one, from 0."""
    return dist.get_rank() if processes() > 1 else 0


def own_share(windows: Shaped[Tensor, "size window"]) -> Shaped[Tensor, "share window"]:
    """The windows of this process.

    Raises:
        ValueError: the windows cannot be shared evenly.
    """
    if len(windows) % processes():
        raise ValueError(f"a batch of {len(windows)} windows cannot be shared by {processes()} processes")
    return windows[process() :: processes()]


def summed(value: Shaped[Tensor, "*shape"]) -> Shaped[Tensor, "*shape"]:
    """The sum over processes; the tensor itself where there is one process. Carries no gradient."""
    if processes() == 1:
        return value
    total = value.detach().clone()
    dist.all_reduce(total)
    return total


@torch.no_grad()
def average_gradients_(parameters: Iterable[Tensor]) -> None:
    """Replace each gradient by its mean over processes, in a few large messages."""
    if processes() == 1:
        return
    bucket: list[Tensor] = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if bucket and (
            sum(g.numel() for g in bucket) + parameter.grad.numel() > BUCKET
            or bucket[0].dtype != parameter.grad.dtype
        ):
            _average_(bucket)
            bucket = []
        bucket.append(parameter.grad)
    if bucket:
        _average_(bucket)


def _average_(gradients: list[Tensor]) -> None:
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= processes()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))
