"""Inputs on which every route of the token statistics is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.language.cases import head, random, ruled_out, tokens
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
    """hidden, targets, weight, bias."""
    hidden, weight, bias = head(rows, features, vocabulary, with_bias=with_bias, spread=spread)
    return hidden, tokens(rows, vocabulary, ignored=ignored), weight, bias


def _ruled_out() -> tuple[Any, ...]:
    return ruled_out(5, 40), torch.tensor([0, 3, 6, 9, 12]), None, None


CAPPED = (("softcap", 3.0), ("logit_scale", 0.6), ("temperature", 0.7))

CASES = (
    Case("several rows", lambda: arguments(7, 5, 33)),
    Case("no bias", lambda: arguments(7, 5, 32, with_bias=False)),
    Case("one row", lambda: arguments(1, 4, 3)),
    Case("no rows", lambda: arguments(0, 4, 9)),
    Case("one token", lambda: arguments(4, 3, 1)),
    Case("ignored rows", lambda: arguments(9, 4, 20, ignored=4)),
    Case("every row ignored", lambda: arguments(5, 4, 20, ignored=5)),
    Case("scaled", lambda: arguments(6, 4, 21), (("temperature", 1.7), ("logit_scale", 0.4))),
    Case("capped", lambda: arguments(6, 4, 21, spread=3.0), CAPPED),
    Case("logits", lambda: (3 * random(6, 50), tokens(6, 50, ignored=1), None, None)),
    Case("logits, capped", lambda: (3 * random(6, 50), tokens(6, 50), None, None), CAPPED),
    Case("tokens ruled out", _ruled_out),
    Case("peaked", lambda: arguments(6, 4, 40, spread=20.0)),
    Case("several runs of a row", lambda: arguments(3, 4, 1500, ignored=1)),
)
