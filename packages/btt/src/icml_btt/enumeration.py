"""Exact answers by enumeration, independent of every algorithm here: oracles of the claims.

Every triple scanned, every small signed graph solved, every row of the pivot proof's table recomputed.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations, combinations_with_replacement, product

import numpy as np
from jaxtyping import Int

from icml_btt.signed_graph import SignedGraph


def unhit_triangles(graph: SignedGraph, edges: Int[np.ndarray, "k 2"]) -> int:
    """How many bad triangles a set of edges leaves, by looking at every triple."""
    signs = np.zeros((graph.n, graph.n), dtype=int)
    u, v = np.triu_indices(graph.n, 1)
    signs[u, v] = signs[v, u] = graph.signs_of(u, v)
    gone = {tuple(edge) for edge in edges.tolist()}
    left = 0
    for triple in combinations(range(graph.n), 3):
        pairs = list(combinations(triple, 2))
        if sorted(int(signs[pair]) for pair in pairs) == [-1, 1, 1]:
            left += not gone.intersection(pairs)
    return left


def enumerated_optima(n: int, free: bool) -> tuple[float, float, int]:
    """Solve every signed graph of n vertices, complete or with free pairs too.

    Returns:
        The largest CC − 3/2 BTT, the largest CC / BTT, and the number of graphs.
    """
    pairs = list(combinations(range(n), 2))
    number = {pair: index for index, pair in enumerate(pairs)}
    choices = (-1, 0, 1) if free else (-1, 1)
    signs = np.array(list(product(choices, repeat=len(pairs))), dtype=np.int8)
    apart = np.array([[p[u] != p[v] for u, v in pairs] for p in _partitions(n)], dtype=np.int64)
    positive, negative = (signs > 0).astype(np.int64), (signs < 0).astype(np.int64)
    clusters = np.full(len(signs), len(pairs))
    for cut in apart:
        clusters = np.minimum(clusters, positive @ cut + negative @ (1 - cut))
    transversal = np.full(len(signs), len(pairs))
    unhit = np.zeros(len(signs), dtype=np.int64)  # bad triangles as bits of one number
    triangles = [[number[pair] for pair in combinations(t, 2)] for t in combinations(range(n), 3)]
    for bit, edges in enumerate(triangles):
        bad = (signs[:, edges] > 0).sum(axis=1) == 2
        bad &= (signs[:, edges] < 0).sum(axis=1) == 1
        unhit |= bad.astype(np.int64) << bit
    hits = [sum(1 << bit for bit, edges in enumerate(triangles) if e in edges) for e in range(len(pairs))]
    for size in range(len(pairs) + 1):
        open_graphs = np.flatnonzero(transversal > size)
        for chosen in combinations(range(len(pairs)), size):
            mask = np.bitwise_or.reduce([hits[e] for e in chosen]) if chosen else 0
            done = open_graphs[(unhit[open_graphs] & ~mask) == 0]
            transversal[done] = np.minimum(transversal[done], size)
        if (transversal <= size).all():
            break
    ratio = clusters / np.maximum(transversal, 1)
    return float((clusters - 1.5 * transversal).max()), float(ratio.max()), len(signs)


def _partitions(n: int) -> Iterator[list[int]]:
    """All partitions of n things, as labels in order of first appearance."""
    if n == 0:
        yield []
        return
    for shorter in _partitions(n - 1):
        for label in range(max(shorter, default=-1) + 2):
            yield [*shorter, label]


def triple_excess(positive_coin: float, negative_coin: float) -> dict[tuple[str, ...], Fraction]:
    """Expected cost less 3/2 of the budget spent, for each kind of triple without an unhit bad triangle.

    With each vertex of a triple as the pivot in turn, the pair of the other two is decided where one of them
    joins: its budget (1 for a pair in D) is spent then, and it costs 1 where it is positive and one joins, or
    negative and both do.
    """
    join = {
        "+": Fraction(1),
        "-": Fraction(0),
        "D+": Fraction(positive_coin),
        "D-": Fraction(negative_coin),
    }
    excess: dict[tuple[str, ...], Fraction] = {}
    for kinds in combinations_with_replacement(join, 3):
        if sorted(kinds) == ["+", "+", "-"]:
            continue
        total = Fraction(0)
        for far in range(3):
            p, q = (join[kind] for index, kind in enumerate(kinds) if index != far)
            both, one = p * q, p * (1 - q) + q * (1 - p)
            cost = one if kinds[far].endswith("+") else both
            total += cost - Fraction(3, 2) * (both + one) * kinds[far].startswith("D")
        excess[kinds] = total
    return excess
