"""Systems on which the operators of this family are compared over every route."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import HalfList, half_list


def clusters(
    sizes: tuple[int, ...], cutoff: float, *, seed: int = 0, spare: int = 0
) -> tuple[Tensor, HalfList]:
    """Positions of separate random clusters, and all their pairs up to 1.2 cutoffs.

    The distances reach from close contacts to beyond the cutoff. ``spare`` places follow the pairs.
    """
    generator = torch.Generator().manual_seed(seed)
    n_atoms = sum(sizes)
    side = torch.repeat_interleave(
        torch.tensor([cutoff * n ** (1 / 3) / 2 for n in sizes]), torch.tensor(sizes)
    )
    positions = torch.rand(n_atoms, 3, generator=generator, dtype=torch.float64) * side.double()[:, None]
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    i, j = torch.triu_indices(n_atoms, n_atoms, 1)
    near = (owner[i] == owner[j]) & ((positions[i] - positions[j]).norm(dim=1) < 1.2 * cutoff)
    pairs = half_list(i[near], j[near], n_atoms)
    assert isinstance(pairs, HalfList)
    return positions, with_spare_places(pairs, spare)


def with_spare_places(pairs: HalfList, spare: int) -> HalfList:
    """The same list with places that hold no pair."""
    zeros = pairs.idx.new_zeros(spare)
    idx, idx_t, pair_t = (torch.cat([t, zeros]) for t in (pairs.idx, pairs.idx_t, pairs.pair_t))
    return HalfList(pairs.ptr, idx, pairs.ptr_t, idx_t, pair_t)


def random(*shape: int, seed: int = 1) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def distances(positions: Tensor, pairs: HalfList, fill: float = 0.7) -> Tensor:
    """Distance of each pair, and any number at the spare places."""
    i, j = pairs.ij()
    r = (positions[i] - positions[j]).norm(dim=1)
    return torch.where(torch.arange(len(r)) < pairs.ptr[-1], r, fill)
