"""What `icml run` runs."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run

if TYPE_CHECKING:
    from icml_btt.signed_graph import SignedGraph

# Rounding and local moves, the linear program, rounding and local moves again.
_STAGES = 5


def cc(
    *,
    run: Run,
    graph: Path,
    threshold: float | None = None,
    missing: Literal["negative", "free"] = "negative",
    layout: Literal["auto", "edges", "matrix"] = "auto",
    method: Literal["threshold", "exact_lp", "disjoint", "krivelevich"] = "threshold",
    lp: Literal["auto", "highs", "mwu"] = "auto",
    runs: int = 32,
    local_search: bool = True,
    time_limit: float | None = 60.0,
    triangle_limit: int = 2_000_000,
    picture: bool = True,
) -> dict[str, Any]:
    """Cluster same/different judgements, and certify how far from optimal the clusters can be.

    Writes labels.csv (id, label), summary.json, metrics.jsonl, and, with matplotlib installed, clusters.png.

    Args:
        graph: Edge list u,v,sign[,weight] (CSV, TSV), similarity or signed matrix (.npy, sparse .npz, CSV).
        threshold: Third fields of edge lists, and matrix entries, are similarities: "same" from here on.
        missing: What a pair is that the file does not hold: negative, or free of any cost.
        layout: Of text files; auto takes three or four fields a line as an edge list, else as a matrix.
        method: Of the transversal: two rules of factor 2 by a linear program, disjoint triangles, or a
            baseline by many linear programs.
        lp: HiGHS, multiplicative weights (mwu), or whichever suits the number of bad triangles.
        runs: Random roundings to choose the best from.
        local_search: Improve by moving vertices and merging clusters.
        time_limit: Seconds for the linear program, and again for each local search.
        triangle_limit: With more bad triangles multiplicative weights replace HiGHS where the extra fast is
            installed, up to ten times as many; disjoint triangles beyond, or without.
        picture: Draw the clusters.
    """
    from icml_btt.clustering import CorrelationClustering
    from icml_btt.graph_files import read_graph
    from icml_btt.pictures import can_draw, draw_clustering

    _check_limits(time_limit, triangle_limit)
    if runs < 1:
        raise ValueError(f"--runs {runs}; at least one is needed")
    signed = read_graph(graph, threshold=threshold, missing=missing, layout=layout)
    solver = CorrelationClustering(
        method=method,
        lp=lp,
        runs=runs,
        local_search=local_search,
        time_limit=time_limit,
        triangle_limit=triangle_limit,
        random_state=run.seed,
    )
    begin = time.perf_counter()
    steps = 0
    stage = ""
    with run.progress("clustering", total=_STAGES) as bar:

        def report(name: str, /, **figures: float) -> None:
            nonlocal steps, stage
            run.log(steps, **{f"{name} {key}".replace(" ", "_"): float(v) for key, v in figures.items()})
            bar.advance(int(name != stage), **figures)
            steps, stage = steps + 1, name

        clustering = solver.solve(signed, report=report)
    seconds = time.perf_counter() - begin
    _write_rows(run, "labels.csv", ("id", "label"), clustering.as_dict().items())
    drawn = "not wanted"
    if picture:
        drawn = "clusters.png" if can_draw() else "needs matplotlib (pip install matplotlib)"
    if drawn == "clusters.png":
        with run.path(drawn) as temporary:
            draw_clustering(signed, clustering, temporary)
    summary = _graph_summary(signed) | {
        "clusters": clustering.n_clusters,
        "cost": clustering.cost,
        "lower_bound": clustering.lower_bound,
        "certified_ratio": _finite(clustering.ratio),
        "method": clustering.transversal.method,
        "picture": drawn,
        "seconds": round(seconds, 3),
    }
    return _write_summary(run, summary)


def transversal(
    *,
    run: Run,
    graph: Path,
    threshold: float | None = None,
    missing: Literal["negative", "free"] = "negative",
    layout: Literal["auto", "edges", "matrix"] = "auto",
    method: Literal["threshold", "exact_lp", "disjoint", "krivelevich"] = "threshold",
    lp: Literal["auto", "highs", "mwu"] = "auto",
    prune: bool = True,
    time_limit: float | None = 60.0,
    triangle_limit: int = 2_000_000,
) -> dict[str, Any]:
    """Find the fewest judgements to drop so that no triangle contradicts itself, with a certified ratio.

    Writes transversal.csv (u, v, sign, weight) and summary.json.

    Args:
        graph: Edge list u,v,sign[,weight] (CSV, TSV), similarity or signed matrix (.npy, sparse .npz, CSV).
        threshold: Third fields of edge lists, and matrix entries, are similarities: "same" from here on.
        missing: What a pair is that the file does not hold: negative, or free of any cost.
        layout: Of text files; auto takes three or four fields a line as an edge list, else as a matrix.
        method: Two rules of factor 2 by a linear program, disjoint triangles (factor 3), or a baseline of
            factor 2 by many linear programs.
        lp: HiGHS, multiplicative weights (mwu), or whichever suits the number of bad triangles.
        prune: Take edges that are not needed out of it.
        time_limit: Seconds for the linear program.
        triangle_limit: With more bad triangles multiplicative weights replace HiGHS where the extra fast is
            installed, up to ten times as many; disjoint triangles beyond, or without.
    """
    from icml_btt.graph_files import read_graph
    from icml_btt.transversals import BadTriangleTransversal

    _check_limits(time_limit, triangle_limit)
    signed = read_graph(graph, threshold=threshold, missing=missing, layout=layout)
    solver = BadTriangleTransversal(
        method, lp=lp, prune=prune, time_limit=time_limit, triangle_limit=triangle_limit, seed=run.seed
    )
    begin = time.perf_counter()
    with run.progress("transversal", total=1) as bar:
        found = solver.solve(signed)
        bar.advance(1, cost=found.cost, bound=found.lower_bound)
    seconds = time.perf_counter() - begin
    _write_edges(run, signed, found.edges)
    summary = _graph_summary(signed) | {
        "edges": len(found.edges),
        "cost": found.cost,
        "lower_bound": found.lower_bound,
        "certified_ratio": _finite(found.ratio),
        "method": found.method,
        "seconds": round(seconds, 3),
    }
    return _write_summary(run, summary)


def cluster_deletion(
    *,
    run: Run,
    graph: Path,
    threshold: float | None = None,
    layout: Literal["auto", "edges", "matrix"] = "auto",
    method: Literal["lp", "matching"] = "lp",
    runs: int = 8,
    local_search: bool = True,
    triangle_limit: int = 2_000_000,
) -> dict[str, Any]:
    """Delete few "same" judgements so that disjoint cliques are left, with a certified ratio.

    Writes labels.csv (id, label), deleted.csv (u, v, sign, weight) and summary.json.

    Args:
        graph: Edge list u,v,sign[,weight] (CSV, TSV), similarity or signed matrix (.npy, sparse .npz, CSV).
        threshold: Third fields of edge lists, and matrix entries, are similarities: "same" from here on.
        layout: Of text files; auto takes three or four fields a line as an edge list, else as a matrix.
        method: Of the ties that the cliques start from: a linear program, or a maximal packing of wedges.
        runs: Orders of pivots to choose the best from.
        local_search: Improve by moving vertices and merging cliques.
        triangle_limit: More open wedges are refused.
    """
    from icml_btt.clique_partition import ClusterDeletion
    from icml_btt.graph_files import read_graph

    _check_limits(None, triangle_limit)
    if runs < 1:
        raise ValueError(f"--runs {runs}; at least one is needed")
    signed = read_graph(graph, threshold=threshold, layout=layout)
    solver = ClusterDeletion(
        method=method, runs=runs, local_search=local_search, triangle_limit=triangle_limit, seed=run.seed
    )
    begin = time.perf_counter()
    with run.progress("cluster deletion", total=1) as bar:
        found = solver.solve(signed)
        bar.advance(1, cost=found.cost, bound=found.lower_bound)
    seconds = time.perf_counter() - begin
    named = [(signed.name(v), label) for v, label in enumerate(found.labels.tolist())]
    _write_rows(run, "labels.csv", ("id", "label"), named)
    _write_edges(run, signed, found.deleted(signed), "deleted.csv")
    summary = _graph_summary(signed) | {
        "cliques": len(found.clusters()),
        "cost": found.cost,
        "lower_bound": found.lower_bound,
        "certified_ratio": _finite(found.ratio),
        "seconds": round(seconds, 3),
    }
    return _write_summary(run, summary)


def minstc(
    *,
    run: Run,
    graph: Path,
    threshold: float | None = None,
    layout: Literal["auto", "edges", "matrix"] = "auto",
    method: Literal["lp", "matching"] = "lp",
    prune: bool = True,
    triangle_limit: int = 2_000_000,
) -> dict[str, Any]:
    """Label ties strong or weak so that friends of strong friends are friends, with a certified ratio.

    Writes ties.csv (u, v, tie) and summary.json.

    Args:
        graph: Edge list u,v,sign[,weight] (CSV, TSV), similarity or signed matrix (.npy, sparse .npz, CSV).
        threshold: Third fields of edge lists, and matrix entries, are similarities: "same" from here on.
        layout: Of text files; auto takes three or four fields a line as an edge list, else as a matrix.
        method: A linear program, or a maximal packing of wedges.
        prune: Take back weak labels that are not needed.
        triangle_limit: More open wedges are refused.
    """
    from icml_btt.graph_files import read_graph
    from icml_btt.strong_triadic_closure import StrongTriadicClosure

    _check_limits(None, triangle_limit)
    signed = read_graph(graph, threshold=threshold, layout=layout)
    solver = StrongTriadicClosure(method, prune=prune, triangle_limit=triangle_limit, seed=run.seed)
    begin = time.perf_counter()
    with run.progress("ties", total=1) as bar:
        found = solver.solve(signed)
        bar.advance(1, cost=found.cost, bound=found.lower_bound)
    seconds = time.perf_counter() - begin
    _write_rows(run, "ties.csv", ("u", "v", "tie"), ((*pair, tie) for pair, tie in found.as_dict().items()))
    summary = _graph_summary(signed) | {
        "weak": int(found.weak.sum()),
        "cost": found.cost,
        "lower_bound": found.lower_bound,
        "certified_ratio": _finite(found.ratio),
        "seconds": round(seconds, 3),
    }
    return _write_summary(run, summary)


def exact(
    *,
    run: Run,
    graph: Path,
    problem: Literal["btt", "cc", "cd", "minstc"] = "cc",
    backend: Literal["highs", "cpsat"] = "highs",
    threshold: float | None = None,
    missing: Literal["negative", "free"] = "negative",
    layout: Literal["auto", "edges", "matrix"] = "auto",
    time_limit: float = 60.0,
) -> dict[str, Any]:
    """Solve a small instance to optimality, or give the best solution and bound that time allows.

    Writes labels.csv (problems cc, cd) or transversal.csv (problems btt, minstc), and summary.json.

    Args:
        graph: Edge list u,v,sign[,weight] (CSV, TSV), similarity or signed matrix (.npy, sparse .npz, CSV).
        problem: Clusters (cc), judgements to drop so that no triangle contradicts itself (btt), cliques
            (cd), or weak ties (minstc).
        backend: HiGHS, or CP-SAT where OR-Tools is installed.
        threshold: Third fields of edge lists, and matrix entries, are similarities: "same" from here on.
        missing: What a pair is that the file does not hold: negative, or free of any cost.
        layout: Of text files; auto takes three or four fields a line as an edge list, else as a matrix.
        time_limit: Seconds; after it the best solution found is given with the bound proved.
    """
    from icml_btt.graph_files import read_graph
    from icml_btt.integer_program import ExactOptimum

    _check_limits(time_limit, 1)
    solver = ExactOptimum(problem, backend=backend, time_limit=time_limit, seed=run.seed)
    signed = read_graph(graph, threshold=threshold, missing=missing, layout=layout)
    begin = time.perf_counter()
    with run.progress("integer program", total=1) as bar:
        found = solver.solve(signed)
        bar.advance(1, cost=found.cost, bound=found.bound)
    seconds = time.perf_counter() - begin
    if found.labels is not None:
        named = [(signed.name(v), label) for v, label in enumerate(found.labels.tolist())]
        _write_rows(run, "labels.csv", ("id", "label"), named)
    if found.edges is not None:
        _write_edges(run, signed, found.edges)
    summary = _graph_summary(signed) | {
        "problem": problem,
        "status": found.status,
        "cost": found.cost,
        "lower_bound": found.bound,
        "certified_ratio": _finite(found.ratio),
        "seconds": round(seconds, 3),
    }
    return _write_summary(run, summary)


def _check_limits(time_limit: float | None, triangle_limit: int) -> None:
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"--time-limit {time_limit:g}; expected more than 0 seconds")
    if triangle_limit < 0:
        raise ValueError(f"--triangle-limit {triangle_limit}; expected a number >= 0")


def _graph_summary(graph: SignedGraph) -> dict[str, Any]:
    from icml_btt.triangles import count_bad_triangles

    return {
        "vertices": graph.n,
        "positive_edges": int((graph.sign > 0).sum()),
        "complete": graph.complete,
        "bad_triangles": count_bad_triangles(graph),
    }


def _write_edges(run: Run, graph: SignedGraph, edges: Any, file: str = "transversal.csv") -> None:
    u, v = edges.T
    signs, weights = graph.signs_of(u, v).tolist(), graph.weights_of(graph.pair_key(u, v)).tolist()
    names = ((graph.name(a), graph.name(b)) for a, b in edges.tolist())
    rows = ((*pair, sign, weight) for pair, sign, weight in zip(names, signs, weights, strict=True))
    _write_rows(run, file, ("u", "v", "sign", "weight"), rows)


def _write_rows(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)


def _write_summary(run: Run, summary: dict[str, Any]) -> dict[str, Any]:
    with run.path("summary.json") as temporary:
        temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _finite(ratio: float) -> float | None:
    """The ratio, or None where the bound is 0 and nothing is certified."""
    return ratio if ratio < float("inf") else None
