"""Digit operators: operators applied to a string of digits, left to right, with exact answers.

    ASC REVERSE 3 1 2 = 3 2 1                  the answer
    ASC REVERSE 3 1 2 = 1 2 3 ; 3 2 1          with a scratchpad: the result after each operator

Every operator stands in ``slots`` places (its symbol, then ``.``), so that a learned operator of that many
tokens does not move what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from icml_lm.artefacts import register_base
from icml_lm.batching import Supervised, collate
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import SymbolTokenizer
from icml_lm.training import train

Digits = tuple[int, ...]
Operator = Callable[[Digits], Digits]

OPERATORS: Mapping[str, Operator] = {
    "ASC": lambda d: tuple(sorted(d)),
    "DESC": lambda d: tuple(sorted(d, reverse=True)),
    "ADD": lambda d: tuple((x + 1) % 10 for x in d),
    "SUB": lambda d: tuple((x - 1) % 10 for x in d),
    "POLARITY": lambda d: tuple(x % 2 for x in d),
    "REVERSE": lambda d: d[::-1],
    "ID": lambda d: d,
    "COMPLEMENT": lambda d: tuple(9 - x for x in d),
    "DOUBLE": lambda d: tuple(2 * x % 10 for x in d),
    "SHIFT_LEFT": lambda d: d[1:] + d[:1],
    "SWAP_ENDS": lambda d: d[-1:] + d[1:-1] + d[:1] if len(d) > 1 else d,
    "RANK": lambda d: tuple(sum(y < x for y in d) for x in d),
    "SHIFT_RIGHT": lambda d: d[-1:] + d[:-1],
    "INVERT_POLARITY": lambda d: tuple(1 - x % 2 for x in d),
}
"""All operators; the last two are those that neologisms are trained for."""
KNOWN = tuple(OPERATORS)[:12]
"""Operators that the trained base knows."""
FILLERS = tuple(f"f{i}" for i in range(10))
"""Symbols without meaning, for answers in a foreign style."""


@dataclass(frozen=True)
class DigitExample:
    """A prompt, its answer, and what they are made of."""

    prompt: str
    answer: str
    operators: tuple[str, ...]
    digits: Digits


@dataclass(frozen=True)
class DigitOps:
    """The task.

    Attributes:
        operators: which occur; one that stands there twice occurs twice as often.
        depths: how many operators a prompt has, drawn evenly.
        lengths: how many digits, drawn evenly.
        scratchpad: whether the answer gives the result after each operator.
        slots: places that an operator takes.
        held_out: ordered strings of operators that do not occur.
    """

    operators: tuple[str, ...] = KNOWN
    depths: tuple[int, ...] = (1, 2)
    lengths: tuple[int, ...] = (2, 3, 4)
    scratchpad: bool = True
    slots: int = 2
    held_out: frozenset[tuple[str, ...]] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        unknown = set(self.operators) - set(OPERATORS)
        if unknown or not self.operators:
            raise ValueError(f"operators {sorted(unknown)} are unknown; there are {', '.join(OPERATORS)}")
        if min(self.depths, default=0) < 1 or min(self.lengths, default=0) < 1 or self.slots < 1:
            raise ValueError(
                f"depths={self.depths}, lengths={self.lengths}, slots={self.slots} must be positive"
            )

    def prompt(self, operators: Sequence[str], digits: Sequence[int]) -> str:
        """The prompt for operators and digits."""
        filled = [" ".join([name, *["."] * (self.slots - 1)]) for name in operators]
        return " ".join([*filled, *map(str, digits), "="])

    def answer(self, operators: Sequence[str], digits: Sequence[int]) -> str:
        """The exact answer."""
        steps = []
        current = tuple(digits)
        for name in operators:
            current = OPERATORS[name](current)
            steps.append(" ".join(map(str, current)))
        return " ; ".join(steps if self.scratchpad else steps[-1:])

    def oracle(self, prompt: str) -> str:
        """The exact answer to a prompt as text.

        Raises:
            ValueError: the prompt is not of this task's form.
        """
        symbols = [s for s in prompt.split() if s != "."]
        digits = [s for s in symbols if s.isdigit() and len(s) == 1]
        names = symbols[: len(symbols) - len(digits) - 1]
        if symbols[-1:] != ["="] or not digits or not names or any(n not in OPERATORS for n in names):
            raise ValueError(f"{prompt!r} is not of the form 'OPERATOR ... digits ... ='")
        return self.answer(names, [int(d) for d in digits])

    def sample(self, n: int, seed: int) -> list[DigitExample]:
        """``n`` examples; the same seed gives the same ones.

        Raises:
            ValueError: everything is held out.
        """
        generator = torch.Generator().manual_seed(seed)
        found: list[DigitExample] = []
        refused = 0
        while len(found) < n:
            depth = self.depths[_below(len(self.depths), generator)]
            names = tuple(self.operators[_below(len(self.operators), generator)] for _ in range(depth))
            length = self.lengths[_below(len(self.lengths), generator)]
            digits = tuple(torch.randint(10, (length,), generator=generator).tolist())
            if names in self.held_out:
                refused += 1
                if refused > 1000 * (n + 1):
                    raise ValueError("nearly every string of operators is held out")
                continue
            found.append(DigitExample(self.prompt(names, digits), self.answer(names, digits), names, digits))
        return found


def tokenizer() -> SymbolTokenizer:
    """One token a digit, an operator, ``=``, ``;``, ``.`` or a filler."""
    return SymbolTokenizer([*map(str, range(10)), "=", ";", ".", *OPERATORS, *FILLERS])


def encode(example: DigitExample, symbols: SymbolTokenizer | None = None) -> Supervised:
    """Ids with the answer and the end token supervised."""
    symbols = symbols or tokenizer()
    before, after = symbols.encode(example.prompt), [*symbols.encode(example.answer), symbols.eos_token_id]
    return Supervised([*before, *after], [*[-100] * len(before), *after])


def build_base(
    task: DigitOps | None = None,
    *,
    steps: int = 2200,
    batch: int = 64,
    d: int = 96,
    layers: int = 3,
    seed: int = 0,
) -> tuple[TinyLM, SymbolTokenizer]:
    """Train a base on a task from scratch, deterministically: AdamW at 2e-3 with warm-up and cosine."""
    task, symbols = task or DigitOps(), tokenizer()
    model = TinyLM(TinyConfig(vocab=len(symbols), d=d, layers=layers), seed=seed)

    def batches(step: int) -> dict[str, torch.Tensor]:
        rows = [encode(e, symbols) for e in task.sample(batch, seed=(seed << 32) + step)]
        return collate(rows, symbols.pad_token_id)

    def loss(model: TinyLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        # Padding stands on the right, behind all that is supervised, where a causal model does not see it.
        return model(batch["input_ids"], labels=batch["labels"]).loss

    train(model, batches, loss, steps=steps, lr=2e-3, warmup=steps // 20, clip=1.0, seed=seed)
    return model.eval(), symbols


def _below(n: int, generator: torch.Generator) -> int:
    return int(torch.randint(n, (), generator=generator))


def _default_base() -> tuple[TinyLM, SymbolTokenizer]:
    # RANK has to count, and is learned last: three times as often it is right with the others.
    return build_base(DigitOps(operators=(*KNOWN, "RANK", "RANK")), steps=4000)


register_base("digit-ops", 2, _default_base)
