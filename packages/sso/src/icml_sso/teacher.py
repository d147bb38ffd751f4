"""A small problem with known structure: a student network fits a fixed random teacher of the same shape."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

INPUTS, OUTPUTS, BATCH = 32, 8, 128

Batches = Callable[[int], tuple[Float[Tensor, "batch inputs"], Float[Tensor, "batch outputs"]]]


def teacher_task(width: int, seed: int, device: str | torch.device = "cpu") -> tuple[nn.Module, Batches]:
    """The student, and a function that gives the batch of each step.

    Args:
        width: Of the two hidden layers.
        seed: Of teacher, student and batches.
        device: Where they live.

    Raises:
        ValueError: ``width`` below 1.
    """
    if width < 1:
        raise ValueError(f"width={width}; at least 1 is needed")
    generator = torch.Generator().manual_seed(seed)
    teacher, student = (_network(width, generator).to(device) for _ in range(2))
    teacher.requires_grad_(False)

    def batches(step: int) -> tuple[Tensor, Tensor]:
        own = torch.Generator().manual_seed((seed * 1_000_003 + step) % 2**63)
        x = torch.randn(BATCH, INPUTS, generator=own).to(device)
        return x, teacher(x)

    return student, batches


def _network(width: int, generator: torch.Generator) -> nn.Sequential:
    sizes = [(INPUTS, width), (width, width), (width, OUTPUTS)]
    layers: list[nn.Module] = []
    for n, m in sizes:
        layer = torch.nn.utils.skip_init(nn.Linear, n, m)
        with torch.no_grad():
            layer.weight.normal_(0.0, n**-0.5, generator=generator)
            layer.bias.zero_()
        layers += [layer, nn.GELU()]
    return nn.Sequential(*layers[:-1])
