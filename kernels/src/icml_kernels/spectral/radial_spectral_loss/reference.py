"""Weighted differences of Fourier amplitudes and their gradient, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(pred: Tensor, target_amp: Tensor, weight: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    """L_b = mean over channels of sum over bins of weight (|P| - target_amp)^2, P = rfftn(pred, ortho).

    The second result is dL_b/dpred, or empty.
    """
    loss = value(pred, target_amp, weight)
    return loss, gradient(pred, target_amp, weight) if with_grad else pred.new_empty(0)


def value(pred: Tensor, target_amp: Tensor, weight: Tensor) -> Tensor:
    """L_b, which autograd can follow."""
    difference = _amplitude(_spectrum(pred)) - target_amp
    return (weight * difference.square()).flatten(2).sum(2).mean(1)


def gradient(pred: Tensor, target_amp: Tensor, weight: Tensor) -> Tensor:
    """dL_b/dpred = irfftn of 2 weight (|P| - target_amp) P / |P| / channels, columns that count twice halved.

    A bin where P is 0 gives 0.
    """
    spectrum = _spectrum(pred)
    amplitude = _amplitude(spectrum)
    safe = torch.where(amplitude > 0, amplitude, 1)
    factor = slope_weight(weight, pred.shape) * (amplitude - target_amp) / safe / pred.shape[1]
    axes = tuple(range(2, pred.dim()))
    factor = torch.where(amplitude > 0, factor, 0)
    return torch.fft.irfftn(factor * spectrum, s=pred.shape[2:], dim=axes, norm="ortho")


def slope_weight(weight: Tensor, shape: torch.Size) -> Tensor:
    """2 weight, halved in the columns that stand for two in a real transform of this shape."""
    size = shape[-1]
    column = torch.arange(weight.shape[-1], device=weight.device)
    single = (column == 0) | (2 * column == size)
    return weight * torch.where(single, 2.0, 1.0).to(weight)


def _spectrum(pred: Tensor) -> Tensor:
    return torch.fft.rfftn(pred, dim=tuple(range(2, pred.dim())), norm="ortho")


def _amplitude(spectrum: Tensor) -> Tensor:
    """|P| with the derivative 0 at 0."""
    square = spectrum.real.square() + spectrum.imag.square()
    zero = square == 0
    return torch.where(zero, 0, torch.sqrt(torch.where(zero, 1, square)))
