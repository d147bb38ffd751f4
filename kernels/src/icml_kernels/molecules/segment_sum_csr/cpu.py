"""Sums over the rows of a ragged list on the CPU: a thread owns its rows."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.njit import balanced_rows, njit, prange, threads


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """See ``reference.forward``."""
    out = values.new_empty(ptr.shape[0] - 1, values.shape[1])
    bounds = ptr.contiguous().numpy()
    arguments = (bounds, values.contiguous().numpy(), out.numpy())
    if threads() == 1:
        _sum(0, out.shape[0], *arguments)
    else:
        _sum_shares(balanced_rows(bounds, threads()), *arguments)
    return out


def gather(sums: Tensor, ptr: Tensor, places: int) -> Tensor:
    """See ``reference.gather``."""
    used = int(ptr[-1])
    counts = torch.diff(ptr).long()
    out = torch.repeat_interleave(sums, counts, dim=0, output_size=used)
    return torch.nn.functional.pad(out, (0, 0, 0, places - used)) if places > used else out


@njit
def _sum(begin, end, ptr, values, out):
    out[begin:end] = values.dtype.type(0)
    for i in range(begin, end):
        for p in range(ptr[i], ptr[i + 1]):
            for f in range(values.shape[1]):
                out[i, f] += values[p, f]


@njit(parallel=True)
def _sum_shares(bounds, ptr, values, out):
    for s in prange(len(bounds) - 1):
        _sum(bounds[s], bounds[s + 1], ptr, values, out)
