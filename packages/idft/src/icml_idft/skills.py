"""A small world in which forgetting can be counted: a TinyLM with digit skills, and demonstrations of more.

Four operators on digits are known, a fifth in part (it is rare in the training), a sixth not at all. The
model's own style is a few skewed fillers before an answer; demonstrations come in it or in a foreign one, in
fillers that it knows and hardly ever says. Answers are exact, so that what a fine-tuning taught and what it
cost are counts of right answers.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from icml_lm import TinyConfig, TinyLM, artefact, collate, generate, train
from icml_lm.batching import Supervised
from icml_lm.tasks import DigitOps
from icml_lm.tasks.digit_ops import FILLERS, DigitExample, tokenizer
from torch import Tensor

KNOWN = ("ASC", "REVERSE", "ADD", "COMPLEMENT")
PARTLY = "DESC"
UNKNOWN = "DOUBLE"
TARGET = "REVERSE"
"""The known operator that is fine-tuned."""
LENGTHS = (3, 4)
OTHERS = FILLERS[5:]
SKEW = (50, 20, 10, 7, 8, 1, 1, 1, 1, 1)
"""How often each filler comes in the model's own style, in percent; in the foreign one the rare ones come."""
OWN_LENGTHS, FOREIGN_LENGTH = (2, 6), 5
"""How many fillers stand before an answer."""
LONGEST = 14
"""Tokens that an answer may have."""
VERSION = "3"


@dataclass(frozen=True)
class Size:
    """Of the base and of its training.

    Attributes:
        d, layers: of the model.
        steps, batch: of its training.
        rare: share of the partly known operator among the training's examples.
    """

    d: int = 64
    layers: int = 3
    steps: int = 900
    batch: int = 64
    rare: float = 0.005


def base(size: Size, seed: int) -> TinyLM:
    """The model before fine-tuning, from the user's cache or trained now."""
    name = f"idft-skills-{size.d}-{size.layers}-{size.steps}-{size.batch}-{size.rare}-{seed}"

    def build(folder: object) -> None:
        _train_base(size, seed).save(str(folder))

    return TinyLM.load(artefact(name, VERSION, build))


def _train_base(size: Size, seed: int) -> TinyLM:
    symbols = tokenizer()
    model = TinyLM(TinyConfig(vocab=len(symbols), d=size.d, layers=size.layers), seed=seed)
    often, seldom = task(*KNOWN), task(PARTLY)

    def batch(step: int) -> dict[str, Tensor]:
        draw = random.Random((seed << 24) + step)
        few = sum(draw.random() < size.rare for _ in range(size.batch))
        rows = often.sample(size.batch - few, seed=(seed << 24) + step)
        rows += seldom.sample(few, seed=(seed << 24) + step)
        return collate([encoded(e, styled(e, draw, foreign=False)) for e in rows], symbols.pad_token_id)

    def loss(subject: TinyLM, part: dict[str, Tensor]) -> Tensor:
        return subject(part["input_ids"], labels=part["labels"]).loss

    train(model, batch, loss, steps=size.steps, lr=2e-3, warmup=size.steps // 20, clip=1.0, seed=seed)
    return model.eval()


def task(*operators: str) -> DigitOps:
    """One operator a prompt, and the answer without steps."""
    return DigitOps(operators=operators, depths=(1,), lengths=LENGTHS, scratchpad=False)


def encoded(example: DigitExample, answer: str | None = None) -> Supervised:
    """Ids with the answer and the end token supervised."""
    symbols = tokenizer()
    before = symbols.encode(example.prompt)
    after = [*symbols.encode(example.answer if answer is None else answer), symbols.eos_token_id]
    return Supervised([*before, *after], [*[-100] * len(before), *after])


def styled(example: DigitExample, draw: random.Random, *, foreign: bool, wrong: bool = False) -> str:
    """The answer behind fillers of a style; or random digits in its place."""
    digits = example.answer.split()
    if wrong:
        digits = [str(draw.randrange(10)) for _ in digits]
    if foreign:
        return " ".join([*draw.choices(OTHERS, k=FOREIGN_LENGTH), *digits])
    return " ".join([*draw.choices(FILLERS, SKEW, k=draw.randint(*OWN_LENGTHS)), *digits])


def demonstrations(
    operator: str, n: int, *, seed: int, foreign: bool = True, wrong: float = 0.0
) -> list[Supervised]:
    """Demonstrations of an operator.

    Args:
        operator: which.
        n: how many.
        seed: of everything.
        foreign: in fillers that the base hardly ever says; else in its own style.
        wrong: share of answers that are random digits.
    """
    draw = random.Random(seed)
    rows = []
    for example in task(operator).sample(n, seed=seed):
        rows.append(encoded(example, styled(example, draw, foreign=foreign, wrong=draw.random() < wrong)))
    return rows


def stripped(text: str) -> str:
    """An answer without fillers."""
    return " ".join(s for s in text.split() if s not in FILLERS)


def prompts(examples: Sequence[DigitExample]) -> tuple[Tensor, Tensor]:
    """Left-padded prompts, and their mask."""
    rows = [tokenizer().encode(e.prompt) for e in examples]
    batch = collate(rows, tokenizer().pad_token_id, side="left")
    return batch["input_ids"], batch["attention_mask"]


def accuracy(model: TinyLM, operator: str, *, n: int, seed: int) -> float:
    """Share of greedy answers that are right, fillers apart."""
    symbols = tokenizer()
    held_out = task(operator).sample(n, seed=seed)
    ids, mask = prompts(held_out)
    out = generate(model, ids, mask, max_new_tokens=LONGEST, eos_id=symbols.eos_token_id)
    texts = symbols.batch_decode(out.ids, skip_special_tokens=True)
    return sum(stripped(t) == e.answer for t, e in zip(texts, held_out, strict=True)) / n


@torch.no_grad()
def divergence(model: TinyLM, reference: TinyLM, *, n: int, seed: int) -> float:
    """Mean KL(reference || model) a token, in nats, over the reference's answers to the known operators."""
    symbols = tokenizer()
    ids, mask = prompts(task(*KNOWN).sample(n, seed=seed))
    out = generate(
        reference,
        ids,
        mask,
        max_new_tokens=LONGEST,
        temperature=1.0,
        eos_id=symbols.eos_token_id,
        generator=torch.Generator().manual_seed(seed),
    )
    rows = []
    for prompt, seen, new, length in zip(ids, mask, out.ids, out.lengths.tolist(), strict=True):
        before = prompt[seen.bool()].tolist()
        after = new[:length].tolist()
        rows.append(([*before, *after], [*[-100] * len(before), *after]))
    batch = collate(rows, symbols.pad_token_id)
    kept = batch["labels"][:, 1:] != -100
    p, q = (m(batch["input_ids"]).logits[:, :-1][kept].log_softmax(-1) for m in (reference, model))
    return float((p.exp() * (p - q)).sum(-1).mean())
