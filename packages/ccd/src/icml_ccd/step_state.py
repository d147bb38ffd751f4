"""What a rule is shown at a step, and what it answers: the interface between decoder and rules.

All tensors cover a batch of B rows with N response positions each; what is decided, or lies outside the block
that is being decoded, is no candidate and scores -inf.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

REASONS = (
    "given",  # not decided by the decoder: a prompt's token, or one that the user gave
    "local",  # the best score in this one context
    "warm-up",  # the same, before a rule has seen enough contexts
    "context",  # recent contexts agree on it
    "fill",  # too few positions had enough contexts, so that the best local one was taken
    "passed",  # its score passed the rule's bound
    "fallback",  # nothing passed, and one token a step is the least
    "tail",  # an end token behind the end token
    "behind the end",  # filled without a forward pass
)
"""Why a token was accepted; a trace holds the place in this list."""
LOCAL, WARM_UP, CONTEXT, FILL, PASSED, FALLBACK, TAIL, BEHIND = range(1, 9)


@dataclass
class StepState:
    """One step of decoding.

    Attributes:
        masked: the candidates.
        neg_entropy: sum_v p_v log p_v in nats, of p = softmax(logits / score_temperature).
        maxprob: max_v p_v.
        argmax: its token; 0 where there is no candidate.
        lse: log-sum-exp of the scaled logits; 0 where there is no candidate.
        logits: rows of logits, some of them the candidates'.
        row_of: which row is a candidate's; -1 where there is none.
        score_temperature: divides the logits in all scores.
        exclude: a token that has no probability (the mask), or -1.
        budget: how many tokens a row shall unmask; at least one where it has candidates, and never more than
            those.
        undecided: how many response positions of a row are undecided in all.
        length: N, response positions in all.
        step: steps in this block so far.
        order_keys: a uniform number a position, drawn once a row, for rules that draw.
        most: no row's budget is larger, as far as is known without waiting for the device.
    """

    masked: Bool[Tensor, "B N"]
    neg_entropy: Float[Tensor, "B N"]
    maxprob: Float[Tensor, "B N"]
    argmax: Int64[Tensor, "B N"]
    lse: Float[Tensor, "B N"]
    logits: Float[Tensor, "rows X"]
    row_of: Int64[Tensor, "B N"]
    score_temperature: float
    exclude: int
    budget: Int[Tensor, " B"]
    undecided: Int[Tensor, " B"]
    length: int
    step: int
    order_keys: Float[Tensor, "B N"]
    most: int = sys.maxsize

    def logp(
        self, b: Int[Tensor, " k"], n: Int[Tensor, " k"], out: Float[Tensor, "k X"] | None = None
    ) -> Float[Tensor, "k X"]:
        """log p of positions n in rows b, in float32 (float64 for float64); of no candidate, arbitrary.

        Args:
            b, n: row of the batch and position.
            out: where to put it.
        """
        place = n if len(self.row_of) == 1 else b * self.row_of.shape[1] + n
        rows = self.row_of.take(place).clamp_(min=0)
        if out is not None and out.dtype == self.logits.dtype:
            torch.index_select(self.logits, 0, rows, out=out)
        else:
            found = self.logits[rows].to(self.lse.dtype)
            out = found if out is None else out.copy_(found)
        if self.score_temperature != 1:
            out /= self.score_temperature
        out -= self.lse.take(place)[:, None]
        if self.exclude >= 0:
            out[:, self.exclude] = -torch.inf
        return out


@dataclass
class Selection:
    """What a rule accepts at a step.

    Attributes:
        accept: which candidates; at least one in every row that has any.
        tokens: the token of each accepted position at temperature 0.
        scores: by which it was chosen, higher is better.
        reasons: why, as places in ``REASONS``; one for all, or one a position.
        tied: rows in which the last token that was accepted scored like the first that was not, so that its
            position decided.
        mixed_entropy: H(p̄) in nats where recent contexts were averaged, NaN elsewhere.
        jsd: their Jensen-Shannon divergence in nats, NaN elsewhere.
        logp: log-probabilities from which tokens are drawn at a temperature above 0, ``logp(b, n)``; the
            local ones by default.
    """

    accept: Bool[Tensor, "B N"]
    tokens: Int64[Tensor, "B N"]
    scores: Float[Tensor, "B N"]
    reasons: Int[Tensor, "B N"] | int
    tied: Bool[Tensor, " B"] | None = None
    mixed_entropy: Float[Tensor, "B N"] | None = None
    jsd: Float[Tensor, "B N"] | None = None
    logp: Callable[[Tensor, Tensor], Tensor] | None = None


class Rule(Protocol):
    """Which positions to unmask. ``dynamic`` rules decide themselves how many, and take no ``steps``."""

    name: str
    dynamic: bool

    def settings(self) -> dict[str, Any]:
        """Every setting in force, for the trace."""

    def reset(self) -> None:
        """Forget everything: a block begins."""

    def select(self, state: StepState) -> Selection:
        """Choose among the candidates."""


def best_first(
    *keys: Float[Tensor, "B N"] | Int[Tensor, "B N"] | Bool[Tensor, "B N"],
    among: Int64[Tensor, "B K"] | None = None,
) -> Int64[Tensor, "B K"]:
    """Positions from best to worst: by the first key, ties by the next, last ties by position.

    Args:
        keys: of all positions.
        among: the positions that are put in order; all by default.
    """
    if among is not None:
        among = among.sort(dim=1).values
        keys = tuple(key.gather(1, among) for key in keys)
    order = keys[-1].sort(dim=1, descending=True, stable=True).indices
    for key in reversed(keys[:-1]):
        again = key.gather(1, order).sort(dim=1, descending=True, stable=True).indices
        order = order.gather(1, again)
    return order if among is None else among.gather(1, order)


@lru_cache(maxsize=32)
def counting(length: int, device: torch.device) -> Int64[Tensor, " length"]:
    """0 to length - 1; kept from step to step, never to be written to."""
    return torch.arange(length, device=device)


def rank_of(order: Int64[Tensor, "B N"]) -> Int64[Tensor, "B N"]:
    """Place of every position in an order; 0 is the best."""
    places = counting(order.shape[1], order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places)


def take_best(
    state: StepState, order: Int64[Tensor, "B K"], *keys: Float[Tensor, "B N"] | Bool[Tensor, "B N"]
) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, " B"]]:
    """The first ``budget`` candidates of an order, and rows in which a tie of all keys decided.

    Args:
        state: the step.
        order: by the keys; all positions, or one more of the best than any row's budget.
        keys: by which candidates come before all else.
    """
    known = order.shape[1]
    budget = state.budget.long()[:, None]
    first = counting(known, order.device) < budget
    accept = torch.zeros_like(state.masked).scatter_(1, order, first).logical_and_(state.masked)
    if known < 2:
        return accept, torch.zeros_like(state.budget, dtype=torch.bool)
    last = (budget - 1).clamp_(min=0, max=known - 2)
    pair = order.gather(1, torch.cat((last, last + 1), 1))
    two = torch.stack(keys).gather(2, pair.expand(len(keys), -1, -1))
    # Where candidates are left, the next one is a candidate too.
    left = state.budget < state.masked.sum(1)
    return accept, (two[..., 0] == two[..., 1]).all(0).logical_and_(left)
