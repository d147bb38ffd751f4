"""Entropy, token and Jensen-Shannon divergence of mixtures of stored log-probabilities: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """H(m), argmax m, sum_k w_k KL(p_k || m) and max m of m = sum_k w_k p_k, p_k = exp(rows_logp[index_k]).

    An index below 0 stands for no member; weights add up to 1 over the members that are there.
    """
    logp, p, w = _members(rows_logp, weights, index)
    mean = (w[..., None] * p).sum(1)
    log_mean = torch.where(mean > 0, mean.clamp(min=_tiny(mean)).log(), torch.where(mean == 0, 0, mean))
    entropy = -(mean * log_mean).sum(1)
    divergence = (w[..., None] * p * (logp - log_mean[:, None])).sum((1, 2))
    top, argmax = mean.max(dim=1)
    none = (index < 0).all(1)
    entropy, divergence, top = (r.masked_fill(none, torch.nan) for r in (entropy, divergence, top))
    return entropy, argmax, divergence, top


def backward(
    g_entropy: Tensor,
    g_divergence: Tensor,
    g_max: Tensor,
    rows_logp: Tensor,
    weights: Tensor,
    index: Tensor,
    argmax: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients by log-probabilities and weights.

    With JSD = H(m) - sum_k w_k H_k: dH(m)/dm_v = -(log m_v + 1), dm_v/dl_kv = w_k p_kv,
    -w_k dH_k/dl_kv = w_k p_kv (l_kv + 1).
    """
    logp, p, w = _members(rows_logp, weights, index)
    mean = (w[..., None] * p).sum(1)
    log_mean = torch.where(mean > 0, mean.clamp(min=_tiny(mean)).log(), 0)
    by_mean = -(g_entropy + g_divergence)[:, None] * (log_mean + 1)
    by_mean = by_mean.scatter_add(1, argmax[:, None], g_max[:, None])[:, None]
    own = g_divergence[:, None, None]
    by_logp = w[..., None] * p * (by_mean + own * (logp + 1))
    by_rows = torch.zeros_like(rows_logp).index_add(0, index.clamp(min=0).flatten(), by_logp.flatten(0, 1))
    return by_rows, (p * (by_mean + own * logp)).sum(2)


def _members(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """log p, with 0 where p = 0, p and weight of every member; all 0 where there is none."""
    there = index >= 0
    logp = rows_logp[index.clamp(min=0)]
    p = torch.where(there[..., None], logp.exp(), 0)
    return torch.where(p == 0, 0, logp), p, torch.where(there, weights, 0)


def _tiny(x: Tensor) -> float:
    return torch.finfo(x.dtype).tiny
