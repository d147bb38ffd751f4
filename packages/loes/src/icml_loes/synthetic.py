"""Layers like a transformer's, of any shape, for tests, claims and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor


def layers_like_a_transformer(
    n: int, dims: Sequence[int], classes: int = 4, seed: int = 0
) -> tuple[list[Float[Tensor, "n dim"]], Int[Tensor, " n"]]:
    """Independent layers with spectra that decay, class means that come and go, and a common mean;
    float64."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n)[torch.randperm(n, generator=g)] % classes
    found = []
    for layer, dim in enumerate(dims):
        spectrum = torch.arange(1, dim + 1, dtype=torch.float64).pow(-0.6 + 0.08 * layer)
        x = torch.randn(n, dim, generator=g, dtype=torch.float64) * spectrum
        centre = torch.randn(classes, dim, generator=g, dtype=torch.float64) * spectrum
        found.append(x + (0.2 + 0.3 * (layer % 3)) * centre[labels] + 0.4)
    return found, labels


def residual_stream(
    n: int, layers: int, dim: int, classes: int, seed: int
) -> tuple[Float[Tensor, "n layers dim"], Int[Tensor, " n"]]:
    """A state that grows from layer to layer, with class means strongest at 60 % of the depth; float32."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    spectrum = torch.arange(1, dim + 1, dtype=torch.float32).pow(-0.5)
    x = torch.randn(n, dim, generator=g) * spectrum
    found = []
    for layer in range(layers):
        centre = torch.randn(classes, dim, generator=g) * spectrum
        strength = 0.6 * torch.exp(torch.tensor(-((layer / layers - 0.6) ** 2) / 0.08))
        x = x + 0.5 * torch.randn(n, dim, generator=g) * spectrum.roll(3 * layer) + strength * centre[labels]
        found.append(x + 0.3)
    return torch.stack(found, 1), labels
