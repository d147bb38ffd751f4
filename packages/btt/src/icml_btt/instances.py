"""Random signed graphs to try methods on, each decided by its seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Int
from scipy.spatial import cKDTree

from icml_btt.hard_instances import collapse_graph, packing_optimum, random_triples
from icml_btt.signed_graph import SignedGraph

Kind: TypeAlias = Literal["planted", "gnp", "knn", "collapse"]


@dataclass(frozen=True, eq=False)
class Instance:
    """A signed graph, and what is known about it.

    Attributes:
        graph: the signed graph.
        truth: the planted clusters, or None.
        optimum: the cost of optimal transversals, clusters, cliques and ties alike, or None.
        exact_cover: (collapse) whether triples cover every vertex once, which is so exactly where the
            optimum is ``|E⁺| − n``; else None.
    """

    graph: SignedGraph
    truth: Int[np.ndarray, " n"] | None
    optimum: float | None = None
    exact_cover: bool | None = None


def planted(
    n: int,
    clusters: int,
    noise: float,
    *,
    seed: int,
    density: float = 1.0,
    weighted: bool = False,
) -> Instance:
    """Draw clusters, and a judgement of each pair that is wrong with probability ``noise``.

    Args:
        n: number of vertices.
        clusters: number of clusters; each vertex joins one uniformly.
        noise: probability of a wrong judgement.
        seed: decides everything.
        density: probability that a pair is judged; below 1 the other pairs are free.
        weighted: weights uniform on (0, 2] instead of 1.

    Raises:
        ValueError: a probability outside [0, 1], a negative ``n``, no cluster.
    """
    _check(n, noise=noise, density=density)
    if clusters < 1:
        raise ValueError(f"clusters={clusters}; at least one is needed")
    rng = np.random.default_rng(seed)
    truth = rng.integers(clusters, size=n)
    if density < 1 or weighted:
        judged = _bernoulli_pairs(n, density, rng)
        same = truth[judged[:, 0]] == truth[judged[:, 1]]
        return Instance(
            _judged(n, judged, same ^ (rng.random(len(judged)) < noise), weighted, density, rng), truth
        )
    wrong = _bernoulli_pairs(n, noise, rng)
    apart = truth[wrong[:, 0]] != truth[wrong[:, 1]]
    inside = _inside_pairs(truth)
    kept = ~np.isin(inside @ [n, 1], wrong[~apart] @ [n, 1], assume_unique=True)
    return Instance(SignedGraph.from_edges(np.concatenate([inside[kept], wrong[apart]]), n=n), truth)


def gnp(n: int, probability: float, *, seed: int, density: float = 1.0, weighted: bool = False) -> Instance:
    """Draw each pair positive with a probability, else negative.

    Args:
        n: number of vertices.
        probability: of a positive pair.
        seed: decides everything.
        density: probability that a pair is judged; below 1 the other pairs are free.
        weighted: weights uniform on (0, 2] instead of 1.

    Raises:
        ValueError: a probability outside [0, 1], a negative ``n``.
    """
    _check(n, probability=probability, density=density)
    rng = np.random.default_rng(seed)
    if density < 1 or weighted:
        judged = _bernoulli_pairs(n, density, rng)
        positive = rng.random(len(judged)) < probability
        return Instance(_judged(n, judged, positive, weighted, density, rng), None)
    return Instance(SignedGraph.from_edges(_bernoulli_pairs(n, probability, rng), n=n), None)


def knn(n: int, clusters: int, neighbours: int, *, seed: int, spread: float = 0.15) -> Instance:
    """Draw points around random centres of the unit square; positive are pairs of nearest neighbours.

    Args:
        n: number of vertices.
        clusters: number of centres; each point belongs to one uniformly, which is the truth.
        neighbours: a pair is positive where one point is among so many nearest ones of the other.
        seed: decides everything.
        spread: standard deviation of the points around their centre.

    Raises:
        ValueError: a negative ``n``, no cluster, no neighbour, a spread that is not positive.
    """
    _check(n)
    if clusters < 1 or neighbours < 1 or not 0 < spread < np.inf:
        raise ValueError(
            f"clusters={clusters}, neighbours={neighbours}, spread={spread}; expected at least one, "
            "at least one, and a positive number"
        )
    rng = np.random.default_rng(seed)
    truth = rng.integers(clusters, size=n)
    points = rng.random((clusters, 2))[truth] + spread * rng.normal(size=(n, 2))
    if n < 2:
        return Instance(SignedGraph.from_edges([], n=n), truth)
    nearest = np.asarray(cKDTree(points).query(points, k=min(neighbours + 1, n))[1])
    ends = np.stack([np.repeat(np.arange(n), nearest.shape[1] - 1), nearest[:, 1:].ravel()], axis=1)
    return Instance(SignedGraph.from_edges(np.unique(np.sort(ends, axis=1), axis=0), n=n), truth)


def collapse(
    n: int,
    *,
    seed: int = 0,
    cover: bool = True,
    extra: int | None = None,
    triples: Sequence[Sequence[int]] | None = None,
) -> Instance:
    """An instance of the hard family on which all four optima coincide (see :mod:`icml_btt.hard_instances`).

    Args:
        n: number of vertices.
        seed: decides everything.
        cover: plant an exact cover, and with it the optimum; without it there is none.
        extra: how many triples to add.
        triples: take these instead of drawing some; the optimum is then found by a small integer program.

    Raises:
        ValueError: triples that break the rules of the family; ``cover`` where three does not divide n.
    """
    drawn = triples is None
    family = random_triples(n, cover=cover, extra=extra, seed=seed) if triples is None else list(triples)
    graph = collapse_graph(family, n)
    exact = len(graph.ends) - n
    optimum = exact if drawn and cover else packing_optimum(family, n)
    return Instance(graph, None, float(optimum), optimum == exact)


def thirds() -> Instance:
    """A complete graph of 8 vertices whose cover program has a single optimum, 26/3, with values in thirds.

    On nearly all random graphs an optimum has values in halves, which any sensible rounding doubles at most.
    Here choosing every edge of at least 1/3 costs 22, more than twice the optimum. Found by search.
    """
    others = {0: "24567", 1: "23456", 2: "367", 3: "47", 4: "67", 5: "6"}
    edges = [(u, int(v)) for u, listed in others.items() for v in listed]
    return Instance(SignedGraph.from_edges(edges, n=8), None)


class SignedGraphs:
    """Sampler of random signed graphs.

    Args:
        kind: ``"planted"``, ``"gnp"``, ``"knn"`` or ``"collapse"``.
        vertices: number of vertices.
        clusters: (planted, knn) number of clusters.
        noise: (planted) probability of a wrong judgement.
        probability: (gnp) of a positive pair.
        density: probability that a pair is judged; below 1 the other pairs are free.
        weighted: weights uniform on (0, 2] instead of 1.
        neighbours: (knn) positive are pairs among so many nearest.
        cover: (collapse) whether an exact cover is planted.
        triples: (collapse) the family to take instead of a random one.

    Example:
        >>> from icml_btt import SignedGraphs
        >>> [instance.graph.n for instance in SignedGraphs("gnp", vertices=9).sample(2, seed=0)]
        [9, 9]
    """

    def __init__(
        self,
        kind: Kind = "planted",
        *,
        vertices: int = 60,
        clusters: int = 4,
        noise: float = 0.1,
        probability: float = 0.5,
        density: float = 1.0,
        weighted: bool = False,
        neighbours: int = 5,
        cover: bool = True,
        triples: Sequence[Sequence[int]] | None = None,
    ) -> None:
        if kind not in get_args(Kind):
            raise ValueError(f"kind={kind!r}; expected one of {', '.join(get_args(Kind))}")
        self.kind = kind
        self.neighbours = neighbours
        self.cover = cover
        self.triples = triples
        self.vertices = vertices
        self.clusters = clusters
        self.noise = noise
        self.probability = probability
        self.density = density
        self.weighted = weighted

    def sample(self, n: int, *, seed: int) -> list[Instance]:
        """Draw ``n`` instances; each has a stream of random numbers of its own.

        Raises:
            ValueError: a negative ``n``, or what the function of the kind refuses.
        """
        if n < 0:
            raise ValueError(f"cannot draw {n} instances")
        seeds = [
            int(child.generate_state(1, np.uint64)[0]) for child in np.random.SeedSequence(seed).spawn(n)
        ]
        if self.kind == "planted":
            return [
                planted(
                    self.vertices,
                    self.clusters,
                    self.noise,
                    seed=each,
                    density=self.density,
                    weighted=self.weighted,
                )
                for each in seeds
            ]
        if self.kind == "knn":
            return [knn(self.vertices, self.clusters, self.neighbours, seed=each) for each in seeds]
        if self.kind == "collapse":
            return [
                collapse(self.vertices, seed=each, cover=self.cover, triples=self.triples) for each in seeds
            ]
        return [
            gnp(self.vertices, self.probability, seed=each, density=self.density, weighted=self.weighted)
            for each in seeds
        ]


def _judged(
    n: int,
    pairs: Int[np.ndarray, "pairs 2"],
    positive: np.ndarray,
    weighted: bool,
    density: float,
    rng: np.random.Generator,
) -> SignedGraph:
    weight = 2.0 * (1.0 - rng.random(len(pairs))) if weighted else np.ones(len(pairs))
    return SignedGraph.from_edges(
        pairs[positive],
        pairs[~positive],
        n,
        positive_weight=weight[positive],
        negative_weight=weight[~positive],
        missing="free" if density < 1 else "negative",
    )


def _bernoulli_pairs(n: int, probability: float, rng: np.random.Generator) -> Int[np.ndarray, "k 2"]:
    """Each of the pairs u < v with a probability, in time of those drawn: gaps between them are geometric."""
    total = n * (n - 1) // 2
    if probability <= 0 or total == 0:
        return np.zeros((0, 2), dtype=np.int64)
    if probability >= 1:
        return np.stack(np.triu_indices(n, 1), axis=1).astype(np.int64)
    parts: list[np.ndarray] = []
    last = -1
    while last < total:
        size = int((total - last) * probability * 1.05) + 16
        # a gap beyond the last pair says only that; cut, so that sums stay small
        gaps = np.minimum(rng.geometric(probability, size=size), total + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    index = np.concatenate(parts)
    index = index[index < total]
    # pair number of (u, v), u < v, is v(v−1)/2 + u
    v = ((1.0 + np.sqrt(8.0 * index + 1.0)) // 2.0).astype(np.int64)
    v -= v * (v - 1) // 2 > index
    v += v * (v + 1) // 2 <= index
    return np.stack([index - v * (v - 1) // 2, v], axis=1)


def _inside_pairs(labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, "k 2"]:
    """All pairs u < v within clusters."""
    pairs = [np.zeros((0, 2), dtype=np.int64)]
    order = np.argsort(labels, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
        i, j = np.triu_indices(len(members), 1)
        pairs.append(np.stack([members[i], members[j]], axis=1))
    return np.concatenate(pairs)


def _check(n: int, **probabilities: float) -> None:
    if n < 0:
        raise ValueError(f"n={n}; expected a number of vertices >= 0")
    for name, value in probabilities.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value}; expected a probability between 0 and 1")
