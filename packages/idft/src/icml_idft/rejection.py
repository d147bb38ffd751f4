"""Rejection sampling: a model's own answers to the prompts, of which the right ones are kept.

The simplest way to on-policy data, and the rival of realignment: it needs a check, and prompts that the model
sometimes solves. arXiv 2308.01825.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from icml_lm import generate

from icml_idft.demonstrations import Row, prompt_ids, prompt_of


class OwnAnswer(NamedTuple):
    """What a model answered: its tokens, with the end token where it came, the text, and how it ended."""

    ids: list[int]
    text: str
    finish: str


def own_answers(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Any],
    *,
    samples: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: int = 256,
    batch: int = 32,
    generator: torch.Generator | None = None,
) -> Iterator[list[OwnAnswer]]:
    """The model's answers to each prompt, ``samples`` of them.

    Args:
        model: whose answers are taken.
        tokenizer: of the model.
        prompts: texts, conversations or token ids.
        samples: answers a prompt.
        temperature, top_p: of the sampling.
        max_new_tokens: of an answer.
        batch: prompts at once.
        generator: of the samples; needed where ``temperature`` is above 0.
    """
    device = next(model.parameters()).device
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    for start in range(0, len(prompts), batch):
        of_batch = [prompt_ids(tokenizer, p) for p in prompts[start : start + batch]]
        longest = max(map(len, of_batch))
        ids = torch.tensor([[pad] * (longest - len(p)) + p for p in of_batch], device=device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in of_batch], device=device)
        out = generate(
            model,
            ids,
            mask,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            tokenizer=tokenizer,
            generator=generator if temperature else None,
            share_prefix=samples,
        )
        for i in range(len(of_batch)):
            found = []
            for j in range(i * samples, (i + 1) * samples):
                new = out.ids[j, : int(out.lengths[j])].tolist()
                found.append(OwnAnswer(new, tokenizer.decode(new, skip_special_tokens=True), out.finish[j]))
            yield found


def rejection_sample(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    check: Callable[[Row, str], bool],
    *,
    samples: int = 4,
    per_prompt: int = 1,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: int = 256,
    batch: int = 32,
    generator: torch.Generator,
) -> list[dict[str, Any]]:
    """Rows ``{"prompt", "response"}`` of the model's right answers; a prompt without any is left out.

    Args:
        model: whose answers are taken.
        tokenizer: of the model.
        rows: with prompts.
        check: ``(row, answer) -> bool``.
        samples: answers a prompt.
        per_prompt: right ones that are kept of each.
        temperature, top_p: of the sampling.
        max_new_tokens: of an answer; one that is cut off is not kept.
        batch: prompts at once.
        generator: of the samples.

    Raises:
        ValueError: numbers below 1, or a row without a prompt.
    """
    if samples < 1 or per_prompt < 1:
        raise ValueError(f"samples={samples} and per_prompt={per_prompt} must be at least 1")
    kept: list[dict[str, Any]] = []
    prompts = [prompt_of(row, number) for number, row in enumerate(rows)]
    sampled = own_answers(
        model,
        tokenizer,
        prompts,
        samples=samples,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        batch=batch,
        generator=generator,
    )
    for row, prompt, answers in zip(rows, prompts, sampled, strict=True):
        right = 0
        for _, answer, finish in answers:
            if right < per_prompt and finish == "eos" and answer.strip() and check(row, answer):
                kept.append({"prompt": prompt, "response": answer})
                right += 1
    return kept
