"""Batched generation from TinyLM or a transformers model, with unequal prompts and shared prefixes.

Greedy decoding gives transformers' tokens. A row of a batch gives what it gives alone: padding is masked,
positions are the row's own, and the uniform numbers that a row is sampled with (by inverse CDF) are drawn
before the first step, row after row. Finished rows leave the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_lm.batching import Messages, chat_prompt, token_ids
from icml_lm.cache import new_cache, repeat_rows, run_cached, select_rows
from icml_lm.sampling import Choice, Generators, check_sampling, draw, uniforms

Finish = Literal["eos", "stop", "length"]
LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""(tokens so far [rows, tokens], logits [rows, vocab]) → logits, as transformers' processors."""

_LEAVE = 8  # finished rows leave the batch when they are one in so many, or more
_SPLIT_CHARACTERS = 4  # a character of a stop string may be spread over so many tokens


class Gen(NamedTuple):
    """What was generated; row ``i * share_prefix + j`` is sample j of prompt i.

    Attributes:
        ids: new tokens, the end token or the last token of a stop string included; then padding.
        logp: log-probability of each under the model at the temperature used (1 where it is 0), after the
            logits processor and before the cuts of ``top_k`` and ``top_p``; 0 at padding.
        lengths: number of new tokens.
        finish: per row ``"eos"`` (an end token), ``"stop"`` (a stop string) or ``"length"``.
    """

    ids: Int[Tensor, "rows new"]
    logp: Float[Tensor, "rows new"]
    lengths: Int[Tensor, " rows"]
    finish: list[Finish]


class Text(NamedTuple):
    """A generated text, without its end token or stop string; ``ids`` and ``logp`` have all new tokens."""

    text: str
    ids: list[int]
    logp: list[float]
    finish: Finish


@torch.no_grad()
def generate(
    model: Any,
    ids: Int[Tensor, "prompts tokens"],
    mask: Int[Tensor, "prompts tokens"] | None = None,
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    top_k: int = 0,
    stop: str | int | Sequence[str | int] = (),
    tokenizer: Any = None,
    eos_id: int | Sequence[int] | None = None,
    generator: Generators | None = None,
    share_prefix: int = 1,
    logits_processor: LogitsProcessor | None = None,
) -> Gen:
    """Continue prompts.

    Args:
        model: TinyLM, a transformers causal model, or PEFT's wrapper around either; used in evaluation.
        ids: prompts, padded on either side where they are unequal.
        mask: 1 for real tokens, 0 for padding.
        max_new_tokens: at most so many.
        temperature: logits are divided by it; 0 takes the most probable token.
        top_p: sample from the smallest set of tokens with at least this probability, as transformers does.
        top_k: sample from so many most probable tokens; 0 for all.
        stop: strings (with ``tokenizer``) or token ids that end a row.
        tokenizer: decodes, for stop strings, also where they begin or end inside a token; gives ``eos_id``.
        eos_id: tokens that end a row; the tokenizer's, else the model's configuration's, by default.
        generator: of the uniform numbers; needed where ``temperature`` is above 0. For one row after the
            other with the same generator the samples are those of the batch.
        share_prefix: samples a prompt; the prompt is read once.
        logits_processor: changes the logits before anything else.

    Raises:
        ValueError: wrong shapes or ranges, an empty prompt, sampling without a generator, stop strings
            without a tokenizer.
    """
    check_sampling(temperature, top_p, top_k, generator)
    if max_new_tokens < 1 or share_prefix < 1:
        raise ValueError(
            f"max_new_tokens={max_new_tokens} and share_prefix={share_prefix} must be at least 1"
        )
    ids, mask = left_padded(ids, mask)
    strings, ends = _stops(stop, tokenizer, eos_id, model)
    training = model.training
    model.eval()
    try:
        rows = ids.shape[0] * share_prefix
        chance = uniforms(rows, max_new_tokens, generator, ids.device) if temperature else None
        settings = Choice(temperature, top_p, top_k)
        batch = _Batch(model, ids, mask, max_new_tokens, share_prefix, ends, strings, tokenizer)
        logits = batch.prefill()
        for step in range(max_new_tokens):
            if logits_processor is not None:
                logits = logits_processor(batch.tokens(), logits)
            tokens, logp = draw(logits, settings, None if chance is None else chance[batch.rows, step])
            if not batch.take(step, tokens, logp):
                break
            if step + 1 < max_new_tokens:
                logits = batch.advance(step)
        return batch.result()
    finally:
        model.train(training)


