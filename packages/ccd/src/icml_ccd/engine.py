"""The loop of a decoding: forward, scores of the masked positions, the rule's choice, tokens, ends.

Everything stays on the model's device; the host waits once a step, for which positions are still masked (and
a second time where tokens are drawn).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from icml_kernels import masked_entropy_argmax
from jaxtyping import Bool, Float, Int, Int64
from torch import Tensor

from icml_ccd.model_calls import ModelCalls
from icml_ccd.settings import Region, Schedule
from icml_ccd.step_state import BEHIND, TAIL, Rule, Selection, StepState
from icml_ccd.token_choice import drawn_tokens, sharpened
from icml_ccd.trace import DecodeTrace

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
        self.trace = DecodeTrace.empty(rows, length, self.ids)
        self.trace.start, self.trace.settings = region.start, self.settings
        if self.choice.temperature > 0 or self.forced is not None:
            self.logp = torch.zeros(rows, dtype=torch.float64, device=self.ids.device)
        self._ends = torch.tensor(self.choice.ends, dtype=torch.int64, device=self.ids.device)
        self._bad = torch.zeros((), dtype=torch.bool, device=self.ids.device)
        self._forward = 0
        self._finish(0)
        for block, (begin, end) in enumerate(self.schedule.blocks):
            self._block(block, begin, end)
        self._look_for_nan(bool(self._bad))
        return self.ids

    def _block(self, block: int, begin: int, end: int) -> None:
        self.rule.reset()
        wanted = self.undecided[:, begin:end].sum(1)
        step, before = 0, None
        while True:
            # The one time a step that the host waits: what is masked, and whether a logit was NaN.
            seen = torch.cat((self.undecided[:, begin:end], self._bad.expand(len(wanted), 1)), 1).cpu()
            self._look_for_nan(bool(seen[0, -1]))
            b, n = seen[:, :-1].nonzero(as_tuple=True)
            if not len(b):
                return
            left = seen[:, :-1].sum(1)
            if before is not None and bool(((left == before) & (left > 0)).any()):
                raise ValueError(
                    f"the rule {self.rule.name!r} accepted nothing in step {self._forward - 1}; it must "
                    "accept at least one candidate in every row that has any"
                )
            before = left
            state = self._scored(b, n + begin, begin, end, step, seen[:, :-1])
            state.budget = self.schedule.at(block, step, wanted, state.masked.sum(1))
            selection = self.rule.select(state)
            self._write(state, selection, begin, end)
            if self.callback is not None:
                self.callback(self._forward, state, selection)
            self._forward += 1
            step += 1
            self._finish(self._forward - 1)

    def _look_for_nan(self, bad: bool) -> None:
        if bad:
            raise FloatingPointError(
                "the model's logits were not finite (NaN, +inf, or all -inf) at a masked position in step "
                f"{self._forward - 1}; look at the model (float16 overflow, a fully masked attention row)"
            )

    def _scored(
        self, b: Int[Tensor, " m"], n: Int[Tensor, " m"], begin: int, end: int, step: int, seen: Tensor
    ) -> StepState:
        device, (rows, length) = self.ids.device, self.undecided.shape
        logits, where = self._logits(b, n, begin, end, step, seen)
        b, n = b.to(device, non_blocking=True), n.to(device, non_blocking=True)
        exclude = self.choice.mask_id if self.choice.mask_id < logits.shape[1] else None
        temperature = self.choice.score_temperature
        scores = masked_entropy_argmax(logits, where, temperature, exclude)
        self._bad |= torch.isnan(scores.neg_entropy).any()

        def laid_out(values: Tensor, fill: float) -> Tensor:
            out = torch.full((rows, length), fill, dtype=values.dtype, device=device)
            out[b, n] = values
            return out

        state = StepState(
            masked=laid_out(torch.ones_like(b, dtype=torch.bool), 0),
            neg_entropy=laid_out(scores.neg_entropy, -torch.inf),
            maxprob=laid_out(scores.maxprob, -torch.inf),
            argmax=laid_out(scores.argmax, 0),
            lse=laid_out(scores.lse, 0.0),
            logits=logits,
            row_of=laid_out(where, -1),
            score_temperature=temperature,
            exclude=-1 if exclude is None else exclude,
            budget=self.trace.forwards,
            undecided=self.undecided.sum(1),
            length=length,
            step=step,
            order_keys=self.order_keys,
        )
        self.trace.forwards += state.masked.any(1)
        self._open = state.masked
        if self.choice.eos_guard:
            self._guard(state, begin, end)
        return state

    def _logits(
        self, b: Int[Tensor, " m"], n: Int[Tensor, " m"], begin: int, end: int, step: int, seen: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Logits, and the row of each masked position in them."""
        start, length = self.region.start, self.ids.shape[1]
        place = (n + (start - self.shift)).clamp(min=0)
        if self.calls.use_cache:
            first = max(start + begin - self.shift, 0)
            logits = self.calls.span(self.ids, first, start + end, refresh=step == 0)
            where = b * logits.shape[1] + place - first
            return logits.flatten(0, 1), where.to(self.ids.device, non_blocking=True)
        alive = None
        active = seen.any(1)
        if not bool(active.all()):
            kept = active.nonzero()[:, 0]
            alive = kept.to(self.ids.device, non_blocking=True)
            b = torch.empty(len(active), dtype=torch.int64).scatter_(0, kept, torch.arange(len(kept)))[b]
        flat = (b * length + place).to(self.ids.device, non_blocking=True)
        return self.calls.rows(self.ids, alive, flat)

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
        if not isinstance(reasons, Tensor):
            reasons = torch.full_like(tokens, reasons)
        if self.forced is not None or self.choice.temperature > 0:
            tokens = self._drawn(state, selection, accept)
        if self.choice.eos_guard:
            tail = self._tail(state, accept, tokens, begin, end)
            tokens, reasons = torch.where(tail, state.argmax, tokens), torch.where(tail, TAIL, reasons)
            accept = accept | tail
        self.response.copy_(torch.where(accept, tokens, self.response))
        self.undecided &= ~accept
        trace = self.trace
        trace.step.masked_fill_(accept, self._forward)
        trace.token = torch.where(accept, tokens, trace.token)
        trace.reason = torch.where(accept, reasons, trace.reason)
        found = {"score": selection.scores, "neg_entropy": state.neg_entropy, "maxprob": state.maxprob}
        found |= {"mixed_entropy": selection.mixed_entropy, "jsd": selection.jsd}
        for name, values in found.items():
            if values is not None:
                setattr(trace, name, torch.where(accept, values.float(), getattr(trace, name)))
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
