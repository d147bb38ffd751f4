"""Claims about approximate linear programs and about speed."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import TYPE_CHECKING

from icml_core import ClaimSuite, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from icml_btt.signed_graph import SignedGraph

_EPSILONS = (0.1, 0.05)
_KERNELS = ("icml-kernels>=0.1",)


def approximate_programs(run: Run, seed: int) -> dict[str, float | list[float]]:
    """Multiplicative weights at two accuracies on random, planted, weighted and incomplete graphs.

    Without the weights, a maximal packing stands for the dual solution, and its fully loaded edges, the
    textbook cover, for the primal one.
    """
    import numpy as np

    from icml_btt.enumeration import unhit_triangles
    from icml_btt.instances import gnp, planted, thirds
    from icml_btt.linear_program import solve_cover
    from icml_btt.multiplicative_weights import approximate_cover
    from icml_btt.packing import pack_rows
    from icml_btt.rounding import threshold_rule
    from icml_btt.triangles import TriangleSystem

    n = 12 if run.scale == "smoke" else 28
    graphs = (
        thirds().graph,
        gnp(n, 0.5, seed=seed).graph,
        gnp(n, 0.3, seed=seed + 1).graph,
        planted(n, 4, 0.2, seed=seed + 2).graph,
        planted(n, 3, 0.2, seed=seed + 3, weighted=True).graph,
        planted(n, 3, 0.2, seed=seed + 4, density=0.6, weighted=True).graph,
    )
    figures: dict[str, list[float]] = {
        name: [] for name in ("proved", "slack", "overload", "rounded", "unhit", "above_optimum")
    }
    for graph in graphs:
        system = TriangleSystem.of(graph)
        if not len(system.rows):
            continue
        best = solve_cover(graph, system).value
        for eps in _EPSILONS:
            cover = approximate_cover(graph, system, eps=eps)
            x, packing = cover.x, cover.packing
            load, bound = TriangleSystem.of(graph, packing.triangles), packing.total
            over = float((load.load(packing.values) / load.weight).max())
            if run.ablation == "no-weights":
                left = system.weight.copy()
                bound = float(pack_rows(system.rows, left, np.random.default_rng(seed)).sum())
                x = (left <= 0).astype(np.float64)
            value = float(system.weight @ x)
            chosen = threshold_rule(system, x)
            figures["proved"].append(bound / ((1 - 2 * eps) * value))
            figures["slack"].append(float(x[system.rows].sum(axis=1).min()))
            figures["overload"].append(over)
            figures["rounded"].append(float(system.weight @ chosen) / value)
            figures["unhit"].append(float(unhit_triangles(graph, graph.pair_ends(system.keys[chosen]))))
            figures["above_optimum"].append(value / best)
    return dict(figures)


def growth_with_wedges(run: Run, seed: int) -> dict[str, float]:
    """Time of multiplicative weights beside that of a maximal packing, from 1e5 to 1e6 wedges.

    Clusters of 30 vertices and three wrong positive judgements at each: wedges grow with the vertices.
    """
    from icml_btt.linear_program import CoverProgram
    from icml_btt.packing import maximal_packing
    from icml_btt.triangles import count_bad_triangles

    sizes = (300, 600) if run.scale == "smoke" else (1250, 2500, 5000, 10000)
    wedges, weights = [], []
    packing, gap = math.inf, 0.0
    for n in sizes:
        graph = scaled_graph(n, seed)
        program = CoverProgram(lp="mwu", eps=0.05)
        found = program.solve(graph)
        wedges.append(count_bad_triangles(graph))
        weights.append(_seconds(partial(program.solve, graph)))
        gap = found.value / found.bound - 1.0
    packing = _seconds(lambda: maximal_packing(graph))
    logs = [(math.log(a), math.log(b)) for a, b in zip(wedges, weights, strict=True)]
    middle = [sum(values) / len(logs) for values in zip(*logs, strict=True)]
    slope = sum((a - middle[0]) * (b - middle[1]) for a, b in logs) / sum(
        (a - middle[0]) ** 2 for a, _ in logs
    )
    return {
        "slope": slope,
        "over_packing": weights[-1] / packing,
        "wedges": float(wedges[-1]),
        "seconds": weights[-1],
        "gap": gap,
    }


def program_speed(run: Run, seed: int) -> dict[str, float]:
    """Multiplicative weights beside HiGHS with rows added as needed, on the same list of triangles.

    Planted clusters with 10 % noise, where the program is hard; with little noise HiGHS needs few rows.
    """
    from icml_btt.instances import planted
    from icml_btt.linear_program import solve_cover
    from icml_btt.multiplicative_weights import approximate_cover
    from icml_btt.triangles import TriangleSystem

    graph = planted(60 if run.scale == "smoke" else 250, 6, 0.1, seed=seed).graph
    system = TriangleSystem.of(graph)
    fast = approximate_cover(graph, system)
    begin = time.perf_counter()
    exact = solve_cover(graph, system)
    exact_seconds = time.perf_counter() - begin
    seconds = _seconds(lambda: approximate_cover(graph, system))
    return {
        "times": exact_seconds / seconds,
        "lost": 1.0 - fast.bound / exact.value,
        "wedges": float(len(system.rows)),
    }


def pivot_speed(run: Run, seed: int) -> dict[str, float]:
    """A hundred runs of KwikCluster beside the same in plain Python."""
    from icml_btt.pivot import kwik_cluster

    graph = scaled_graph(300 if run.scale == "smoke" else 3000, seed)
    runs = 100
    kwik_cluster(graph, runs=1)
    ours = _seconds(lambda: kwik_cluster(graph, runs=runs, seed=seed))
    neighbours = neighbour_sets(graph)
    begin = time.perf_counter()
    plain_kwik_cluster(neighbours, runs // 10, seed)
    theirs = 10 * (time.perf_counter() - begin)
    return {"times": theirs / ours, "runs_a_second": runs / ours}


def scaled_graph(n: int, seed: int) -> SignedGraph:
    """Planted clusters of 30 vertices with about three wrong judgements at each vertex, for any n."""
    from icml_btt.instances import planted

    return planted(n, max(n // 30, 1), 2.6 / n, seed=seed).graph


def neighbour_sets(graph: SignedGraph) -> list[set[int]]:
    """The positive neighbours of each vertex, as one holds them in Python."""
    indptr, indices = graph.positive.indptr.tolist(), graph.positive.indices.tolist()
    return [set(indices[indptr[v] : indptr[v + 1]]) for v in range(graph.n)]


def plain_kwik_cluster(neighbours: list[set[int]], runs: int, seed: int) -> list[list[int]]:
    """KwikCluster as one writes it in Python, with a shuffled order in each run."""
    import random

    n = len(neighbours)
    generator = random.Random(seed)
    found = []
    for _ in range(runs):
        labels, order = [-1] * n, list(range(n))
        generator.shuffle(order)
        for pivot in order:
            if labels[pivot] < 0:
                labels[pivot] = pivot
                for vertex in neighbours[pivot]:
                    if labels[vertex] < 0:
                        labels[vertex] = pivot
        found.append(labels)
    return found


def _seconds(work: Callable[[], object]) -> float:
    """The least time of two calls."""
    taken = []
    for _ in range(2):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 3, "full": 20}, ablations=("no-weights",))(approximate_programs)
    for function in (growth_with_wedges, program_speed, pivot_speed):
        suite.measure(seeds={"smoke": 1, "small": 1, "full": 5}, exclusive=True, needs=_KERNELS)(function)
    suite.claim(
        "approximate-program-proved",
        of=approximate_programs,
        figure="proved",
        kind="every",
        at_least=1.0,
        statement="Multiplicative weights prove at least (1 − 2ε) of what their cover costs.",
        paper="A (1 + ε) solver of the linear program, taken from the literature, gives a (2 + ε) one.",
        teeth="no-weights",
        unit="× (1 − 2ε) Σ w x",
    )
    suite.claim(
        "approximate-cover-feasible",
        of=approximate_programs,
        figure="slack",
        kind="every",
        at_least=1.0 - 1e-9,
        statement="The approximate cover has at least 1 on every bad triangle.",
        paper="Algorithm 3 rounds any feasible cover.",
    )
    suite.claim(
        "approximate-packing-feasible",
        of=approximate_programs,
        figure="overload",
        kind="every",
        at_most=1.0 + 1e-9,
        statement="The approximate packing loads no edge beyond its weight, so that its bound is exact.",
        paper="Weak duality.",
        unit="× weight",
    )
    suite.claim(
        "approximate-program-rounded",
        of=approximate_programs,
        figure="rounded",
        kind="every",
        at_most=2.0 + 1e-9,
        statement="The threshold rule, unpruned, costs at most twice the approximate cover.",
        paper="Algorithm 3: (2 + ε) from an approximate linear program, weighted graphs included.",
        unit="× Σ w x",
    )
    suite.claim(
        "approximate-program-hits",
        of=approximate_programs,
        figure="unhit",
        kind="every",
        at_most=0.0,
        statement="A scan over all triples finds no bad triangle that the rounded cover left.",
        paper="Algorithm 3 returns a transversal.",
        unit="triangles",
    )
    suite.claim(
        "weights-near-packing-time",
        of=growth_with_wedges,
        figure="over_packing",
        kind="every",
        at_most=40.0,
        statement="At 1e6 wedges multiplicative weights take at most 40 times as long as a maximal packing.",
        paper="A (2 + ε) approximation in about the time of a maximal set of disjoint bad triangles.",
        unit="× maximal packing",
    )
    suite.claim(
        "weights-grow-linearly",
        of=growth_with_wedges,
        figure="slope",
        kind="every",
        between=(0.85, 1.15),
        statement="The time of multiplicative weights grows linearly with the number of wedges.",
        paper="Õ(m^1.5) on complete graphs, which bounds the number of wedges looked at.",
        unit="log time / log wedges",
    )
    suite.claim(
        "weights-beside-highs",
        of=program_speed,
        figure="times",
        kind="every",
        at_least=20.0,
        statement="On clusters with 10 % noise, some 2e5 wedges, HiGHS takes at least 20 times as long.",
        paper="No experiments in the paper.",
        unit="×",
    )
    suite.claim(
        "weights-lose-little",
        of=program_speed,
        figure="lost",
        kind="every",
        at_most=0.05,
        statement="The bound by multiplicative weights is at most 5 % below the optimum of the program.",
        paper="A factor of (1 + ε).",
        unit="of the optimum",
    )
    suite.claim(
        "pivot-runs-beside-python",
        of=pivot_speed,
        figure="times",
        kind="every",
        statement="How many times as long a hundred runs of KwikCluster take in plain Python.",
        paper="No experiments in the paper.",
        unit="×",
    )
