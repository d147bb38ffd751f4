"""Answers of people: which of two items wins, who said so, how sure, or a draw; and grades turned into
such."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

MAX_BYTES = 2**30  # of a file that is read


@dataclass(frozen=True)
class Comparisons:
    """Answers about pairs of items.

    Attributes:
        winner, loser: items by number.
        annotator: who answered, by number from 0.
        weight: of each answer.
        outcome: 1 where the winner won, 0.5 for a draw: one observation of its weight, not two.
    """

    winner: Int[np.ndarray, " answers"]
    loser: Int[np.ndarray, " answers"]
    annotator: Int[np.ndarray, " answers"]
    weight: Float[np.ndarray, " answers"]
    outcome: Float[np.ndarray, " answers"]

    def __len__(self) -> int:
        return len(self.winner)

    @property
    def n_annotators(self) -> int:
        """How many people answered."""
        return int(self.annotator.max()) + 1

    def __getitem__(self, which: Any) -> Comparisons:
        parts = (self.winner, self.loser, self.annotator, self.weight, self.outcome)
        return Comparisons(*(part[which] for part in parts))


def as_comparisons(pairs: Any, n_items: int, *, weights: Any = None, outcomes: Any = None) -> Comparisons:
    """Check answers and bring them into arrays.

    Args:
        pairs: [answers, 2] (winner, loser), or [answers, 3] with the annotator's number.
        n_items: how many items there are.
        weights: positive; 1 by default.
        outcomes: 1 where the first of the pair won, 0.5 for a draw, 0 where it lost; 1 by default.

    Raises:
        TypeError: numbers of items that are no integers.
        ValueError: wrong shapes, items out of range, an item compared with itself, fewer than two items
            compared, weights that are not positive, or other outcomes.

    Example:
        >>> as_comparisons([[0, 1], [2, 1]], 3).winner
        array([0, 2])
    """
    if isinstance(pairs, Comparisons):
        pairs, weights, outcomes = (
            np.stack([pairs.winner, pairs.loser, pairs.annotator], axis=1),
            pairs.weight,
            pairs.outcome,
        )
    table = np.asarray(pairs)
    if table.ndim != 2 or table.shape[1] not in (2, 3):
        raise ValueError(f"pairs have shape {list(table.shape)}; expected [answers, 2] or [answers, 3]")
    if len(table) == 0:
        raise ValueError("there are no comparisons; at least two items must have been compared")
    if not np.issubdtype(table.dtype, np.integer):
        if not (
            np.issubdtype(table.dtype, np.floating)
            and np.isfinite(table).all()
            and (table == np.rint(table)).all()
        ):
            raise TypeError(f"pairs have dtype {table.dtype}; expected numbers of items, which are integers")
        table = table.astype(np.int64)
    table = table.astype(np.int64)
    ends = table[:, :2]
    outside = (ends < 0) | (ends >= n_items)
    if outside.any():
        row = int(outside.any(1).argmax())
        raise ValueError(f"pair {row} is {ends[row].tolist()}, but items are 0 to {n_items - 1}")
    same = ends[:, 0] == ends[:, 1]
    if same.any():
        raise ValueError(f"pair {int(same.argmax())} compares item {int(ends[same.argmax(), 0])} with itself")
    annotator = table[:, 2] if table.shape[1] == 3 else np.zeros(len(table), np.int64)
    if (annotator < 0).any():
        raise ValueError(f"annotator {int(annotator.min())} is negative; annotators are numbered from 0")
    weight = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
    outcome = np.ones(len(table)) if outcomes is None else np.asarray(outcomes, dtype=np.float64)
    for name, given in (("weights", weight), ("outcomes", outcome)):
        if given.shape != (len(table),):
            raise ValueError(f"{name} have shape {list(given.shape)}; expected [{len(table)}]")
    if not (np.isfinite(weight).all() and (weight > 0).all()):
        raise ValueError("weights must be positive and finite; leave answers that shall not count out")
    if not np.isin(outcome, (0.0, 0.5, 1.0)).all():
        wrong = outcome[~np.isin(outcome, (0.0, 0.5, 1.0))][0]
        raise ValueError(f"outcome {wrong:g}; expected 1 (first won), 0.5 (draw) or 0 (first lost)")
    lost = outcome == 0
    winner, loser = np.where(lost, ends[:, 1], ends[:, 0]), np.where(lost, ends[:, 0], ends[:, 1])
    return Comparisons(winner, loser, annotator, weight, np.where(lost, 1.0, outcome))


def from_grades(grades: Any, annotators: Any = None, items: Any = None) -> Comparisons:
    """Pairs within each annotator: the higher grade wins, equal grades say nothing.

    Args:
        grades: ordinal numbers.
        annotators: who gave each grade; one person by default.
        items: which item each grade is of; grade k is of item k by default.

    Raises:
        ValueError: shapes that differ, NaN, or no annotator with two different grades.

    Example:
        >>> from_grades([1, 3, 2]).winner.tolist()
        [1, 2, 1]
    """
    grade = np.asarray(grades, dtype=np.float64)
    who = np.zeros(len(grade), np.int64) if annotators is None else np.asarray(annotators)
    item = np.arange(len(grade)) if items is None else np.asarray(items)
    if grade.ndim != 1 or who.shape != grade.shape or item.shape != grade.shape:
        raise ValueError(
            f"grades, annotators and items have shapes {list(grade.shape)}, {list(who.shape)}, "
            f"{list(item.shape)}; "
            "expected one number of each a grade"
        )
    if np.isnan(grade).any():
        raise ValueError(f"grade {int(np.isnan(grade).argmax())} is NaN; leave items without a grade out")
    found = []
    names, number = np.unique(who, return_inverse=True)
    for person in range(len(names)):
        mine = np.flatnonzero(number == person)
        for a, b in combinations(mine, 2):
            if grade[a] != grade[b] and item[a] != item[b]:
                high, low = (a, b) if grade[a] > grade[b] else (b, a)
                found.append((item[high], item[low], person))
    if not found:
        raise ValueError("no annotator gave two items different grades, so that nothing can be compared")
    return as_comparisons(found, int(item.max()) + 1)


def components(answers: Comparisons, n_items: int) -> list[list[int]]:
    """The items that are connected by comparisons, largest group first; items without any are left out."""
    graph = coo_array((np.ones(len(answers)), (answers.winner, answers.loser)), shape=(n_items, n_items))
    _, label = connected_components(graph, directed=False)
    seen = np.unique(np.concatenate([answers.winner, answers.loser]))
    groups: dict[int, list[int]] = {}
    for item in seen.tolist():
        groups.setdefault(int(label[item]), []).append(item)
    return sorted(groups.values(), key=len, reverse=True)


def warn_if_disconnected(answers: Comparisons, n_items: int) -> None:
    """Warn where groups of items were never compared with each other: only their features tie them
    together."""
    groups = components(answers, n_items)
    if len(groups) > 1:
        shown = "; ".join(str(group[:8])[:-1] + (", …]" if len(group) > 8 else "]") for group in groups[:4])
        warnings.warn(
            f"the comparisons fall into {len(groups)} groups without a link ({shown}); the order across "
            "groups "
            "rests on the series alone",
            UserWarning,
            stacklevel=3,
        )


def read_comparisons(path: Path, names: Mapping[str, int] | None = None) -> Comparisons:
    """Read a CSV with the columns winner, loser and, where there are, annotator, weight, outcome.

    Args:
        path: of the file.
        names: the number of each item's name; without it the file holds numbers.

    Raises:
        ValueError: a missing column, an unknown name, a number that cannot be read (with its line), a file
            that is too large or no text.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    rows: list[tuple[int, int]] = []
    people: dict[str, int] = {}
    annotator, weight, outcome = [], [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            if not {"winner", "loser"} <= set(reader.fieldnames or ()):
                raise ValueError(
                    f"{path} has the columns {reader.fieldnames}; expected winner,loser[,annotator]"
                )
            for line in reader:
                where = f"{path}, line {reader.line_num}"
                rows.append((_item(line["winner"], names, where), _item(line["loser"], names, where)))
                annotator.append(people.setdefault(line.get("annotator") or "", len(people)))
                weight.append(_number(line.get("weight"), 1.0, where))
                outcome.append(_number(line.get("outcome"), 1.0, where))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from error
    if not rows:
        raise ValueError(f"{path} holds no comparisons")
    size = len(names) if names is not None else max(map(max, rows)) + 1
    table = np.column_stack([np.array(rows), np.array(annotator)])
    return as_comparisons(table, size, weights=weight, outcomes=outcome)


def _item(text: str | None, names: Mapping[str, int] | None, where: str) -> int:
    key = (text or "").strip()
    if names is not None:
        if key not in names:
            raise ValueError(
                f"{where}: no series is called {key!r}; there are {', '.join(list(names)[:6])}, …"
            )
        return names[key]
    if not key.isdecimal() or len(key) > 9:
        raise ValueError(f"{where}: {key!r} is no number of an item")
    return int(key)


def _number(text: str | None, default: float, where: str) -> float:
    if text is None or not text.strip():
        return default
    try:
        return float(text)
    except ValueError as error:
        raise ValueError(f"{where}: {text!r} is no number") from error
