"""The learning rate: constant, or falling along a cosine to a hundredth."""

from __future__ import annotations

import math

import torch

LAST = 0.01  # of the first rate, at the end


def set_rate(optimizer: torch.optim.Optimizer, lr: float, step: int, decay_steps: int | None) -> None:
    """Put the rate of a step into all groups; None: nothing falls.

    Args:
        optimizer: whose groups are set.
        lr: the first rate.
        step: steps done.
        decay_steps: after so many it has fallen.
    """
    if decay_steps is None:
        return
    part = min(1.0, step / decay_steps)
    for group in optimizer.param_groups:
        group["lr"] = lr * (LAST + (1 - LAST) * 0.5 * (1 + math.cos(math.pi * part)))
