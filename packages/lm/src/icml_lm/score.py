"""Log-probabilities of continuations that share a prefix: the prefix is read once.

P tokens of prefix and n suffixes of S tokens cost P + nS token-forwards instead of n(P + S).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_lm.batching import token_ids
from icml_lm.cache import accepts, new_cache, run_cached, select_rows
from icml_lm.decoder import hidden_and_head

Tokens = Sequence[int] | Int[Tensor, " tokens"]


class ScoredChoice(NamedTuple):
    """The most probable of several options.

    Attributes:
        index: which one.
        text: itself.
        logp: of every option, summed over its tokens, in nats.
    """

    index: int
    text: str
    logp: Float[Tensor, " options"]


@torch.no_grad()
def shared_prefix_logprobs(
    model: Any,
    prefix_ids: Tokens | Sequence[Tokens],
    suffixes: Sequence[Tokens] | Sequence[Sequence[Tokens]],
    *,
    score_from: int | Sequence[int] | Sequence[Sequence[int]] = 0,
    temperature: float = 1.0,
) -> Any:
    """Log-probability of each token of each suffix behind its prefix; equal to encoding the whole text.

    Args:
        model: TinyLM, a transformers causal model, or PEFT's wrapper around either.
        prefix_ids: a prefix, or several of unequal length.
        suffixes: continuations of the prefix; of several prefixes, one list each.
        score_from: first token of a suffix that is scored; one number, or one per suffix in the same nesting.
        temperature: of the distribution.

    Returns:
        A list of tensors [suffix tokens - score_from], one a suffix; of several prefixes, a list of such
        lists.

    Raises:
        ValueError: an empty prefix or suffix, no suffix, ``score_from`` outside the suffix, a temperature
            that is not positive, a log-probability that is not a number.
    """
    if not 0.0 < temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be a positive number")
    single = not (len(prefix_ids) and _is_row(prefix_ids[0]))
    prefixes = [_row(p) for p in ([prefix_ids] if single else prefix_ids)]
    groups = [[_row(s) for s in group] for group in ([suffixes] if single else suffixes)]
    starts = _starts(score_from, groups, single)
    _check(prefixes, groups, starts)
    flat = [s for group in groups for s in group]
    begins = [b for group in starts for b in group]
    owner = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    training = model.training
    model.eval()
    try:
        scored = _score(model, prefixes, flat, begins, owner, temperature)
    finally:
        model.train(training)
    for i, values in enumerate(scored):
        if bool(torch.isnan(values).any()):
            raise ValueError(
                f"suffix {i} has a log-probability that is not a number: the model's logits have none"
            )
    nested = []
    for group in groups:
        nested.append(scored[: len(group)])
        scored = scored[len(group) :]
    return nested[0] if single else nested


def choose(model: Any, tokenizer: Any, prompt: str | Tokens, options: Sequence[str]) -> ScoredChoice:
    """The option that the model finds most probable behind the prompt, by the sum over its tokens.

    Args:
        model: as for ``shared_prefix_logprobs``.
        tokenizer: of the model; options are tokenised apart from the prompt.
        prompt: text or token ids.
        options: texts.

    Raises:
        ValueError: fewer than two options, two that have the same tokens, or an empty one.
    """
    rows = [tuple(token_ids(tokenizer, option)) for option in options]
    if len(rows) < 2 or len(set(rows)) != len(rows):
        raise ValueError(f"the options {list(options)} must be at least two, with different tokens")
    ids = token_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt
    scores = shared_prefix_logprobs(model, ids, rows)
    logp = torch.stack([s.sum() for s in scores])
    best = int(logp.argmax())
    return ScoredChoice(best, options[best], logp)


def _score(
    model: Any,
    prefixes: list[Tensor],
    suffixes: list[Tensor],
    begins: list[int],
    owner: Tensor,
    temperature: float,
) -> list[Tensor]:
    device = next(model.parameters()).device
    ids, mask = _padded(prefixes, device, left=True)
    rows, seen = _padded(suffixes, device, left=False)
    owner = owner.to(device)
    cache = new_cache(model, ids.shape[1] + rows.shape[1])
    lengths = mask.sum(1)
    padded = bool((lengths != ids.shape[1]).any())
    extra = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)} if padded else {}
    first = run_cached(model, ids, cache, last_only=True, **extra).logits[:, -1]
    at_first = _log_softmax(first, temperature)[owner, rows[:, 0]]
    found: Tensor | None = None
    if rows.shape[1] > 1:
        select_rows(cache, owner)
        width = rows.shape[1] - 1
        places = lengths[owner][:, None] + torch.arange(width, device=device)
        whole = torch.cat((mask[owner], seen[:, :-1]), 1)
        name = "cache" if accepts(model, "cache") else "past_key_values"
        hidden, head, out = hidden_and_head(
            model,
            rows[:, :-1],
            attention_mask=whole,
            position_ids=places,
            use_cache=True,
            **{name: cache},
        )
        # Only the positions whose next token is asked for meet the head.
        columns = torch.arange(1, rows.shape[1], device=device)
        asked = seen[:, 1:].bool() & (columns >= torch.tensor(begins, device=device)[:, None])
        logits = out.logits[asked] if hidden is None or head is None else head.logits(hidden[asked])
        picked = _log_softmax(logits, temperature).gather(1, rows[:, 1:][asked][:, None])[:, 0]
        found = picked.new_zeros(asked.shape).masked_scatter(asked, picked)
    out_rows = []
    for i, suffix in enumerate(suffixes):
        parts = [at_first[i : i + 1]]
        if found is not None:
            parts.append(found[i, : len(suffix) - 1])
        out_rows.append(torch.cat(parts)[begins[i] :])
    return out_rows


def _log_softmax(logits: Tensor, temperature: float) -> Tensor:
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    return (wide / temperature).log_softmax(-1)


def _padded(rows: list[Tensor], device: torch.device, *, left: bool) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        place = slice(longest - len(row), longest) if left else slice(0, len(row))
        ids[i, place], mask[i, place] = row.cpu(), 1
    return ids.to(device), mask.to(device)


def _is_row(item: Any) -> bool:
    return isinstance(item, (list, tuple)) or (isinstance(item, Tensor) and item.dim() == 1)


def _row(tokens: Any) -> Tensor:
    row = torch.as_tensor(tokens, dtype=torch.long)
    if row.dim() != 1:
        raise ValueError(f"token ids must be a flat sequence, not of shape {tuple(row.shape)}")
    return row


def _starts(given: Any, groups: list[list[Tensor]], single: bool) -> list[list[int]]:
    if isinstance(given, int):
        return [[given] * len(group) for group in groups]
    nested = [given] if single else given
    if [len(n) for n in nested] != [len(group) for group in groups]:
        raise ValueError("score_from must be one number, or one for every suffix")
    return [[int(b) for b in n] for n in nested]


def _check(prefixes: list[Tensor], groups: list[list[Tensor]], starts: list[list[int]]) -> None:
    if len(prefixes) != len(groups) or not prefixes:
        raise ValueError(f"there are {len(prefixes)} prefixes and {len(groups)} lists of suffixes")
    for i, (prefix, group, begins) in enumerate(zip(prefixes, groups, starts, strict=True)):
        if not len(prefix):
            raise ValueError(f"prefix {i} is empty; begin it with the model's begin token")
        if not group:
            raise ValueError(f"prefix {i} has no suffix")
        for j, (suffix, begin) in enumerate(zip(group, begins, strict=True)):
            if not len(suffix):
                raise ValueError(f"suffix {j} of prefix {i} is empty")
            if not 0 <= begin < len(suffix):
                raise ValueError(
                    f"score_from={begin} is outside suffix {j} of prefix {i}, of {len(suffix)} tokens"
                )
