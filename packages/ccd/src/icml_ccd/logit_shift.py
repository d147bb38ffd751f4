"""Whether logits at a position are for its own token (LLaDA) or for the next one (Dream): measured.

Some visible tokens of the prompt are masked, and one forward pass says under which alignment they are
likelier.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from icml_kernels import token_stats
from jaxtyping import Bool, Int
from torch import Tensor

from icml_ccd.model_calls import Model, ModelCalls

SHARE = 0.15
"""Share of the visible tokens that is masked, as masked language models are trained."""
LEAST, MOST = 6, 64
"""Tokens that are masked in all: fewer decide nothing, more are not needed."""
CLEAR = 2.0
"""Standard errors by which one alignment must win."""


class Shift(NamedTuple):
    """What was measured.

    Attributes:
        shifted: whether logits at a position are for the next token.
        gain: mean log-likelihood of the shifted alignment over the other, nats a token.
        standard_error: of the gain.
        tokens: how many were masked.
    """

    shifted: bool
    gain: float
    standard_error: float
    tokens: int


class UnclearShift(ValueError):
    """Both alignments fit about as well: the user must say which one it is."""


@torch.no_grad()
def measure_shift(
    model: Model,
    ids: Int[Tensor, "batch length"],
    mask_id: int,
    *,
    visible: Bool[Tensor, "batch length"] | None = None,
    attention_mask: Int[Tensor, "batch length"] | None = None,
) -> Shift:
    """Find how the model's logits are aligned, by one forward pass.

    Args:
        model: callable from ids to logits.
        ids: text that the model finds likely; a prompt.
        mask_id: the mask token.
        visible: what may be masked; everything but masks by default.
        attention_mask: 1 for real tokens.

    Raises:
        UnclearShift: too little text, or neither alignment is clearly likelier.
    """
    visible = (ids != mask_id) if visible is None else visible & (ids != mask_id)
    if attention_mask is not None:
        visible = visible & attention_mask.bool()
    visible = visible.clone()
    visible[:, 0] = False  # nothing stands before it
    places = visible.flatten().nonzero()[:, 0]
    count = min(MOST, max(LEAST, round(SHARE * len(places))))
    if len(places) < 2 * LEAST:
        raise UnclearShift(
            f"shift_logits='auto' needs {2 * LEAST} visible tokens to measure on and found {len(places)}; "
            "say shift_logits=True (Dream) or False (LLaDA)"
        )
    chosen = places[torch.linspace(0, len(places) - 1, count, device=ids.device).round().long().unique()]
    masked = ids.flatten().index_fill(0, chosen, mask_id).view_as(ids)
    both = torch.cat((chosen, chosen - 1))
    logits, where = ModelCalls(model, attention_mask).rows(masked, None, both)
    targets = ids.flatten()[chosen].repeat(2)
    logp = token_stats(logits[where], targets).logp.double()
    gain = logp[len(chosen) :] - logp[: len(chosen)]
    mean, error = gain.mean().item(), gain.std().item() / len(chosen) ** 0.5
    if not abs(mean) > CLEAR * error:
        raise UnclearShift(
            f"shift_logits='auto' cannot tell: on {len(chosen)} masked tokens the shifted alignment is "
            f"likelier by {mean:.3g} +- {error:.2g} nats a token; say shift_logits=True (Dream) or False"
        )
    return Shift(mean > 0, mean, error, len(chosen))
