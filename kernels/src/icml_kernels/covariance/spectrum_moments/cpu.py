"""Moments of spectra on the CPU: one centred copy, one product of BLAS, the scaling inside the second."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.covariance.spectrum_moments import reference


def moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.moments``."""
    centred = x - x.mean(1, keepdim=True)
    divisor = x.shape[1] - correction
    wide = x.shape[1] <= x.shape[2]
    gram = torch.bmm(centred, centred.mT) if wide else torch.bmm(centred.mT, centred)
    flat = gram.flatten(1)
    trace = gram.diagonal(dim1=1, dim2=2).sum(1) / divisor
    return trace, torch.linalg.vecdot(flat, flat) / divisor**2, gram


def gradient(x: Tensor, gram: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Tensor:
    """See ``reference.gradient``: (2 a / m) X + X (4 b / m^2) G, one product that adds in place."""
    if x.shape[0] != 1:
        return reference.gradient(x, gram, by_trace, by_square, correction)
    centred = x[0] - x[0].mean(0)
    divisor = x.shape[1] - correction
    first, second = 2 * float(by_trace[0]) / divisor, 4 * float(by_square[0]) / divisor**2
    factors = (gram[0], centred) if x.shape[1] <= x.shape[2] else (centred, gram[0])
    return torch.addmm(centred, *factors, beta=first, alpha=second)[None]
