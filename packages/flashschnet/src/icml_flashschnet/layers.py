"""Linear layers and embeddings whose weights come from a generator, never from the global random state."""

from __future__ import annotations

import torch
from torch import nn


class _Linear(nn.Linear):
    """``nn.Linear`` that leaves its memory as it finds it."""

    def reset_parameters(self) -> None:
        """Do nothing: the caller draws the weights."""


class _Embedding(nn.Embedding):
    """``nn.Embedding`` that leaves its memory as it finds it."""

    def reset_parameters(self) -> None:
        """Do nothing: the caller draws the weights."""


def linear(n_in: int, n_out: int, generator: torch.Generator, *, bias: bool = True) -> nn.Linear:
    """A linear layer with Xavier-uniform weights and zero biases.

    Args:
        n_in: width of the input.
        n_out: width of the output.
        generator: draws the weights.
        bias: whether it has a bias.
    """
    layer = _Linear(n_in, n_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight, generator=generator)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def embedding(n_types: int, width: int, generator: torch.Generator) -> nn.Embedding:
    """An embedding with standard normal entries.

    Args:
        n_types: number of rows.
        width: their length.
        generator: draws the entries.
    """
    table = _Embedding(n_types, width)
    nn.init.normal_(table.weight, generator=generator)
    return table
