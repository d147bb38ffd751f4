"""Swendsen-Wang sweeps in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.lattices.words import chain_keys, high, low, mix, threshold


def sweeps(
    spins: Tensor, p: float, q: int, n_sweeps: int, seed: int, ghost: float, ghost_state: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Bonds, clusters and new states, sweep after sweep; see ``swendsen_wang``."""
    chains, rows, cols = spins.shape
    state = spins.long().clone()
    keys = chain_keys(seed, chains, spins.device)
    places = torch.arange(rows * cols, device=spins.device)
    clusters = torch.zeros(chains, dtype=torch.int64, device=spins.device)
    squares = torch.zeros(chains, dtype=torch.int64, device=spins.device)
    for sweep in range(n_sweeps):
        key = mix(keys + sweep)
        word = mix(mix(key)[:, None] + places).view(chains, rows, cols)
        right = (state == state.roll(-1, 2)) & (low(word) < threshold(p))
        down = (state == state.roll(-1, 1)) & (high(word) < threshold(p))
        label = _components(right, down)
        size = torch.zeros(chains, rows * cols, dtype=torch.int64, device=spins.device)
        size.scatter_add_(1, label, torch.ones_like(label))
        clusters += (size > 0).sum(1)
        squares += (size * size).sum(1)
        drawn = (high(mix(mix(key + 1)[:, None] + label)) * q) >> 32
        if ghost > 0:
            held = low(mix(mix(key + 2)[:, None] + places)) < threshold(ghost)
            held &= state.view(chains, rows * cols) == ghost_state
            kept = torch.zeros_like(size).scatter_add_(1, label, held.long()) > 0
            drawn = torch.where(kept.gather(1, label), ghost_state, drawn)
        state = drawn.view(chains, rows, cols)
    return state.to(spins.dtype), clusters, squares


def _components(right: Tensor, down: Tensor) -> Tensor:
    """For every site the least index of its cluster."""
    chains, rows, cols = right.shape
    label = torch.arange(rows * cols, device=right.device).expand(chains, -1).reshape(chains, rows, cols)
    while True:
        best = label
        for bond, axis in ((right, 2), (down, 1)):
            best = torch.minimum(best, torch.where(bond, best.roll(-1, axis), best))
            best = torch.minimum(best, torch.where(bond.roll(1, axis), best.roll(1, axis), best))
        flat = best.reshape(chains, rows * cols)
        best = flat.gather(1, flat).view(chains, rows, cols)
        if torch.equal(best, label):
            return label.reshape(chains, rows * cols)
        label = best
