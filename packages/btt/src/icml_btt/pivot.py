"""Pivot rounding: from a transversal to clusters (Algorithm 4 of Adriaens and Tatti, arXiv 2602.04463).

While vertices are left, a random one becomes the pivot, and its cluster takes every vertex left with a
probability that depends on their pair: 1 for a positive edge, 1/4 for a positive edge in the transversal D,
3/4 for a negative edge in D, 0 for a negative edge. On a complete graph with unit weights the expected cost
is at most 3/2 |D|, for any transversal D. D is deleted, not flipped: flipping its signs and taking
probabilities 0 and 1 (MatchFlipPivot, Veldt, ICML 2022) gives a factor of 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import sparse

from icml_btt import compiled
from icml_btt.randomness import hashes, mix, pair_keys, uniforms
from icml_btt.signed_graph import SignedGraph

# Kept edges of all runs handled together.
_BLOCK = 2**21

_ORDER, _COINS = 1, 2  # streams of random numbers
_MASK = 0xFFFFFFFFFFFFFFFF


@dataclass(frozen=True)
class Coins:
    """With which probability a vertex joins a pivot over an edge of the transversal.

    Attributes:
        positive: over a positive edge of it.
        negative: over a negative edge of it.
    """

    positive: float = 0.25
    negative: float = 0.75


PAPER_COINS = Coins()


def pivot_rounding(
    graph: SignedGraph,
    transversal_keys: Int[np.ndarray, " edges"],
    *,
    runs: int = 1,
    seed: int = 0,
    coins: Coins = PAPER_COINS,
    first_run: int = 0,
) -> Int[np.ndarray, "runs n"]:
    """Round a transversal to clusterings, several runs at once.

    A run is decided by an order of the vertices and one coin for each edge of the transversal. Vertices join
    over the edges kept by the coins; so the pivots are the greedy independent set of the kept graph in that
    order, and every other vertex belongs to the earliest pivot beside it. That set is found in a few rounds
    over all runs together: a vertex is a pivot once no undecided neighbour comes before it.

    Args:
        graph: pairs without an edge are never joined directly.
        transversal_keys: D, edges by number; empty gives the algorithm KwikCluster.
        runs: number of clusterings.
        seed: with the number of the run and the ids of vertices, decides order and coins.
        coins: other than the paper's, for comparison.
        first_run: number of the first run.

    Returns:
        For each run and vertex the pivot of its cluster.
    """
    edges = _candidates(graph, transversal_keys, coins)
    if (kernels := compiled.kernels(runs * graph.positive.nnz)) is not None:
        return _compiled_runs(kernels, graph, edges, range(first_run, first_run + runs), seed)
    step = max(1, _BLOCK // max(len(edges.u), graph.n, 1))
    blocks = [np.zeros((0, graph.n), dtype=np.int64)]
    for start in range(0, runs, step):
        numbers = range(first_run + start, first_run + min(start + step, runs))
        blocks.append(_pivot_runs(graph, edges, numbers, seed))
    return np.concatenate(blocks)


def kwik_cluster(graph: SignedGraph, *, runs: int = 1, seed: int = 0) -> Int[np.ndarray, "runs n"]:
    """Cluster by the algorithm KwikCluster (Ailon, Charikar and Newman, JACM 2008), several runs at once.

    The baseline: a random pivot takes all its positive neighbours; three times the optimum in expectation on
    complete graphs, without a certificate.
    """
    return pivot_rounding(graph, np.zeros(0, dtype=np.int64), runs=runs, seed=seed)


@dataclass(frozen=True, eq=False)
class _Candidates:
    """Edges over which a vertex may join a pivot."""

    u: Int[np.ndarray, " edges"]
    v: Int[np.ndarray, " edges"]
    probability: Float[np.ndarray, " edges"]
    plain: bool  # just the positive edges, each with probability 1


def _candidates(graph: SignedGraph, keys: Int[np.ndarray, " edges"], coins: Coins) -> _Candidates:
    """The positive edges, and the negative ones of the transversal."""
    keys = np.asarray(keys, dtype=np.int64)
    dropped = graph.pair_ends(keys)
    sign = graph.signs_of(dropped[:, 0], dropped[:, 1])
    if (sign == 0).any():
        raise ValueError("the transversal holds a pair that is no edge")
    positive = graph.ends[graph.sign > 0]
    in_transversal = np.isin(graph.keys[graph.sign > 0], keys)
    ends = np.concatenate([positive, dropped[sign < 0]])
    probability = np.concatenate(
        [np.where(in_transversal, coins.positive, 1.0), np.full(int(np.sum(sign < 0)), coins.negative)]
    )
    possible = probability > 0
    return _Candidates(ends[possible, 0], ends[possible, 1], probability[possible], not len(keys))


def _compiled_runs(
    kernels: Any, graph: SignedGraph, edges: _Candidates, numbers: range, seed: int
) -> Int[np.ndarray, "runs n"]:
    """The same by the compiled loop, which goes through the vertices of each run in their order."""
    rows, chance = graph.positive, np.ones(graph.positive.nnz)
    if not edges.plain:
        both = (
            np.concatenate([edges.probability, edges.probability]),
            (np.concatenate([edges.u, edges.v]), np.concatenate([edges.v, edges.u])),
        )
        rows = sparse.csr_array(both, shape=(graph.n, graph.n))
        chance = rows.data
    salts = [
        mix(mix(np.array(numbers, dtype=np.uint64) ^ np.uint64(stream)) ^ np.uint64(seed & _MASK))
        for stream in (_ORDER, _COINS)
    ]
    found = kernels.pivot_rounds(
        *compiled.graph_tensors(rows),
        compiled.tensor(chance),
        *(compiled.tensor(bits.view(np.int64)) for bits in (graph.vertex_keys, *salts)),
        trusted=True,
    )
    return found.numpy()


def _pivot_runs(
    graph: SignedGraph, edges: _Candidates, numbers: range, seed: int
) -> Int[np.ndarray, "runs n"]:
    runs, n = len(numbers), graph.n
    order = np.argsort(hashes(graph.vertex_keys, seed, _ORDER, numbers), axis=1, kind="stable")
    rank = np.empty((runs, n), dtype=np.int64)
    np.put_along_axis(rank, order, np.broadcast_to(np.arange(n), (runs, n)), axis=1)
    uncertain = np.flatnonzero(edges.probability < 1)
    keys = pair_keys(graph.vertex_keys[edges.u[uncertain]], graph.vertex_keys[edges.v[uncertain]])
    kept: Bool[np.ndarray, "runs edges"] = np.ones((runs, len(edges.u)), dtype=bool)
    kept[:, uncertain] = uniforms(keys, seed, _COINS, numbers) < edges.probability[uncertain]
    row, edge = np.nonzero(kept)
    u, v = row * n + edges.u[edge], row * n + edges.v[edge]
    ranks = rank.ravel()
    later = np.where(ranks[u] < ranks[v], v, u)
    earlier = u + v - later
    undecided = np.ones(runs * n, dtype=bool)
    pivot = np.zeros(runs * n, dtype=bool)
    before, after = earlier, later
    while True:
        fresh = undecided.copy()
        fresh[after] = False
        pivot |= fresh
        undecided &= ~fresh
        if not len(after):
            break
        undecided[after[fresh[before]]] = False
        open_edges = undecided[before] & undecided[after]
        before, after = before[open_edges], after[open_edges]
    # Every vertex that is no pivot belongs to the pivot beside it that came first.
    joining = pivot[earlier] & ~pivot[later]
    best = np.where(pivot, ranks, n)
    np.minimum.at(best, later[joining], ranks[earlier[joining]])
    return np.take_along_axis(order, best.reshape(runs, n), axis=1)
