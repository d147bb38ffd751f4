"""Metropolis-Hastings by balls of Hamming's distance on a sparse energy, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.lattices.words import chain_keys, high, low, mix, uniform


def log_density(
    x: Tensor, term_ptr: Tensor, term_sites: Tensor, coefficients: Tensor, values: Tensor, equal: bool
) -> Tensor:
    """Sum over terms of the coefficient times the product of its sites' values, or times [all symbols
    equal].
    """
    total = coefficients.new_zeros(x.shape[0])
    bounds = term_ptr.tolist()
    for t in range(len(bounds) - 1):
        shown = x[:, term_sites[bounds[t] : bounds[t + 1]]]
        factor = (shown == shown[:, :1]).all(1).double() if equal else values[shown].prod(1)
        total = total + coefficients[t] * factor
    return total


def chains(
    x: Tensor,
    beta: Tensor,
    term_ptr: Tensor,
    term_sites: Tensor,
    coefficients: Tensor,
    site_ptr: Tensor,
    site_terms: Tensor,
    values: Tensor,
    equal: bool,
    radius: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Propose, compare, accept; see ``hamming_ball_mh``."""
    state = x.clone()
    n, sites = x.shape
    symbols = values.shape[0]
    rows = torch.arange(n, device=x.device)
    keys = chain_keys(seed, n, x.device)
    terms = (term_ptr, term_sites, coefficients, values, equal)
    gained = torch.zeros(n, dtype=torch.float64, device=x.device)
    moved = torch.zeros(n, dtype=torch.int64, device=x.device)
    own = log_density(state, *terms)
    for step in range(n_steps):
        key = mix(keys + step)
        proposed = state.clone()
        for j in range(radius):
            word = mix(key + j)
            site = (high(word) * sites) >> 32
            shift = 1 + ((low(word) * (symbols - 1)) >> 32)
            proposed[rows, site] = (proposed[rows, site] + shift) % symbols
        other = log_density(proposed, *terms)
        accept = uniform(mix(key + radius)) < torch.exp((beta * (other - own)).clamp(max=0.0))
        moved += accept & (proposed != state).any(1)
        gained += torch.where(accept, other - own, 0.0)
        state = torch.where(accept[:, None], proposed, state)
        own = torch.where(accept, other, own)
    return state, gained, moved
