"""Coherent contextual decoding: accept what recent contexts agree on (arXiv 2512.02044).

    p̄_i = mean of p(x_i | c_k, s) over the last d contexts,   H(p̄_i) = mean_k H(p_k,i) + JSD_i

The order of small H(p̄) is that of positions which are sure and do not depend on the context: the divergence
is the mutual information of token and context. ``CCD`` unmasks a fixed number of tokens a step, ``CCDDS`` as
many as have H(p̄) <= eps.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
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
        best, tied = average.best(state, order)
        if eps is None:
            accept = best
            reasons = torch.where(average.inside, CONTEXT, FILL)
        else:
            passed = average.inside & (average.entropy <= eps)
            some = passed.any(1)
            accept, tied = torch.where(some[:, None], passed, best), tied & ~some
            reasons = torch.where(some[:, None], PASSED, FALLBACK).expand_as(accept)
        return average.selection(state, accept, reasons, tied)


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

    Attributes:
        inside: which positions have an average.
        entropy, jsd, maxprob: H(p̄) and the divergence in nats, max p̄; NaN where there is none.
        tokens, seen: the most probable token, and the number of contexts; 0 where there is none.
        scores, confidence: -H(p̄) and max p̄, the local ones where there is no average.
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
        seen, self.member = candidates.seen, candidates.member
        if weights is None:
            weights = torch.ones(self.member.shape, dtype=state.lse.dtype, device=seen.device)
        self.weights, self.buffer, self.candidates = weights, buffer, candidates
        mixture = buffer.mix(weights.flatten(0, 1), self.member.flatten(0, 1))
        enough, shape, length = seen >= least, seen.shape, state.masked.shape[1]
        numbers = (mixture.entropy, mixture.jsd.clamp(min=0), mixture.maxprob)
        self.entropy, self.jsd, self.maxprob = spread_out(
            tuple(x.view(shape) for x in numbers), candidates, enough, length, torch.nan
        )
        counts = (mixture.argmax.view(shape), seen)
        self.tokens, self.seen = spread_out(counts, candidates, enough, length, 0)
        self.inside = self.seen > 0
        self.scores = torch.where(self.inside, -self.entropy, state.neg_entropy)
        self.confidence = torch.where(self.inside, self.maxprob, state.maxprob)

    @property
    def keys(self) -> tuple[Tensor, Tensor, Tensor]:
        """By which positions come first: an average, a small entropy, a large probability."""
        return self.inside, self.scores, self.confidence

    def best(
        self, state: StepState, order: Int64[Tensor, "B N"], keys: tuple[Tensor, ...] | None = None
    ) -> tuple[Bool[Tensor, "B N"], Bool[Tensor, " B"]]:
        """The ``budget`` first by the keys, and rows in which a tie decided.

        Args:
            state: the step.
            order: of the local scores. Averages belong to its first V positions, and the others keep their
                order, so that what comes first by the keys lies within its head.
            keys: others than ``keys`` that also put averages first and leave the others in their order.
        """
        keys = self.keys if keys is None else keys
        head = order[:, : max(self.buffer.width, min(state.most, state.length) + 1)]
        return take_best(state, best_first(*keys, among=head), *keys)

    def selection(self, state: StepState, accept: Tensor, reasons: Tensor | int, tied: Tensor) -> Selection:
        """A selection with the averages' tokens."""
        tokens = torch.where(self.inside, self.tokens, state.argmax)

        def logp(b: Int64[Tensor, " k"], n: Int64[Tensor, " k"]) -> Float[Tensor, "k X"]:
            found = state.logp(b, n)
            match = self.candidates.position[b] == n[:, None]
            has = match.any(1) & self.inside[b, n]
            place = match.long().argmax(1)
            mixed = self.buffer.averaged_logp(self.weights[b, place], self.member[b, place])
            return torch.where(has[:, None], mixed, found)

        return Selection(accept, tokens, self.scores, reasons, tied, self.entropy, self.jsd, logp)
