"""Pairs with match probabilities, as record linkage gives them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

from icml_btt.graph_input import plain_name

PairList = list[tuple[Hashable, Hashable]]


def probability_edges(
    table: Any, left: str, right: str, p: str
) -> tuple[PairList, PairList, tuple[Float[np.ndarray, " k"], Float[np.ndarray, " l"]]]:
    """Split a table of pairs into "same" and "different", weighted by the log-odds.

    Args:
        table: with columns by name: a pandas or polars data frame, an Arrow table, a structured array, a
            dict of columns, or a list of dicts.
        left: column with one end of each pair, any hashable names.
        right: column with the other.
        p: column with the probability that both are the same; 1 and 0 are must-links and cannot-links, and
            exactly ½ is no opinion.

    Returns:
        The pairs with p ≥ ½, the others, and the weights ``|log(p / (1 − p))|`` of both.

    Raises:
        ValueError: a column that is not there, a p that is no probability (names its row).
    """
    ends = [[plain_name(name) for name in _column(table, column)] for column in (left, right)]
    try:
        probability = np.array(_column(table, p), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {p!r} holds something that is no number: {error}") from error
    wrong = ~((probability >= 0) & (probability <= 1))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueError(f"row {row}: {p} = {probability[row]:g} is no probability between 0 and 1")
    with np.errstate(divide="ignore"):
        weight = np.abs(np.log(probability) - np.log1p(-probability))
    same = probability >= 0.5
    pairs = list(zip(*ends, strict=True))
    positive = [pair for pair, chosen in zip(pairs, same, strict=True) if chosen]
    negative = [pair for pair, chosen in zip(pairs, same, strict=True) if not chosen]
    return positive, negative, (weight[same], weight[~same])


def _column(table: Any, name: str) -> list[Any]:
    if isinstance(table, list):
        try:
            return [row[name] for row in table]
        except (KeyError, TypeError) as error:
            raise ValueError(f"a row has no field {name!r}; expected dicts with it") from error
    names = getattr(table, "column_names", None) or getattr(table, "columns", None)
    if names is None:
        names = table.keys() if isinstance(table, Mapping) else getattr(table, "dtype", np.dtype(int)).names
    if names is None:
        raise ValueError(
            f"expected a data frame, Arrow table, structured array, dict of columns or list of dicts, "
            f"got {type(table).__name__}"
        )
    if name not in list(names):
        raise ValueError(f"there is no column {name!r} among {', '.join(map(repr, names))}")
    column = table[name]
    if hasattr(column, "to_pylist"):
        return list(column.to_pylist())
    return list(column.tolist() if hasattr(column, "tolist") else column)
