"""Whether a kept neighbour list still holds every pair that it should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from icml_kernels.molecules.neighbors import HalfList


def missing_pair(kept: Any, fresh: Any) -> tuple[int, int] | None:
    """A pair of a list built just now, without skin, that the kept list lacks; None where there is none.

    Args:
        kept: a `HalfList`, or lists within tuples, as ``neighbours`` of a potential gives them.
        fresh: the same, for the present positions.
    """
    for old, new in zip(_lists(kept), _lists(fresh), strict=True):
        n = old.n_atoms
        known, wanted = (torch.stack(pairs.ij()).long()[:, : int(pairs.ptr[-1])] for pairs in (old, new))
        lost = ~torch.isin(wanted[0] * n + wanted[1], known[0] * n + known[1])
        if bool(lost.any()):
            i, j = wanted[:, lost.nonzero()[0, 0]].tolist()
            return i, j
    return None


def _lists(value: Any) -> Iterator[HalfList]:
    if isinstance(value, HalfList):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _lists(part)
