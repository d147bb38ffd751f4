"""A picture of a clustering: the positive edges with vertices in cluster order, and the sizes of clusters."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Float, Int

from icml_btt.clusters import Clustering
from icml_btt.signed_graph import SignedGraph

_CELLS = 600  # along each side of the picture; larger graphs are averaged
_PAPER, _BLOCK = (1.0, 1.0, 1.0), (0.90, 0.93, 0.97)
_INSIDE, _BETWEEN = (0.10, 0.35, 0.65), (0.85, 0.40, 0.05)


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def draw_clustering(graph: SignedGraph, clustering: Clustering, path: Path) -> None:
    """Draw the graph in cluster order, largest cluster first.

    Blue are positive edges inside clusters, orange those between; pale ground inside a cluster is a negative
    or free pair.

    Args:
        graph: the signed graph.
        clustering: of it.
        path: where to; the suffix chooses the format.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sizes = np.sort(np.bincount(clustering.labels, minlength=1))[::-1]
    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    left.imshow(
        adjacency_image(graph, clustering.labels), interpolation="nearest", extent=(0, graph.n, graph.n, 0)
    )
    left.set(title=f"{graph.n} vertices, {clustering.n_clusters} clusters", xlabel="vertex, in cluster order")
    right.step(np.arange(1, len(sizes) + 1), sizes, where="mid", color=_INSIDE)
    right.set(title="sizes of clusters", xlabel="cluster", ylabel="vertices", ylim=(0, None))
    for axis in (right.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(
        f"cost {clustering.cost:g}, at least {clustering.lower_bound:g}: "
        f"certified within {clustering.ratio:.3f} of the optimum"
    )
    figure.savefig(path, dpi=150)


def adjacency_image(graph: SignedGraph, labels: Int[np.ndarray, " n"]) -> Float[np.ndarray, "cells cells 3"]:
    """The positive edges as colours, vertices in cluster order."""
    size = np.bincount(labels, minlength=1)
    order = np.lexsort((labels, -size[labels]))
    cells = max(1, min(graph.n, _CELLS))
    place = np.empty(graph.n, dtype=np.int64)
    place[order] = np.arange(graph.n) * cells // max(graph.n, 1)
    u, v = graph.ends[graph.sign > 0].T
    same = labels[u] == labels[v]
    middle = np.full(cells, -1, dtype=np.int64)
    middle[place[order]] = labels[order]
    image: np.ndarray = np.where((middle[:, None] == middle)[..., None], _BLOCK, _PAPER)
    area = np.bincount(place, minlength=cells)
    for chosen, colour in ((~same, _BETWEEN), (same, _INSIDE)):
        count = np.zeros((cells, cells))
        for a, b in ((u, v), (v, u)):
            np.add.at(count, (place[a[chosen]], place[b[chosen]]), 1.0)
        # The root keeps single edges visible where many vertices share a cell.
        share = np.sqrt(count / np.maximum(np.outer(area, area), 1))[..., None]
        image = image * (1 - share) + np.array(colour) * share
    return image
