"""The cost of clusterings: positive edges between clusters and negative edges inside them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from icml_btt.signed_graph import SignedGraph

# Labels looked up together.
_BLOCK = 2**24


def disagreements(graph: SignedGraph, labels: Int[np.ndarray, "*runs n"]) -> Float[np.ndarray, "*runs"]:
    """Cost of one clustering or of many: weight of positive edges cut and of negative edges inside.

    Args:
        graph: pairs that are not stored cost as ``graph.missing`` says.
        labels: cluster of each vertex, any integers from 0 to n−1; leading dimensions are clusterings.

    Raises:
        ValueError: another number of vertices, or labels outside 0, …, n−1.
    """
    labels = np.asarray(labels)
    if labels.shape[-1] != graph.n or labels.dtype.kind not in "iu":
        raise ValueError(f"expected {graph.n} integer labels, got {labels.dtype}{list(labels.shape)}")
    if labels.size and (labels.min() < 0 or labels.max() >= graph.n):
        raise ValueError(f"labels must lie in 0, …, {graph.n - 1}")
    runs = labels.reshape(math.prod(labels.shape[:-1]), graph.n)
    whole = np.zeros(graph.n, dtype=np.int64)
    return component_disagreements(graph, runs, whole, 1)[:, 0].reshape(labels.shape[:-1])


def component_disagreements(
    graph: SignedGraph,
    labels: Int[np.ndarray, "runs n"],
    component: Int[np.ndarray, " n"],
    count: int,
) -> Float[np.ndarray, "runs {count}"]:
    """Cost of clusterings, apart for each of ``count`` parts of the graph that no cluster crosses.

    Edges between two parts count to that of their smaller end.
    """
    u, v = graph.ends.T
    base = graph.missing_weight
    # A stored pair inside a cluster costs what it is, less the negative edge that is counted for all pairs.
    inside = np.where(graph.sign < 0, graph.weight, 0.0) - base
    between = np.where(graph.sign > 0, graph.weight, 0.0)
    cost = np.zeros((len(labels), count))
    for part in _run_blocks(len(labels), len(u) + graph.n):
        chosen = labels[part]
        rows = np.arange(len(chosen))[:, None]
        same = chosen[:, u] == chosen[:, v]
        pair_cost = np.where(same, inside, between)
        cost[part] = _sums(rows, component[u], pair_cost, count)
        if base:
            sizes = np.bincount((rows * graph.n + chosen).ravel(), minlength=chosen.size)
            # half of (size − 1) for each member: C(size, 2) for each cluster
            fellows = sizes.reshape(chosen.shape)[rows, chosen] - 1
            cost[part] += _sums(rows, component, base * fellows / 2.0, count)
    return cost


def _sums(
    rows: Int[np.ndarray, "runs 1"],
    group: Int[np.ndarray, " k"],
    value: Float[np.ndarray, "runs k"],
    count: int,
) -> Float[np.ndarray, "runs {count}"]:
    """Sums of values over groups, run by run."""
    if count == 1:
        return value.sum(axis=1, keepdims=True)
    where = (rows * count + group).ravel()
    return np.bincount(where, weights=value.ravel(), minlength=len(rows) * count).reshape(len(rows), count)


def _run_blocks(runs: int, width: int) -> Iterator[slice]:
    step = max(1, _BLOCK // max(width, 1))
    for start in range(0, runs, step):
        yield slice(start, min(start + step, runs))


def canonical_labels(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """The same clusters, numbered 0, 1, … in the order of their first vertices."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    number = np.empty(len(first), dtype=np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[inverse]
