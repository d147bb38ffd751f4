"""Moments of spectra on a GPU: the symmetric tiles of ``batched_gram``, and two reductions of its result."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.covariance.batched_gram.triton import batched_gram
from icml_kernels.covariance.spectrum_moments import reference


def moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.moments``; the tall case and float64 are left to it, a product each."""
    if x.dtype != torch.float32 or x.shape[1] > x.shape[2]:
        return reference.moments(x, correction)
    gram = batched_gram(x.transpose(0, 1), True, False)
    divisor = x.shape[1] - correction
    trace = gram.diagonal(dim1=1, dim2=2).sum(1) / divisor
    return trace, gram.square().sum((1, 2)) / divisor**2, gram


def gradient(x: Tensor, gram: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Tensor:
    """See ``reference.gradient``."""
    return reference.gradient(x, gram, by_trace, by_square, correction)
