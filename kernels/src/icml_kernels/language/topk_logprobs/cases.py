"""Inputs on which every route of the most probable tokens is compared."""

from __future__ import annotations

from typing import Any

from icml_kernels.language.cases import head, random
from icml_kernels.testing import Case


def arguments(rows: int, features: int, vocabulary: int, *, spread: float = 1.0) -> tuple[Any, ...]:
    """hidden, weight, bias."""
    return head(rows, features, vocabulary, spread=spread)


def _k(k: int) -> tuple[tuple[str, Any], ...]:
    return (("k", k),)


CASES = (
    Case("several rows", lambda: arguments(7, 5, 33), _k(4)),
    Case("one", lambda: arguments(7, 5, 33), _k(1)),
    Case("the whole vocabulary", lambda: arguments(3, 5, 9), _k(9)),
    Case("one row", lambda: arguments(1, 4, 3), _k(2)),
    Case("no rows", lambda: arguments(0, 4, 9), _k(2)),
    Case("logits", lambda: (3 * random(6, 50), None, None), _k(7)),
    Case(
        "capped",
        lambda: arguments(6, 4, 21, spread=3.0),
        (*_k(3), ("softcap", 3.0), ("logit_scale", 0.6), ("temperature", 0.7)),
    ),
    Case("peaked", lambda: arguments(6, 4, 40, spread=20.0), _k(5)),
    Case("several runs of a row", lambda: arguments(3, 4, 1500), _k(20)),
)
