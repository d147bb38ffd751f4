"""Hard constraints: records that must be together, or apart, and at most one record of a source in a cluster.

Must-links are contracted: a group of records becomes one vertex, whose edges are sums. What every clustering
that obeys costs anyway is taken out as an offset. Pairs that must be apart become negative edges that
outweigh all others, and clusters are mended and improved by moves that keep to the constraints. A packing of
the contracted graph, with the offset, bounds all clusterings that obey.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse
from scipy.sparse import csgraph

from icml_btt.cost import canonical_labels
from icml_btt.edge_checks import beyond
from icml_btt.graph_input import plain_name
from icml_btt.signed_graph import SignedGraph

# Pairs of a contracted group with all others, which are stored: 20 million are about 1 GB.
_PAIR_LIMIT = 20_000_000
_LEAST_GAIN = 1e-9

Pairs = Iterable[Sequence[Hashable]]
Sources = Mapping[Hashable, Hashable] | Sequence[Hashable]


@dataclass(frozen=True, eq=False)
class Constraints:
    """What clusters must obey, on the groups of records that belong together.

    Attributes:
        group: of each vertex; 0, 1, … in the order of their first vertices.
        apart: pairs of groups that must not share a cluster, the smaller first.
        sources: of each group, those of its records; None where there are none.
    """

    group: Int[np.ndarray, " n"]
    apart: Int[np.ndarray, "k 2"]
    sources: tuple[frozenset[Hashable], ...] | None

    def check(self, labels: Int[np.ndarray, " n"]) -> None:
        """Refuse clusters that do not obey.

        Raises:
            ValueError: says what is wrong.
        """
        first = np.unique(self.group, return_index=True)[1]
        if not np.array_equal(labels, labels[first][self.group]):
            raise ValueError("records that must be together are in different clusters")
        mine = labels[first]
        if (mine[self.apart[:, 0]] == mine[self.apart[:, 1]]).any():
            raise ValueError("records that must be apart share a cluster")
        if self.sources is not None:
            seen: set[tuple[int, Hashable]] = set()
            for label, sources in zip(mine.tolist(), self.sources, strict=True):
                for source in sources:
                    if (label, source) in seen:
                        raise ValueError(f"a cluster holds two records of source {source!r}")
                    seen.add((label, source))

    def contract(self, graph: SignedGraph) -> tuple[SignedGraph, float]:
        """The graph of the groups, and what obeying costs in any case.

        Raises:
            MemoryError: so many groups that their negative pairs cannot be stored.
        """
        group, count = self.group, int(self.group.max(initial=-1)) + 1
        size = np.bincount(group, minlength=count)
        base = graph.missing_weight
        u, v = np.sort(group[graph.ends], axis=1).T
        positive = np.where(graph.sign > 0, graph.weight, 0.0)
        negative = np.where(graph.sign < 0, graph.weight, 0.0)
        inside = u == v
        stored = np.bincount(u[inside], minlength=count)
        offset = float(negative[inside].sum() + base * (size * (size - 1) // 2 - stored).sum())
        keys, place = np.unique(u[~inside] * count + v[~inside], return_inverse=True)
        place = place.ravel()
        plus, minus, listed = (
            np.bincount(place, weights=values, minlength=len(keys))
            for values in (positive[~inside], negative[~inside], np.ones(len(place)))
        )
        wanted = [keys, self.apart @ [count, 1]]
        if base:
            large = np.flatnonzero(size > 1)
            if len(large) * count > _PAIR_LIMIT:
                raise MemoryError(
                    f"{len(large)} groups of must-links among {count} records have more than {_PAIR_LIMIT} "
                    "pairs; give missing='free', or merge these records beforehand"
                )
            a, b = np.repeat(large, count), np.tile(np.arange(count), len(large))
            wanted.append((np.minimum(a, b) * count + np.maximum(a, b))[a != b])
        every = np.unique(np.concatenate(wanted))
        found = np.searchsorted(every, keys)
        p, q, known = np.zeros(len(every)), np.zeros(len(every)), np.zeros(len(every))
        p[found], q[found], known[found] = plus, minus, listed
        a, b = np.divmod(every, max(count, 1))
        q += base * (size[a] * size[b] - known)
        apart = np.isin(every, self._apart_keys(p, every, count))
        offset += float(p[apart].sum() + np.minimum(p, q)[~apart].sum())
        weight = np.abs(p - q)
        weight[apart] = beyond(count, weight[~apart], graph.missing)
        sign = np.where(apart, -1, np.sign(p - q)).astype(np.int8)
        kept = (sign != 0) if not base else ~((sign == -1) & (weight == 1))
        first = np.unique(group, return_index=True)[1]
        ids = tuple(graph.name(vertex) for vertex in first)
        ends = np.stack([a, b], axis=1)[kept]
        return SignedGraph(count, ends, sign[kept], weight[kept], graph.missing, ids), offset

    def _apart_keys(
        self, positive: Float[np.ndarray, " pairs"], keys: Int[np.ndarray, " pairs"], count: int
    ) -> Int[np.ndarray, " apart"]:
        """Groups that must be apart: those listed, and those beside each other that share a source."""
        listed = self.apart @ [count, 1]
        if self.sources is None:
            return listed
        near = keys[positive > 0]
        clash = [
            key
            for key in near.tolist()
            if not self.sources[key // count].isdisjoint(self.sources[key % count])
        ]
        return np.union1d(listed, np.array(clash, dtype=np.int64))

    def mended(self, graph: SignedGraph, labels: Int[np.ndarray, " groups"]) -> Int[np.ndarray, " groups"]:
        """Clusters of groups that obey, by splitting those that do not and then by moves that gain.

        Args:
            graph: from :meth:`contract`.
            labels: clusters that may disobey.
        """
        return canonical_labels(_Clusters(graph, labels, self).improved())


class _Clusters:
    """Clusters that obey; a group may join where no member must be apart and no source comes twice."""

    def __init__(
        self, graph: SignedGraph, labels: Int[np.ndarray, " groups"], constraints: Constraints
    ) -> None:
        scores, self.base = graph.scores
        bounds, columns, data = scores.indptr.tolist(), scores.indices.tolist(), scores.data.tolist()
        self.near = [list(zip(columns[i:j], data[i:j], strict=True)) for i, j in pairwise(bounds)]
        self.apart: list[set[int]] = [set() for _ in range(graph.n)]
        for a, b in constraints.apart.tolist():
            self.apart[a].add(b)
            self.apart[b].add(a)
        self.source = constraints.sources or (frozenset(),) * graph.n
        self.label = [-1] * graph.n
        self.members: dict[int, set[int]] = {}
        self.sources: dict[int, set[Hashable]] = {}
        self.fresh = 0
        rank = np.argsort(graph.vertex_keys).tolist()
        pieces: dict[int, list[int]] = {}
        for v in rank:
            old = pieces.setdefault(int(labels[v]), [])
            worth = {piece: 0.0 for piece in old if self.allows(v, piece)}
            for u, score in self.near[v]:
                if self.label[u] in worth:
                    worth[self.label[u]] += score
            if worth:
                self.put(v, max(worth, key=lambda piece: (worth[piece], -piece)))
            else:
                old.append(self.put(v, None))

    def allows(self, v: int, cluster: int) -> bool:
        return self.apart[v].isdisjoint(self.members[cluster]) and self.source[v].isdisjoint(
            self.sources[cluster]
        )

    def put(self, v: int, cluster: int | None) -> int:
        old = self.label[v]
        if old >= 0:
            self.members[old].discard(v)
            self.sources[old] -= self.source[v]
        if cluster is None:
            cluster, self.fresh = self.fresh, self.fresh + 1
            self.members[cluster], self.sources[cluster] = set(), set()
        self.members[cluster].add(v)
        self.sources[cluster] |= self.source[v]
        self.label[v] = cluster
        return cluster

    def improved(self) -> Int[np.ndarray, " groups"]:
        while self.move() or self.merge():
            pass
        return np.array(self.label, dtype=np.int64).reshape(len(self.near))

    def move(self) -> bool:
        moved = False
        for v, row in enumerate(self.near):
            worth: dict[int, float] = {}
            for u, score in row:
                worth[self.label[u]] = worth.get(self.label[u], 0.0) + score
            own = self.label[v]
            here = worth.pop(own, 0.0) - self.base * (len(self.members[own]) - 1)
            gains = {c: total - self.base * len(self.members[c]) - here for c, total in worth.items()}
            scale = _LEAST_GAIN * max(1.0, sum(abs(score) for _, score in row))
            best = max(
                (c for c in gains if gains[c] > scale and self.allows(v, c)),
                default=None,
                key=lambda c: (gains[c], -c),
            )
            if best is not None and gains[best] >= -here:
                self.put(v, best)
                moved = True
            elif -here > scale:
                self.put(v, None)
                moved = True
        return moved

    def merge(self) -> bool:
        between: dict[tuple[int, int], float] = {}
        for v, row in enumerate(self.near):
            for u, score in row:
                if self.label[v] < self.label[u]:
                    pair = (self.label[v], self.label[u])
                    between[pair] = between.get(pair, 0.0) + score
        gain = {
            (a, b): total - self.base * len(self.members[a]) * len(self.members[b])
            for (a, b), total in between.items()
        }
        used: set[int] = set()
        for a, b in sorted((pair for pair in gain if gain[pair] > _LEAST_GAIN), key=lambda pair: -gain[pair]):
            if used.isdisjoint((a, b)) and all(self.allows(v, a) for v in self.members[b]):
                for v in list(self.members[b]):
                    self.put(v, a)
                used |= {a, b}
        return bool(used)


def resolve_constraints(
    graph: SignedGraph,
    must_link: Pairs | None = None,
    cannot_link: Pairs | None = None,
    sources: Sources | None = None,
) -> Constraints | None:
    """Bring constraints together, those of infinite weight in the graph included; None where there are none.

    Args:
        graph: the signed graph, whose names the pairs use.
        must_link: pairs that must be in one cluster.
        cannot_link: pairs that must not.
        sources: of each record, as a mapping from names or a sequence in the order of the vertices; a
            cluster holds at most one record of each source. None, or absence, is no source.

    Raises:
        ValueError: an unknown name, or constraints that contradict each other, with the offending path.
    """
    hard = graph.hard if graph.hard is not None else np.zeros(len(graph.ends), dtype=bool)
    together = graph.ends[hard & (graph.sign > 0)]
    apart = graph.ends[hard & (graph.sign < 0)]
    if not (len(together) or len(apart)) and must_link is None and cannot_link is None and sources is None:
        return None
    index = None if graph.ids is None else {name: place for place, name in enumerate(graph.ids)}
    together = np.concatenate([together, _pairs(graph, index, must_link, "must_link")])
    apart = np.concatenate([apart, _pairs(graph, index, cannot_link, "cannot_link")])
    links = sparse.csr_array(
        (np.ones(len(together)), (together[:, 0], together[:, 1])), shape=(graph.n, graph.n)
    )
    group = canonical_labels(csgraph.connected_components(links, directed=False)[1].astype(np.int64))
    for u, v in apart.tolist():
        if group[u] == group[v]:
            path = _path(together, u, v, graph)
            raise ValueError(f"{graph.name(u)!r} and {graph.name(v)!r} must be apart, and together: {path}")
    source = _sources(graph, index, sources)
    of_group: list[set[Hashable]] | None = None
    if source is not None:
        of_group = [set() for _ in range(int(group.max(initial=-1)) + 1)]
        holder: dict[tuple[int, Hashable], int] = {}
        for v, name in enumerate(source):
            if name is None:
                continue
            other = holder.setdefault((int(group[v]), name), v)
            if other != v:
                path = _path(together, other, v, graph)
                raise ValueError(f"two records of source {name!r} must be together: {path}")
            of_group[int(group[v])].add(name)
    pairs = np.unique(np.sort(group[apart], axis=1), axis=0)
    return Constraints(group, pairs, None if of_group is None else tuple(map(frozenset, of_group)))


def _pairs(
    graph: SignedGraph, index: Mapping[Hashable, int] | None, pairs: Pairs | None, what: str
) -> Int[np.ndarray, "k 2"]:
    found = []
    for pair in pairs if pairs is not None else ():
        if isinstance(pair, str) or len(pair) != 2:
            raise ValueError(f"{what} holds pairs of records, got {pair!r}")
        found.append([_vertex(graph, index, name, what) for name in pair])
        if found[-1][0] == found[-1][1] and what == "cannot_link":
            raise ValueError(f"cannot_link: {pair[0]!r} cannot be apart from itself")
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def _vertex(graph: SignedGraph, index: Mapping[Hashable, int] | None, name: Any, what: str) -> int:
    name = plain_name(name)
    if index is not None and name in index:
        return index[name]
    if index is None and isinstance(name, int) and 0 <= name < graph.n:
        return name
    raise ValueError(f"{what} names {name!r}, which is no record of the graph")


def _sources(
    graph: SignedGraph, index: Mapping[Hashable, int] | None, sources: Sources | None
) -> list[Hashable] | None:
    if sources is None:
        return None
    if isinstance(sources, Mapping):
        found: list[Hashable] = [None] * graph.n
        for name, source in sources.items():
            found[_vertex(graph, index, name, "sources")] = source
        return found
    if len(sources) != graph.n:
        raise ValueError(f"{len(sources)} sources for {graph.n} records")
    return [plain_name(source) for source in sources]


def _path(links: Int[np.ndarray, "k 2"], start: int, stop: int, graph: SignedGraph) -> str:
    """A shortest chain of must-links, by name."""
    near: dict[int, list[int]] = {}
    for u, v in links.tolist():
        near.setdefault(u, []).append(v)
        near.setdefault(v, []).append(u)
    before = {start: start}
    queue = deque([start])
    while stop not in before:
        here = queue.popleft()
        for other in near[here]:
            if other not in before:
                before[other] = here
                queue.append(other)
    chain = [stop]
    while chain[-1] != start:
        chain.append(before[chain[-1]])
    return " – ".join(repr(graph.name(v)) for v in reversed(chain))
