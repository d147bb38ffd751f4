"""Inputs on which every route of the segment sum is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.molecules.cases import random
from icml_kernels.testing import Case


def arguments(counts: tuple[int, ...], features: int | None, *, spare: int = 0) -> tuple[Any, ...]:
    """values and ptr for rows of these lengths."""
    ptr = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32)
    places = sum(counts) + spare
    return random(places) if features is None else random(places, features), ptr


CASES = (
    *(Case(f"width {f}", lambda f=f: arguments((3, 0, 5, 1), f)) for f in (1, 3, 8, 96, 128, 200, 256)),
    Case("numbers", lambda: arguments((3, 0, 5, 1), None)),
    Case("one long row", lambda: arguments((500,), 4)),
    Case("many rows", lambda: arguments(tuple(k % 7 for k in range(200)), 4), large=True),
    Case("spare places", lambda: arguments((3, 0, 2), 4, spare=6)),
    Case("empty rows alone", lambda: arguments((0, 0), 4)),
    Case("no rows", lambda: arguments((), 4)),
)
