"""Records that are equal, once: a state under one budget and one condition is evaluated a single time."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor


def tags(budget: Int[ndarray, " n"], condition: Float[Tensor, "n dim"] | None) -> Int[ndarray, "n tags"]:
    """What tells records of one state apart: the budget, and the number of the condition where there is one.

    Args:
        budget: of each record.
        condition: of each record, or None.
    """
    columns = [np.asarray(budget, dtype=np.int64)]
    if condition is not None:
        _, same = torch.unique(condition, dim=0, return_inverse=True)
        columns.append(same.cpu().numpy())
    return np.stack(columns, axis=1)


def distinct(
    states: Int[ndarray, "n width"], tag: Int[ndarray, "n tags"]
) -> tuple[Int[ndarray, " distinct"], Int[ndarray, " n"]]:
    """Where each distinct pair of state and tag stands first, and which of them each record is.

    Args:
        states: a state a record.
        tag: of :func:`tags`.
    """
    from icml_kernels import unique_rows

    # Narrow numbers are hashed and compared faster; a tag that does not fit widens both.
    kind = states.dtype if tag.max(initial=0) <= np.iinfo(states.dtype).max else np.dtype(np.int64)
    keyed = np.empty((len(states), states.shape[1] + tag.shape[1]), dtype=kind)
    keyed[:, : states.shape[1]], keyed[:, states.shape[1] :] = states, tag
    first, inverse = unique_rows(torch.from_numpy(keyed))
    return first.numpy(), inverse.numpy()


def rows_of(
    condition: Float[Tensor, "n dim"] | None, rows: Int[ndarray, " m"]
) -> Float[Tensor, "m dim"] | None:
    """The conditions of some records, where there are conditions."""
    return None if condition is None else condition[torch.from_numpy(np.asarray(rows, dtype=np.int64))]
