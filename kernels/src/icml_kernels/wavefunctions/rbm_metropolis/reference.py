"""Metropolis chains of a restricted Boltzmann machine in plain torch: the definition, in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icml_kernels.wavefunctions.metropolis_draws.reference import draws


def log_cosh(u: Tensor) -> Tensor:
    """log cosh u = |u| + log(1 + exp(-2|u|)) - log 2, which does not overflow."""
    size = u.abs()
    return size + torch.log1p(torch.exp(-2.0 * size)) - math.log(2.0)


def log_psi(weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor, x: Tensor) -> Tensor:
    """log ψ [rows] of spins [rows, spins], in float64."""
    spins = x.double()
    angles = hidden_bias.double() + spins @ weight.double()
    return log_cosh(angles).sum(-1) + spins @ visible_bias.double()


def chains(
    weight: Tensor,
    hidden_bias: Tensor,
    visible_bias: Tensor,
    x: Tensor,
    moves: Tensor,
    chain: Tensor,
    step: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Proposal after proposal, all chains at once."""
    w, a = weight.double(), visible_bias.double()
    spins = x.double()
    angles = hidden_bias.double() + spins @ w
    accepted = torch.zeros_like(chain)
    rows = torch.arange(len(x), device=x.device)
    for s in range(n_steps):
        move, log_uniform = draws(chain, seed, step + s, 1, len(moves), 0)
        first, second = moves[move[0]].long().unbind(1)
        alone = second < 0
        other = second.clamp(min=0)
        of_first = spins[rows, first]
        of_second = torch.where(alone, 0.0, spins[rows, other])
        change = -2.0 * (of_first[:, None] * w[first] + of_second[:, None] * w[other])
        gain = (log_cosh(angles + change) - log_cosh(angles)).sum(-1)
        gain = gain - 2.0 * (of_first * a[first] + of_second * a[other])
        takes = (alone | (of_first != of_second)) & (log_uniform[0] < 2.0 * gain)
        angles = torch.where(takes[:, None], angles + change, angles)
        spins[rows, first] = torch.where(takes, -of_first, of_first)
        spins[rows, other] = torch.where(takes & ~alone, -of_second, spins[rows, other])
        accepted = accepted + takes
    new = spins.to(x.dtype)
    return new, log_psi(weight, hidden_bias, visible_bias, new), accepted
