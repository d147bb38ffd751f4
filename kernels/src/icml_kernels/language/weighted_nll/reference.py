"""The weighted negative log-likelihood of tokens and its gradients: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.language.head import logits, pull_back, slope
from icml_kernels.language.token_stats import reference as statistics
from icml_kernels.language.weighted_nll.weights import Rule, token_weights


def forward(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    token_weight: Tensor,
    kind: str,
    rule: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """-sum c log p, each token's log p, H and weight w, and the gradients of the sum; c = w token_weight."""
    options = (temperature, logit_scale, softcap, ignore_index)
    kept = targets != ignore_index
    logp, entropy, varentropy, _ = statistics.forward(hidden, weight, bias, targets, *options)
    vocabulary = hidden.shape[1] if weight is None else weight.shape[0]
    w = torch.where(kept, token_weights(logp, entropy, varentropy, vocabulary, kind, Rule(*rule.tolist())), 0)
    c = w * token_weight
    by = gradients(hidden, weight, bias, targets, c, *options, by_hidden, by_head)
    return total(c, logp), logp, entropy, w, *by


def total(c: Tensor, logp: Tensor) -> Tensor:
    """-sum c log p, where a token without weight counts for nothing, even at log p = -inf."""
    return -torch.where(c == 0, 0, c * logp).sum()


def gradients(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    c: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of -sum c log p by hidden, weight and bias with c held fixed: by x_v, c (p_v - [v = y])."""
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    kept = targets != ignore_index
    c = torch.where(kept, c, 0)[:, None]
    p = torch.where(kept[:, None], torch.softmax(x, dim=1), 0)
    by_x = (c * p).scatter_add(1, torch.where(kept, targets, 0)[:, None], -c)
    by_products = by_x * slope(x, temperature, logit_scale, softcap)
    return pull_back(by_products, hidden, weight, bias, by_hidden, by_head)
