"""The most probable tokens of every row, their log-probabilities and what is left: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.language.head import logits


def forward(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    k: int,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest of log softmax(x), falling, where they are, and the sum of the other probabilities."""
    x = logits(hidden, weight, bias, temperature, logit_scale, softcap)
    logp, idx = torch.log_softmax(x, dim=1).topk(k, dim=1)
    others = torch.softmax(x, dim=1).scatter(1, idx, 0)
    return idx, logp, others.sum(1)
