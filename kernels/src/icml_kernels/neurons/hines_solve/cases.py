"""Trees on which every route is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.testing import Case


def random(*shape: int, seed: int = 0) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tree(nodes: int, kind: str, seed: int = 0) -> Tensor:
    """Parents of a cable, a star, or a tree whose every node hangs on a random earlier one."""
    if kind == "cable":
        parent = torch.arange(nodes) - 1
    elif kind == "star":
        parent = torch.where(torch.arange(nodes) == 0, -1, 0)
    else:
        share = torch.rand(nodes, generator=torch.Generator().manual_seed(seed))
        parent = (share * torch.arange(nodes)).long().clamp(max=torch.arange(nodes) - 1)
        if kind == "forest":
            parent[nodes // 2] = -1
    return parent.to(torch.int32)


def arguments(nodes: int, batch: int, kind: str) -> tuple[Any, ...]:
    """A system whose diagonal dominates."""
    u, l, rhs = (random(nodes, batch, seed=k) for k in range(3))
    d = 2 + nodes * 0.1 + u.abs() + l.abs() + random(nodes, batch, seed=3).abs() * nodes
    return tree(nodes, kind), d, u, l, rhs


CASES = (
    Case("cable", lambda: arguments(7, 3, "cable")),
    Case("star", lambda: arguments(6, 5, "star")),
    Case("random tree", lambda: arguments(9, 2, "random")),
    Case("two trees", lambda: arguments(8, 4, "forest")),
    Case("one node", lambda: arguments(1, 3, "cable")),
    Case("no columns", lambda: arguments(4, 0, "random")),
    Case("many columns", lambda: arguments(60, 400, "random"), large=True),
)
