"""Signed graphs: pairs judged "same" (positive) or "different" (negative), with weights.

In a complete signed graph almost every pair is negative. Such pairs are never stored: with
``missing="negative"`` a pair that is not listed is a negative edge of weight 1. With ``missing="free"`` a
pair that is not listed is no edge, and costs nothing either way.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int, Int8, UInt64
from scipy import sparse
from scipy.sparse import csgraph

from icml_btt.edge_checks import checked_pairs
from icml_btt.graph_input import (
    Missing,
    check_missing,
    edge_list,
    edge_weights,
    index_names,
    is_networkx,
    networkx_edges,
    plain_name,
    square_array,
    symmetric_matrix,
    upper_entries,
    vertex_count,
)
from icml_btt.probabilities import probability_edges
from icml_btt.randomness import vertex_keys

# Up to here a table of all signs (36 MB) replaces binary search when pairs are looked up.
TABLE_LIMIT = 6000


@dataclass(frozen=True, eq=False)
class SignedGraph:
    """A signed graph on the vertices 0, …, n−1.

    Make one with the ``from_…`` functions, which check and sort what they are given; the constructor takes
    the result of that work.

    Attributes:
        n: number of vertices.
        ends: the stored pairs, each with its smaller end first, in lexicographic order.
        sign: +1 same, −1 different, 0 "no opinion" (only where ``missing="negative"``).
        weight: of each stored pair; positive, and 0 where the sign is 0.
        missing: what a pair is that is not stored.
        ids: the user's name of each vertex, in sorted order; None where vertices are plain numbers.
        hard: pairs given an infinite weight: must-links and cannot-links. Their ``weight`` is a finite one
            that outweighs all others together. None where there are none.
    """

    n: int
    ends: Int[np.ndarray, "pairs 2"]
    sign: Int8[np.ndarray, " pairs"]
    weight: Float[np.ndarray, " pairs"]
    missing: Missing = "negative"
    ids: tuple[Hashable, ...] | None = None
    hard: Bool[np.ndarray, " pairs"] | None = None

    def __post_init__(self) -> None:
        check_missing(self.missing)
        if self.ids is not None and len(self.ids) != self.n:
            raise ValueError(f"{len(self.ids)} ids for {self.n} vertices")
        for array in (self.ends, self.sign, self.weight):
            array.flags.writeable = False

    @classmethod
    def from_edges(
        cls,
        positive: Iterable[Sequence[Hashable]],
        negative: Iterable[Sequence[Hashable]] = (),
        n: int | None = None,
        *,
        positive_weight: Iterable[float] | None = None,
        negative_weight: Iterable[float] | None = None,
        missing: Missing = "negative",
        ids: Iterable[Hashable] | None = None,
    ) -> SignedGraph:
        """Build a graph from lists of pairs.

        Args:
            positive: pairs judged "same".
            negative: pairs judged "different".
            n: number of vertices, where vertices are the integers 0, …, n−1; by default the largest plus one.
            positive_weight: a weight for each positive pair (default 1); weight 0 means "no opinion", and an
                infinite weight that the pair must be together (negative: apart).
            negative_weight: the same for the negative pairs.
            missing: what a pair is that neither list holds.
            ids: all vertices, where they are names (any hashable things) instead of 0, …, n−1. Names that
                occur in pairs but not here are added; without ``ids``, pairs of anything but integers are
                taken as names.

        Raises:
            ValueError: a pair with both signs or two weights, a weight that is negative or NaN, a vertex
                outside 0, …, n−1.

        Example:
            >>> SignedGraph.from_edges([("ann", "anne"), ("anne", "anna")], [("ann", "anna")]).n
            3
        """
        sides = [edge_list(positive, "positive"), edge_list(negative, "negative")]
        names: tuple[Hashable, ...] | None = None
        if ids is None and all(isinstance(side, np.ndarray) for side in sides):
            ends = np.concatenate([np.asarray(side) for side in sides])
            n = vertex_count(ends, n)
        else:
            if n is not None:
                raise ValueError(
                    "n counts the vertices 0, …, n−1; with names, list isolated ones in ids instead"
                )
            listed = [plain_name(name) for name in ids] if ids is not None else []
            pairs = [[(plain_name(u), plain_name(v)) for u, v in side] for side in sides]
            names, index = index_names(listed, pairs)
            flat = [index[name] for side in pairs for pair in side for name in pair]
            ends = np.array(flat, dtype=np.int64).reshape(-1, 2)
            n = len(names)
        count = [len(side) for side in sides]
        weight = np.concatenate(
            [edge_weights(w, k) for w, k in zip((positive_weight, negative_weight), count, strict=True)]
        )
        sign = np.repeat(np.array([1, -1], dtype=np.int8), count)
        return _assemble(n, ends, sign, weight, missing, names)

    @classmethod
    def complete_from_positive(cls, graph: Any) -> SignedGraph:
        """Take the edges of an unsigned graph as positive and all other pairs as negative, with weight 1.

        Args:
            graph: a networkx graph, a SciPy sparse array, or a square array; only where its entries are not
                zero matters.
        """
        if is_networkx(graph):
            return cls.from_networkx(graph, sign=None, weight=None)
        dense = not sparse.issparse(graph)
        pattern = symmetric_matrix(square_array(np.asarray(graph)) if dense else graph, "an adjacency matrix")
        pattern.eliminate_zeros()
        pattern.data = np.ones(pattern.nnz)
        return cls.from_scipy(pattern)

    @classmethod
    def from_scipy(
        cls, signed: Any, *, missing: Missing = "negative", ids: Sequence[Hashable] | None = None
    ) -> SignedGraph:
        """Build a graph from a symmetric matrix: the sign of an entry is the sign, its size the weight.

        Args:
            signed: a SciPy sparse array or matrix, or a square NumPy array. Zero entries, stored or not, are
                missing pairs. Of an array the diagonal is not read; in a sparse matrix it holds self-loops,
                which are ignored with a warning.
            missing: what a missing pair is.
            ids: a name for each row; then the order of rows does not influence any result.

        Raises:
            ValueError: not square, not symmetric (names the entry), NaN or infinite entries.
        """
        if not sparse.issparse(signed):
            signed = square_array(np.asarray(signed)).astype(np.float64)
            np.fill_diagonal(signed, 0.0)
        matrix = symmetric_matrix(signed, "a signed adjacency matrix")
        upper = sparse.coo_array(sparse.triu(matrix))
        keep = upper.data != 0
        ends = np.stack([upper.coords[0][keep], upper.coords[1][keep]], axis=1).astype(np.int64)
        value = upper.data[keep]
        sign = np.sign(value).astype(np.int8)
        return _relabelled(matrix.shape[0], ends, sign, np.abs(value), missing, ids)

    @classmethod
    def from_networkx(
        cls,
        graph: Any,
        *,
        sign: str | None = "sign",
        weight: str | None = "weight",
        missing: Missing = "negative",
    ) -> SignedGraph:
        """Build a graph from a networkx graph; its nodes become the ids.

        Args:
            graph: undirected, at most one edge between two nodes.
            sign: the edge attribute whose sign counts; an edge without it is positive. None takes the sign
                from the weight.
            weight: the edge attribute with the weight, 1 where it is absent. None gives every edge weight 1.
            missing: what a pair of nodes without an edge is.

        Raises:
            TypeError: a directed graph or a multigraph.
            ValueError: a negative weight while ``sign`` names an attribute; a sign that is no number.
        """
        lists = networkx_edges(graph, sign, weight)
        return cls.from_edges(
            lists[1][0],
            lists[-1][0],
            positive_weight=lists[1][1],
            negative_weight=lists[-1][1],
            missing=missing,
            ids=graph.nodes,
        )

    @classmethod
    def from_similarity(
        cls,
        similarity: Any,
        threshold: float,
        *,
        weights: Literal["unit", "distance"] = "unit",
        missing: Missing = "negative",
        ids: Sequence[Hashable] | None = None,
    ) -> SignedGraph:
        """Judge pairs by a symmetric similarity: "same" where it is at least the threshold.

        Args:
            similarity: a square array, or a SciPy sparse array of the pairs that were compared. The diagonal
                is not read.
            threshold: in the unit of the similarity.
            weights: ``"unit"`` weighs every pair 1; ``"distance"`` by the distance from the threshold.
            missing: (sparse) what a pair is that is not stored; in a dense array no pair is missing.
            ids: a name for each row; then the order of rows does not influence any result.

        Raises:
            ValueError: not square, not symmetric, NaN; ``weights="distance"`` with a sparse similarity whose
                missing pairs are negative, since their distance is unknown.
        """
        if not math.isfinite(threshold):
            raise ValueError(f"the threshold must be finite, got {threshold!r}")
        if weights not in ("unit", "distance"):
            raise ValueError(f"weights={weights!r}; expected 'unit' or 'distance'")
        if sparse.issparse(similarity):
            if weights == "distance" and missing == "negative":
                raise ValueError(
                    "weights='distance' needs to know every pair: pass a dense similarity, or missing='free'"
                )
            matrix = symmetric_matrix(similarity, "a similarity matrix")
            upper = sparse.coo_array(sparse.triu(matrix, k=1))
            u, v, value = upper.coords[0], upper.coords[1], upper.data
            n = matrix.shape[0]
        else:
            dense = square_array(np.asarray(similarity))
            n = len(dense)
            everything = weights == "distance"
            u, v, value = upper_entries(dense, None if everything else threshold)
            missing = "negative"
        distance = value - threshold
        sign = np.where(distance >= 0, 1, -1).astype(np.int8)
        weight = np.ones(len(value)) if weights == "unit" else np.abs(distance)
        return _relabelled(n, np.stack([u, v], axis=1).astype(np.int64), sign, weight, missing, ids)

    @classmethod
    def from_probabilities(
        cls,
        table: Any,
        left: str,
        right: str,
        p: str,
        *,
        missing: Missing = "negative",
        ids: Iterable[Hashable] | None = None,
    ) -> SignedGraph:
        """Build a graph from a table of pairs with probabilities that they are the same.

        The sign says whether p is at least ½, the weight is ``|log(p / (1 − p))|``: then the cheapest
        clustering is the likeliest, were pairs independent. See
        :func:`~icml_btt.probabilities.probability_edges` for the arguments.
        """
        positive, negative, weights = probability_edges(table, left, right, p)
        return cls.from_edges(
            positive,
            negative,
            positive_weight=weights[0],
            negative_weight=weights[1],
            missing=missing,
            ids=ids,
        )

    @cached_property
    def keys(self) -> Int[np.ndarray, " pairs"]:
        """The stored pairs as sorted numbers ``u·n + v`` with ``u < v``."""
        return self.ends[:, 0] * self.n + self.ends[:, 1]

    @cached_property
    def positive(self) -> sparse.csr_array:
        """The positive edges as a symmetric matrix of weights, its column indices sorted."""
        chosen = self.sign > 0
        return self._symmetric(self.ends[chosen], self.weight[chosen])

    @cached_property
    def vertex_keys(self) -> UInt64[np.ndarray, " n"]:
        """A 64-bit key of each vertex, from its id alone: what random draws and ties depend on."""
        return vertex_keys(self.ids, self.n)

    @cached_property
    def components(self) -> Int[np.ndarray, " n"]:
        """The connected component of each vertex along positive edges, numbered from 0.

        No optimal cluster, and no cluster of the algorithms here, reaches beyond one.
        """
        return csgraph.connected_components(self.positive, directed=False)[1].astype(np.int64)

    @property
    def complete(self) -> bool:
        """Whether every pair is an edge, positive or negative."""
        if self.missing == "negative":
            return bool(np.all(self.sign != 0))
        return len(self.ends) == self.n * (self.n - 1) // 2

    @property
    def unweighted(self) -> bool:
        """Whether every edge has weight 1."""
        return bool(np.all(self.weight[self.sign != 0] == 1))

    @property
    def integral(self) -> bool:
        """Whether every weight is an integer, so that the cost of any solution is one."""
        return bool(np.all(self.weight == np.floor(self.weight)))

    @property
    def missing_weight(self) -> float:
        """What it costs to put a pair that is not stored together; 0 where there is no such pair."""
        return float(self.missing == "negative" and len(self.ends) < self.n * (self.n - 1) // 2)

    def name(self, vertex: int) -> Hashable:
        """The user's name of a vertex."""
        return int(vertex) if self.ids is None else self.ids[vertex]

    def pair_key(self, u: Int[np.ndarray, " k"], v: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """The numbers ``min·n + max`` of pairs of vertices."""
        return np.minimum(u, v).astype(np.int64) * self.n + np.maximum(u, v)

    def pair_ends(self, keys: Int[np.ndarray, " k"]) -> Int[np.ndarray, "k 2"]:
        """The ends of pairs given by number, the smaller first."""
        return np.stack(np.divmod(keys, max(self.n, 1)), axis=-1)

    def signs_of(self, u: Int[np.ndarray, " k"], v: Int[np.ndarray, " k"]) -> Int8[np.ndarray, " k"]:
        """The signs of pairs of different vertices: +1, −1, or 0 for no edge."""
        if self.n <= TABLE_LIMIT:
            return self.sign_table[u, v]
        if not len(self.keys):
            return np.full(np.shape(u), self._default, dtype=np.int8)
        found, place = self._find(self.pair_key(u, v))
        return np.where(found, self.sign[place], self._default).astype(np.int8)

    def weights_of(self, keys: Int[np.ndarray, " k"]) -> Float[np.ndarray, " k"]:
        """The weights of pairs given by number; 0 for no edge."""
        implied = float(self._default != 0)
        if not len(self.keys):
            return np.full(np.shape(keys), implied)
        found, place = self._find(keys)
        return np.where(found, self.weight[place], implied)

    def without(self, keys: Int[np.ndarray, " k"]) -> SignedGraph:
        """The graph without the edges ``keys``: those pairs become "no opinion", or are not stored."""
        gone = np.unique(np.asarray(keys, dtype=np.int64))
        kept = ~np.isin(self.keys, gone)
        ends, sign, weight = self.ends[kept], self.sign[kept], self.weight[kept]
        if self.missing == "negative":
            ends = np.concatenate([ends, self.pair_ends(gone)])
            sign = np.concatenate([sign, np.zeros(len(gone), dtype=np.int8)])
            weight = np.concatenate([weight, np.zeros(len(gone))])
            order = np.argsort(ends[:, 0] * self.n + ends[:, 1])
            ends, sign, weight = ends[order], sign[order], weight[order]
        return SignedGraph(self.n, ends, sign, weight, self.missing, self.ids)

    def induced(self, members: Int[np.ndarray, " k"]) -> SignedGraph:
        """The graph on some vertices, given in increasing order; they keep their names, or are named so."""
        number = np.full(self.n, -1, dtype=np.int64)
        number[members] = np.arange(len(members))
        ends = number[self.ends]
        inside = (ends >= 0).all(axis=1)
        ids = tuple(self.name(v) for v in members)
        return SignedGraph(
            len(members), ends[inside], self.sign[inside], self.weight[inside], self.missing, ids
        )

    @cached_property
    def scores(self) -> tuple[sparse.csr_array, float]:
        """What it is worth to put two vertices together, as a sparse matrix S and a number d.

        The gain of having u and v in one cluster is ``S[u, v] − d``: the weight of a positive edge, minus
        that of a negative one, 0 for no edge.
        """
        base = self.missing_weight
        return self._symmetric(self.ends, self.sign * self.weight + base), base

    def __repr__(self) -> str:
        count = {sign: int(np.sum(self.sign == sign)) for sign in (1, -1, 0)}
        return (
            f"SignedGraph(n={self.n}, positive={count[1]}, negative={count[-1]} stored, "
            f"no opinion={count[0]}, missing={self.missing!r})"
        )

    @property
    def _default(self) -> int:
        return -1 if self.missing == "negative" else 0

    @cached_property
    def sign_table(self) -> Int8[np.ndarray, "n n"]:
        """The signs of all pairs, 0 on the diagonal; for graphs of at most ``TABLE_LIMIT`` vertices."""
        table = np.full((self.n, self.n), self._default, dtype=np.int8)
        table[self.ends[:, 0], self.ends[:, 1]] = self.sign
        table[self.ends[:, 1], self.ends[:, 0]] = self.sign
        np.fill_diagonal(table, 0)
        return table

    def _find(self, keys: Int[np.ndarray, " k"]) -> tuple[Bool[np.ndarray, " k"], Int[np.ndarray, " k"]]:
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return self.keys[place] == keys, place

    def _symmetric(self, ends: Int[np.ndarray, "k 2"], value: Float[np.ndarray, " k"]) -> sparse.csr_array:
        u, v = ends[:, 0], ends[:, 1]
        both = (np.concatenate([value, value]), (np.concatenate([u, v]), np.concatenate([v, u])))
        matrix = sparse.csr_array(both, shape=(self.n, self.n))
        matrix.sort_indices()
        return matrix


def as_signed_graph(graph: Any, *, missing: Missing = "negative") -> SignedGraph:
    """Accept what users have: a :class:`SignedGraph`, networkx graph, sparse array or square array.

    Raises:
        TypeError: anything else.
    """
    if isinstance(graph, SignedGraph):
        return graph
    if is_networkx(graph):
        return SignedGraph.from_networkx(graph, missing=missing)
    if sparse.issparse(graph) or isinstance(graph, np.ndarray):
        return SignedGraph.from_scipy(graph, missing=missing)
    raise TypeError(
        f"expected a SignedGraph, networkx graph, SciPy sparse array or square NumPy array, "
        f"got {type(graph).__name__}"
    )


def _assemble(
    n: int,
    ends: Int[np.ndarray, "pairs 2"],
    sign: Int8[np.ndarray, " pairs"],
    weight: Float[np.ndarray, " pairs"],
    missing: Missing,
    ids: tuple[Hashable, ...] | None,
) -> SignedGraph:
    """Sort the pairs, refuse contradictions, and drop what need not be stored."""
    ends, sign, weight, hard = checked_pairs(n, ends, sign, weight, missing, ids)
    return SignedGraph(n, ends, sign, weight, missing, ids, hard)


def _relabelled(
    n: int,
    ends: Int[np.ndarray, "pairs 2"],
    sign: Int8[np.ndarray, " pairs"],
    weight: Float[np.ndarray, " pairs"],
    missing: Missing,
    ids: Sequence[Hashable] | None,
) -> SignedGraph:
    """Assemble a graph whose vertices, where they have names, are numbered by name and not by row."""
    if ids is None:
        return _assemble(n, ends, sign, weight, missing, None)
    given = [plain_name(name) for name in ids]
    if len(given) != n:
        raise ValueError(f"{len(given)} ids for {n} rows")
    names, index = index_names(given, [])
    if len(names) != n:
        twice = next(name for position, name in enumerate(given) if name in given[:position])
        raise ValueError(f"the id {twice!r} names two rows")
    place = np.array([index[name] for name in given], dtype=np.int64)
    return _assemble(n, place[ends], sign, weight, missing, names)
