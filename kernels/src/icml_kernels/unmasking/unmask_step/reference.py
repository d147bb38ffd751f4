"""One symbol a site by inverse cumulated probabilities, in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def forward(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The first symbol whose cumulated weight exceeds uniform times their sum; log-probabilities summed."""
    l = logits.double().expand(uniform.shape[0], *logits.shape[1:])
    shifted = l - l.amax(-1, keepdim=True)
    weight = shifted.exp()
    cumulated = weight.cumsum(-1)
    total = cumulated[..., -1:]
    symbol = (cumulated <= uniform[..., None] * total).sum(-1)
    places = torch.arange(l.shape[-1], device=l.device)
    last = torch.where(weight > 0, places, 0).amax(-1)
    symbol = torch.minimum(symbol, last)
    logp = (shifted - total.log()).gather(-1, symbol[..., None])[..., 0]
    return symbol, logp.sum(-1)
