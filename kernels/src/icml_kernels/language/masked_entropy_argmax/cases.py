"""Inputs on which every route of the scores of chosen rows is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.language.cases import random, ruled_out
from icml_kernels.testing import Case


def arguments(rows: int, vocabulary: int, chosen: tuple[int, ...], *, spread: float = 2.0) -> tuple[Any, ...]:
    """logits, rows."""
    return spread * random(rows, vocabulary), torch.tensor(chosen, dtype=torch.int64)


def _ruled_out() -> tuple[Any, ...]:
    return ruled_out(5, 40), torch.tensor([0, 3, 4])


CASES = (
    Case("several rows", lambda: arguments(7, 33, (5, 0, 2, 6))),
    Case("one row", lambda: arguments(1, 4, (0,))),
    Case("no row chosen", lambda: arguments(3, 9, ())),
    Case("a row twice", lambda: arguments(4, 9, (2, 1, 2))),
    Case("one token", lambda: arguments(4, 1, (1, 3))),
    Case("sharpened", lambda: arguments(6, 21, (1, 2, 4)), (("temperature", 0.3),)),
    Case("flattened", lambda: arguments(6, 21, (1, 2, 4)), (("temperature", 3.0),)),
    Case("a token excluded", lambda: arguments(6, 21, (1, 2, 4)), (("exclude", 3),)),
    Case("the last token excluded", lambda: arguments(6, 1025, (1, 2)), (("exclude", 1024),)),
    Case("a token in the middle excluded", lambda: arguments(6, 1500, (1, 2)), (("exclude", 700),)),
    Case("tokens ruled out", _ruled_out),
    Case("peaked", lambda: arguments(6, 40, (5, 1), spread=30.0)),
    Case("several runs of a row", lambda: arguments(4, 1500, (3, 1))),
)
