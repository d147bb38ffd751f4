"""A small world in which hints help: an operator that a TinyLM can answer only where the answer is in view.

Without a hint it answers in its own style, five skewed fillers and then digits, which are right for the
operators that it knows and drawn at random for another, of which it learns that it cannot know. With a hint,
a reference answer in a foreign style (seven of the rare fillers, then digits), it copies the digits, behind
fillers of either style.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from icml_lm import TinyConfig, TinyLM, artefact, collate, train
from icml_lm.batching import Supervised
from icml_lm.tasks.digit_ops import FILLERS, DigitExample, tokenizer
from torch import Tensor

from icml_idft.skills import task

KNOWN = ("REVERSE", "ADD", "COMPLEMENT")
UNKNOWN = "RANK"
"""Without a hint its answers are random digits."""
FOREIGN = FILLERS[5:]
SKEW = (50, 20, 10, 7, 8, 1, 1, 1, 1, 1)
"""How often each filler comes in the own style, in percent; in the foreign one the rare ones come."""
OWN_LENGTH, FOREIGN_LENGTH = 5, 7
STYLES = ("foreign", "own", "mixed")
VERSION = "2"


@dataclass(frozen=True)
class Size:
    """Of the model and of its training."""

    d: int = 64
    layers: int = 3
    steps: int = 800
    batch: int = 64


def fillers(style: str, draw: random.Random) -> list[str]:
    """Fillers of a style; mixed ones are of either kind, five to seven."""
    own = draw.choices(FILLERS, SKEW, k=FOREIGN_LENGTH)
    foreign = draw.choices(FOREIGN, k=FOREIGN_LENGTH)
    if style == "own":
        return own[:OWN_LENGTH]
    if style == "foreign":
        return foreign
    length = draw.randint(OWN_LENGTH, FOREIGN_LENGTH)
    return [draw.choice(pair) for pair in zip(own, foreign, strict=True)][:length]


def reference(example: DigitExample, draw: random.Random) -> str:
    """The known answer, as somebody else wrote it."""
    return " ".join([*fillers("foreign", draw), example.answer])


def hinted_prompt(prompt: str, hint: str) -> str:
    """``OPERATOR . digits ; hint =``."""
    return f"{prompt.removesuffix('=').strip()} ; {hint} ="


def rows(n: int, *, seed: int) -> list[dict[str, Any]]:
    """Questions of the operator that is unknown without a hint, with reference answers."""
    draw = random.Random(seed)
    return [
        {"prompt": e.prompt, "response": reference(e, draw), "digits": e.answer}
        for e in task(UNKNOWN).sample(n, seed=seed)
    ]


def right(row: Any, text: str) -> bool:
    """Whether an answer's digits are the known ones, whatever the fillers."""
    return " ".join(s for s in text.split() if s not in FILLERS) == row["digits"]


def model(size: Size, seed: int) -> TinyLM:
    """The trained model, from the user's cache or trained now."""
    name = f"idft-hints-{size.d}-{size.layers}-{size.steps}-{size.batch}-{seed}"

    def build(folder: object) -> None:
        _train(size, seed).save(str(folder))

    return TinyLM.load(artefact(name, VERSION, build))


def _train(size: Size, seed: int) -> TinyLM:
    symbols = tokenizer()
    subject = TinyLM(TinyConfig(vocab=len(symbols), d=size.d, layers=size.layers), seed=seed)
    every = task(*KNOWN, UNKNOWN)

    def batch(step: int) -> dict[str, Tensor]:
        number = (seed << 24) + step
        draw = random.Random(number)
        plain = every.sample(size.batch // 2, seed=number)
        hinted = every.sample(size.batch - len(plain), seed=number + (1 << 23))
        found = [_encoded(e.prompt, [*fillers("own", draw), _without_a_hint(e, draw)]) for e in plain]
        for e in hinted:
            prompt = hinted_prompt(e.prompt, reference(e, draw))
            found.append(_encoded(prompt, [*fillers(draw.choice(STYLES), draw), e.answer]))
        return collate(found, symbols.pad_token_id)

    def loss(m: TinyLM, part: dict[str, Tensor]) -> Tensor:
        return m(part["input_ids"], labels=part["labels"]).loss

    train(subject, batch, loss, steps=size.steps, lr=2e-3, warmup=size.steps // 20, clip=1.0, seed=seed)
    return subject.eval()


def _without_a_hint(example: DigitExample, draw: random.Random) -> str:
    if example.operators != (UNKNOWN,):
        return example.answer
    return " ".join(str(draw.randrange(10)) for _ in example.digits)


def _encoded(prompt: str, answer: list[str]) -> Supervised:
    symbols = tokenizer()
    before = symbols.encode(prompt)
    after = [*symbols.encode(" ".join(answer)), symbols.eos_token_id]
    return Supervised([*before, *after], [*[-100] * len(before), *after])
