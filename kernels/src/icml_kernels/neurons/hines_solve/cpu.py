"""Linear systems on trees on the CPU: a tile of columns goes through the whole tree before the next."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

LANES = 64
ALONE = 16384  # unknowns that one thread is done with before others have begun


def forward(parent: Tensor, d: Tensor, u: Tensor, l: Tensor, rhs: Tensor) -> Tensor:
    """See ``reference.forward``."""
    x = torch.empty_like(rhs, memory_format=torch.contiguous_format)
    given = [t.contiguous().numpy() for t in (parent, d, u, l, rhs)]
    if x.numel() == 0:
        return x
    if x.numel() <= ALONE or threads() == 1:
        _solve_alone(*given, x.numpy())
    else:
        _solve_shares(*given, x.numpy())
    return x


@njit
def _solve_tile(start, beyond, parent, d, u, l, rhs, x, diagonal):
    """x of the columns from ``start`` to ``beyond``; ``diagonal`` is work space [nodes, LANES]."""
    nodes, width = len(parent), beyond - start
    one = x.dtype.type(1)
    for i in range(nodes):
        x[i, start:beyond] = rhs[i, start:beyond]
        diagonal[i, :width] = d[i, start:beyond]
    for i in range(nodes - 1, -1, -1):
        here = diagonal[i, :width]
        for k in range(width):
            here[k] = one / here[k]
        p = parent[i]
        if p >= 0:
            above, right, right_above = diagonal[p, :width], x[i, start:beyond], x[p, start:beyond]
            upper, lower = u[i, start:beyond], l[i, start:beyond]
            for k in range(width):
                above[k] -= lower[k] * here[k] * upper[k]
            for k in range(width):
                right_above[k] -= lower[k] * here[k] * right[k]
    for i in range(nodes):
        here, own = diagonal[i, :width], x[i, start:beyond]
        p = parent[i]
        if p >= 0:
            upper, known = u[i, start:beyond], x[p, start:beyond]
            for k in range(width):
                own[k] = (own[k] - upper[k] * known[k]) * here[k]
        else:
            for k in range(width):
                own[k] = own[k] * here[k]


@njit
def _solve_alone(parent, d, u, l, rhs, x):
    batch = x.shape[1]
    diagonal = np.empty((len(parent), LANES), x.dtype)
    for start in range(0, batch, LANES):
        _solve_tile(start, min(batch, start + LANES), parent, d, u, l, rhs, x, diagonal)


@njit(parallel=True)
def _solve_shares(parent, d, u, l, rhs, x):
    batch = x.shape[1]
    tiles = (batch + LANES - 1) // LANES
    for tile in prange(tiles):
        diagonal = np.empty((len(parent), LANES), x.dtype)
        start = tile * LANES
        _solve_tile(start, min(batch, start + LANES), parent, d, u, l, rhs, x, diagonal)
