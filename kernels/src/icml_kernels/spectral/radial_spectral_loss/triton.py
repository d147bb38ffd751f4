"""Weighted differences of Fourier amplitudes on the GPU: a program takes a block of bins of one field."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.spectral.radial_spectral_loss import reference

BINS = 1024


def forward(pred: Tensor, target_amp: Tensor, weight: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    axes = tuple(range(2, pred.dim()))
    spectrum = torch.fft.rfftn(pred, dim=axes, norm="ortho").contiguous()
    batch, channels = pred.shape[:2]
    bins = weight.numel()
    slope = (reference.slope_weight(weight, pred.shape) / channels).contiguous()
    blocks = triton.cdiv(bins, BINS)
    sums = pred.new_empty(batch, channels, blocks)
    _amplitudes[(batch * channels, blocks)](
        torch.view_as_real(spectrum),
        target_amp.contiguous(),
        weight.contiguous(),
        slope,
        sums,
        bins,
        blocks,
        WITH_GRAD=with_grad,
        BLOCK=BINS,
        num_warps=4,
    )
    loss = sums.sum(2).mean(1)
    if not with_grad:
        return loss, pred.new_empty(0)
    return loss, torch.fft.irfftn(spectrum, s=pred.shape[2:], dim=axes, norm="ortho").contiguous()


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        for with_grad in (False, True):
            signature = dict.fromkeys(("pairs", "target", "weight", "slope", "sums"), kind)
            signature |= {"bins": "i32", "blocks": "i32"}
            found.append(Specialization(_amplitudes, signature, {"WITH_GRAD": with_grad, "BLOCK": BINS}, 4))
    return found


@triton.jit
def _amplitudes(
    pairs, target, weight, slope, sums, bins, blocks, WITH_GRAD: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    k = block * BLOCK + tl.arange(0, BLOCK)
    inside = k < bins
    place = row * bins + k
    re = tl.load(pairs + 2 * place, mask=inside, other=0.0)
    im = tl.load(pairs + 2 * place + 1, mask=inside, other=0.0)
    amplitude = tl.sqrt(re * re + im * im)
    d = amplitude - tl.load(target + place, mask=inside, other=0.0)
    w = tl.load(weight + k, mask=inside, other=0.0)
    tl.store(sums + row * blocks + block, tl.sum(w * d * d, axis=0))
    if WITH_GRAD:
        some = amplitude > 0
        s = tl.load(slope + k, mask=inside, other=0.0)
        factor = tl.where(some, s * d / tl.where(some, amplitude, 1.0), 0.0)
        # NaN is neither above 0 nor hidden.
        factor = tl.where(amplitude != amplitude, amplitude, factor)
        tl.store(pairs + 2 * place, factor * re, mask=inside)
        tl.store(pairs + 2 * place + 1, factor * im, mask=inside)
