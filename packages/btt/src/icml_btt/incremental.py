"""New judgements in a clustered graph: which components they touch, which clusters keep their numbers."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int

from icml_btt.edge_checks import checked_pairs
from icml_btt.graph_input import Missing, edge_list, edge_weights, index_names, plain_name, vertex_count
from icml_btt.signed_graph import SignedGraph

Pairs = Iterable[Sequence[Hashable]]


@dataclass(frozen=True)
class Changes:
    """What became of clusters, by their numbers.

    Attributes:
        merged: numbers before, and the number after, where records of several clusters came together.
        split: the number before, and the numbers after, where records of a cluster came apart.
        created: numbers that were not there before.
    """

    merged: tuple[tuple[tuple[int, ...], int], ...]
    split: tuple[tuple[int, tuple[int, ...]], ...]
    created: tuple[int, ...]


def extended(
    graph: SignedGraph | None,
    positive: Pairs,
    negative: Pairs,
    positive_weight: Iterable[float] | None,
    negative_weight: Iterable[float] | None,
    ids: Iterable[Hashable] | None,
    *,
    missing: Missing,
) -> tuple[SignedGraph, Int[np.ndarray, " old"], Int[np.ndarray, " touched"]]:
    """The graph with further judgements; a pair judged before is judged anew.

    Returns:
        The graph, where each old vertex stands in it (increasing), and the vertices that are new or in one
        of the pairs.

    Raises:
        ValueError: as :meth:`~icml_btt.signed_graph.SignedGraph.from_edges`; names for a graph of numbers;
            an infinite weight.
    """
    options: dict[str, Any] = {"positive_weight": positive_weight, "negative_weight": negative_weight}
    if graph is None:
        fresh = SignedGraph.from_edges(positive, negative, missing=missing, ids=ids, **options)
        everyone = np.arange(fresh.n)
        return fresh, everyone, everyone
    sides = [edge_list(positive, "positive"), edge_list(negative, "negative")]
    count = [len(side) for side in sides]
    weight = np.concatenate(
        [edge_weights(w, k) for w, k in zip((positive_weight, negative_weight), count, strict=True)]
    )
    if np.isinf(weight).any():
        raise ValueError("an infinite weight may reach any component: fit again with all judgements")
    sign = np.repeat(np.array([1, -1], dtype=np.int8), count)
    names: tuple[Hashable, ...] | None = None
    if graph.ids is None:
        if ids is not None or not all(isinstance(side, np.ndarray) for side in sides):
            raise ValueError("the graph was fitted with numbers 0, …, n−1; further records are numbers too")
        ends = np.concatenate([np.asarray(side) for side in sides])
        n = max(graph.n, vertex_count(ends, None))
        old = np.arange(graph.n)
    else:
        pairs = [
            [(plain_name(u), plain_name(v)) for u, v in np.asarray(side, dtype=object)] for side in sides
        ]
        listed = [*graph.ids, *(plain_name(name) for name in ids or ())]
        names, index = index_names(listed, pairs)
        flat = [index[name] for side in pairs for pair in side for name in pair]
        ends = np.array(flat, dtype=np.int64).reshape(-1, 2)
        n = len(names)
        old = np.array([index[name] for name in graph.ids], dtype=np.int64)
        if (np.diff(old) <= 0).any():
            raise ValueError("the new records have names of another type than the old ones: fit again")
    ends, sign, weight, _ = checked_pairs(n, ends, sign, weight, graph.missing, names, keep_implied=True)
    new = np.ones(n, dtype=bool)
    new[old] = False
    touched = np.union1d(np.flatnonzero(new), ends.ravel())
    keys = ends[:, 0] * n + ends[:, 1]
    before = old[graph.ends]
    kept = ~np.isin(before[:, 0] * n + before[:, 1], keys)
    implied = (sign == 0) if graph.missing == "free" else (sign == -1) & (weight == 1)
    ends = np.concatenate([before[kept], ends[~implied]])
    sign = np.concatenate([graph.sign[kept], sign[~implied]])
    weight = np.concatenate([graph.weight[kept], weight[~implied]])
    order = np.argsort(ends[:, 0] * n + ends[:, 1])
    return SignedGraph(n, ends[order], sign[order], weight[order], graph.missing, names), old, touched


def renamed(
    before: Int[np.ndarray, " n"], members: Int[np.ndarray, " k"], labels: Int[np.ndarray, " k"]
) -> tuple[Int[np.ndarray, " n"], Changes]:
    """Number the clusters of some vertices so that as many records as can keep the number of theirs.

    Args:
        before: the number of each vertex's cluster, −1 for new vertices.
        members: the vertices that were clustered again.
        labels: their clusters, under any numbers.

    Returns:
        The number of each vertex's cluster, and what changed.
    """
    after = before.copy()
    old = before[members]
    pairs, overlap = np.unique(np.stack([old, labels], axis=1), axis=0, return_counts=True)
    number: dict[int, int] = {}
    taken: set[int] = set()
    for index in np.lexsort((pairs[:, 1], pairs[:, 0], -overlap)):
        earlier, cluster = pairs[index].tolist()
        if earlier >= 0 and earlier not in taken and cluster not in number:
            number[cluster] = earlier
            taken.add(earlier)
    following = int(before.max(initial=-1)) + 1
    created = []
    for cluster in np.unique(labels).tolist():
        if cluster not in number:
            number[cluster] = following
            created.append(following)
            following += 1
    after[members] = [number[cluster] for cluster in labels.tolist()]
    sources: dict[int, set[int]] = {}
    targets: dict[int, set[int]] = {}
    for earlier, cluster in pairs.tolist():
        if earlier >= 0:
            sources.setdefault(number[cluster], set()).add(earlier)
            targets.setdefault(earlier, set()).add(number[cluster])
    merged = tuple((tuple(sorted(s)), new) for new, s in sorted(sources.items()) if len(s) > 1)
    split = tuple((old, tuple(sorted(t))) for old, t in sorted(targets.items()) if len(t) > 1)
    return after, Changes(merged, split, tuple(created))
