"""Inputs on which every route of the draw is compared."""

from __future__ import annotations

import math
from typing import Any

import torch

from icml_kernels.testing import Case


def arguments(
    rows: int, sites: int, symbols: int, *, spread: float = 2.0, shared: bool = False
) -> tuple[Any, ...]:
    """logits and uniform numbers."""
    g = torch.Generator().manual_seed(rows + symbols)
    logits = spread * torch.randn(1 if shared else rows, sites, symbols, generator=g, dtype=torch.float64)
    return logits, torch.rand(rows, sites, generator=g, dtype=torch.float64)


def _ruled_out() -> tuple[Any, ...]:
    logits, uniform = arguments(40, 2, 5)
    logits[:, :, 0] = -math.inf
    logits[::2, :, 4] = -math.inf
    uniform[0] = 0.0
    uniform[1] = 1 - 2**-53
    return logits, uniform


CASES = (
    Case("several sites", lambda: arguments(9, 3, 4)),
    Case("two symbols", lambda: arguments(50, 1, 2)),
    Case("one symbol", lambda: arguments(4, 2, 1)),
    Case("one row for all", lambda: arguments(60, 2, 7, shared=True)),
    Case("symbols ruled out", _ruled_out),
    Case("peaked", lambda: arguments(20, 2, 6, spread=30.0)),
    Case("no rows", lambda: arguments(0, 2, 3)),
    Case("no sites", lambda: arguments(3, 0, 3)),
    Case("more than a block", lambda: arguments(6, 2, 1500)),
)
