"""Linear systems on trees, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(parent: Tensor, d: Tensor, u: Tensor, l: Tensor, rhs: Tensor) -> Tensor:
    """x with d_i x_i + u_i x_p + sum over children c of l_c x_c = rhs_i, each [nodes, batch].

    Children are eliminated from the last node to the first, then values are put in from the first to the
    last (M. Hines, Int. J. Bio-Medical Computing 15 (1984) 69-76).
    """
    parents = parent.tolist()
    diagonal, right = list(d.unbind(0)), list(rhs.unbind(0))
    for i in range(len(parents) - 1, -1, -1):
        p = parents[i]
        if p >= 0:
            factor = l[i] / diagonal[i]
            diagonal[p] = diagonal[p] - factor * u[i]
            right[p] = right[p] - factor * right[i]
    x: list[Tensor] = []
    for i, p in enumerate(parents):
        x.append((right[i] - u[i] * x[p] if p >= 0 else right[i]) / diagonal[i])
    return torch.stack(x)
