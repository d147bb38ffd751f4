"""Coherent contextual decoding: accept what recent contexts agree on (arXiv 2512.02044).

    p̄_i = mean of p(x_i | c_k, s) over the last d contexts,   H(p̄_i) = mean_k H(p_k,i) + JSD_i

The order of small H(p̄) is that of positions which are sure and do not depend on the context: the divergence
is the mutual information of token and context. ``CCD`` unmasks a fixed number of tokens a step, ``CCDDS`` as
many as have H(p̄) <= eps.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_ccd.context_buffer import Candidates, ContextBuffer, spread_out
from icml_ccd.step_state import (
    CONTEXT,
    FALLBACK,
    FILL,
    PASSED,
    WARM_UP,
    Selection,
    StepState,
    best_first,
    take_best,
)


class CCD:
    """Unmask the ``budget`` positions with the smallest H(p̄) of those that were sure in several contexts.

    A position is averaged where it stands among the V surest now and stood there in ``least`` of the last d
    steps, this one included; over the steps in which it did. Where fewer positions do than the budget asks
    for, the best local ones (negative entropy) fill up.

    Args:
        d: contexts that are averaged; the paper takes 3 for Dream and 2 for LLaDA.
        V: positions kept of each; the paper takes 4.
        warmup: steps that follow the local rule; d by default.
        least: in how many of the stored steps a position must stand, or in all while there are fewer; None
            asks for all of the last min(d, t), the formula to the letter.

    Raises:
        ValueError: d, V or least below 1, or a negative warm-up.
    """

    name, dynamic = "ccd", False

    def __init__(self, d: int = 3, V: int = 4, warmup: int | None = None, least: int | None = 2) -> None:
        self.buffer = ContextBuffer(d, V)
        self.warmup, self.least = d if warmup is None else warmup, least
        if self.warmup < 0:
            raise ValueError(f"warmup={warmup} is negative")
        if least is not None and least < 1:
            raise ValueError(f"least={least} contexts; at least 1 is needed, None asks for all")

    def settings(self) -> dict[str, Any]:
        """Depth, width, warm-up and least number of contexts."""
        size = {"d": self.buffer.depth, "V": self.buffer.width}
        return {**size, "warmup": self.warmup, "least": self.least}

    def reset(self) -> None:
        """Drop the buffer."""
        self.buffer.reset()

    def select(self, state: StepState) -> Selection:
        """The positions with the smallest H(p̄), filled up with the best local ones."""
        return self._choose(state, None)

    def _choose(self, state: StepState, eps: float | None) -> Selection:
        local = (state.neg_entropy, state.maxprob)
        order = best_first(*local)
        self.buffer.push(state, order)
        if self.buffer.steps <= self.warmup:
            accept, tied = take_best(state, order, *local)
            return Selection(accept, state.argmax, state.neg_entropy, WARM_UP, tied)
        held = self.buffer.filled
        least = held if self.least is None else min(self.least, held)
        average = Average(state, self.buffer, self.buffer.candidates(), least=least)
        keys = (average.inside, average.score(state.neg_entropy), average.confidence(state.maxprob))
        best, tied = take_best(state, best_first(*keys), *keys)
        if eps is None:
            accept = best
            reasons = torch.where(average.inside, CONTEXT, FILL)
        else:
            passed = average.inside & (average.entropy <= eps)
            some = passed.any(1)
            accept, tied = torch.where(some[:, None], passed, best), tied & ~some
            reasons = torch.where(some[:, None], PASSED, FALLBACK).expand_as(accept)
        return average.selection(state, accept, keys[1], reasons, tied)


class CCDDS(CCD):
    """CCD with a dynamic budget: unmask every averaged position with H(p̄) <= eps; if none, the best one.

    Args:
        d, V, warmup, least: as for ``CCD``.
        eps: bound of H(p̄), nats.

    Raises:
        ValueError: as for ``CCD``, and for a negative eps.
    """

    name, dynamic = "ccd_ds", True

    def __init__(
        self,
        d: int = 3,
        V: int = 4,
        eps: float = 0.3,
        warmup: int | None = None,
        least: int | None = 2,
    ) -> None:
        super().__init__(d, V, warmup, least)
        if not eps >= 0:
            raise ValueError(f"eps={eps} is a bound of an entropy in nats and is not negative")
        self.eps = eps

    def settings(self) -> dict[str, Any]:
        """Those of CCD, and the bound."""
        return {**super().settings(), "eps": self.eps}

    def select(self, state: StepState) -> Selection:
        """All that pass, or the best."""
        return self._choose(state, self.eps)


class Average:
    """p̄ of the candidates of a buffer, laid out over all positions.

    Args:
        state: the step.
        buffer: with the step pushed.
        candidates: of the buffer.
        weights: of the ages of each candidate; equal by default.
        least: in how many stored steps a candidate must stand; it is averaged over those.
    """

    def __init__(
        self,
        state: StepState,
        buffer: ContextBuffer,
        candidates: Candidates,
        weights: Float[Tensor, "B V ages"] | None = None,
        *,
        least: int,
    ) -> None:
        enough = (candidates.seen >= least) & (candidates.position >= 0)
        # Groups without enough members keep the newest alone, so that every number is finite.
        newest = torch.zeros_like(candidates.member[:1, :1], dtype=torch.bool)
        newest[..., 0] = True
        member = torch.where(enough[:, :, None] | newest, candidates.member, -1)
        first = torch.where(member[..., :1] < 0, 0, member[..., :1])
        self.member = torch.cat((first, member[..., 1:]), 2)
        self.weights = torch.ones_like(self.member, dtype=state.lse.dtype) if weights is None else weights
        self.buffer, self.candidates = buffer, candidates
        mixture = buffer.mix(self.weights.flatten(0, 1), self.member.flatten(0, 1))
        shape, length = candidates.position.shape, state.masked.shape[1]

        numbers = (mixture.entropy, mixture.jsd.clamp(min=0), mixture.maxprob)
        self.entropy, self.jsd, self.maxprob = spread_out(
            tuple(x.view(shape) for x in numbers), candidates, enough, length, torch.nan
        )
        whole = (mixture.argmax.view(shape), candidates.seen, torch.ones_like(candidates.seen))
        self.tokens, self.seen, inside = spread_out(whole, candidates, enough, length, 0)
        self.inside = inside.bool()

    def score(self, local: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """-H(p̄) where there is an average, the local score elsewhere."""
        return torch.where(self.inside, -self.entropy, local)

    def confidence(self, local: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """max p̄ where there is an average, the local one elsewhere."""
        return torch.where(self.inside, self.maxprob, local)

    def selection(
        self, state: StepState, accept: Tensor, scores: Tensor, reasons: Tensor | int, tied: Tensor
    ) -> Selection:
        """A selection with the averages' tokens."""
        tokens = torch.where(self.inside, self.tokens, state.argmax)

        def logp(b: Int64[Tensor, " k"], n: Int64[Tensor, " k"]) -> Float[Tensor, "k X"]:
            found = state.logp(b, n)
            match = self.candidates.position[b] == n[:, None]
            has = match.any(1) & self.inside[b, n]
            place = match.long().argmax(1)
            mixed = self.buffer.averaged_logp(self.weights[b, place], self.member[b, place])
            return torch.where(has[:, None], mixed, found)

        return Selection(accept, tokens, scores, reasons, tied, self.entropy, self.jsd, logp)
