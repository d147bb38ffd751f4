"""The loop of a decoding: forward, scores of the masked positions, the rule's choice, tokens, ends.

Everything stays on the model's device; the host waits once a step, for which positions are still masked (and
a second time where tokens are drawn).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from icml_kernels import masked_entropy_argmax
from icml_kernels.language.masked_entropy_argmax import RowScores
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from icml_ccd.model_calls import ModelCalls
from icml_ccd.settings import Region, Schedule
from icml_ccd.step_state import BEHIND, TAIL, Rule, Selection, StepState
from icml_ccd.token_choice import drawn_tokens, sharpened
from icml_ccd.trace import NUMBERS, DecodeTrace

Callback = Callable[[int, StepState, Selection], Any]


@dataclass(frozen=True)
class Choice:
    """How tokens come from distributions.

    Attributes:
        temperature, top_p: of the tokens; at temperature 0 the most probable one is taken.
        score_temperature: of the scores.
        mask_id: never written.
        ends: end tokens, the first of which fills up behind the end.
        pad_id: what fills up behind the end token.
        stop_at_eos: whether a row is finished once an end token and all before it are decided.
        eos_guard: whether end tokens wait for all earlier positions of their block.
    """

    temperature: float
    top_p: float | None
    score_temperature: float
    mask_id: int
    ends: tuple[int, ...]
    pad_id: int | None
    stop_at_eos: bool
    eos_guard: bool


@dataclass
class Engine:
    """One decoding of a batch.

    Attributes:
        calls: the model.
        region: what is decoded.
        schedule: blocks and budgets.
        rule: which positions.
        choice: which tokens.
        shift: 1 where logits at a position are for the next token, else 0.
        uniform: a number a position, for its token.
        order_keys: a number a position, for rules that draw.
        settings: everything in force, for the trace.
        forced: tokens to be written instead; then only their probability is of interest.
        callback: called after every step.
    """

    calls: ModelCalls
    region: Region
    schedule: Schedule
    rule: Rule
    choice: Choice
    shift: int
    uniform: Float[Tensor, "B N"]
    order_keys: Float[Tensor, "B N"]
    settings: dict[str, Any]
    forced: Int64[Tensor, "B N"] | None = None
    callback: Callback | None = None
    trace: DecodeTrace = field(init=False)
    logp: Float[Tensor, " B"] | None = field(init=False, default=None)

    @torch.no_grad()
    def run(self) -> Int64[Tensor, "B L"]:
        """Decode; the trace and log-probabilities are attributes afterwards."""
        region = self.region
        self.ids, self.undecided = region.ids, region.undecided.clone()
        rows, length = self.undecided.shape
        self.response = self.ids[:, region.start : region.start + length]
        device = self.ids.device
        self._numbers = torch.full((len(NUMBERS), rows, length), torch.nan, device=device)
        self.trace = DecodeTrace.empty(self._numbers)
        self.trace.start, self.trace.settings = region.start, self.settings
        if self.choice.temperature > 0 or self.forced is not None:
            self.logp = torch.zeros(rows, dtype=torch.float64, device=device)
        self._ends = torch.tensor(self.choice.ends, dtype=torch.int64, device=device)
        self._bad = torch.zeros(1, dtype=torch.bool, device=device)
        self._blank: tuple[Tensor, ...] | None = None
        self._forward, taken = 0, np.zeros(rows, dtype=np.int64)
        self._finish(0)
        for block, bounds in enumerate(self.schedule.blocks):
            self._block(block, *bounds, taken)
        self.trace.forwards += torch.from_numpy(taken).to(device)
        return self.ids

    def _block(self, block: int, begin: int, end: int, taken: Int64[np.ndarray, " B"]) -> None:
        self.rule.reset()
        inside = torch.zeros_like(self.undecided[0])
        inside[begin:end] = True
        step, wanted, before = 0, None, None
        while True:
            undecided = self._look()
            seen = undecided[:, begin:end]
            b, n = seen.nonzero()
            if not len(b):
                return
            left = seen.sum(1)
            if before is not None and ((left == before) & (left > 0)).any():
                raise ValueError(
                    f"the rule {self.rule.name!r} accepted nothing in step {self._forward - 1}; it must "
                    "accept at least one candidate in every row that has any"
                )
            before = left
            wanted = left if wanted is None else wanted
            budget = np.minimum(self.schedule.at(block, step, wanted), left)
            taken += left > 0
            state = self._scored(b, n + begin, (begin, end), step, inside, (budget, undecided.sum(1), left))
            selection = self.rule.select(state)
            self._write(state, selection, begin, end)
            if self.callback is not None:
                self.callback(self._forward, state, selection)
            self._forward += 1
            step += 1
            self._finish(self._forward - 1)

    def _look(self) -> Bool[np.ndarray, "B N"]:
        """What is undecided: the one time a step that the host waits. It learns of NaN by the way."""
        seen = torch.cat((self.undecided.flatten(), self._bad)).cpu().numpy()
        if seen[-1]:
            raise FloatingPointError(
                "the model's logits were not finite (NaN, +inf, or all -inf) at a masked position in step "
                f"{self._forward - 1}; look at the model (float16 overflow, a fully masked attention row)"
            )
        return seen[:-1].reshape(self.undecided.shape)

    def _sent(self, *rows: Int64[np.ndarray, " k"]) -> tuple[Int64[Tensor, " k"], ...]:
        """Numbers of the host on the device, in one transfer."""
        return torch.from_numpy(np.array(rows)).to(self.ids.device, non_blocking=True).unbind(0)

    def _scored(
        self,
        b: Int64[np.ndarray, " m"],
        n: Int64[np.ndarray, " m"],
        block: tuple[int, int],
        step: int,
        inside: Bool[Tensor, " N"],
        counts: tuple[np.ndarray, np.ndarray, np.ndarray],
    ) -> StepState:
        """Scores of the positions n of rows b; the counts a row are budget, undecided, candidates."""
        logits, where, place = self._logits(b, n, *block, step, counts[2] > 0)
        budget, undecided, _ = self._sent(*counts)
        exclude = self.choice.mask_id if self.choice.mask_id < logits.shape[1] else None
        temperature = self.choice.score_temperature
        scores = masked_entropy_argmax(logits, where, temperature, exclude)
        self._bad = torch.isnan(scores.neg_entropy).any(0, keepdim=True)
        neg_entropy, maxprob, lse, argmax, row_of = self._laid_out(scores, where, place)
        state = StepState(
            masked=self.undecided & inside,
            neg_entropy=neg_entropy,
            maxprob=maxprob,
            argmax=argmax,
            lse=lse,
            logits=logits,
            row_of=row_of,
            score_temperature=temperature,
            exclude=-1 if exclude is None else exclude,
            budget=budget,
            undecided=undecided,
            length=self.undecided.shape[1],
            step=step,
            order_keys=self.order_keys,
            most=int(counts[0].max()),
        )
        self._open = state.masked
        if self.choice.eos_guard:
            self._guard(state, *block)
            state.budget = torch.minimum(budget, state.masked.sum(1))
        return state

    def _laid_out(
        self, scores: RowScores, where: Int64[Tensor, " m"], place: Int64[Tensor, " m"]
    ) -> tuple[Tensor, ...]:
        """Negative entropy, largest probability, log-sum-exp, token and row of logits, at their places."""
        shape, device = self.undecided.shape, self.ids.device
        if self._blank is None or self._blank[0].dtype != scores.lse.dtype:
            none = torch.tensor([-torch.inf, -torch.inf, 0.0], dtype=scores.lse.dtype, device=device)
            nowhere = torch.tensor([0, -1], device=device)
            self._blank = tuple(x[:, None].repeat(1, shape.numel()) for x in (none, nowhere))
        numbers = torch.stack((scores.neg_entropy, scores.maxprob, scores.lse))
        words = torch.stack((scores.argmax, where))
        found = (x.index_copy(1, place, y) for x, y in zip(self._blank, (numbers, words), strict=True))
        return tuple(part for x in found for part in x.view(-1, *shape).unbind(0))

    def _logits(
        self,
        b: Int64[np.ndarray, " m"],
        n: Int64[np.ndarray, " m"],
        begin: int,
        end: int,
        step: int,
        active: Bool[np.ndarray, " B"],
    ) -> tuple[Float[Tensor, "r X"], Int64[Tensor, " m"], Int64[Tensor, " m"]]:
        """Logits, the row of each masked position in them, and its place in the flattened responses."""
        start, length = self.region.start, self.ids.shape[1]
        place = b * self.undecided.shape[1] + n
        source = np.maximum(n + (start - self.shift), 0)
        if self.calls.use_cache:
            first = max(start + begin - self.shift, 0)
            logits = self.calls.span(self.ids, first, start + end, refresh=step == 0)
            where, place = self._sent(b * logits.shape[1] + source - first, place)
            return logits.flatten(0, 1), where, place
        if active.all():
            rows, place = self._sent(b * length + source, place)
            return *self.calls.rows(self.ids, None, rows), place
        rows, place = self._sent((active.cumsum() - 1)[b] * length + source, place)
        (alive,) = self._sent(active.nonzero()[0])
        return *self.calls.rows(self.ids, alive, rows), place

    def _guard(self, state: StepState, begin: int, end: int) -> None:
        """End tokens are no candidates while an earlier position of the block is undecided."""
        earlier = self.undecided[:, begin:end].long().cumsum(1) - self.undecided[:, begin:end].long()
        waits = torch.zeros_like(state.masked)
        waits[:, begin:end] = earlier > 0
        waits &= state.masked & torch.isin(state.argmax, self._ends)
        state.masked = state.masked & ~waits
        for name in ("neg_entropy", "maxprob"):
            setattr(state, name, torch.where(waits, -torch.inf, getattr(state, name)))

    def _write(self, state: StepState, selection: Selection, begin: int, end: int) -> None:
        """Put accepted tokens into the sequence, and into the trace."""
        accept, tokens = selection.accept & state.masked, selection.tokens
        reasons = selection.reasons
        if self.forced is not None or self.choice.temperature > 0:
            tokens = self._drawn(state, selection, accept)
        if self.choice.eos_guard:
            tail = self._tail(state, accept, tokens, begin, end)
            tokens, reasons = torch.where(tail, state.argmax, tokens), torch.where(tail, TAIL, reasons)
            accept = accept | tail
        torch.where(accept, tokens, self.response, out=self.response)
        self.undecided ^= accept  # what is accepted was undecided
        trace = self.trace
        trace.step.masked_fill_(accept, self._forward)
        torch.where(accept, tokens, trace.token, out=trace.token)
        if isinstance(reasons, Tensor):
            torch.where(accept, reasons, trace.reason, out=trace.reason)
        else:
            trace.reason.masked_fill_(accept, reasons)
        mixed = (selection.mixed_entropy, selection.jsd)
        kept = (own if found is None else found for own, found in zip(self._numbers[3:], mixed, strict=True))
        numbers = torch.stack((selection.scores, state.neg_entropy, state.maxprob, *kept)).float()
        torch.where(accept, numbers, self._numbers, out=self._numbers)
        if selection.tied is not None:
            trace.steps_by_tie += selection.tied

    def _drawn(self, state: StepState, selection: Selection, accept: Tensor) -> Tensor:
        """Tokens drawn at a temperature, or forced, and the log-probability of either."""
        b, n = accept.nonzero(as_tuple=True)
        logp = (selection.logp or state.logp)(b, n)
        choice = self.choice
        if self.forced is not None:
            token = self.forced[b, n]
        else:
            token = drawn_tokens(logp, self.uniform[b, n], choice.temperature, choice.top_p)
        if choice.temperature > 0:
            p = sharpened(logp, choice.temperature, choice.top_p).gather(1, token[:, None])[:, 0]
            self.logp.index_add_(0, b, p.log().to(self.logp.dtype))
        else:
            missed = token != selection.tokens[b, n]
            self.logp.index_add_(0, b, torch.where(missed, -torch.inf, 0.0).to(self.logp.dtype))
        out = selection.tokens.clone()
        out[b, n] = token
        return out

    def _tail(self, state: StepState, accept: Tensor, tokens: Tensor, begin: int, end: int) -> Tensor:
        """Undecided positions right behind an accepted end token whose own best token is an end token."""
        ended = accept & torch.isin(tokens, self._ends)
        also = self._open & torch.isin(state.argmax, self._ends)
        run = torch.zeros_like(accept)
        inside = (ended | also | ~self.undecided)[:, begin:end]
        # A run reaches from an end token as far as nothing else is undecided.
        breaks = (~inside).long().cumsum(1)
        at_end = torch.where(ended[:, begin:end], breaks, -1).cummax(1).values
        run[:, begin:end] = (at_end == breaks) & (at_end >= 0)
        return run & also & ~accept & self.undecided

    def _finish(self, step: int) -> None:
        """Fill rows whose end token and everything before it is decided."""
        if not self.choice.stop_at_eos:
            return
        behind = self._behind_the_end() & self.undecided
        fill = self._ends[0] if self.choice.pad_id is None else self.choice.pad_id
        self.response.copy_(torch.where(behind, fill, self.response))
        self.trace.step.masked_fill_(behind, step)
        self.trace.token = torch.where(behind, fill, self.trace.token)
        self.trace.reason.masked_fill_(behind, BEHIND)
        self.undecided &= ~behind

    def _behind_the_end(self) -> Bool[Tensor, "B N"]:
        gaps = self.undecided.long().cumsum(1)
        # Only what the decoder wrote can end a text; with nothing undecided before it.
        ended = torch.isin(self.response, self._ends) & ~self.undecided & (gaps == 0)
        return (ended.long().cumsum(1) > 0) & ~ended
