"""Independent oracles: plain loops over pairs, triples, partitions and subsets."""

from itertools import combinations

import numpy as np
import pytest
from icml_btt import SignedGraph


def _signed_pairs(graph):
    """Every pair with its sign and weight, read from the fields of the graph alone."""
    default = (-1, 1.0) if graph.missing == "negative" else (0, 0.0)
    pairs = dict.fromkeys(combinations(range(graph.n), 2), default)
    for (u, v), sign, weight in zip(
        graph.ends.tolist(), graph.sign.tolist(), graph.weight.tolist(), strict=True
    ):
        pairs[u, v] = (sign, weight)
    return pairs


def _bad_triangles(graph):
    pairs = _signed_pairs(graph)
    return [
        triple
        for triple in combinations(range(graph.n), 3)
        if sorted(pairs[pair][0] for pair in combinations(triple, 2)) == [-1, 1, 1]
    ]


def _cost(graph, labels):
    return sum(
        weight
        for (u, v), (sign, weight) in _signed_pairs(graph).items()
        if (sign > 0 and labels[u] != labels[v]) or (sign < 0 and labels[u] == labels[v])
    )


def _partitions(n):
    if n == 0:
        yield []
        return
    for shorter in _partitions(n - 1):
        for label in range(max(shorter, default=-1) + 2):
            yield [*shorter, label]


def _best_clustering(graph):
    return min(_cost(graph, labels) for labels in _partitions(graph.n))


def _best_transversal(graph):
    pairs = _signed_pairs(graph)
    triangles = [frozenset(combinations(triple, 2)) for triple in _bad_triangles(graph)]
    edges = sorted(frozenset().union(*triangles)) if triangles else []
    assert len(edges) <= 18
    masks = [sum(1 << edges.index(pair) for pair in triangle) for triangle in triangles]
    subsets = np.arange(1 << len(edges))
    hits = np.ones(len(subsets), dtype=bool)
    for mask in masks:
        hits &= (subsets & mask) != 0
    cost = np.zeros(len(subsets))
    for bit, pair in enumerate(edges):
        cost += pairs[pair][1] * (subsets >> bit & 1)
    return float(cost[hits].min())


def _positive_pairs(graph):
    return {pair: weight for pair, (sign, weight) in _signed_pairs(graph).items() if sign > 0}


def _open_wedges(graph):
    """Pairs of positive edges that share a vertex and lack the third edge."""
    edges = _positive_pairs(graph)
    return [
        (first, second)
        for first, second in combinations(edges, 2)
        if len(third := tuple(sorted(set(first) ^ set(second)))) == 2 and third not in edges
    ]


def _best_ties(graph):
    """The cheapest set of weak edges, by trying all."""
    edges = _positive_pairs(graph)
    bit = {pair: 1 << index for index, pair in enumerate(edges)}
    assert len(bit) <= 18
    subsets = np.arange(1 << len(bit))
    hit = np.ones(len(subsets), dtype=bool)
    for first, second in _open_wedges(graph):
        hit &= (subsets & (bit[first] | bit[second])) != 0
    cost = sum((edges[pair] * ((subsets & mask) != 0) for pair, mask in bit.items()), np.zeros(len(subsets)))
    return float(cost[hit].min())


def _best_cliques(graph):
    """The cheapest partition into cliques, by trying all partitions."""
    edges = _positive_pairs(graph)
    best = float("inf")
    for labels in _partitions(graph.n):
        inside = [(u, v) for u, v in combinations(range(graph.n), 2) if labels[u] == labels[v]]
        if all(pair in edges for pair in inside):
            best = min(best, sum(edges.values()) - sum(edges[pair] for pair in inside))
    return best


def _missed(graph, edges):
    """The bad triangles that a set of edges does not hit."""
    gone = {tuple(edge) for edge in np.asarray(edges).tolist()}
    return [t for t in _bad_triangles(graph) if not gone.intersection(combinations(t, 2))]


def _random_graph(seed, n, free=0.2, positive=0.5, weighted=False, missing="negative"):
    """A graph with pairs of all three kinds."""
    rng = np.random.default_rng(seed)
    pairs = list(combinations(range(n), 2))
    kind = rng.random(len(pairs))
    weight = rng.choice([0.25, 0.5, 1.0, 1.5, 3.0], size=len(pairs)) if weighted else np.ones(len(pairs))
    weight = np.where(kind < free, 0.0, weight)
    same = kind < free + (1 - free) * positive
    pick = [[p for p, s in zip(pairs, same, strict=True) if s == want] for want in (True, False)]
    return SignedGraph.from_edges(
        pick[0], pick[1], n, positive_weight=weight[same], negative_weight=weight[~same], missing=missing
    )


class Oracle:
    """The oracles by name."""

    signed_pairs = staticmethod(_signed_pairs)
    bad_triangles = staticmethod(_bad_triangles)
    cost = staticmethod(_cost)
    best_clustering = staticmethod(_best_clustering)
    best_transversal = staticmethod(_best_transversal)
    missed = staticmethod(_missed)
    partitions = staticmethod(_partitions)
    open_wedges = staticmethod(_open_wedges)
    best_ties = staticmethod(_best_ties)
    best_cliques = staticmethod(_best_cliques)


@pytest.fixture
def oracle():
    return Oracle


@pytest.fixture
def random_graph():
    return _random_graph


@pytest.fixture
def no_tables(monkeypatch):
    """Treat every graph as too large for a table of signs."""
    for module in ("signed_graph", "packing", "pruning"):
        monkeypatch.setattr(f"icml_btt.{module}.TABLE_LIMIT", -1)


@pytest.fixture
def plain(monkeypatch):
    """NumPy alone, which is quicker on small graphs than starting threads; both give the same results."""
    monkeypatch.setenv("ICML_BTT_COMPILED", "0")
