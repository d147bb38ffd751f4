"""What a step of training minimises (arXiv 2605.24041), and the cheaper form that is this package's own.

Unrolled:  L = (1/K) sum_k [MSE(h_k, y) + b_s Spec(h_k, y; lam_k)] + b_fp mean(Phi([x, y])^2), k = 1 ... K.
Detached:  k is drawn from 0 ... K-1; k steps without gradient, one with; its term of the sum alone, and the
           fixed-point term where k = K - 1. Memory and time are those of one step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from icml_irno.fields import fill_masked
from icml_irno.operator import IRNO
from icml_irno.spectral_losses import progressive_lam, spectral_loss, target_amplitude

CHECKPOINT_FROM = 5  # iterates from which the unrolled form computes activations anew instead of keeping them


@dataclass(frozen=True)
class Objective:
    """The terms of the loss.

    Attributes:
        beta_spec: b_s.
        beta_fp: b_fp, when warmed up.
        lam: exponents for the first and the last iterate.
        phase, hermitian: of the spectral loss.
        extension: of the fields before a transform, axis by axis.
    """

    beta_spec: float = 1.0
    beta_fp: float = 0.01
    lam: tuple[float, float] = (1.0, 2.0)
    phase: bool = False
    hermitian: bool = False
    extension: Sequence[str] | None = None


@dataclass
class Truth:
    """The target of a batch, with what serves all iterates."""

    y: Tensor
    amplitude: Tensor | None
    mask: Tensor | None

    @classmethod
    def of(cls, y: Tensor, objective: Objective, mask: Tensor | None) -> Truth:
        """Take the target's amplitudes once, where they are wanted."""
        if mask is not None:
            y = fill_masked(y, mask)
        wanted = objective.beta_spec > 0 and not objective.phase
        amplitude = target_amplitude(y, mask, objective.extension) if wanted else None
        return cls(y, amplitude, mask)


def unrolled_loss(
    model: IRNO, x: Tensor, h: Tensor, truth: Truth, objective: Objective, *, K: int, fp_weight: float
) -> Tensor:
    """The paper's loss; the gradient flows through all K steps."""
    total = h.new_zeros(())
    for k in range(K):
        if K >= CHECKPOINT_FROM and torch.is_grad_enabled():
            h = checkpoint(model.step, x, h, use_reentrant=False)
        else:
            h = model.step(x, h)
        total = total + iterate_loss(h, truth, objective, progressive_lam(k, K, objective.lam))
    return total / K + fixed_point_loss(model, x, truth, fp_weight)


def detached_loss(
    model: IRNO, x: Tensor, h: Tensor, truth: Truth, objective: Objective, *, K: int, k: int, fp_weight: float
) -> Tensor:
    """One term of it: the iterate k + 1, after k steps without gradient."""
    with torch.no_grad():
        for _ in range(k):
            h = model.step(x, h)
    h = model.step(x, h.detach())
    loss = iterate_loss(h, truth, objective, progressive_lam(k, K, objective.lam))
    return loss + fixed_point_loss(model, x, truth, fp_weight) if k == K - 1 else loss


def iterate_loss(h: Tensor, truth: Truth, objective: Objective, lam: float) -> Tensor:
    """MSE(h, y) + b_s Spec(h, y; lam), over points that exist."""
    loss = masked_mean((h - truth.y).square(), truth.mask)
    if objective.beta_spec > 0:
        loss = loss + objective.beta_spec * spectral_loss(
            h, truth.y if truth.amplitude is None else None, lam, objective.phase, objective.hermitian,
            truth.amplitude, mask=truth.mask, extension=objective.extension,
        )  # fmt: skip
    return loss


def fixed_point_loss(model: IRNO, x: Tensor, truth: Truth, weight: float) -> Tensor:
    """weight mean(Phi([x, y])^2): the truth shall be where the iteration rests."""
    if weight == 0:
        return truth.y.new_zeros(())
    # Under autocast the correction is of half precision, whose squares lose their small values.
    return weight * masked_mean(model.correction(x, truth.y).to(truth.y.dtype).square(), truth.mask)


def masked_mean(values: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over the points that exist; what stands under the mask reaches neither value nor gradient."""
    if mask is None:
        return values.mean()
    kept = mask.expand_as(values)
    return torch.where(kept, values, 0).sum() / kept.sum().clamp_min(1)
