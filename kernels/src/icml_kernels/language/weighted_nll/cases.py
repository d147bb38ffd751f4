"""Inputs on which every route of the weighted loss is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.language.cases import head, random, ruled_out, tokens
from icml_kernels.language.weighted_nll.weights import KINDS
from icml_kernels.testing import Case


def arguments(
    rows: int,
    features: int,
    vocabulary: int,
    *,
    ignored: int = 0,
    with_bias: bool = True,
    spread: float = 1.0,
) -> tuple[Any, ...]:
    """hidden, weight, targets, token_weight, bias."""
    hidden, weight, bias = head(rows, features, vocabulary, with_bias=with_bias, spread=spread)
    return hidden, weight, tokens(rows, vocabulary, ignored=ignored), _fixed_weights(rows), bias


def _fixed_weights(rows: int) -> torch.Tensor:
    return random(rows, seed=5).abs()


def _ruled_out() -> tuple[Any, ...]:
    # The last two targets are ruled out: log p = -inf, and no weight.
    return ruled_out(5, 40), None, torch.tensor([0, 3, 6, 1, 4]), _fixed_weights(5), None


IDFT = (("kind", "idft"),)
CAPPED = (*IDFT, ("softcap", 3.0), ("logit_scale", 0.6), ("temperature", 0.7))
PARTLY = (*IDFT, ("mix", 0.3), ("gamma_start", 0.0), ("standardized", True), ("beta", 1.4))

CASES = (
    *(Case(kind, lambda: arguments(7, 5, 33, ignored=2), (("kind", kind),)) for kind in KINDS),
    Case("partly in force", lambda: arguments(9, 4, 20), PARTLY),
    Case("normalizer", lambda: arguments(9, 4, 20, ignored=3), (*IDFT, ("normalizer", 17.0))),
    Case("no bias", lambda: arguments(7, 5, 32, with_bias=False), IDFT),
    Case("one row", lambda: arguments(1, 4, 3), IDFT),
    Case("no rows", lambda: arguments(0, 4, 9), IDFT),
    Case("one token", lambda: arguments(4, 3, 1), (("kind", "eaft"),)),
    Case("every row ignored", lambda: arguments(5, 4, 20, ignored=5), IDFT),
    Case("capped", lambda: arguments(6, 4, 21, spread=3.0), CAPPED),
    Case(
        "logits", lambda: (3 * random(6, 50), None, tokens(6, 50, ignored=1), _fixed_weights(6), None), IDFT
    ),
    Case("tokens ruled out", _ruled_out, IDFT),
    Case("peaked", lambda: arguments(6, 4, 40, spread=20.0), IDFT),
    Case("several runs of a row", lambda: arguments(3, 4, 1500), IDFT),
)
