"""First-layer sums of all masked prefixes of a path, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def ranks(order: Tensor) -> Tensor:
    """rank[b, i]: at which place of its row of ``order`` site i stands."""
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def forward(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    """pre[t, b] = sum_i W[i, x[b, i] if site i is among the first sizes[t] of order[b], else MASK]."""
    sites, mask = weight.shape[0], weight.shape[1] - 1
    seen = ranks(order)[None] < sizes[:, None, None]
    state = torch.where(seen, x[None], mask)
    total = weight.new_zeros(sizes.shape[0], x.shape[0], weight.shape[2])
    for i in range(sites):
        total = total + weight[i][state[:, :, i]]
    return total


def backward(grad: Tensor, x: Tensor, order: Tensor, sizes: Tensor, symbols: int) -> Tensor:
    """The transpose: dW[i, v] = sum over t and b of grad[t, b] where site i shows symbol v there."""
    sites = x.shape[1]
    seen = ranks(order)[None] < sizes[:, None, None]
    state = torch.where(seen, x[None], symbols - 1).reshape(-1, sites)
    rows = grad.reshape(state.shape[0], grad.shape[2])
    out = grad.new_zeros(sites, symbols, grad.shape[2])
    for i in range(sites):
        out[i].index_add_(0, state[:, i], rows)
    return out
