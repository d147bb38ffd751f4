"""Inputs on which every route of the tabulated convolution is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.molecules.cases import clusters, distances, random
from icml_kernels.molecules.neighbors import half_list
from icml_kernels.testing import Case

CUTOFF = 4.0


def arguments(
    sizes: tuple[int, ...] = (9, 5),
    filters: int = 8,
    *,
    intervals: int = 16,
    r_min: float = 0.5,
    spare: int = 0,
) -> tuple[Any, ...]:
    """x, distances, pairs, table, cutoff, r_min; the table holds random numbers."""
    positions, pairs = clusters(sizes, CUTOFF, spare=spare)
    table = random(intervals + 1, 2, filters)
    table[-1] = 0
    return random(sum(sizes), filters), distances(positions, pairs), pairs, table, CUTOFF, r_min


def _no_pairs() -> tuple[Any, ...]:
    none = torch.zeros(0, dtype=torch.int64)
    return random(3, 8), random(0), half_list(none, none, 3), random(5, 2, 8), CUTOFF, 0.0


def _exactly_the_cutoff() -> tuple[Any, ...]:
    pairs = half_list(torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2]), 3)
    r = torch.tensor([CUTOFF, 0.5, CUTOFF - 1e-9], dtype=torch.float64)
    return random(3, 8), r, pairs, random(5, 2, 8), CUTOFF, 0.5


CASES = (
    *(Case(f"width {f}", lambda f=f: arguments(filters=f)) for f in (1, 8, 96, 128, 200, 256)),
    Case("one large cluster", lambda: arguments((70,), 16), large=True),
    Case("many clusters and lone atoms", lambda: arguments((7, 1, 6, 1, 1, 8, 5, 2), 8)),
    Case("table from zero", lambda: arguments(r_min=0.0)),
    Case("pairs closer than the table", lambda: arguments(r_min=2.5)),
    Case("one interval", lambda: arguments(intervals=1)),
    Case("spare places", lambda: arguments(spare=13)),
    Case("no pairs", _no_pairs),
    Case("exactly the cutoff", _exactly_the_cutoff),
    Case("no atoms", lambda: (random(0, 8), random(0), *_no_atoms(), random(5, 2, 8), CUTOFF, 0.0)),
)


def _no_atoms() -> tuple[Any, ...]:
    none = torch.zeros(0, dtype=torch.int64)
    return (half_list(none, none, 0),)
