"""Inputs on which every route of the prefix sums is compared."""

from __future__ import annotations

from typing import Any

import torch

from icml_kernels.testing import Case


def arguments(paths: int, sites: int, symbols: int, hidden: int, sizes: tuple[int, ...]) -> tuple[Any, ...]:
    """weight, x, order and sizes; symbols do not count the mask."""
    g = torch.Generator().manual_seed(paths + sites)
    weight = torch.randn(sites, symbols + 1, hidden, generator=g, dtype=torch.float64)
    x = torch.randint(0, symbols, (paths, sites), generator=g)
    order = torch.rand(paths, sites, generator=g).argsort(1)
    return weight, x, order, torch.tensor(sizes, dtype=torch.int64)


CASES = (
    Case("one at a time", lambda: arguments(3, 5, 2, 4, (0, 1, 2, 3, 4))),
    Case("several at a time", lambda: arguments(4, 9, 3, 7, (0, 2, 3, 7))),
    Case("to the end", lambda: arguments(2, 4, 5, 3, (1, 1, 4))),
    Case("nothing revealed", lambda: arguments(3, 4, 2, 3, (0,))),
    Case("no prefixes", lambda: arguments(3, 4, 2, 3, ())),
    Case("no paths", lambda: arguments(0, 4, 2, 3, (0, 1))),
    Case("one site", lambda: arguments(2, 1, 2, 1, (0, 1))),
    Case("wide", lambda: arguments(17, 40, 4, 200, tuple(range(40))), large=True),
)
