"""Random moves and uniforms of Metropolis steps in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.langevin_baoab.reference import philox_4x32

_MASK = 0xFFFFFFFF


def draws(
    chain: Tensor, seed: int, step: int, n_steps: int, n_moves: int, stream: int
) -> tuple[Tensor, Tensor]:
    """Each counter gives four words: two for an even step, two for the odd one after it."""
    steps = torch.arange(step, step + n_steps, device=chain.device)
    pair = (steps >> 1)[:, None].expand(n_steps, len(chain))
    counter = torch.stack(
        (pair & _MASK, pair >> 32, chain.expand_as(pair), torch.full_like(pair, stream)), -1
    )
    words = philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    odd = (steps & 1).bool()[:, None]
    move = (torch.where(odd, words[..., 2], words[..., 0]) * n_moves) >> 32
    uniform = (torch.where(odd, words[..., 3], words[..., 1]).double() + 0.5) * 2.0**-32
    return move, torch.log(uniform)
