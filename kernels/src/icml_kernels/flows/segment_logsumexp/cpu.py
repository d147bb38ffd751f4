"""log-sum-exp over the rows of a ragged list on the CPU: a thread owns its rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads

ALONE = 8192  # places that one thread is done with before others have begun


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.forward``."""
    out = values.new_empty(ptr.shape[0] - 1)
    bounds = ptr.contiguous().numpy()
    arguments = (bounds, values.contiguous().numpy(), out.numpy())
    if len(values) <= ALONE or threads() == 1:
        _sum(0, len(out), *arguments)
    else:
        _sum_shares(balanced_rows(bounds, threads()), *arguments)
    return out


def backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.backward``."""
    spread = torch.empty_like(values, memory_format=torch.contiguous_format)
    bounds = ptr.contiguous().numpy()
    given = (grad.contiguous().numpy(), values.contiguous().numpy(), out.contiguous().numpy())
    arguments = (bounds, *given, spread.numpy())
    if len(values) <= ALONE or threads() == 1:
        _share(0, len(out), *arguments)
    else:
        _share_shares(balanced_rows(bounds, threads()), *arguments)
    spread[int(bounds[-1]) :] = 0
    return spread


@njit
def _sum(begin, end, ptr, values, out):
    for i in range(begin, end):
        top = -np.inf
        for p in range(ptr[i], ptr[i + 1]):
            if values[p] > top:
                top = values[p]
        if top == np.inf:
            out[i] = top
            continue
        shift = top if top > -np.inf else values.dtype.type(0)
        total = values.dtype.type(0)
        for p in range(ptr[i], ptr[i + 1]):
            total += np.exp(values[p] - shift)
        out[i] = shift + np.log(total)


@njit(parallel=True)
def _sum_shares(bounds, ptr, values, out):
    for s in prange(len(bounds) - 1):
        _sum(bounds[s], bounds[s + 1], ptr, values, out)


@njit
def _share(begin, end, ptr, grad, values, out, spread):
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            if out[i] == -np.inf:
                spread[p] = 0
            else:
                spread[p] = grad[i] * np.exp(values[p] - out[i])


@njit(parallel=True)
def _share_shares(bounds, ptr, grad, values, out, spread):
    for s in prange(len(bounds) - 1):
        _share(bounds[s], bounds[s + 1], ptr, grad, values, out, spread)
