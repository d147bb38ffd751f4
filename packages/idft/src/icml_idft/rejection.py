"""Rejection sampling: a model's own answers to the prompts, of which the right ones are kept.

The simplest way to on-policy data, and the rival of realignment: it needs a check, and prompts that the model
sometimes solves. arXiv 2308.01825.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from icml_lm import generate

from icml_idft.demonstrations import Row, prompt_ids, prompt_of


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
    device = next(model.parameters()).device
    prompts = [prompt_of(row, number) for number, row in enumerate(rows)]
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    for start in range(0, len(rows), batch):
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
            right = 0
            for j in range(i * samples, (i + 1) * samples):
                if right == per_prompt or out.finish[j] != "eos":
                    continue
                new = out.ids[j, : int(out.lengths[j])].tolist()
                answer = tokenizer.decode(new, skip_special_tokens=True)
                if answer.strip() and check(rows[start + i], answer):
                    kept.append({"prompt": prompts[start + i], "response": answer})
                    right += 1
    return kept
