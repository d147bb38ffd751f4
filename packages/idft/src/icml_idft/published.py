"""Hinted decoding as published: one row at a time, both whole prefixes read anew for every token.

In plain torch, without caches and without the shared kernel: what ``HintedDecoder`` is checked and timed
against. It costs O(T²) for T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from icml_lm.sampling import Generators
from torch import Tensor

from icml_idft.demonstrations import prompt_ids
from icml_idft.hinted import Hinted, HintedDecoder
from icml_idft.hinted_streams import EVERY, Finish, repeats


@torch.no_grad()
def published_loop(
    decoder: HintedDecoder,
    prompts: Sequence[Any],
    hints: Sequence[str],
    max_new_tokens: int,
    generator: Generators | None = None,
) -> list[Hinted]:
    """What ``decoder.generate`` gives, the slow way."""
    targets = decoder.target_prompts(prompts, hints)
    chance = decoder._uniforms(len(targets), max_new_tokens, generator)
    return [
        _one(decoder, target, prompt_ids(decoder.tokenizer, prompt), u)
        for target, prompt, u in zip(targets, prompts, chance, strict=True)
    ]


def _one(decoder: HintedDecoder, target: list[int], draft: list[int], chance: Tensor) -> Hinted:
    device = chance.device
    ids: list[int] = []
    phi: list[float] = []
    shares: list[float] = []
    split, finish = False, "length"
    for u in chance.tolist():
        p, q = (
            torch.log_softmax(model(torch.tensor([[*prompt, *ids]], device=device)).logits[0, -1], 0)
            for model, prompt in ((decoder.target_model, target), (decoder.model, draft))
        )
        lam = 0.0 if not ids else 1.0 if split else _share(decoder, p)
        if ids and not split:
            shares.append(lam)
        m = p if lam == 0 else q if lam == 1 else (1 - lam) * p + lam * q
        token = _drawn(m, u, decoder.top_p, decoder.temperature)
        phi.append(float(q[token] - (q.exp() * q).nansum()))
        ids.append(token)
        if token in decoder.ends:
            finish = "eos"
            break
        if len(ids) % EVERY == 0 and repeats(ids):
            finish = "repeating"
            break
        split = split or (decoder.split is not None and decoder.split in decoder.tokenizer.decode(ids))
    kept = [i for i in ids if i not in decoder.ends]
    text = decoder.tokenizer.decode(kept, skip_special_tokens=True)
    mean = sum(shares) / len(shares) if shares else 0.0
    done: Finish = finish  # type: ignore[assignment]
    return Hinted(text, tuple(ids), sum(phi) / len(phi), mean, done)


def _share(decoder: HintedDecoder, p: Tensor) -> float:
    entropy = -float((p.exp() * p).nansum())
    h = entropy / (decoder.log_vocabulary or math.log(max(len(p), 2)))
    if decoder.mode == "linear":
        return min(max(decoder.beta * h, 0.0), 1.0)
    if decoder.mode == "sigmoid":
        return 1 / (1 + math.exp(-decoder.beta * (h - 0.5)))
    return min(max((h - 0.3) / 0.4, 0.0), 1.0)


def _drawn(m: Tensor, u: float, top_p: float, temperature: float) -> int:
    if temperature == 0:
        return int(m.argmax())
    if top_p < 1:
        ordered, order = torch.sort(m, descending=True, stable=True)
        probability = ordered.double().softmax(0)
        kept = probability.cumsum(0) - probability < top_p
        weights = torch.where(kept, ordered.double() / temperature, -math.inf).softmax(0)
    else:
        order, weights = torch.arange(len(m), device=m.device), (m.double() / temperature).softmax(0)
    cumulated = weights.cumsum(0)
    place = int(torch.searchsorted(cumulated, u * cumulated[-1], right=True))
    return int(order[min(place, len(m) - 1)])