def generate_text(
    model: Any,
    tokenizer: Any,
    prompts: str | Messages | Sequence[str] | Sequence[Messages],
    *,
    max_new_tokens: int,
    stop: str | int | Sequence[str | int] = (),
    share_prefix: int = 1,
    **options: Any,
) -> list[Text]:
    """Continue texts, or answer conversations (``[{"role": ..., "content": ...}, ...]``).

    Args:
        model: as for ``generate``.
        tokenizer: of the model.
        prompts: one prompt or conversation, or a list of them.
        max_new_tokens: at most so many.
        stop: strings or token ids that end a text.
        share_prefix: texts a prompt.
        options: further arguments of ``generate``.

    Returns:
        ``share_prefix`` texts a prompt, one prompt after the other.

    Raises:
        ValueError: an empty prompt, and what ``generate`` raises.
    """
    listed = _listed(prompts)
    rows = [token_ids(tokenizer, p) if isinstance(p, str) else chat_prompt(tokenizer, p) for p in listed]
    for prompt, row in zip(listed, rows, strict=True):
        if not row:
            raise ValueError(f"the prompt {prompt!r} has no token")
    device = next(model.parameters()).device
    longest = max(map(len, rows))
    pad = _pad_id(tokenizer)
    ids = torch.tensor([[pad] * (longest - len(row)) + row for row in rows], device=device)
    mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows], device=device)
    out = generate(
        model,
        ids,
        mask,
        max_new_tokens=max_new_tokens,
        stop=stop,
        tokenizer=tokenizer,
        share_prefix=share_prefix,
        **options,
    )
    stops = [stop] if isinstance(stop, (str, int)) else list(stop)
    strings = [s for s in stops if isinstance(s, str)]
    texts = []
    columns = zip(out.ids.tolist(), out.logp.tolist(), out.lengths.tolist(), out.finish, strict=True)
    for row, logp, length, finish in columns:
        kept = row[: length - 1] if finish == "eos" else row[:length]
        text = tokenizer.decode(kept, skip_special_tokens=True)
        if finish == "stop":
            # A stop string that is a special token is not in the text any more.
            text = text[: min((text.find(s) for s in strings if s in text), default=len(text))]
        texts.append(Text(text, row[:length], logp[:length], finish))
    return texts


def left_padded(
    ids: Int[Tensor, "rows tokens"], mask: Tensor | None
) -> tuple[Int[Tensor, "rows longest"], Int[Tensor, "rows longest"] | None]:
    """Rows moved to the right end, columns of padding alone cut off; no mask where nothing is padded.

    Raises:
        ValueError: wrong shapes, an empty row, or padding between the tokens of a row.
    """
    if ids.dim() != 2 or ids.dtype.is_floating_point or 0 in ids.shape:
        raise ValueError(f"ids must be whole numbers [rows, tokens], not {tuple(ids.shape)} of {ids.dtype}")
    if mask is None:
        return ids, None
    if mask.shape != ids.shape:
        raise ValueError(f"a mask of shape {tuple(mask.shape)} does not belong to ids of {tuple(ids.shape)}")
    seen = mask.bool()
    lengths = seen.sum(1)
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == 0:
        raise ValueError(f"row {int(lengths.argmin())} has no token")
    first = seen.long().argmax(1)
    columns = torch.arange(longest, device=ids.device)
    place = first[:, None] + columns - (longest - lengths)[:, None]
    real = columns >= (longest - lengths)[:, None]
    if not bool(seen.gather(1, place.clamp(min=0))[real].all()):
        raise ValueError("a mask has padding between the tokens of a row; pad on one side")
    moved = ids.gather(1, place.clamp(min=0))
    return (moved, None) if shortest == longest else (moved, real.long())


