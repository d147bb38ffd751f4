"""log p of tokens, entropy and varentropy of their distributions, and the gradients: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.language.head import logits, pull_back, slope


def forward(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """log p_y, H = -sum p log p, sum p (log p + H)^2 and log sum e^x of every row; 0 where it is ignored."""
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    kept = targets != ignore_index
    lse = torch.logsumexp(x, dim=1)
    logp = x - lse[:, None]
    p = torch.exp(logp)
    # 0 log 0 = 0, in the derivative too.
    finite = torch.where(p > 0, logp, 0)
    entropy = -(p * finite).sum(1)
    varentropy = (p * (finite + entropy[:, None]) ** 2).sum(1)
    of_target = logp.gather(1, torch.where(kept, targets, 0)[:, None])[:, 0]
    results = (of_target, entropy, varentropy, lse)
    return tuple(torch.where(kept, r, 0) for r in results)  # type: ignore[return-value]


def backward(
    g_logp: Tensor,
    g_entropy: Tensor,
    g_varentropy: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    entropy: Tensor,
    varentropy: Tensor,
    lse: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by hidden, weight and bias.

    With phi_v = log p_v + H: d log p_y / dx_v = [v = y] - p_v, dH / dx_v = -p_v phi_v,
    dVar / dx_v = p_v (phi_v^2 + 2 phi_v - Var).
    """
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    kept = targets != ignore_index
    g1, g2, g3 = (torch.where(kept, g, 0)[:, None] for g in (g_logp, g_entropy, g_varentropy))
    logp = x - lse[:, None]
    p = torch.where(kept[:, None], torch.exp(logp), 0)
    phi = torch.where(p > 0, logp, 0) + entropy[:, None]
    by_x = p * (-g1 - g2 * phi + g3 * (phi**2 + 2 * phi - varentropy[:, None]))
    by_x = by_x.scatter_add(1, torch.where(kept, targets, 0)[:, None], g1)
    by_products = by_x * slope(x, temperature, logit_scale, softcap)
    return pull_back(by_products, hidden, weight, bias, by_hidden, by_head)
