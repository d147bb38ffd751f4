"""Hidden states, heads and targets on which the operators of this family are compared over every route."""

from __future__ import annotations

import torch
from torch import Tensor


def random(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(rows: int, vocabulary: int, *, ignored: int = 0, seed: int = 2) -> Tensor:
    """One token a row; the first ``ignored`` rows do not count."""
    found = torch.randint(vocabulary, (rows,), generator=torch.Generator().manual_seed(seed))
    found[:ignored] = -100
    return found


def head(
    rows: int, features: int, vocabulary: int, *, with_bias: bool = True, spread: float = 1.0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """hidden, weight and bias; the logits' standard deviation is about ``spread``."""
    hidden = random(rows, features) * spread
    weight = random(vocabulary, features, seed=3) / features**0.5
    return hidden, weight, random(vocabulary, seed=4) * spread if with_bias else None


def ruled_out(rows: int, vocabulary: int) -> Tensor:
    """Logits of which every third is -inf, and one row has a single token left."""
    x = 2 * random(rows, vocabulary)
    x[:, 1::3] = -torch.inf
    x[0, 1:] = -torch.inf
    return x
