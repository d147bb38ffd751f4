"""The small graphs that claims are measured on."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from icml_core import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from icml_btt.signed_graph import SignedGraph


def families(
    run: Run, seed: int, sizes: tuple[int, int] = (18, 28), complete: bool = False
) -> Iterator[SignedGraph]:
    """One graph whose program has thirds, and twelve random, planted, incomplete or weighted ones."""
    from icml_btt.instances import gnp, planted, thirds
    from icml_btt.triangles import count_bad_triangles

    yield thirds().graph
    small, large = (7, 8) if run.scale == "smoke" else sizes
    for index in range(6 if run.scale == "smoke" else 12):
        n = small + (large - small) * index // 11
        noise = 0.25 if index > 5 else 0.1
        draws = iter(range(seed + 1000 * index, seed + 1000 * index + 1000))
        families = (
            partial(gnp, n, 1 / 2),
            partial(gnp, n, 0.3),
            partial(gnp, n, 2 / 3),
            partial(planted, n, 4, noise),
            partial(planted, n, 4, 0.15, density=1.0 if complete else 0.6),
            partial(planted, n, 3, 0.2, weighted=not complete),
        )
        graphs = (families[index % 6](seed=draw).graph for draw in draws)
        yield next(graph for graph in graphs if count_bad_triangles(graph))
