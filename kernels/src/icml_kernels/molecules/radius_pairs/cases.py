"""Systems on which every route of the neighbour list is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.molecules.cases import random
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.testing import Case

CUTOFF = 3.0


def arguments(*sizes: int, spread: float = 2.0) -> tuple[Any, ...]:
    """pos, ptr and cutoff of random replicas."""
    ptr = torch.cat((torch.zeros(1, dtype=torch.int64), torch.tensor(sizes, dtype=torch.int64).cumsum(0)))
    return spread * random(int(ptr[-1]), 3), ptr, CUTOFF


def rows_of(pairs: HalfList, shift: Tensor | None) -> list[tuple[int, ...]]:
    """(i, j, S) of every pair, in the order of the list."""
    n = int(pairs.ptr[-1])
    i, j = (part[:n] for part in pairs.ij())
    shift = torch.zeros(n, 3, dtype=torch.int64) if shift is None else shift[:n].long()
    return [tuple(row) for row in torch.cat((i[:, None], j[:, None], shift), 1).tolist()]


CASES = (
    Case("three replicas", lambda: arguments(20, 1, 33)),
    Case("longer than a block", lambda: arguments(140, spread=4.0)),
    Case("with a skin", lambda: arguments(25, 25), (("skin", 0.7),)),
    Case("spare places", lambda: arguments(25, 9), (("capacity", 700),)),
    Case("grown places", lambda: arguments(25, 9), (("capacity", 3),)),
    Case("far apart", lambda: arguments(12, spread=100.0)),
    Case("empty replicas", lambda: arguments(0, 5, 0)),
    Case("no beads", lambda: arguments()),
    Case(
        "periodic",
        lambda: arguments(8, 30),
        (("cell", torch.tensor([[5.0, 0, 0], [1, 6, 0], [0, -1, 4]])), ("skin", 0.2)),
    ),
)
