"""DPO and SimPO, with which the paper compares: the losses, and pairs where only demonstrations are given.

The preferred answer is then the demonstration, and the rejected one is the model's own, sampled for the same
prompt. DPO: arXiv 2305.18290, equation 7. SimPO: arXiv 2405.14734, equation 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from icml_lm import collate
from icml_lm.batching import IGNORE, Supervised
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from icml_idft.demonstrations import Row, answer_of, prompt_of
from icml_idft.rejection import own_answers

PREFERENCES = ("dpo", "simpo")
BETAS = {"dpo": 0.1, "simpo": 2.0}
MARGINS = {"dpo": 0.0, "simpo": 0.5}


class Pair(NamedTuple):
    """Two answers to one prompt, as token ids with the answer supervised."""

    chosen: Supervised
    rejected: Supervised


@dataclass(frozen=True)
class Pairs:
    """Pairs of texts, as TRL's trainers read them, and what was left out.

    Attributes:
        rows: ``{"prompt", "chosen", "rejected"}`` each.
        cut: rows whose sampled answer did not end in time.
        empty: rows whose sampled answer was empty.
        same: rows whose sampled answer is the demonstration.
    """

    rows: list[dict[str, Any]]
    cut: int = 0
    empty: int = 0
    same: int = 0


class PreferenceLoss:
    """-log σ(beta (r(chosen) - r(rejected)) - margin), a value a pair.

    - ``"dpo"``: r = log π(answer) - log π_ref(answer), sums over tokens; no margin;
    - ``"simpo"``: r = log π(answer) / tokens, without a reference.

    Args:
        kind: one of ``PREFERENCES``.
        beta: 0.1 for DPO, 2 for SimPO by default.
        margin: SimPO's gamma, in units of beta r; 0.5 by default.

    Raises:
        ValueError: an unknown kind, constants out of range, a margin for DPO.

    Example:
        >>> loss = PreferenceLoss("simpo", margin=0.0)
        >>> loss(torch.tensor([-2.0, -4.0]), torch.tensor([2, 4]))  # -log σ(0): both -1 a token
        tensor([0.6931])
    """

    def __init__(self, kind: str = "dpo", beta: float | None = None, margin: float | None = None) -> None:
        if kind not in PREFERENCES:
            raise ValueError(f"kind={kind!r} is not one of {', '.join(PREFERENCES)}")
        self.kind = kind
        self.beta = BETAS[kind] if beta is None else float(beta)
        self.margin = MARGINS[kind] if margin is None else float(margin)
        if not (self.beta > 0 and math.isfinite(self.beta)):
            raise ValueError(f"beta={beta} must be a positive number")
        if not (self.margin >= 0 and math.isfinite(self.margin)):
            raise ValueError(f"margin={margin} must be a number of at least 0")
        if kind == "dpo" and self.margin:
            raise ValueError(f"margin={margin} belongs to SimPO; DPO has none")

    def __repr__(self) -> str:
        margin = f", margin={self.margin!r}" if self.kind == "simpo" else ""
        return f"PreferenceLoss({self.kind!r}, beta={self.beta!r}{margin})"

    def __call__(
        self,
        logp: Float[Tensor, " answers"],
        tokens: Int[Tensor, " answers"],
        reference: Float[Tensor, " answers"] | None = None,
    ) -> Float[Tensor, " pairs"]:
        """The loss of each pair; chosen answers come first, then the rejected ones in the same order.

        Args:
            logp: log-probability of every answer, summed over its tokens, in nats.
            tokens: how many tokens each has.
            reference: log-probabilities under the frozen reference; DPO needs them.

        Raises:
            ValueError: an odd number of answers, an answer without tokens, or no reference for DPO.
        """
        if len(logp) % 2 or logp.shape != tokens.shape:
            raise ValueError(
                f"logp {list(logp.shape)} and tokens {list(tokens.shape)} must have the chosen answers "
                "first, and as many rejected ones behind them"
            )
        if self.kind == "dpo":
            if reference is None:
                raise ValueError("DPO needs reference=, the answers' log-probabilities before the training")
            reward = logp - reference
        else:
            if not bool((tokens > 0).all()):
                raise ValueError("an answer has no token; SimPO divides by their number")
            reward = logp / tokens
        chosen, rejected = reward.chunk(2)
        return -F.logsigmoid(self.beta * (chosen - rejected) - self.margin)


def answer_logp(
    logits: Float[Tensor, "rows length vocab"], labels: Int[Tensor, "rows length"]
) -> tuple[Float[Tensor, " rows"], Int[Tensor, " rows"]]:
    """Log-probability of each row's supervised tokens in nats, summed, and how many they are.

    Args:
        logits: at every position; each label is predicted from the position before its own.
        labels: tokens, or -100.
    """
    kept = labels[:, 1:] != IGNORE
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    every = torch.log_softmax(wide, -1)
    logp = every.gather(-1, torch.where(kept, labels[:, 1:], 0)[..., None])[..., 0]
    return torch.where(kept, logp, 0).sum(1), kept.sum(1)


@torch.no_grad()
def reference_logp(
    model: Any, rows: Sequence[Supervised], *, pad: int = 0, batch: int = 64
) -> Float[Tensor, " rows"]:
    """Log-probability of the supervised tokens of every row under a model, in nats."""
    device = next(model.parameters()).device
    found = []
    for start in range(0, len(rows), batch):
        part = collate(rows[start : start + batch], pad)
        inputs = {k: part[k].to(device) for k in ("input_ids", "attention_mask")}
        found.append(answer_logp(model(**inputs).logits, part["labels"].to(device))[0])
    return torch.cat(found)


def own_pairs(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Supervised],
    *,
    temperature: float = 1.0,
    max_new_tokens: int,
    batch: int = 128,
    generator: torch.Generator,
) -> list[Pair]:
    """Each demonstration before the model's own answer to its prompt, one pair a row.

    An answer that was cut off has no end token, and one that is the demonstration teaches nothing.

    Args:
        model: whose answers are rejected; the model before its training.
        tokenizer: of the model.
        rows: demonstrations; what comes before the first supervised token is the prompt.
        temperature: of the samples.
        max_new_tokens: of a sample.
        batch: prompts at once.
        generator: of the samples.
    """
    prompts = [row.input_ids[: _first(row.labels)] for row in rows]
    sampled = own_answers(
        model,
        tokenizer,
        prompts,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        batch=batch,
        generator=generator,
    )
    return [
        Pair(row, Supervised([*prompt, *own.ids], [*[IGNORE] * len(prompt), *own.ids]))
        for row, prompt, (own,) in zip(rows, prompts, sampled, strict=True)
    ]


def preference_pairs(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_new_tokens: int = 256,
    batch: int = 32,
    generator: torch.Generator,
) -> Pairs:
    """Pairs of texts: the demonstration, preferred to the model's own answer to the same prompt.

    Where the tokenizer has a chat template, prompts and answers are conversations. A sample that did not end,
    is empty, or is the demonstration makes no pair.

    Args:
        model: whose answers are rejected; the model before its training.
        tokenizer: of the model.
        rows: demonstrations, as ``icml_idft.encode_rows`` reads them, of texts.
        temperature, top_p: of the samples.
        max_new_tokens: of a sample.
        batch: prompts at once.
        generator: of the samples.

    Raises:
        ValueError: a row of another form, or no pair that is left.
    """
    prompts = [prompt_of(row, number) for number, row in enumerate(rows)]
    answers = [answer_of(row, number) for number, row in enumerate(rows)]
    sampled = own_answers(
        model,
        tokenizer,
        prompts,
        temperature=temperature,
        top_p=top_p,
        max_new_tokens=max_new_tokens,
        batch=batch,
        generator=generator,
    )
    chat = bool(getattr(tokenizer, "chat_template", None))
    found: list[dict[str, Any]] = []
    left = {"cut": 0, "empty": 0, "same": 0}
    for prompt, answer, (own,) in zip(prompts, answers, sampled, strict=True):
        if own.finish != "eos":
            left["cut"] += 1
        elif not own.text.strip():
            left["empty"] += 1
        elif own.text.strip() == answer.strip():
            left["same"] += 1
        elif chat:
            said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            both = [[{"role": "assistant", "content": text}] for text in (answer, own.text)]
            found.append({"prompt": said, "chosen": both[0], "rejected": both[1]})
        else:
            found.append({"prompt": prompt, "chosen": answer, "rejected": own.text})
    if not found:
        raise ValueError(
            f"none of {len(rows)} rows made a pair: {left['cut']} sampled answers were cut at "
            f"max_new_tokens={max_new_tokens}, {left['empty']} were empty, {left['same']} the demonstration"
        )
    return Pairs(found, **left)


def _first(labels: Sequence[int]) -> int:
    """Where the supervised tokens begin.

    Raises:
        ValueError: there are none, or no token stands before them.
    """
    place = next((i for i, label in enumerate(labels) if label != IGNORE), 0)
    if place == 0:
        raise ValueError("a demonstration needs a prompt, and supervised tokens behind it")
    return place
