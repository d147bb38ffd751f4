"""How many triangles of each kind there are: the statistics of structural balance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from scipy import sparse

from icml_btt.signed_graph import SignedGraph, as_signed_graph


@dataclass(frozen=True, eq=False)
class TriangleCensus:
    """Counts of triangles by their signs; a triangle has three edges, free pairs are none.

    Attributes:
        ppp: three positive edges.
        ppn: two positive and one negative: bad triangles.
        pnn: one positive and two negative.
        nnn: three negative.
        open_wedges: by vertex, the pairs of its positive neighbours that no positive edge joins.
    """

    ppp: int
    ppn: int
    pnn: int
    nnn: int
    open_wedges: Int[np.ndarray, " n"]

    @property
    def total(self) -> int:
        """All triangles."""
        return self.ppp + self.ppn + self.pnn + self.nnn

    @property
    def balanced(self) -> float:
        """The share that is balanced in the strict sense of two camps: + + + and + − − (NaN without any)."""
        return (self.ppp + self.pnn) / self.total if self.total else float("nan")

    @property
    def clusterable(self) -> float:
        """The share that is balanced in the weak sense of many clusters: all but + + − (NaN without any)."""
        return 1.0 - self.ppn / self.total if self.total else float("nan")


def triangle_census(graph: Any) -> TriangleCensus:
    """Count triangles by their signs; negative edges that are not stored are never listed.

    Args:
        graph: a SignedGraph, networkx graph, SciPy sparse array or square array.

    Raises:
        ValueError, TypeError: see :func:`~icml_btt.signed_graph.as_signed_graph`.

    Example:
        >>> from icml_btt import SignedGraph
        >>> triangle_census(SignedGraph.from_edges([(0, 1), (1, 2)], n=4)).ppn
        1
    """
    graph = as_signed_graph(graph)
    positive = _pattern(graph, graph.sign > 0)
    degree = np.diff(positive.indptr).astype(np.int64)
    squared = positive @ positive
    closed = np.asarray((squared * positive).sum(axis=1)).ravel().astype(np.int64) // 2
    ppp = int(closed.sum()) // 3
    wedges = degree * (degree - 1) // 2
    if graph.missing == "free":
        negative = _pattern(graph, graph.sign < 0)
        both = negative @ negative
        ppn, pnn = _half(squared, negative), _half(both, positive)
        nnn = _half(both, negative) // 3
    else:
        # What is no negative edge: positive pairs and pairs without opinion, both stored.
        unsigned = _pattern(graph, graph.sign == 0)
        other = sparse.csr_array(positive + unsigned)
        ppn = int(wedges.sum()) - 3 * ppp - _half(squared, unsigned)
        count = np.diff(other.indptr).astype(np.int64)
        u, v = graph.ends[graph.sign > 0].T
        product = sparse.csr_array(other @ other)
        # For each positive edge, the vertices negative to both its ends.
        pnn = int(np.sum(graph.n - count[u] - count[v])) + _half(product, positive)
        n, edges = graph.n, int(count.sum()) // 2
        triples = n * (n - 1) * (n - 2) // 6
        nnn = triples - edges * (n - 2) + int(np.sum(count * (count - 1) // 2)) - _half(product, other) // 3
    return TriangleCensus(ppp, ppn, pnn, nnn, wedges - closed)


def _pattern(graph: SignedGraph, chosen: np.ndarray) -> sparse.csr_array:
    u, v = graph.ends[chosen].T
    ones = np.ones(2 * len(u), dtype=np.int64)
    rows, columns = np.concatenate([u, v]), np.concatenate([v, u])
    return sparse.csr_array((ones, (rows, columns)), shape=(graph.n, graph.n))


def _half(paths: sparse.csr_array, edges: sparse.csr_array) -> int:
    return int((paths * edges).sum()) // 2
