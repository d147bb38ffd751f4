"""Inputs on which every route of the geometric mixture is compared."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from icml_kernels.language.cases import random, ruled_out
from icml_kernels.testing import Case


def uniforms(rows: int, seed: int = 6) -> Tensor:
    """Numbers in [0, 1)."""
    return torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def arguments(rows: int, vocabulary: int, *, spread: float = 2.0) -> tuple[Any, ...]:
    """logp, logq, uniform."""
    return (
        spread * random(rows, vocabulary),
        spread * random(rows, vocabulary, seed=7),
        uniforms(rows),
    )


def _excluded() -> tuple[Any, ...]:
    # In the last row p and q exclude each other.
    p, q = ruled_out(5, 40), 2 * random(5, 40, seed=7)
    q[0, 0] = 1.0
    q[4] = torch.where(torch.isinf(p[4]), 1.0, -torch.inf)
    return p, q, uniforms(5)


def _tied() -> tuple[Any, ...]:
    p, q, u = arguments(12, 60)
    return p.round(), q.round(), u


def _coarse() -> tuple[Any, ...]:
    # Few different numbers, as 16-bit models give them: whole bins of ties.
    p, q, u = arguments(5, 3000, spread=1.0)
    return (8 * p).round() / 8, (8 * q).round() / 8, u


def _level() -> tuple[Any, ...]:
    p, _, u = arguments(4, 700)
    return torch.zeros_like(p), torch.zeros_like(p), u


def _given() -> tuple[Any, ...]:
    share = torch.tensor([0.0, 1.0, 0.5, math.nan, 0.25, math.nan], dtype=torch.float64)
    return *arguments(6, 33), share


CASES = (
    Case("several rows", lambda: arguments(9, 33)),
    Case("sigmoid", lambda: arguments(9, 33), (("mode", "sigmoid"),)),
    Case("piecewise", lambda: arguments(9, 33), (("mode", "piecewise"),)),
    Case("p alone", lambda: arguments(9, 33), (("beta", 0.0), ("temperature", 1.0))),
    Case("no cut", lambda: arguments(9, 33), (("top_p", 1.0), ("temperature", 0.7), ("beta", 1.0))),
    Case("narrow nucleus", lambda: arguments(9, 33), (("top_p", 0.2), ("beta", 0.5))),
    Case("most probable", lambda: arguments(9, 33), (("temperature", 0.0), ("beta", 0.5))),
    Case("hot", lambda: arguments(9, 33), (("temperature", 2.0), ("beta", 0.5))),
    Case("given shares", _given, (("temperature", 1.0),)),
    Case("other vocabulary", lambda: arguments(9, 33), (("log_vocabulary", 3.0),)),
    Case("one row", lambda: arguments(1, 5)),
    Case("no rows", lambda: arguments(0, 9)),
    Case("one token", lambda: arguments(4, 1)),
    Case("tokens ruled out", _excluded, (("beta", 0.7),)),
    Case("ties", _tied, (("temperature", 1.0), ("beta", 0.7))),
    Case("peaked", lambda: arguments(6, 40, spread=30.0)),
    Case("several runs of a row", lambda: arguments(4, 1500), (("temperature", 1.0),)),
    Case("flat", lambda: arguments(5, 5000, spread=0.3), (("temperature", 0.7),)),
    Case("flat and hot", lambda: arguments(5, 3000, spread=0.1), (("temperature", 5.0), ("top_p", 0.999))),
    Case("a nucleus of all", lambda: arguments(5, 800), (("temperature", 1.0), ("top_p", 1 - 1e-12))),
    Case("coarse", _coarse, (("temperature", 1.0), ("beta", 0.5))),
    Case("level", _level, (("temperature", 0.5), ("top_p", 0.37))),
)
