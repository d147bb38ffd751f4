"""Inputs on which every route of the divergence from listed tokens is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.language.cases import head, random, ruled_out
from icml_kernels.testing import Case


def teacher(rows: int, vocabulary: int, k: int, *, spread: float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """idx, logp and tail of a random distribution."""
    logp, idx = torch.log_softmax(spread * random(rows, vocabulary, seed=7), dim=1).topk(k, dim=1)
    tail = 1 - logp.exp().sum(1) if k < vocabulary else torch.zeros(rows, dtype=torch.float64)
    return idx, logp, tail


def arguments(rows: int, features: int, vocabulary: int, k: int, *, spread: float = 1.0) -> tuple[Any, ...]:
    """hidden, weight, idx, logp, tail, bias."""
    hidden, weight, bias = head(rows, features, vocabulary, spread=spread)
    return hidden, weight, *teacher(rows, vocabulary, k), bias


def _unlisted_tokens_ruled_out() -> tuple[Any, ...]:
    x = ruled_out(4, 30)[1:]
    idx = torch.tensor([[0, 2, 3], [3, 6, 9], [29, 27, 0]])
    logp = torch.log_softmax(random(3, 4, seed=9), dim=1)[:, :3]
    return x, None, idx, logp, 1 - logp.exp().sum(1), None


CAPPED = (("softcap", 3.0), ("logit_scale", 0.6), ("temperature", 0.7))

CASES = (
    Case("several rows", lambda: arguments(7, 5, 33, 4)),
    Case("paper", lambda: arguments(7, 5, 33, 4), (("mode", "paper"),)),
    Case("one listed", lambda: arguments(7, 5, 32, 1)),
    Case("the whole vocabulary", lambda: arguments(3, 5, 9, 9)),
    Case("one row", lambda: arguments(1, 4, 3, 2)),
    Case("no rows", lambda: arguments(0, 4, 9, 2)),
    Case("capped", lambda: arguments(6, 4, 21, 5, spread=3.0), CAPPED),
    Case("logits", lambda: (3 * random(6, 50), None, *teacher(6, 50, 8), None)),
    Case("tokens ruled out", _unlisted_tokens_ruled_out),
    Case("peaked", lambda: arguments(6, 4, 40, 5, spread=20.0)),
    Case("several runs of a row", lambda: arguments(3, 4, 1500, 20)),
)
