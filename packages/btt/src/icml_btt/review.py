"""What a person should look at: judgements that clusters contradict, and those that hang in the balance."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from icml_btt.signed_graph import SignedGraph
from icml_btt.triangles import triangle_keys

if TYPE_CHECKING:
    from icml_btt.clusters import Clustering


@dataclass(frozen=True)
class ReviewItem:
    """A doubtful judgement.

    Attributes:
        u: name of one end.
        v: name of the other.
        sign: +1 same, −1 different.
        weight: of the judgement.
        contradicted: whether the clusters contradict it.
        lp_value: how much of it the linear program drops, from 0 to 1; None where it was not solved.
        load: the share of its weight that the certificate's bad triangles use up, from 0 to 1.
        triangle: names of a bad triangle that speaks against it, or None.
    """

    u: Hashable
    v: Hashable
    sign: int
    weight: float
    contradicted: bool
    lp_value: float | None
    load: float
    triangle: tuple[Hashable, Hashable, Hashable] | None


def review(graph: SignedGraph, clustering: Clustering) -> list[ReviewItem]:
    """List doubtful judgements: first those that the clusters contradict, then those that the bound leans on.

    Among each, judgements come first of which the linear program drops more, then those that the certificate
    loads more, then those of smaller weight.

    Args:
        graph: what was clustered.
        clustering: its clusters; under constraints only what they contradict is listed.
    """
    keys = contradicted = _contradicted(graph, clustering.labels)
    found = clustering.transversal
    triangles, values = found.packing.triangles, found.packing.values
    x_keys, x = np.zeros(0, dtype=np.int64), np.zeros(0)
    if clustering.constraints is not None:
        triangles, values = triangles[:0], values[:0]
    elif found.support is not None:
        x_keys, x = graph.pair_key(*found.support[0].T), found.support[1]
    edges = triangle_keys(graph, triangles)
    loaded, place = np.unique(edges, return_inverse=True)
    load = np.bincount(place.ravel(), weights=np.repeat(values, 3), minlength=len(loaded))
    load = load / graph.weights_of(loaded)
    heaviest = np.zeros(len(loaded), dtype=np.int64)
    order = np.argsort(values, kind="stable")
    heaviest[place.reshape(-1, 3)[order].ravel()] = np.repeat(order, 3)
    keys = np.unique(np.concatenate([contradicted, loaded, x_keys]))
    ends = graph.pair_ends(keys)
    sign, weight = graph.signs_of(ends[:, 0], ends[:, 1]), graph.weights_of(keys)
    dropped = np.zeros(len(keys))
    dropped[np.searchsorted(keys, x_keys)] = x
    share = np.zeros(len(keys))
    share[np.searchsorted(keys, loaded)] = load
    witness = np.full(len(keys), -1, dtype=np.int64)
    witness[np.searchsorted(keys, loaded)] = heaviest
    wrong = np.isin(keys, contradicted)
    solved = found.support is not None and clustering.constraints is None
    items = []
    for index in np.lexsort((weight, -np.round(share, 6), -np.round(dropped, 6), ~wrong)):
        u, v = ends[index].tolist()
        names = triangles[witness[index]].tolist() if witness[index] >= 0 else _triangle(graph, u, v)
        items.append(
            ReviewItem(
                u=graph.name(u),
                v=graph.name(v),
                sign=int(sign[index]),
                weight=float(weight[index]),
                contradicted=bool(wrong[index]),
                lp_value=float(dropped[index]) if solved else None,
                load=float(min(share[index], 1.0)),
                triangle=None
                if names is None
                else (graph.name(names[0]), graph.name(names[1]), graph.name(names[2])),
            )
        )
    return items


def _contradicted(graph: SignedGraph, labels: Int[np.ndarray, " n"]) -> Int[np.ndarray, " k"]:
    """Positive pairs between clusters and negative pairs inside, by number."""
    u, v = graph.ends.T
    same = labels[u] == labels[v]
    wrong = [graph.keys[(same & (graph.sign < 0)) | (~same & (graph.sign > 0))]]
    if graph.missing_weight:
        order = np.argsort(labels, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
            a, b = np.triu_indices(len(members), 1)
            inside = graph.pair_key(members[a], members[b])
            wrong.append(inside[~np.isin(inside, graph.keys)])
    return np.unique(np.concatenate(wrong))


def _triangle(graph: SignedGraph, u: int, v: int) -> list[int] | None:
    """A bad triangle with the edge u–v, its centre first."""
    near = [_neighbours(graph, end) for end in (u, v)]
    sign = int(graph.signs_of(np.array([u]), np.array([v]))[0])
    if sign < 0:
        common = np.intersect1d(near[0], near[1])
        return [int(common[0]), u, v] if len(common) else None
    for centre, far, others in ((u, v, near[0]), (v, u, near[1])):
        others = others[others != far]
        other = others[graph.signs_of(others, np.full(len(others), far)) < 0]
        if len(other):
            return [centre, min(far, int(other[0])), max(far, int(other[0]))]
    return None


def _neighbours(graph: SignedGraph, vertex: int) -> Int[np.ndarray, " k"]:
    return graph.positive.indices[graph.positive.indptr[vertex] : graph.positive.indptr[vertex + 1]]


def agreement(graph: SignedGraph, labels: Int[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Of each vertex, the share of weight that agrees with its cluster, in one pass over the edges.

    Agreeing are positive edges inside the cluster; contradicting are positive edges out of it and negative
    edges inside. Negative edges out of it, nearly all pairs of a complete graph, are left out. A vertex
    without either has 1.

    Args:
        graph: what was clustered.
        labels: its clusters.
    """
    u, v = graph.ends.T
    same = labels[u] == labels[v]
    good = np.where(same & (graph.sign > 0), graph.weight, 0.0)
    bad = np.where(same == (graph.sign < 0), graph.weight, 0.0)
    base = graph.missing_weight
    bad = bad - np.where(same, base, 0.0)  # stored pairs are no missing ones
    size = np.unique(labels, return_inverse=True, return_counts=True)
    fellows = base * (size[2][size[1]] - 1)
    yes, no = (
        np.bincount(np.concatenate([u, v]), weights=np.tile(part, 2), minlength=graph.n)
        for part in (good, bad)
    )
    total = yes + no + fellows
    return np.divide(yes, total, out=np.ones(graph.n), where=total > 0)
