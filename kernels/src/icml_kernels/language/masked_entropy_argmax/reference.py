"""Negative entropy, largest probability, its token and log-sum-exp of rows of logits: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.language.head import arithmetic


def forward(
    logits: Tensor, rows: Tensor, temperature: float, exclude: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """sum p log p, max p, argmax p and log sum e^x of x = logits[rows] / temperature, p = softmax(x).

    The token ``exclude`` has p = 0; a negative number stands for none.
    """
    x = _chosen(logits, rows, temperature, exclude)
    lse = torch.logsumexp(x, dim=1)
    logp = x - lse[:, None]
    p = torch.exp(logp)
    # 0 log 0 = 0, in the derivative too.
    neg_entropy = (p * torch.where(p > 0, logp, torch.where(p == 0, 0, logp))).sum(1)
    top, argmax = x.max(dim=1)
    return neg_entropy, torch.exp(top - lse), argmax, lse


def backward(
    g_entropy: Tensor,
    g_max: Tensor,
    g_lse: Tensor,
    logits: Tensor,
    rows: Tensor,
    neg_entropy: Tensor,
    maxprob: Tensor,
    argmax: Tensor,
    lse: Tensor,
    temperature: float,
    exclude: int,
) -> Tensor:
    """The gradient by the logits, zero in the rows that were not chosen.

    With phi_v = log p_v + H: d(-H)/dx_v = p_v phi_v, d max p/dx_v = max p ([v = argmax] - p_v),
    d lse/dx_v = p_v.
    """
    x = _chosen(logits, rows, temperature, exclude)
    logp = x - lse[:, None]
    p = torch.exp(logp)
    phi = torch.where(p > 0, logp, 0) - neg_entropy[:, None]
    peak = (g_max * maxprob)[:, None]
    by_x = p * (g_lse[:, None] + g_entropy[:, None] * phi - peak)
    by_x = by_x.scatter_add(1, argmax[:, None], peak)
    return torch.zeros_like(logits, dtype=by_x.dtype).index_add(0, rows, by_x / temperature)


def _chosen(logits: Tensor, rows: Tensor, temperature: float, exclude: int) -> Tensor:
    x = logits[rows].to(arithmetic(logits.dtype)) / temperature
    if exclude < 0:
        return x
    return torch.where(torch.arange(x.shape[1], device=x.device) == exclude, -torch.inf, x)
