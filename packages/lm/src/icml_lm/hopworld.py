"""HopWorld: follow a permutation for k hops. How much has to be written down for that is known exactly.

A question lists a random permutation f of N = 6 symbols as pairs, a number of hops k in {0, 1, 2, 3} drawn
with probabilities 0.4, 0.2, 0.2, 0.2, and a start x; the right action is f^k(x). An answer at level L writes
L - 1 thoughts, f(x), f^2(x), ... up to f^k(x) and then filler, before it acts; so max(1, k) is the least
level that leaves at most one hop to be made unwritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from icml_lm.text_env import SPLITS, CheckedEnv, Obs, Step, unknown

SYMBOLS = ("a", "b", "c", "d", "e", "f")
HOPS = ("k0", "k1", "k2", "k3")
HOP_PROBABILITIES = (0.4, 0.2, 0.2, 0.2)
LEVELS = ("<L1>", "<L2>", "<L3>", "<L4>")
FILLER, ACT = "-", "<act>"
VOCABULARY = (*SYMBOLS, *HOPS, *LEVELS, FILLER, ACT)
"""Every token of a question or an answer, for a tokenizer of symbols."""
STEPS_PER_EPISODE = 4
TASK = (
    "Each line lists where each letter leads, as pairs, then how many hops (k0 to k3) to make and from which "
    "letter. Name the letter where you end. All four lines have to be right."
)


@dataclass(frozen=True)
class HopQuestions:
    """Questions, as arrays of one row each, so that thousands are handled at once.

    Attributes:
        permutation: (n, 6), f of each symbol.
        order: (n, 6), the order in which the pairs are listed.
        hops: (n,), k.
        start: (n,), x.
    """

    permutation: np.ndarray
    order: np.ndarray
    hops: np.ndarray
    start: np.ndarray

    def __len__(self) -> int:
        return len(self.hops)

    def visited(self) -> np.ndarray:
        """(n, 4) of x, f(x), f^2(x), f^3(x)."""
        places = [self.start]
        for _ in range(len(HOPS) - 1):
            places.append(self.permutation[np.arange(len(self)), places[-1]])
        return np.stack(places, axis=1)

    def answers(self) -> np.ndarray:
        """(n,) of f^k(x), numbers of symbols."""
        return self.visited()[np.arange(len(self)), self.hops]

    def required_levels(self) -> np.ndarray:
        """(n,) of the least level, 1 to 3, that leaves at most one hop unwritten."""
        return np.maximum(1, self.hops)

    def prompts(self) -> list[list[str]]:
        """The questions' tokens: six pairs, the hops, the start; 14 each."""
        shown = []
        for f, order, hops, start in zip(self.permutation, self.order, self.hops, self.start, strict=True):
            pairs = [SYMBOLS[symbol] for x in order for symbol in (x, f[x])]
            shown.append([*pairs, HOPS[hops], SYMBOLS[start]])
        return shown

    def thoughts(self, level: int) -> list[list[str]]:
        """The L - 1 thought tokens of each question at level L.

        Raises:
            ValueError: for a level outside 1 to 4.
        """
        if level not in range(1, len(LEVELS) + 1):
            raise ValueError(f"level = {level!r}; 1 to {len(LEVELS)} are wanted")
        return [
            [SYMBOLS[places[i]] if i <= hops else FILLER for i in range(1, level)]
            for places, hops in zip(self.visited(), self.hops, strict=True)
        ]

    def responses(self, level: int) -> list[list[str]]:
        """The right answers at a level: its tag, the thoughts, the action's tag, the action; L + 2 tokens."""
        answers = self.answers()
        return [
            [LEVELS[level - 1], *thoughts, ACT, SYMBOLS[answer]]
            for thoughts, answer in zip(self.thoughts(level), answers, strict=True)
        ]


def sample(n: int, seed: int | np.random.Generator, *, shuffled: bool = False) -> HopQuestions:
    """Random questions; their pairs are listed in the order of the alphabet or, ``shuffled``, in any order.

    With shuffled pairs a place no longer tells the symbol, so that a hop takes a model one lookup more.

    Raises:
        ValueError: for a negative number.

    Example:
        >>> len(sample(3, seed=0).responses(level=2)[0])
        4
    """
    if n < 0:
        raise ValueError(f"n = {n}; a number of questions from 0 on is wanted")
    rng = np.random.default_rng(seed)
    rows = np.tile(np.arange(len(SYMBOLS)), (n, 1))
    return HopQuestions(
        permutation=rng.permuted(rows, axis=1),
        order=rng.permuted(rows, axis=1) if shuffled else rows,
        hops=rng.choice(len(HOPS), size=n, p=HOP_PROBABILITIES),
        start=rng.integers(len(SYMBOLS), size=n),
    )


class HopWorldEnv(CheckedEnv):
    """Four independent questions; the episode is won where all answers are right, which is said at its end.

    Example:
        >>> env = HopWorldEnv()
        >>> obs = env.reset(seed=0)
        >>> [env.step(action).done for action in env.expert()]
        [False, False, False, True]
    """

    name = "hopworld"

    def __init__(self, *, shuffled: bool = False) -> None:
        self._shuffled = shuffled

    def begin(self, seed: int, split: str) -> Obs:
        """The first question."""
        rng = np.random.default_rng([seed, SPLITS.index(split)])
        self.questions = sample(STEPS_PER_EPISODE, rng, shuffled=self._shuffled)
        self._lines = [" ".join(tokens) for tokens in self.questions.prompts()]
        self._answers = [SYMBOLS[answer] for answer in self.questions.answers()]
        self._given: list[str] = []
        return Obs(self._lines[0], SYMBOLS, TASK)

    @property
    def position(self) -> int:
        """Which of the questions is open, 0 to 3; 4 at the end."""
        return len(self._given)

    def act(self, action: str) -> Step:
        """The next question, or the verdict."""
        self._given.append(action)
        done = self.position == STEPS_PER_EPISODE
        won = done and self._given == self._answers
        text = ("All right." if won else "Not all were right.") if done else self._lines[self.position]
        score = float(won)
        return Step(Obs(text, () if done else SYMBOLS, TASK), score, done, {"won": won, "score": score})

    def plan(self) -> list[str] | None:
        """The answers still to be given; None once one was wrong."""
        right = self._given == self._answers[: self.position]
        return self._answers[self.position :] if right else None


def hopworld(variant: str = "", **options: Any) -> HopWorldEnv:
    """HopWorld by name; it has no variants.

    Raises:
        UnknownNameError: for a variant.
    """
    if variant:
        raise unknown("variant of hopworld", variant, ("",), shown=("hopworld alone",))
    return HopWorldEnv(**options)
