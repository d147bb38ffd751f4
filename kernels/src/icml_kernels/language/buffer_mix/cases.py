"""Inputs on which every route of mixtures of stored distributions is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.language.cases import random, ruled_out
from icml_kernels.testing import Case


def arguments(rows: int, vocabulary: int, index: list[list[int]], *, spread: float = 2.0) -> tuple[Any, ...]:
    """log-probabilities, weights, index."""
    logp = torch.log_softmax(spread * random(rows, vocabulary), dim=1)
    chosen = torch.tensor(index, dtype=torch.int64).reshape(len(index), -1)
    return logp, random(*chosen.shape, seed=5).abs() + 0.1, chosen


def _ruled_out() -> tuple[Any, ...]:
    logp = torch.log_softmax(ruled_out(5, 40), dim=1)
    return logp, random(2, 3, seed=5).abs(), torch.tensor([[0, 1, 2], [4, 3, -1]])


CASES = (
    Case("three contexts", lambda: arguments(6, 33, [[0, 2, 4], [5, 1, 3]])),
    Case("members that are not there", lambda: arguments(6, 33, [[0, -1, 4], [5, -1, -1], [2, 1, 0]])),
    Case("a row twice", lambda: arguments(4, 9, [[1, 1], [2, 1]])),
    Case("one token", lambda: arguments(4, 1, [[0, 3]])),
    Case("no group", lambda: (*arguments(4, 9, [[0, 1]])[:1], random(0, 2), torch.zeros(0, 2).long())),
    Case("tokens ruled out", _ruled_out),
    Case("peaked", lambda: arguments(4, 40, [[0, 1], [2, 3]], spread=30.0)),
    Case("several runs of a row", lambda: arguments(5, 1500, [[0, 1, 2], [4, 3, 2]])),
)
