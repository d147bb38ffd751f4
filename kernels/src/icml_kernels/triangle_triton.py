"""The tiles of a lower triangle, numbered row after row: what a symmetric product computes of its result."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def triangle_tile(tile):  # type: ignore[no-untyped-def]
    """Row i and column j <= i of a tile: i is the largest with i (i + 1) / 2 <= tile."""
    # The root may be off by one ulp.
    i = ((tl.sqrt(8.0 * tile.to(tl.float32) + 1.0) - 1.0) * 0.5).to(tl.int32)
    i = tl.where(i * (i + 1) // 2 > tile, i - 1, i)
    i = tl.where((i + 1) * (i + 2) // 2 <= tile, i + 1, i)
    return i, tile - i * (i + 1) // 2
