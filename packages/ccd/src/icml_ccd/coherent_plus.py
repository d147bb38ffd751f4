"""CCD with averages that do not lag: contexts weighted by age and by how far they are from the newest.

Not in the paper. A plain average holds back a position whose distribution has just sharpened, because a token
was decided on which it depends; and it is what makes CCD lose a little where the model is exact. Contexts are
weighted

    w_k  proportional to  gamma^age / (1 + JSD(p_k, p_newest) / noise)

where ``noise`` is the median divergence of all candidates from their own past: what changes like everything
else does is noise and is averaged, what changes much more has learned something and counts as new.

With a dynamic budget a group is accepted only where tokens have not just changed: a position whose token
changed when the last group was accepted depends on it, and waits.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_ccd.coherent_rules import Average
from icml_ccd.context_buffer import Candidates, ContextBuffer
from icml_ccd.step_state import (
    CONTEXT,
    FALLBACK,
    FILL,
    PASSED,
    Selection,
    StepState,
    best_first,
)

QUIET = 1e-4
"""Least scale of noise, nats: below it two contexts agree for any purpose."""


class CCDPlus:
    """Coherent contextual decoding with weighted contexts and a conflict test.

    Args:
        d: contexts that are kept.
        V: positions kept of each.
        eps: bound of H(p̄) of a dynamic budget, nats; None unmasks ``budget`` tokens a step.
        gamma: weight of a context over that of the next newer one.

    Raises:
        ValueError: d or V below 1, a negative eps, gamma outside (0, 1].
    """

    name = "ccd_plus"

    def __init__(self, d: int = 3, V: int = 4, eps: float | None = None, gamma: float = 0.9) -> None:
        self.buffer = ContextBuffer(d, V)
        if eps is not None and not eps >= 0:
            raise ValueError(f"eps={eps} is a bound of an entropy in nats and is not negative")
        if not 0 < gamma <= 1:
            raise ValueError(f"gamma={gamma} lies outside (0, 1]")
        self.eps, self.gamma = eps, gamma
        self.dynamic = eps is not None
        self._tokens: Tensor | None = None

    def settings(self) -> dict[str, Any]:
        """Depth, width, bound and discount."""
        return {"d": self.buffer.depth, "V": self.buffer.width, "eps": self.eps, "gamma": self.gamma}

    def reset(self) -> None:
        """Drop the buffer."""
        self.buffer.reset()
        self._tokens = None

    def select(self, state: StepState) -> Selection:
        """The smallest H(p̄); or all below the bound whose tokens have not just changed."""
        order = best_first(state.neg_entropy, state.maxprob)
        self.buffer.push(state, order)
        candidates = self.buffer.candidates()
        weights = context_weights(self.buffer, candidates, self.gamma)
        average = Average(state, self.buffer, candidates, weights, least=1)
        best, tied = average.best(state, order)
        if self.eps is None:
            accept = best
            if state.most > 1:
                # A single token can be no conflict; of a group, those that have just changed come last.
                group = (self._stable(state, average), *average.keys)
                several = (state.budget > 1)[:, None]
                accept = torch.where(several, average.best(state, order, group)[0], best)
            reasons = torch.where(average.inside, CONTEXT, FILL)
        else:
            # One context shows neither agreement nor conflict.
            known = average.seen >= min(2, self.buffer.depth)
            passed = known & (average.entropy <= self.eps) & (self._stable(state, average) == 2)
            some = passed.any(1)
            accept, tied = torch.where(some[:, None], passed, best), tied & ~some
            reasons = torch.where(some[:, None], PASSED, FALLBACK).expand_as(accept)
        self._tokens = torch.where(state.masked, state.argmax, -1)
        return average.selection(state, accept, reasons, tied)

    def _stable(self, state: StepState, average: Average) -> Int64[Tensor, "B N"]:
        """2 where an average names the token of the newest context and that has not just changed.

        1 for every other average; 0 where there is none, whatever the token.
        """
        steady = average.inside & (average.tokens == state.argmax)
        if self._tokens is not None:
            steady &= (self._tokens < 0) | (self._tokens == state.argmax)
        return steady.long() + average.inside


def context_weights(buffer: ContextBuffer, candidates: Candidates, gamma: float) -> Float[Tensor, "B V ages"]:
    """gamma^age / (1 + JSD(p_k, p_newest) / noise), 0 where a candidate is absent."""
    member = candidates.member
    rows, width, ages = member.shape
    there = member >= 0
    discount = gamma ** torch.arange(ages, dtype=buffer.logp.dtype, device=member.device)
    weights = torch.where(there, discount, 0)
    if ages == 1:
        return weights
    older = member[..., 1:]
    newest = member[..., :1].clamp(min=0).expand_as(older)
    pair = torch.stack((newest, torch.where(older >= 0, older, newest)), -1).reshape(-1, 2)
    change = buffer.mix(torch.ones_like(pair, dtype=weights.dtype), pair).jsd.clamp(min=0)
    change = change.view(rows, width, ages - 1)
    seen = torch.where(older >= 0, change, torch.nan).flatten(1)
    noise = torch.nan_to_num(seen.nanmedian(dim=1).values, nan=0.0).clamp(min=QUIET)
    held = 1 + change / noise[:, None, None]
    return torch.cat((weights[..., :1], weights[..., 1:] / held), -1)
