"""Rubric worlds: goals with hidden lists of required items, plans, and grading questions; all exact.

    goal3 i2 i7 i11 <eos>                      a plan: items, each at most once
    grade i2 i7 i11 ? i7 YES                   a grading question: is item 7 in the plan?

The reward of a plan is the share of the goal's required items that it has.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from icml_lm.artefacts import register_base
from icml_lm.batching import Supervised, collate
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import SymbolTokenizer
from icml_lm.training import train

YES, NO, GRADE, ASK = "YES", "NO", "grade", "?"


class Plan(NamedTuple):
    """A goal and the items of a plan for it, in order."""

    goal: int
    items: tuple[int, ...]


class Grading(NamedTuple):
    """A plan's items, an item, and whether it is among them."""

    items: tuple[int, ...]
    item: int
    answer: bool


@dataclass(frozen=True)
class RubricWorld:
    """Goals and their hidden rubrics.

    Attributes:
        seed: of the rubrics.
        goals: how many goals.
        items: how many items there are.
        required: how many a goal requires.
        longest: most items of a plan.
        p_required: chance of a required item in a sloppy plan.
        p_other: chance of any other.
    """

    seed: int = 0
    goals: int = 12
    items: int = 16
    required: int = 5
    longest: int = 8
    p_required: float = 0.5
    p_other: float = 0.15

    def __post_init__(self) -> None:
        if not (1 <= self.required <= self.longest <= self.items) or self.goals < 1:
            raise ValueError(
                f"needs required={self.required} <= longest={self.longest} <= items={self.items}, and a goal"
            )
        if not (0.0 <= self.p_required <= 1.0 and 0.0 <= self.p_other <= 1.0):
            raise ValueError(f"p_required={self.p_required} and p_other={self.p_other} are probabilities")

    def rubric(self, goal: int) -> frozenset[int]:
        """Items that a goal requires.

        Raises:
            ValueError: there is no such goal.
        """
        if not 0 <= goal < self.goals:
            raise ValueError(f"goal {goal} is not among {self.goals}")
        generator = torch.Generator().manual_seed((self.seed << 16) + goal)
        return frozenset(torch.randperm(self.items, generator=generator)[: self.required].tolist())

    def coverage(self, goal: int, items: Iterable[int]) -> float:
        """The oracle: share of the required items that a plan has."""
        return len(self.rubric(goal) & set(items)) / self.required

    def sample(self, n: int, seed: int) -> list[Plan]:
        """``n`` sloppy plans, their items in random order, cut at the longest plan."""
        generator = torch.Generator().manual_seed(seed)
        plans = []
        for goal in torch.randint(self.goals, (n,), generator=generator).tolist():
            rubric = self.rubric(goal)
            chance = torch.rand(self.items, generator=generator).tolist()
            limits = [self.p_required if i in rubric else self.p_other for i in range(self.items)]
            order = torch.randperm(self.items, generator=generator).tolist()
            plans.append(Plan(goal, tuple(i for i in order if chance[i] < limits[i])[: self.longest]))
        return plans

    def gradings(self, n: int, seed: int) -> list[Grading]:
        """``n`` grading questions about random plans of all lengths; about half of them are true."""
        generator = torch.Generator().manual_seed(seed)
        found = []
        for _ in range(n):
            length = int(torch.randint(self.longest + 1, (), generator=generator))
            order = torch.randperm(self.items, generator=generator).tolist()
            inside, outside = order[:length], order[length:]
            answer = bool(torch.randint(2, (), generator=generator)) and bool(inside)
            if not outside:
                answer = True
            pool = inside if answer else outside
            item = pool[int(torch.randint(len(pool), (), generator=generator))]
            found.append(Grading(tuple(inside), item, answer))
        return found

    def tokenizer(self) -> SymbolTokenizer:
        """One token a goal, an item, or a word of a grading question."""
        goals, items = [f"goal{i}" for i in range(self.goals)], [f"i{i}" for i in range(self.items)]
        return SymbolTokenizer([*goals, *items, GRADE, ASK, YES, NO])

    def plan_prompt(self, goal: int) -> str:
        """What a plan is asked for with."""
        return f"goal{goal}"

    def grading_prompt(self, items: Sequence[int], item: int) -> str:
        """What a grade is asked for with; YES or NO follows."""
        return " ".join([GRADE, *(f"i{i}" for i in items), ASK, f"i{item}"])

    def read_plan(self, text: str) -> tuple[int, ...]:
        """Items of a plan as text, each once; other symbols are passed over."""
        found = [int(s[1:]) for s in text.split() if s[:1] == "i" and s[1:].isdigit()]
        return tuple(dict.fromkeys(i for i in found if i < self.items))


def encode(example: Plan | Grading, world: RubricWorld, symbols: SymbolTokenizer) -> Supervised:
    """Ids of a plan or a question, with the plan or the answer, and the end token, supervised."""
    if isinstance(example, Plan):
        prompt, answer = world.plan_prompt(example.goal), " ".join(f"i{i}" for i in example.items)
    else:
        prompt, answer = world.grading_prompt(example.items, example.item), YES if example.answer else NO
    before, after = symbols.encode(prompt), [*symbols.encode(answer), symbols.eos_token_id]
    return Supervised([*before, *after], [*[-100] * len(before), *after])


def build_base(
    world: RubricWorld | None = None,
    *,
    steps: int = 1500,
    batch: int = 64,
    d: int = 64,
    layers: int = 2,
    seed: int = 0,
) -> tuple[TinyLM, SymbolTokenizer]:
    """Train a base on sloppy plans and grading questions, half and half: AdamW, warm-up and cosine."""
    world = world or RubricWorld()
    symbols = world.tokenizer()
    model = TinyLM(TinyConfig(vocab=len(symbols), d=d, layers=layers), seed=seed)

    def batches(step: int) -> dict[str, torch.Tensor]:
        drawn = (seed << 32) + step
        examples = [*world.sample(batch // 2, drawn), *world.gradings(batch - batch // 2, drawn)]
        return collate([encode(e, world, symbols) for e in examples], symbols.pad_token_id)

    def loss(model: TinyLM, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        # Padding stands on the right, behind all that is supervised, where a causal model does not see it.
        return model(batch["input_ids"], labels=batch["labels"]).loss

    train(model, batches, loss, steps=steps, lr=3e-3, warmup=steps // 20, clip=1.0, seed=seed)
    return model.eval(), symbols


def _default_base() -> tuple[TinyLM, SymbolTokenizer]:
    return build_base()


register_base("rubric-world", 1, _default_base)
