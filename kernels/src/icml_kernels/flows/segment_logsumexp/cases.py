"""Inputs on which every route of the segment log-sum-exp is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.molecules.cases import random
from icml_kernels.testing import Case


def arguments(counts: tuple[int, ...], *, spare: int = 0, scale: float = 3.0) -> tuple[Any, ...]:
    """values and ptr for rows of these lengths."""
    ptr = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32)
    return random(sum(counts) + spare) * scale, ptr


CASES = (
    Case("short rows", lambda: arguments((3, 5, 1, 2))),
    Case("one long row", lambda: arguments((300,))),
    Case("many rows", lambda: arguments(tuple(1 + k % 7 for k in range(200))), large=True),
    Case("spare places", lambda: arguments((3, 1, 2), spare=6)),
    Case("wide range", lambda: arguments((4, 6), scale=20.0)),
    Case("no rows", lambda: arguments(())),
)
