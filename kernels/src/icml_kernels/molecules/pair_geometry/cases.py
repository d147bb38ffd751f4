"""Inputs on which every route of the pair geometry is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.molecules.cases import clusters, random
from icml_kernels.molecules.neighbors import half_list
from icml_kernels.testing import Case


def arguments(sizes: tuple[int, ...] = (9, 5), *, shifted: bool = False, spare: int = 0) -> tuple[Any, ...]:
    """positions, pairs and, on demand, a shift of every pair."""
    positions, pairs = clusters(sizes, 4.0, spare=spare)
    return (positions, pairs, random(pairs.capacity, 3)) if shifted else (positions, pairs)


def _no_pairs() -> tuple[Any, ...]:
    none = torch.zeros(0, dtype=torch.int64)
    return random(3, 3), half_list(none, none, 3)


def _coincident() -> tuple[Any, ...]:
    positions = torch.tensor([[0.0, 0, 0], [0, 0, 0], [1, 2, 2]], dtype=torch.float64)
    return positions, half_list(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), 3)


CASES = (
    Case("two clusters", arguments),
    Case("one large cluster", lambda: arguments((120,)), large=True),
    Case("shifted", lambda: arguments(shifted=True)),
    Case("shifted, spare places", lambda: arguments(shifted=True, spare=7)),
    Case("many clusters and lone atoms", lambda: arguments((7, 1, 6, 1, 1, 8, 5, 2))),
    Case("no pairs", _no_pairs),
    Case("two atoms at one place", _coincident),
)