class _Batch:
    """The rows that are still being written, and where each belongs."""

    def __init__(
        self,
        model: Any,
        ids: Tensor,
        mask: Tensor | None,
        new: int,
        samples: int,
        ends: Tensor | None,
        strings: list[str],
        tokenizer: Any,
    ) -> None:
        self.model, self.samples, self.new = model, samples, new
        self.prompt, self.prompt_mask = ids, mask
        self.ends, self.strings, self.tokenizer = ends, strings, tokenizer
        device, total = ids.device, ids.shape[0] * samples
        self.rows = torch.arange(total, device=device)
        self.pad = 0 if ends is None else int(ends[0])
        self.ids = torch.full((total, new), self.pad, device=device, dtype=torch.long)
        self.logp = torch.zeros(total, new, device=device)
        # The rows still in the batch are written beside, where a column is a plain slice.
        self.written, self.written_logp = self.ids.clone(), self.logp.clone()
        self.lengths = torch.full((total,), new, device=device)
        self.by_string = torch.zeros(total, dtype=torch.bool, device=device)
        self.by_end = torch.zeros(total, dtype=torch.bool, device=device)
        self.steps = 0
        self.alive: Tensor | None = None  # of the rows still in the batch; None for all
        self.widest = max((len(s.encode()) for s in strings), default=0) + _SPLIT_CHARACTERS

    def prefill(self) -> Tensor:
        """Read the prompts; logits of the first new token."""
        columns = self.prompt.shape[1]
        self.cache = new_cache(self.model, columns + self.new)
        inputs: dict[str, Any] = {}
        self.mask: Tensor | None = None
        self.places: Tensor | None = None
        if self.prompt_mask is not None:
            positions = (self.prompt_mask.cumsum(1) - 1).clamp(min=0)
            inputs = {"attention_mask": self.prompt_mask, "position_ids": positions}
            room = self.prompt_mask.new_ones(self.prompt.shape[0], self.new)
            self.mask = torch.cat((self.prompt_mask, room), 1).repeat_interleave(self.samples, 0)
            self.places = (positions[:, -1:] + 1).repeat_interleave(self.samples, 0)
        out = run_cached(self.model, self.prompt, self.cache, last_only=True, **inputs)
        if self.samples > 1:
            repeat_rows(self.cache, self.samples)
        return out.logits[:, -1].repeat_interleave(self.samples, 0)

    def take(self, step: int, tokens: Tensor, logp: Tensor) -> bool:
        """Write the tokens of a step down; whether any row goes on. One look at the device."""
        if self.alive is not None:
            tokens = torch.where(self.alive, tokens, self.pad)
            logp = torch.where(self.alive, logp, 0.0)
        self.written[:, step] = tokens
        self.written_logp[:, step] = logp
        self.last = tokens
        self.steps = step + 1
        by_end = by_string = None
        if self.ends is not None:
            by_end = (tokens[:, None] == self.ends).any(1)
        if self.strings:
            by_string = self._said(step, tokens)
        if by_end is None and by_string is None:
            return True
        ended = by_string if by_end is None else by_end if by_string is None else by_end | by_string
        if self.alive is not None:
            ended = ended & self.alive
        if not bool(ended.any()):
            return True
        stopped = self.rows[ended]
        self.lengths[stopped] = step + 1
        if by_end is not None:
            self.by_end[stopped] = by_end[ended]
        if by_string is not None:
            self.by_string[stopped] = by_string[ended]
        self.alive = ~ended if self.alive is None else self.alive & ~ended
        kept = self.alive.nonzero()[:, 0]
        held = len(self.rows)
        if not len(kept):
            return False
        if held - len(kept) >= max(1, held // _LEAVE):
            self._leave(kept)
        return True

    def _leave(self, kept: Tensor) -> None:
        """Put what is written in its place, and go on with some rows."""
        self.ids[self.rows], self.logp[self.rows] = self.written, self.written_logp
        self.written, self.written_logp = self.written[kept], self.written_logp[kept]
        self.rows, self.last, self.alive = self.rows[kept], self.last[kept], None
        select_rows(self.cache, kept)
        if self.mask is not None and self.places is not None:
            self.mask, self.places = self.mask[kept], self.places[kept]

    def advance(self, step: int) -> Tensor:
        """Logits of the token after those of a step."""
        inputs: dict[str, Any] = {}
        if self.mask is not None and self.places is not None:
            seen = self.mask[:, : self.prompt.shape[1] + step + 1]
            inputs = {"attention_mask": seen, "position_ids": self.places + step}
        out = run_cached(self.model, self.last[:, None], self.cache, last_only=True, **inputs)
        return out.logits[:, -1]

    def tokens(self) -> Tensor:
        """Prompts and new tokens of the rows still in the batch."""
        prompts = self.prompt[self.rows // self.samples]
        return torch.cat((prompts, self.written[:, : self.steps]), 1)

    def result(self) -> Gen:
        """Everything written, in the order of the prompts."""
        self.ids[self.rows], self.logp[self.rows] = self.written, self.written_logp
        ends, strings = self.by_end.tolist(), self.by_string.tolist()
        finish: list[Finish] = [
            "eos" if end else "stop" if said else "length" for end, said in zip(ends, strings, strict=True)
        ]
        lengths = self.lengths.clamp(max=self.steps)
        return Gen(self.ids[:, : self.steps], self.logp[:, : self.steps], lengths, finish)

    def _said(self, step: int, tokens: Tensor) -> Tensor:
        """Which rows end a stop string with this token; the tail is long enough for any of them."""
        tails = self.written[:, max(0, step + 1 - self.widest) : step + 1].tolist()
        decode = self.tokenizer.decode
        said = [any(s in text for s in self.strings) for text in (decode(tail) for tail in tails)]
        return torch.tensor(said, device=tokens.device)


def _stops(
    stop: Any, tokenizer: Any, eos_id: Any, model: Any
) -> tuple[list[str], Int[Tensor, " ends"] | None]:
    stops = [stop] if isinstance(stop, (str, int)) else list(stop)
    strings = [s for s in stops if isinstance(s, str)]
    if strings and tokenizer is None:
        raise ValueError(f"stop strings such as {strings[0]!r} need tokenizer= to read what was generated")
    if "" in strings:
        raise ValueError("an empty stop string would end every row at once")
    ends = [s for s in stops if not isinstance(s, str)]
    if eos_id is None:
        eos_id = getattr(tokenizer, "eos_token_id", None)
    if eos_id is None:
        config = getattr(model, "generation_config", None) or getattr(model, "config", None)
        eos_id = getattr(config, "eos_token_id", None)
    ends = [*([eos_id] if isinstance(eos_id, int) else eos_id or ()), *ends]
    if not ends:
        return strings, None
    return strings, torch.tensor(ends, device=next(model.parameters()).device)


def _listed(prompts: Any) -> list[Any]:
    if isinstance(prompts, str):
        return [prompts]
    found = list(prompts)
    if not found:
        raise ValueError("there is no prompt")
    return [found] if isinstance(found[0], Mapping) else found


def _pad_id(tokenizer: Any) -> int:
    found = getattr(tokenizer, "pad_token_id", None)
    return int(found if found is not None else tokenizer.eos_token_id)
