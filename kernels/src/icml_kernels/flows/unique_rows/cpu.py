"""Distinct rows by a table of hashes with open addressing, on the CPU."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit


def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    given = rows.contiguous().numpy()
    first, inverse = _unique(given)
    return torch.from_numpy(first), torch.from_numpy(inverse)


@njit
def _hash(row):
    """FNV-1a over the entries, finished as in SplitMix64: low bits must depend on all of them."""
    h = np.uint64(1469598103934665603)
    for value in row:
        h = (h ^ np.uint64(np.int64(value))) * np.uint64(1099511628211)
        h ^= h >> np.uint64(32)
    h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))


@njit
def _unique(rows):
    n, width = rows.shape
    size = 16
    while size < 2 * n:
        size *= 2
    table = np.full(size, -1, dtype=np.int64)
    mask = np.uint64(size - 1)
    first = np.empty(n, dtype=np.int64)
    inverse = np.empty(n, dtype=np.int64)
    count = 0
    for r in range(n):
        slot = _hash(rows[r]) & mask
        while True:
            known = table[slot]
            if known < 0:
                table[slot] = count
                first[count] = r
                inverse[r] = count
                count += 1
                break
            other = first[known]
            same = True
            for k in range(width):
                if rows[other, k] != rows[r, k]:
                    same = False
                    break
            if same:
                inverse[r] = known
                break
            slot = (slot + np.uint64(1)) & mask
    return first[:count].copy(), inverse
