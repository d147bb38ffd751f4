"""Moves of single vertices in plain Python: the definition."""

from __future__ import annotations

from torch import Tensor


def moves(
    indptr: Tensor,
    indices: Tensor,
    score: Tensor,
    base: float,
    least: Tensor,
    labels: Tensor,
    order: Tensor,
) -> tuple[Tensor, Tensor]:
    """Vertex after vertex."""
    bounds, neighbours, value = indptr.tolist(), indices.tolist(), score.tolist()
    label, need = labels.tolist(), least.tolist()
    sizes = [0] * len(label)
    for cluster in label:
        sizes[cluster] += 1
    count = 0
    for v in order.tolist():
        shared: dict[int, float] = {}
        for entry in range(bounds[v], bounds[v + 1]):
            cluster = label[neighbours[entry]]
            shared[cluster] = shared.get(cluster, 0.0) + value[entry]
        old = label[v]
        here = shared[old] - base * sizes[old] + base if old in shared else -base * (sizes[old] - 1)
        best, new = 0.0, -1
        for cluster in sorted(shared):
            worth = shared[cluster] - base * sizes[cluster]
            if cluster != old and worth > best:
                best, new = worth, cluster
        if best - here <= need[v]:
            continue
        if new < 0:
            new = sizes.index(min(sizes))
        sizes[old] -= 1
        sizes[new] += 1
        label[v] = new
        count += 1
    return labels.new_tensor(label), labels.new_tensor(count)
