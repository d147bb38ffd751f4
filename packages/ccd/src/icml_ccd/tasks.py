"""Tasks whose answers a program checks: 6-digit addition, 4 x 4 sudoku, trips through cities.

A task gives ids with masks where tokens are wanted, and says of every filled row whether it is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from icml_ccd.small_languages import sudoku_grids, valid_sudoku


class Task(Protocol):
    """A task with a checker.

    Attributes:
        name: of the task.
        vocab: number of tokens, the mask last.
        length: of a sequence.
        wanted: masked positions of a row.
    """

    name: str
    vocab: int
    length: int
    wanted: int

    @property
    def mask_id(self) -> int:
        """The mask token."""

    def sample(self, n: int, *, seed: int) -> tuple[Int64[Tensor, "n length"], Bool[Tensor, "n length"]]:
        """Whole solved sequences, and which of their positions are the answer."""

    def check(
        self, given: Int64[Tensor, "n length"], filled: Int64[Tensor, "n length"]
    ) -> Bool[Tensor, " n"]:
        """Whether each filled row solves what was given (masks where tokens were wanted)."""


def masked_out(
    task: Task, n: int, *, seed: int
) -> tuple[Int64[Tensor, "n length"], Int64[Tensor, "n length"]]:
    """Puzzles with masks in place of the answer, and their solved sequences."""
    whole, answer = task.sample(n, seed=seed)
    return torch.where(answer, task.mask_id, whole), whole


@dataclass(frozen=True)
class Addition:
    """a + b = c with numbers of so many digits, leading zeros kept: the carries tie the digits of c together.

    Digits are the tokens 0 to 9, "+" is 10, "=" is 11, the mask 12.

    Attributes:
        digits: of a and b; c has one more.
    """

    digits: int = 6
    name = "addition"
    vocab = 13
    mask_id = 12

    @property
    def length(self) -> int:
        """Of a sequence."""
        return 3 * self.digits + 3

    @property
    def wanted(self) -> int:
        """Digits of the sum."""
        return self.digits + 1

    def sample(self, n: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Sums of uniform digits."""
        generator = torch.Generator().manual_seed(seed)
        a, b = torch.randint(10, (2, n, self.digits), generator=generator)
        total = _digits(_number(a) + _number(b), self.digits + 1)
        plus, equals = torch.full((n, 1), 10), torch.full((n, 1), 11)
        whole = torch.cat((a, plus, b, equals, total), 1)
        answer = torch.zeros_like(whole, dtype=torch.bool)
        answer[:, -self.wanted :] = True
        return whole, answer

    def check(self, given: Tensor, filled: Tensor) -> Tensor:
        """Whether the sum is right."""
        a, b = filled[:, : self.digits], filled[:, self.digits + 1 : 2 * self.digits + 1]
        total = _digits(_number(a) + _number(b), self.digits + 1)
        kept = (given == self.mask_id) | (given == filled)
        return (filled[:, -self.wanted :] == total).all(1) & kept.all(1)


def _number(digits: Tensor) -> Tensor:
    powers = 10 ** torch.arange(digits.shape[1] - 1, -1, -1)
    return (digits * powers).sum(1)


def _digits(number: Tensor, count: int) -> Tensor:
    powers = 10 ** torch.arange(count - 1, -1, -1)
    return number[:, None] // powers % 10


@dataclass(frozen=True)
class Sudoku:
    """4 x 4 sudoku with a few digits given, anywhere: fill the rest so that the grid is valid.

    Digits are the tokens 0 to 3, the mask 4.

    Attributes:
        clues: digits that are given; with few of them several grids are right.
    """

    clues: int = 4
    name = "sudoku"
    vocab = 5
    mask_id = 4
    length = 16

    @property
    def wanted(self) -> int:
        """Empty cells."""
        return 16 - self.clues

    def sample(self, n: int, *, seed: int) -> tuple[Tensor, Tensor]:
        """Uniform grids with clues in uniform cells."""
        generator = torch.Generator().manual_seed(seed)
        grids = sudoku_grids()
        whole = grids[torch.randint(len(grids), (n,), generator=generator)]
        rank = torch.rand(n, 16, generator=generator).argsort(1).argsort(1)
        return whole, rank >= self.clues

    def check(self, given: Tensor, filled: Tensor) -> Tensor:
        """Whether the grid is valid and keeps the clues."""
        return valid_sudoku(filled) & ((given == self.mask_id) | (given == filled)).all(1)
