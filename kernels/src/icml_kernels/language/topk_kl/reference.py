"""Divergence of a head's distribution from a teacher's most probable tokens, and its gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.language.head import logits, pull_back, slope


def forward(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    idx: Tensor,
    logp: Tensor,
    tail: Tensor,
    counted: Tensor,
    mode: str,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The divergence of every row that counts, log sum e^x, and the same over the tokens not listed."""
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    lse = torch.logsumexp(x, dim=1)
    listed = x.gather(1, idx)
    if idx.shape[1] == x.shape[1]:
        lse_rest = torch.full_like(lse, -torch.inf)
    else:
        lse_rest = torch.logsumexp(x.scatter(1, idx, -torch.inf), dim=1)
    results = (divergence(listed, logp, tail, lse, lse_rest, mode), lse, lse_rest)
    return tuple(torch.where(counted, r, 0) for r in results)  # type: ignore[return-value]


def divergence(
    listed: Tensor, logp: Tensor, tail: Tensor, lse: Tensor, lse_rest: Tensor, mode: str
) -> Tensor:
    """sum_k p_k (log p_k - log q_k), for ``bucket`` and tail (log tail - log q(rest)); 0 log 0 = 0."""
    p = torch.exp(logp)
    total = torch.where(p > 0, p * (logp - (listed - lse[:, None])), 0).sum(1)
    if mode == "paper":
        return total
    return total + torch.where(tail > 0, tail * (torch.log(tail) - (lse_rest - lse)), 0)


def backward(
    g: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    idx: Tensor,
    logp: Tensor,
    tail: Tensor,
    counted: Tensor,
    lse: Tensor,
    lse_rest: Tensor,
    mode: str,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by hidden, weight and bias.

    With P = sum_k p_k + tail: by x_v, P q_v - p_v for a listed token, P q_v - tail q_v / q(rest) for another.
    """
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    g = torch.where(counted, g, 0)
    lse = torch.where(counted, lse, torch.inf)
    others, inside = coefficients(g, x.gather(1, idx), logp, tail, lse, lse_rest, mode)
    rest = torch.exp(x.scatter(1, idx, -torch.inf) - bounded(lse_rest, counted)[:, None])
    by_x = (others[:, None] * torch.where(counted[:, None], rest, 0)).scatter(1, idx, inside)
    by_products = by_x * slope(x, temperature, logit_scale, softcap)
    return pull_back(by_products, hidden, weight, bias, by_hidden, by_head)


def bounded(lse_rest: Tensor, counted: Tensor) -> Tensor:
    """0 in place of -inf, where no token is left to have a probability."""
    return torch.where(counted & (lse_rest > -torch.inf), lse_rest, 0)


def coefficients(
    g: Tensor, listed: Tensor, logp: Tensor, tail: Tensor, lse: Tensor, lse_rest: Tensor, mode: str
) -> tuple[Tensor, Tensor]:
    """g (P q(rest) - tail), which multiplies e^(x_v - lse_rest) of the others, and g (P q_k - p_k)."""
    p = torch.exp(logp)
    tail = torch.zeros_like(tail) if mode == "paper" else tail
    total = p.sum(1) + tail
    others = g * (total * torch.exp(lse_rest - lse) - tail)
    return others, g[:, None] * (total[:, None] * torch.exp(listed - lse[:, None]) - p)
