"""Losses of log_rnd = log rho - log F along paths; the gradient goes through F alone.

TB and LV vanish exactly where the sampler is right, and are valid under any distribution of paths of full
support; ce, re_rf and wdce, the comparators, want the sampler's own paths. (arXiv 2602.05961; WDCE: MDNS,
arXiv 2508.10684.)
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_discrete_samplers.networks import MaskedModel

LOSSES = ("tb", "lv", "ce", "re_rf", "wdce")


def trajectory_balance(log_rnd: Float[Tensor, " n"], log_z: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """mean (log_rnd - log Z)^2 with a learned log Z."""
    return (log_rnd - log_z).square().mean()


def log_variance(log_rnd: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Population variance: trajectory balance with the batch's mean for log Z."""
    return log_rnd.var(correction=0)


def grouped_log_variance(log_rnd: Float[Tensor, " n"], group: int) -> Float[Tensor, ""]:
    """Mean of the variances within groups of consecutive paths, which share their start.

    Raises:
        ValueError: the group's size does not divide the batch, or is below 2.
    """
    if group < 2 or len(log_rnd) % group:
        raise ValueError(
            f"groups of {group} do not divide a batch of {len(log_rnd)} into groups of 2 or more"
        )
    return log_rnd.view(-1, group).var(1, correction=0).mean()


def cross_entropy(log_rnd: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """sum softmax(log_rnd) log_rnd, weights detached: forward KL by self-normalised weights."""
    return (log_rnd.detach().softmax(0) * log_rnd).sum()


def reinforce(log_rnd: Float[Tensor, " n"]) -> Float[Tensor, ""]:
    """Score-function estimate of the gradient of KL(F || target), the batch's mean as baseline."""
    fixed = log_rnd.detach()
    return ((fixed - fixed.mean()) * log_rnd).mean()


def weighted_denoising(
    model: MaskedModel,
    x: Int64[Tensor, "n D"],
    weights: Float[Tensor, " n"],
    generator: torch.Generator,
    replicates: int = 8,
) -> Float[Tensor, ""]:
    """WDCE: ends x of the sampler's paths with normalised weights; each site masked with probability lambda
    ~ U(0, 1).

    sum_i w_i mean over replicates of (1 / lambda) sum over masked sites of -log p(x_i | rest).
    """
    copies = x.repeat(replicates, 1)
    device = generator.device
    share = torch.rand(len(copies), 1, generator=generator, device=device).clamp(min=1e-3)
    hidden = torch.rand(copies.shape, generator=generator, device=device) < share
    logp = model(torch.where(hidden, model.V, copies)).gather(-1, copies[..., None])[..., 0]
    losses = -(logp * hidden).sum(1) / share[:, 0]
    return (weights.to(losses.dtype).repeat(replicates) * losses).sum() / replicates
