"""Languages small enough to be listed: 4 x 4 sudoku, Latin squares, balanced brackets."""

from __future__ import annotations

from functools import cache
from itertools import permutations

import torch
from jaxtyping import Bool, Int64
from torch import Tensor


@cache
def sudoku_grids() -> Int64[Tensor, "288 16"]:
    """All 288 solved 4 x 4 sudokus: digits 0 to 3, row after row, each once in every row, column and box."""
    squares = latin_squares(4)
    return squares[_boxes_hold(squares)]


@cache
def latin_squares(order: int) -> Int64[Tensor, "number cells"]:
    """All Latin squares of an order, row after row.

    Raises:
        ValueError: an order outside 1 to 4; of 5 there are 161,280 already.
    """
    if not 1 <= order <= 4:
        raise ValueError(f"order={order}; Latin squares are listed up to order 4")
    rows = list(permutations(range(order)))
    found: list[tuple[tuple[int, ...], ...]] = [()]
    for _ in range(order):
        found = [
            (*square, row)
            for square in found
            for row in rows
            if all(above[j] != row[j] for above in square for j in range(order))
        ]
    return torch.tensor(found).flatten(1)


def valid_sudoku(grids: Int64[Tensor, "n 16"]) -> Bool[Tensor, " n"]:
    """Whether every row, column and box holds each digit once; False for grids with other tokens."""
    square = grids.view(-1, 4, 4)
    inside = ((grids >= 0) & (grids < 4)).all(1)
    return inside & _each_once(square) & _each_once(square.mT) & _boxes_hold(grids)


def _boxes_hold(grids: Tensor) -> Tensor:
    boxes = grids.view(-1, 2, 2, 2, 2).transpose(2, 3).reshape(-1, 4, 4)
    return _each_once(boxes)


def _each_once(lines: Tensor) -> Tensor:
    return (lines.sort(-1).values == torch.arange(lines.shape[-1], device=lines.device)).flatten(1).all(1)


@cache
def balanced_brackets(pairs: int) -> Int64[Tensor, "number length"]:
    """All balanced strings of so many pairs of brackets: 0 opens, 1 closes. Their number is Catalan's.

    Raises:
        ValueError: no pair, or more than 8.
    """
    if not 1 <= pairs <= 8:
        raise ValueError(f"pairs={pairs}; strings of 1 to 8 pairs are listed")

    def strings(open_left: int, close_left: int) -> list[list[int]]:
        if close_left == 0:
            return [[]]
        found = []
        if open_left:
            found += [[0, *rest] for rest in strings(open_left - 1, close_left)]
        if close_left > open_left:
            found += [[1, *rest] for rest in strings(open_left, close_left - 1)]
        return found

    return torch.tensor(strings(pairs, pairs))
