"""Weights in 16 bits: float32 masters, or stochastic rounding.

bfloat16 has eight significant bits: an update below 2^-9 of a weight is lost, and a retraction factor of
1.001 rounds to 1. Either a float32 copy is kept (``"fp32"``), or results are rounded up or down at random so
that their mean is right (``"stochastic"``).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

MASTERS = ("fp32", "stochastic")
_LOW_BITS = 16  # by which float32 is longer than bfloat16


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """The precision in which weights of a dtype are stepped: float64 stays, all others in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def stochastic_round(x: Float[Tensor, " *shape"], generator: torch.Generator) -> Float[Tensor, " *shape"]:
    """Round float32 to bfloat16, up with the probability that keeps the mean.

    Infinite numbers and NaN are passed on.
    """
    noise = torch.randint(0, 2**_LOW_BITS, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = x.contiguous().view(torch.int32)
    rounded = ((bits + noise) & -(2**_LOW_BITS)).view(torch.float32)
    return torch.where(x.isfinite(), rounded, x).to(torch.bfloat16)


def rounding_generator(seed: int, step: int, index: int, device: torch.device) -> torch.Generator:
    """The generator of one parameter and step: resumed runs round as uninterrupted ones do."""
    mixed = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + index * 0x94D049BB133111EB) % 2**63
    return torch.Generator(device).manual_seed(mixed)
