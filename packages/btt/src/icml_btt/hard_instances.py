"""Hard instances whose four optima coincide: transversal, clusters, cliques and weak ties.

The positive edges are a union of edge-disjoint triangles without other triangles, at most three at a
vertex; all other pairs are negative. Then the four optima are ``|E⁺| − max(3τ + ν)`` over vertex-disjoint
packings of τ of the triangles and ν edges, and equal ``|E⁺| − n`` exactly where some of the triangles cover
every vertex once: bounded 3-dimensional matching, NP-hard. (The paper shows all four hard to approximate
within 2137/2136 by another reduction, from Minimum 2CNF Deletion, under which they coincide as well.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations

import numpy as np
from scipy import sparse
from scipy.optimize import Bounds, LinearConstraint, milp

from icml_btt.signed_graph import SignedGraph

_DEGREE = 3  # triples at a vertex


def collapse_graph(triples: Sequence[Sequence[int]], n: int) -> SignedGraph:
    """The signed graph of a family of triples.

    Args:
        triples: of the vertices 0, …, n−1; two share at most one vertex, a vertex is in at most three, and
            no three pairs of different triples form a triangle.
        n: number of vertices.

    Raises:
        ValueError: names the triples that break these rules.
    """
    family = [tuple(sorted(int(v) for v in triple)) for triple in triples]
    for triple in family:
        if len(set(triple)) != 3 or len(triple) != 3 or triple[0] < 0 or triple[-1] >= n:
            raise ValueError(f"{triple}: a triple is three different vertices from 0, …, {n - 1}")
    owner: dict[tuple[int, int], tuple[int, ...]] = {}
    for triple in family:
        for pair in combinations(triple, 2):
            if pair in owner:
                raise ValueError(f"{owner[pair]} and {triple} share two vertices; expected at most one")
            owner[pair] = triple
    for vertex in range(n):
        count = sum(vertex in triple for triple in family)
        if count > _DEGREE:
            raise ValueError(f"vertex {vertex} is in {count} triples; expected at most {_DEGREE}")
    near = _neighbours(owner, n)
    for (u, v), triple in owner.items():
        for w in near[u] & near[v]:
            if w not in triple:
                raise ValueError(f"the triples make another triangle {tuple(sorted((u, v, w)))}")
    return SignedGraph.from_edges(list(owner), n=n)


def random_triples(n: int, *, cover: bool, extra: int | None = None, seed: int) -> list[tuple[int, int, int]]:
    """Draw a family of triples that :func:`collapse_graph` takes.

    Args:
        n: number of vertices.
        cover: plant n/3 triples that cover every vertex once; without it one vertex is left out of all
            triples, so that nothing covers it.
        extra: how many triples to add to the cover, as far as the rules allow; default n/3.
        seed: decides everything.

    Raises:
        ValueError: ``cover`` with an n that three does not divide.
    """
    if n < 0 or (cover and n % 3):
        raise ValueError(f"n={n}; expected a number >= 0, and a multiple of 3 for an exact cover")
    rng = np.random.default_rng(seed)
    order = rng.permutation(n).tolist()
    family = [tuple(sorted(order[i : i + 3])) for i in range(0, n, 3)] if cover else []
    vertices = order if cover else order[1:]
    wanted = len(family) + (max(n // 3, 1) if extra is None else extra)
    edges = {pair for triple in family for pair in combinations(triple, 2)}
    degree = np.zeros(n, dtype=np.int64)
    np.add.at(degree, np.array(family, dtype=np.int64).ravel(), 1)
    for _ in range(200 * max(wanted, 1)):
        if len(family) >= wanted or len(vertices) < 3:
            break
        triple = tuple(sorted(rng.choice(vertices, size=3, replace=False).tolist()))
        pairs = set(combinations(triple, 2))
        if max(degree[list(triple)]) == _DEGREE or pairs & edges:
            continue
        near = _neighbours(edges | pairs, n)
        if all(near[u] & near[v] <= set(triple) for u, v in pairs):
            family.append(triple)
            edges |= pairs
            degree[list(triple)] += 1
    return [(a, b, c) for a, b, c in family]


def packing_optimum(triples: Sequence[Sequence[int]], n: int) -> int:
    """The common optimum ``|E⁺| − max(3τ + ν)``, by an integer program over triples and edges alone.

    Raises:
        RuntimeError: it was not solved.
    """
    pairs = [pair for triple in triples for pair in combinations(sorted(triple), 2)]
    pieces = [tuple(triple) for triple in triples] + pairs
    if not pieces:
        return 0
    gain = np.array([3.0 if len(piece) == 3 else 1.0 for piece in pieces])
    column = np.repeat(np.arange(len(pieces)), [len(piece) for piece in pieces])
    row = np.array([v for piece in pieces for v in piece])
    matrix = sparse.csr_array((np.ones(len(row)), (row, column)), shape=(n, len(pieces)))
    result = milp(
        -gain,
        integrality=np.ones(len(gain), dtype=np.int64),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(matrix, 0, 1),
    )
    if result.status != 0:
        raise RuntimeError(f"HiGHS did not solve the packing program: {result.message}")
    return len(pairs) + round(result.fun)


def _neighbours(edges: Iterable[tuple[int, int]], n: int) -> list[set[int]]:
    near: list[set[int]] = [set() for _ in range(n)]
    for u, v in edges:
        near[u].add(v)
        near[v].add(u)
    return near
