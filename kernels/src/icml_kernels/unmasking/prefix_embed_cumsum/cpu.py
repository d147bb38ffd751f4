"""First-layer sums of all masked prefixes on the CPU: successive prefixes differ by the columns revealed.

Forward a thread owns its paths, backward its columns of the hidden layer, so that bits do not depend on the
number of threads.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from icml_kernels.njit import njit, prange, threads


def forward(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """See ``reference.forward``."""
    out = weight.new_empty(sizes.shape[0], x.shape[0], weight.shape[2])
    if out.numel() == 0:
        return out
    base = weight[:, -1].sum(0).contiguous()
    arrays = [t.contiguous().numpy() for t in (weight, base, x, order, sizes)]
    shares = max(1, min(threads(), x.shape[0]))
    if shares == 1:
        _sum(0, x.shape[0], *arrays, out.numpy())
    else:
        _sum_shares(np.linspace(0, x.shape[0], shares + 1).astype(np.int64), *arrays, out.numpy())
    return out


def backward(grad: Tensor, x: Tensor, order: Tensor, sizes: Tensor, symbols: int) -> Tensor:
    """See ``reference.backward``."""
    hidden = grad.shape[2]
    out = grad.new_zeros(x.shape[1], symbols, hidden)
    if grad.numel() == 0 or out.numel() == 0:
        return out
    arrays = [t.contiguous().numpy() for t in (grad, x, order, sizes)]
    shares = max(1, min(threads(), hidden))
    if shares == 1:
        _spread(0, hidden, *arrays, out.numpy())
    else:
        _spread_shares(np.linspace(0, hidden, shares + 1).astype(np.int64), *arrays, out.numpy())
    return out


@njit
def _sum(begin, end, weight, base, x, order, sizes, out):
    mask = weight.shape[1] - 1
    hidden = weight.shape[2]
    running = np.empty(hidden, dtype=weight.dtype)
    for b in range(begin, end):
        for h in range(hidden):
            running[h] = base[h]
        place = 0
        for t in range(len(sizes)):
            while place < sizes[t]:
                site = order[b, place]
                shown, hiding = weight[site, x[b, site]], weight[site, mask]
                for h in range(hidden):
                    running[h] += shown[h] - hiding[h]
                place += 1
            row = out[t, b]
            for h in range(hidden):
                row[h] = running[h]


@njit(parallel=True)
def _sum_shares(bounds, weight, base, x, order, sizes, out):
    for s in prange(len(bounds) - 1):
        _sum(bounds[s], bounds[s + 1], weight, base, x, order, sizes, out)


@njit
def _spread(low, high, grad, x, order, sizes, out):
    mask = out.shape[1] - 1
    width = high - low
    later = np.empty(width, dtype=grad.dtype)
    every = np.zeros(width, dtype=grad.dtype)
    steps = len(sizes)
    for b in range(x.shape[0]):
        later[:] = 0
        for back in range(steps):
            t = steps - 1 - back
            row = grad[t, b, low:high]
            for h in range(width):
                later[h] += row[h]
            first = sizes[t - 1] if t > 0 else 0
            for place in range(first, sizes[t]):
                site = order[b, place]
                shown, hiding = out[site, x[b, site], low:high], out[site, mask, low:high]
                for h in range(width):
                    shown[h] += later[h]
                    hiding[h] -= later[h]
        for h in range(width):
            every[h] += later[h]
    for site in range(out.shape[0]):
        hiding = out[site, mask, low:high]
        for h in range(width):
            hiding[h] += every[h]


@njit(parallel=True)
def _spread_shares(bounds, grad, x, order, sizes, out):
    for s in prange(len(bounds) - 1):
        _spread(bounds[s], bounds[s + 1], grad, x, order, sizes, out)
