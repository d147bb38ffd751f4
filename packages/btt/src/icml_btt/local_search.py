"""Local moves: improve a clustering by moving vertices and merging clusters until nothing gains."""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from icml_btt import compiled
from icml_btt.cost import canonical_labels
from icml_btt.signed_graph import SignedGraph

# A gain must exceed this share of the weights it is summed from, so that rounding never moves anything.
_LEAST_GAIN = 1e-12


def local_moves(
    graph: SignedGraph,
    labels: Int[np.ndarray, " n"],
    *,
    time_limit: float | None = None,
) -> Int[np.ndarray, " n"]:
    """Move single vertices to the best cluster or to one of their own, and merge pairs of clusters.

    Every step lowers the cost, so the result is never worse than what it starts from. Ties are left as they
    are; steps with the largest gain come first, then those of smaller vertices.

    Args:
        graph: the signed graph.
        labels: where to start, integers from 0 to n−1.
        time_limit: stop after so many seconds.

    Returns:
        Clusters numbered 0, 1, … in the order of their first vertices.
    """
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    state = _State(graph, canonical_labels(np.asarray(labels)))
    while time.perf_counter() < deadline:
        moved = state.move_vertices(deadline)
        if not state.merge_clusters() and not moved:
            break
    return canonical_labels(state.labels)


class _State:
    """Labels and cluster sizes; gains come from the matrix of scores."""

    def __init__(self, graph: SignedGraph, labels: Int[np.ndarray, " n"]) -> None:
        self.scores, self.base = graph.scores
        self.labels = labels
        self.sizes = np.bincount(labels, minlength=graph.n)
        self.least = _LEAST_GAIN * (abs(self.scores).sum(axis=1) + self.base * graph.n)

    def members(self) -> sparse.csr_array:
        """Vertices × clusters, 1 where the vertex belongs to the cluster."""
        n = len(self.labels)
        return sparse.csr_array((np.ones(n), self.labels, np.arange(n + 1)), shape=(n, n))

    def move_vertices(self, deadline: float) -> bool:
        """Move vertices until no single one gains; whether any did."""
        moved = False
        while time.perf_counter() < deadline:
            gain = self.best_gains()
            candidates = np.flatnonzero(gain > self.least)
            order = candidates[np.argsort(-gain[candidates], kind="stable")]
            # Gains change as others move, so each is computed again.
            if not self.move_in_turn(order):
                break
            moved = True
        return moved

    def move_in_turn(self, order: Int[np.ndarray, " moves"]) -> int:
        """Move each of these vertices to its best cluster, where that gains; how many moved."""
        kernels = compiled.kernels(self.scores.nnz)
        if kernels is None:
            return sum(self.move(vertex) for vertex in order)
        score, least = compiled.tensor(self.scores.data), compiled.tensor(self.least)
        labels, count = kernels.local_moves_pass(
            *compiled.graph_tensors(self.scores),
            score,
            self.base,
            least,
            *map(compiled.tensor, (self.labels, order)),
            trusted=True,
        )
        self.labels = labels.numpy()
        self.sizes = np.bincount(self.labels, minlength=len(self.labels))
        return count

    def best_gains(self) -> Float[np.ndarray, " n"]:
        """What each vertex would gain by its best move, all at once."""
        n = len(self.labels)
        shared = self.scores @ self.members()
        row = np.repeat(np.arange(n), np.diff(shared.indptr))
        own: Bool[np.ndarray, " entries"] = shared.indices == self.labels[row]
        value = shared.data - self.base * self.sizes[shared.indices]
        here = -self.base * (self.sizes[self.labels] - 1)
        here[row[own]] = value[own] + self.base
        best = np.zeros(n)  # a cluster of its own
        np.maximum.at(best, row[~own], value[~own])
        return best - here

    def move(self, vertex: int) -> bool:
        """Move a vertex to its best cluster, where that gains."""
        start, stop = self.scores.indptr[vertex], self.scores.indptr[vertex + 1]
        neighbours = self.scores.indices[start:stop]
        clusters, inverse = np.unique(self.labels[neighbours], return_inverse=True)
        together = np.bincount(inverse, weights=self.scores.data[start:stop], minlength=len(clusters))
        value = together - self.base * self.sizes[clusters]
        old = self.labels[vertex]
        own = clusters == old
        here = value[own].sum() + self.base if own.any() else -self.base * (self.sizes[old] - 1)
        value[own] = -np.inf
        best = int(np.argmax(value)) if len(value) else -1
        if best >= 0 and value[best] > 0:
            gain, new = value[best] - here, int(clusters[best])
        else:
            gain, new = -here, -1
        if gain <= self.least[vertex]:
            return False
        if new < 0:
            new = int(np.argmin(self.sizes))  # an unused number: a vertex gaining here is not alone
        self.sizes[old] -= 1
        self.sizes[new] += 1
        self.labels[vertex] = new
        return True

    def merge_clusters(self) -> bool:
        """Merge the pairs that gain most, each cluster once; whether any did."""
        members = self.members()
        between = sparse.coo_array(sparse.triu(members.T @ self.scores @ members, k=1))
        first, second = between.coords
        gain = between.data - self.base * self.sizes[first] * self.sizes[second]
        least = np.bincount(self.labels, weights=self.least, minlength=len(self.labels))
        order = np.flatnonzero(gain > np.minimum(least[first], least[second]))
        order = order[np.argsort(-gain[order], kind="stable")]
        used = np.zeros(len(self.labels), dtype=bool)
        target = np.arange(len(self.labels))
        for a, b in zip(first[order], second[order], strict=True):
            if not (used[a] or used[b]):
                used[[a, b]] = True
                target[b] = a
        self.labels = target[self.labels]
        self.sizes = np.bincount(self.labels, minlength=len(self.labels))
        return bool(len(order))
