"""Moves of single vertices on the CPU: one core, since each sees the moves before it."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from icml_kernels.njit import njit


def moves(
    indptr: Tensor,
    indices: Tensor,
    score: Tensor,
    base: float,
    least: Tensor,
    labels: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor]:
    """See ``reference.moves``."""
    labels = labels.clone()
    matrix = indptr.contiguous().numpy(), indices.contiguous().numpy(), score.contiguous().numpy()
    vertices = least.contiguous().numpy(), labels.numpy(), order.contiguous().numpy()
    return labels, labels.new_tensor(_move(*matrix, base, *vertices))


@njit(fastmath=False)
def _move(indptr, indices, score, base, least, labels, order):
    n = len(labels)
    sizes = np.zeros(n, dtype=np.int64)
    for v in range(n):
        sizes[labels[v]] += 1
    shared = np.zeros(n)
    seen = np.full(n, -1, dtype=np.int64)
    touched = np.empty(n, dtype=np.int64)
    empty = 0  # no cluster before this one is empty
    count = 0
    for k in range(len(order)):
        v = order[k]
        clusters = 0
        for entry in range(indptr[v], indptr[v + 1]):
            cluster = labels[indices[entry]]
            if seen[cluster] != k:
                seen[cluster] = k
                shared[cluster] = 0.0
                touched[clusters] = cluster
                clusters += 1
            shared[cluster] += score[entry]
        old = labels[v]
        here = -base * (sizes[old] - 1)
        if seen[old] == k:
            here = shared[old] - base * sizes[old] + base
        best, new = 0.0, -1
        for j in range(clusters):
            cluster = touched[j]
            if cluster != old:
                worth = shared[cluster] - base * sizes[cluster]
                if worth > best or (worth == best and new > cluster):
                    best, new = worth, cluster
        if best - here <= least[v]:
            continue
        if new < 0:
            while sizes[empty] > 0:
                empty += 1
            new = empty
        sizes[old] -= 1
        sizes[new] += 1
        if sizes[old] == 0:
            empty = min(empty, old)
        labels[v] = new
        count += 1
    return count
