"""Machines and states on which every route of this family is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.testing import Case
from icml_kernels.wavefunctions.rbm_metropolis import single_flips


def machine(n_spins: int, n_hidden: int, scale: float = 0.3, seed: int = 3) -> list[Tensor]:
    """weight, hidden_bias and visible_bias of a random machine, in float64."""
    g = torch.Generator().manual_seed(seed)
    shapes = ((n_spins, n_hidden), (n_hidden,), (n_spins,))
    return [scale * torch.randn(*shape, generator=g, dtype=torch.float64) for shape in shapes]


def spins(rows: int, n_spins: int, seed: int = 5) -> Tensor:
    """Random spins ±1."""
    g = torch.Generator().manual_seed(seed)
    return (2 * torch.randint(0, 2, (rows, n_spins), generator=g) - 1).to(torch.int8)


def pairs(n_spins: int) -> Tensor:
    """Neighbours in a ring."""
    sites = torch.arange(n_spins, dtype=torch.int32)
    return torch.stack((sites, (sites + 1) % n_spins), 1)


def walk(n_spins: int, n_hidden: int, rows: int, **options: Any) -> tuple[Any, ...]:
    """Arguments of ``rbm_metropolis``, and its options."""
    moves = {"flips": single_flips(n_spins), "pairs": pairs(n_spins)}
    chosen = options.pop("moves", "flips")
    both = torch.cat((moves["flips"], moves["pairs"]))
    parameters = machine(n_spins, n_hidden, options.pop("scale", 0.3))
    given = {"n_steps": 60, "seed": 7, "step": 0, "dtype": torch.float64, **options}
    return (*parameters, spins(rows, n_spins), moves.get(chosen, both)), given


WALKS = (
    Case("flips", lambda: walk(7, 5, 3)),
    Case("more hidden units than a block", lambda: walk(10, 37, 4, n_steps=40)),
    Case("exchanges", lambda: walk(8, 6, 5, moves="pairs")),
    Case("flips and exchanges", lambda: walk(6, 9, 3, moves="both", n_steps=90)),
    Case("from an odd step on", lambda: walk(6, 4, 2, step=2**33 + 5, seed=2**62 + 9)),
    Case("longer than a refresh", lambda: walk(3, 4, 2, n_steps=300), large=True),
    Case("weights that need several products", lambda: walk(6, 40, 2, scale=3.0, n_steps=30)),
    Case("one spin, one unit", lambda: walk(1, 1, 2)),
    Case("no hidden units", lambda: walk(4, 0, 2)),
    Case("no chains", lambda: walk(4, 3, 0)),
    Case("no steps", lambda: walk(4, 3, 2, n_steps=0)),
)


def masks(n_spins: int, n_hidden: int, rows: int, which: list[list[int]], scale: float = 0.3) -> tuple:
    """Arguments of ``rbm_log_ratios``."""
    ptr = torch.tensor([0, *torch.tensor([len(m) for m in which]).cumsum(0).tolist()])
    sites = torch.tensor([i for mask in which for i in mask], dtype=torch.int64)
    return (*machine(n_spins, n_hidden, scale), spins(rows, n_spins), ptr, sites)


RATIOS = (
    Case("single flips", lambda: masks(6, 9, 4, [[i] for i in range(6)])),
    Case("pairs and a chain of four", lambda: masks(7, 5, 3, [[0, 3], [2], [1, 2, 5, 6]])),
    Case("an empty mask", lambda: masks(5, 4, 2, [[], [4], []])),
    Case("more hidden units than a block", lambda: masks(8, 41, 2, [[0], [3, 1]])),
    Case("weights that need several products", lambda: masks(6, 40, 2, [[0, 1, 2], [5]], 3.0)),
    Case("no masks", lambda: masks(4, 3, 2, [])),
    Case("no rows", lambda: masks(4, 3, 0, [[0]])),
)
