"""Log-probability, entropy and varentropy of every predicted token, without keeping the logits.

With p the model's distribution before a token x: logp = log p(x), H = -Σ p log p, Var = Σ p (log p + H)².
Where the head is a plain linear map, ``icml_kernels.token_stats`` goes from hidden states to these by blocks
of the vocabulary; else the logits are made.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import icml_kernels
import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_lm.decoder import hidden_and_head

IGNORE = -100


class TokenStats(NamedTuple):
    """Entry t belongs to token t + 1, which is predicted from the tokens up to t; masked tokens have zeros.

    Attributes:
        logp: log-probability of the token, in nats.
        entropy: of the distribution that it is drawn from, in nats.
        varentropy: variance of log p under that distribution, in nats².
    """

    logp: Float[Tensor, "batch predicted"]
    entropy: Float[Tensor, "batch predicted"]
    varentropy: Float[Tensor, "batch predicted"]


def token_stats(
    model: Any,
    ids: Int[Tensor, "batch tokens"],
    mask: Int[Tensor, "batch tokens"] | None = None,
    temperature: float = 1.0,
    *,
    scored: Int[Tensor, "batch tokens"] | None = None,
) -> TokenStats:
    """The statistics of every predicted token; differentiable.

    Args:
        model: TinyLM, a transformers causal model, or PEFT's wrapper around either.
        ids: whole texts.
        mask: 1 for real tokens, 0 for padding on either side. The first real token is not predicted.
        temperature: of the distribution.
        scored: 1 for the tokens that are wanted, such as an answer's; the head is evaluated for these alone.

    Raises:
        ValueError: a temperature that is not positive; fewer than two columns; a mask of another shape.
    """
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be a positive number")
    if ids.dim() != 2 or ids.shape[1] < 2:
        raise ValueError(f"ids of shape {tuple(ids.shape)} have no predicted token; they are [batch, tokens]")
    for name, given in (("mask", mask), ("scored", scored)):
        if given is not None and given.shape != ids.shape:
            raise ValueError(f"{name} has the shape {tuple(given.shape)}, ids have {tuple(ids.shape)}")
    inputs: dict[str, Any] = {}
    wanted = torch.ones_like(ids[:, 1:], dtype=torch.bool)
    if mask is not None:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        inputs = {"attention_mask": mask, "position_ids": positions}
        wanted = mask[:, 1:].bool() & mask[:, :-1].bool()
    if scored is not None:
        wanted = wanted & scored[:, 1:].bool()
    hidden, head, out = hidden_and_head(model, ids, **inputs)
    targets = ids[:, 1:][wanted]
    if hidden is None or head is None:
        found = icml_kernels.token_stats(out.logits[:, :-1][wanted], targets, temperature=temperature)
    else:
        found = icml_kernels.token_stats(
            hidden[:, :-1][wanted],
            targets,
            weight=head.weight,
            bias=head.bias,
            temperature=temperature,
            logit_scale=head.logit_scale,
            softcap=head.softcap,
        )
    return TokenStats(*(_scattered(values, wanted) for values in found))


def _scattered(values: Tensor, wanted: Tensor) -> Tensor:
    return values.new_zeros(wanted.shape).masked_scatter(wanted, values)
