"""Oracles that the tests share: exact conditionals of an enumerated law, as a masked model."""

from __future__ import annotations

import itertools

import torch
from icml_discrete_samplers.networks import MaskedModel


class ExactConditionals(MaskedModel):
    """p(x_i | revealed sites) of an enumerated law, by summing it; the ideal network."""

    def __init__(self, log_prob: torch.Tensor, D: int, V: int) -> None:
        super().__init__(D, V)
        self.law = torch.nn.Parameter(log_prob.exp())
        self.states = all_states(D, V)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        fits = ((x[:, None] == self.V) | (x[:, None] == self.states)).all(-1)
        mass = fits * self.law
        shows = self.states[:, :, None] == torch.arange(self.V)
        return torch.einsum("ns,siv->niv", mass, shows.double()).log()


def all_states(D: int, V: int) -> torch.Tensor:
    """Every state, the first site the most significant digit."""
    return torch.tensor(list(itertools.product(range(V), repeat=D)))


def standard_error(values: torch.Tensor) -> float:
    """Of the mean."""
    return float(values.double().std() / len(values) ** 0.5)
