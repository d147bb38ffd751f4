"""Logarithms of summed exponentials over the rows of a ragged list, in plain torch: the definition."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows


def forward(values: Tensor, ptr: Tensor) -> Tensor:
    """out_i = log of the sum of exp(values) from place ptr[i] up to ptr[i + 1]; -inf where there is none."""
    rows, valid = pair_rows(ptr, values)
    top = values.new_full((ptr.shape[0] - 1,), -math.inf)
    top = top.scatter_reduce(0, rows, torch.where(valid, values, -math.inf), "amax")
    shift = torch.where(torch.isfinite(top), top, 0)
    terms = torch.where(valid, torch.exp(values - shift[rows]), 0)
    total = torch.zeros_like(top).index_add(0, rows, terms)
    return torch.where(top == math.inf, top, shift + torch.log(total))


def backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    """The share of each place in its row, times the row's gradient: grad_i exp(values - out_i)."""
    rows, valid = pair_rows(ptr, values)
    used = valid & (out[rows] > -math.inf)
    shares = torch.exp(torch.where(used, values - out[rows], -math.inf))
    return torch.where(used, grad[rows] * shares, 0)
