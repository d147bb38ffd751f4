"""Weights of tokens from their own statistics: how far a demonstration is trusted where the model doubts it.

The rules and their constants are those of arXiv 2602.12222 and its published trainer.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

KINDS = ("sft", "dft", "idft", "indomain", "eaft", "reverse")


class Rule(NamedTuple):
    """Constants of ``token_weights``; those that a kind does not name do nothing to it.

    Attributes:
        beta: width of the exponent's rule, in nats, or in standard deviations where ``standardized``.
        gamma_min, gamma_max: bounds of the exponent.
        mix: how much of the exponent's rule is in force; 0 leaves ``gamma_start``.
        gamma_start: exponent at ``mix`` 0; 1 is DFT's, 0 is SFT's.
        standardized: phi is divided by its standard deviation under the model (1 or 0).
        weight_min, weight_max: bounds of the weight of ``indomain``.
        threshold, width: centre and width of the sigmoid of ``indomain``, in nats.
    """

    beta: float = 1.0
    gamma_min: float = 0.1
    gamma_max: float = 2.0
    mix: float = 1.0
    gamma_start: float = 1.0
    standardized: float = 0.0
    weight_min: float = 0.1
    weight_max: float = 1.0
    threshold: float = 0.0
    width: float = 1.0


# Added to the varentropy before its root: a row that is nearly certain has nearly none.
FLOOR = 1e-3


def token_weights(
    logp: Tensor, entropy: Tensor, varentropy: Tensor, vocabulary: int, kind: str, rule: Rule
) -> Tensor:
    """The weight of each token, without a gradient.

    phi = log p + H, g = clip(exp(-phi / beta), gamma_min, gamma_max),
    gamma = gamma_start + mix (g - gamma_start);
    sft 1; dft p; idft p^gamma; reverse (1 - p)^gamma; eaft H / log V;
    indomain weight_min + (weight_max - weight_min) sigmoid(-(phi - threshold) / width).
    """
    logp, entropy, varentropy = (t.detach() for t in (logp, entropy, varentropy))
    if kind == "sft":
        return torch.ones_like(logp)
    if kind == "dft":
        return torch.exp(logp)
    if kind == "eaft":
        return entropy / math.log(vocabulary) if vocabulary > 1 else torch.zeros_like(entropy)
    phi = logp + entropy
    if kind == "indomain":
        spread = rule.weight_max - rule.weight_min
        return rule.weight_min + spread * torch.sigmoid((rule.threshold - phi) / rule.width)
    scale = rule.beta * torch.sqrt(varentropy + FLOOR) if rule.standardized else rule.beta
    adaptive = torch.exp(-phi / scale).clamp(rule.gamma_min, rule.gamma_max)
    gamma = rule.gamma_start + rule.mix * (adaptive - rule.gamma_start)
    base = logp if kind == "idft" else torch.log(-torch.expm1(logp))
    # 0^0 = 1, as in any power.
    return torch.where(gamma == 0, 1.0, torch.exp(gamma * base))
