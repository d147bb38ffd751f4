"""Weighted differences of Fourier amplitudes on the CPU: two transforms, and one pass over the half plane."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads
from icml_kernels.spectral.radial_spectral_loss import reference


def forward(pred: Tensor, target_amp: Tensor, weight: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    axes = tuple(range(2, pred.dim()))
    spectrum = torch.fft.rfftn(pred, dim=axes, norm="ortho").contiguous()
    batch, channels = pred.shape[:2]
    bins = weight.numel()
    table = weight.contiguous().view(-1).numpy()
    slope = (reference.slope_weight(weight, pred.shape) / channels).contiguous().view(-1).numpy()
    sums = np.empty(batch * channels, dtype=table.dtype)
    pairs = torch.view_as_real(spectrum).view(batch * channels, bins, 2).numpy()
    target = target_amp.contiguous().view(batch * channels, bins).numpy()
    if with_grad:
        (_rows_with_slopes if threads() > 1 else _with_slopes)(pairs, target, table, slope, sums)
    else:
        (_rows if threads() > 1 else _plain)(pairs, target, table, sums)
    loss = torch.from_numpy(sums).view(batch, channels).mean(1)
    if not with_grad:
        return loss, pred.new_empty(0)
    # The spectrum holds the gradient's by now.
    return loss, torch.fft.irfftn(spectrum, s=pred.shape[2:], dim=axes, norm="ortho").contiguous()


@njit
def _plain_row(pairs, target, table):
    total = table.dtype.type(0)
    for k in range(len(table)):
        re, im = pairs[k, 0], pairs[k, 1]
        d = np.sqrt(re * re + im * im) - target[k]
        total += table[k] * d * d
    return total


@njit
def _slopes_row(pairs, target, table, slope):
    total = table.dtype.type(0)
    for k in range(len(table)):
        re, im = pairs[k, 0], pairs[k, 1]
        amplitude = np.sqrt(re * re + im * im)
        d = amplitude - target[k]
        total += table[k] * d * d
        factor = slope[k] * d / amplitude if amplitude > 0 else table.dtype.type(0)
        pairs[k, 0] = factor * re
        pairs[k, 1] = factor * im
    return total


@njit
def _plain(pairs, target, table, sums):
    for r in range(len(sums)):
        sums[r] = _plain_row(pairs[r], target[r], table)


@njit
def _with_slopes(pairs, target, table, slope, sums):
    for r in range(len(sums)):
        sums[r] = _slopes_row(pairs[r], target[r], table, slope)


@njit(parallel=True)
def _rows(pairs, target, table, sums):
    for r in prange(len(sums)):
        sums[r] = _plain_row(pairs[r], target[r], table)


@njit(parallel=True)
def _rows_with_slopes(pairs, target, table, slope, sums):
    for r in prange(len(sums)):
        sums[r] = _slopes_row(pairs[r], target[r], table, slope)
