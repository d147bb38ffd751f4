"""The finaliser of SplitMix64 in Triton; see ``words``."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def mix(z):
    """Of a tensor of uint64."""
    z = z.to(tl.uint64) + 0x9E3779B97F4A7C15
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)
