"""The baseline: Krivelevich's algorithm, adapted to bad triangles (Algorithm 1 of arXiv 2602.04463).

Up to as many linear programs as there are edges, where the rules of :mod:`icml_btt.rounding` need one:
solve, take the edges with x ≥ ½, drop those with x = 0, and repeat on the triangles that are left. Where
0 < x < ½ on all edges, each is fully loaded by the dual, so together they weigh three times the optimum; a
cut that keeps half of that weight leaves at most 3/2 of the optimum to choose, and no triangle lies inside
a cut. (Krivelevich, Discrete Mathematics 142, 1995, doi.org/10.1016/0012-365X(93)00228-W.)
"""

from __future__ import annotations

import time

import numpy as np
from jaxtyping import Bool, Float, Int

from icml_btt.linear_program import CoverSolution, Report, solve_cover
from icml_btt.rounding import threshold_rule
from icml_btt.signed_graph import SignedGraph
from icml_btt.triangles import TriangleSystem

_TOLERANCE = 1e-7  # HiGHS'


def krivelevich(
    graph: SignedGraph,
    system: TriangleSystem,
    *,
    labels: Int[np.ndarray, " n"] | None = None,
    time_limit: float | None = None,
    batch: bool = True,
    seed: int = 0,
    report: Report | None = None,
) -> tuple[Bool[np.ndarray, " edges"], CoverSolution, int]:
    """Find a transversal of at most twice the linear program.

    Args:
        graph: the signed graph.
        system: its bad triangles.
        labels: a clustering, which makes the first linear program faster.
        time_limit: for all linear programs together, in seconds. After it the threshold rule rounds what is
            left.
        batch: take all edges with x ≥ ½ at once. Without it one is taken, of largest x, and the program
            solved again, as Krivelevich states it; the factor is the same.
        seed: of the linear programs' starts.
        report: called after each linear program.

    Returns:
        Which edges are chosen, the solution of the first linear program, and how many were solved.
    """
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    chosen = np.zeros(len(system.keys), dtype=bool)
    left = np.arange(len(system.rows))
    first: CoverSolution | None = None
    programs = 0
    while first is None or len(left):
        part = system if first is None else TriangleSystem.of(graph, system.triangles[left])
        room = None if deadline == np.inf else max(deadline - time.perf_counter(), 0.0)
        hint = labels if first is None else None
        cover = solve_cover(graph, part, labels=hint, time_limit=room, seed=seed, report=report)
        first = cover if first is None else first
        programs += 1
        place = np.searchsorted(system.keys, part.keys)
        if cover.status != "optimal":
            chosen[place] |= threshold_rule(part, cover.x)
            break
        taken = cover.x >= 0.5 - _TOLERANCE
        if not taken.any() and cover.x.min(initial=1.0) > _TOLERANCE:
            chosen[place] |= outside_cut(graph, part)
            break
        if not batch and taken.any():
            taken = np.arange(len(taken)) == np.argmax(cover.x)
            open_edges = ~taken
        else:
            # A triangle with an edge at 0 has another of at least 1/2, so it is hit.
            open_edges = ~taken & (cover.x > _TOLERANCE)
        chosen[place] |= taken
        left = left[open_edges[part.rows].all(axis=1)]
    return chosen, first, programs


def outside_cut(graph: SignedGraph, system: TriangleSystem) -> Bool[np.ndarray, " edges"]:
    """The edges that a greedy cut of at least half the weight leaves: one of every triangle, or all three."""
    u, v = graph.pair_ends(system.keys).T
    vertices, ends = np.unique(np.stack([u, v]), return_inverse=True)
    u, v = ends.reshape(2, -1)
    near: list[list[tuple[int, float]]] = [[] for _ in vertices]
    for a, b, w in zip(u.tolist(), v.tolist(), system.weight.tolist(), strict=True):
        near[a].append((b, w))
        near[b].append((a, w))
    side: Float[np.ndarray, " vertices"] = np.zeros(len(vertices))
    for vertex, edges in enumerate(near):
        # The side that cuts more of the edges to vertices placed before.
        pull = sum(w * side[other] for other, w in edges)
        side[vertex] = -1.0 if pull > 0 else 1.0
    return side[u] == side[v]
