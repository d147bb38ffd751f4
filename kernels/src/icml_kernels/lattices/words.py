"""Random words by counter: each a function of seed, chain, step and place alone, the same on every device.

``mix`` is the finaliser of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014); a word is ``mix(mix(mix(mix(seed) + chain) + step) + place)``.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
HALF = 0xFFFFFFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _shifted(z: Tensor, by: int) -> Tensor:
    return (z >> by) & ((1 << (64 - by)) - 1)


def mix(z: Tensor) -> Tensor:
    """The finaliser of SplitMix64 on 64-bit words kept in int64; products wrap."""
    z = z + _signed(GAMMA)
    z = (z ^ _shifted(z, 30)) * _signed(FIRST)
    z = (z ^ _shifted(z, 27)) * _signed(SECOND)
    return z ^ _shifted(z, 31)


def chain_keys(seed: int, chains: int, device: torch.device) -> Tensor:
    """mix(mix(seed) + chain), for every chain."""
    start = mix(torch.tensor(_signed(seed % (1 << 64)), device=device))
    return mix(start + torch.arange(chains, device=device))


def low(word: Tensor) -> Tensor:
    """The lower 32 bits."""
    return word & HALF


def high(word: Tensor) -> Tensor:
    """The upper 32 bits."""
    return (word >> 32) & HALF


def uniform(word: Tensor) -> Tensor:
    """The upper 53 bits as a number in [0, 1)."""
    return _shifted(word, 11).double() * 2.0**-53


def threshold(probability: float) -> int:
    """A 32-bit word is below it with this probability."""
    return round(probability * 2.0**32)
