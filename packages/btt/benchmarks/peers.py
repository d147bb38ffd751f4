"""Correlation clustering beside `correlation-clustering` (simulated annealing) and `clumppy` (Rust).

Every measurement runs in a process of its own. The certified bound comes from here only: no peer gives one.
The integer program and the annealing are tried on the first cases only, and left out of the results where
they take longer than ``PATIENCE``. Prints a table and writes ``results/peers.json``.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import time
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from icml_core.run import provenance, public

CASES = {
    "planted n=40, 4 clusters, 10 % noise": (40, 4, 0.10),
    "planted n=60, 4 clusters, 20 % noise": (60, 4, 0.20),
    "planted n=60, 4 clusters, 30 % noise": (60, 4, 0.30),
    "planted n=200, 10 clusters, 5 % noise": (200, 10, 0.05),
    "planted n=1000, 50 clusters, 1 % noise": (1000, 50, 0.01),
}
TOOLS = ("ours", "ours-disjoint", "ours-exact", "clumppy", "correlation-clustering", "python-kwik")
FIRST_CASES = {"ours-exact": 2, "correlation-clustering": 1}  # tools too slow for the others
PATIENCE = 60.0  # seconds for one tool on one case
KWIK_RUNS = 100


def planted_graph(n: int, clusters: int, noise: float) -> Any:
    """The instance of a case."""
    from icml_btt import planted

    return planted(n, clusters, noise, seed=0).graph


def ours(graph: Any) -> tuple[np.ndarray, float]:
    """The default estimator: labels and certified bound."""
    from icml_btt import CorrelationClustering

    found = CorrelationClustering().solve(graph)
    return found.labels, found.lower_bound


def ours_disjoint(graph: Any) -> tuple[np.ndarray, float]:
    """The estimator without the linear program."""
    from icml_btt import CorrelationClustering

    found = CorrelationClustering(method="disjoint").solve(graph)
    return found.labels, found.lower_bound


def ours_exact(graph: Any) -> tuple[np.ndarray, float]:
    """The integer program."""
    from icml_btt import ExactOptimum

    found = ExactOptimum("cc", time_limit=PATIENCE / 6).solve(graph)
    return found.labels, found.bound


def clumppy(graph: Any) -> tuple[np.ndarray, None]:
    """The peer in Rust; it takes every pair as an edge."""
    import clumppy as peer

    u, v = np.triu_indices(graph.n, 1)
    edges = list(zip(u.tolist(), v.tolist(), graph.signs_of(u, v).astype(float).tolist(), strict=True))
    return np.asarray(peer.correlation_clustering(edges, n_nodes=graph.n)), None


def correlation_clustering(graph: Any) -> tuple[np.ndarray, None]:
    """The peer by simulated annealing, with its default effort, told that there are at most six clusters."""
    import networkx as nx
    from correlation_clustering.correlation import cluster_correlation_search

    u, v = np.triu_indices(graph.n, 1)
    signed = nx.Graph()
    signed.add_nodes_from(range(graph.n))
    signed.add_weighted_edges_from(zip(u.tolist(), v.tolist(), graph.signs_of(u, v).tolist(), strict=True))
    np.random.seed(0)  # noqa: NPY002  the peer draws from NumPy's global state
    clusters, _ = cluster_correlation_search(signed, s=6, rng=np.random.default_rng(0))
    labels = np.empty(graph.n, dtype=np.int64)
    for label, members in enumerate(clusters):
        labels[list(members)] = label
    return labels, None


def python_kwik(graph: Any) -> tuple[np.ndarray, None]:
    """The best of 100 runs of KwikCluster in plain Python: what people write themselves."""
    neighbours = [set(graph.positive.indices[a:b].tolist()) for a, b in _rows(graph)]
    best: tuple[float, np.ndarray] | None = None
    generator = random.Random(0)
    for _ in range(KWIK_RUNS):
        labels, order = [-1] * graph.n, list(range(graph.n))
        generator.shuffle(order)
        for pivot in order:
            if labels[pivot] < 0:
                labels[pivot] = pivot
                for vertex in neighbours[pivot]:
                    if labels[vertex] < 0:
                        labels[vertex] = pivot
        # positive edges cut, and pairs of a cluster that are not positive
        sizes: dict[int, int] = {}
        for label in labels:
            sizes[label] = sizes.get(label, 0) + 1
        inside = sum(labels[u] == labels[v] for u in range(graph.n) for v in neighbours[u] if u < v)
        total = sum(map(len, neighbours)) // 2
        cost = total - inside + sum(s * (s - 1) // 2 for s in sizes.values()) - inside
        if best is None or cost < best[0]:
            best = (cost, np.array(labels))
    assert best is not None
    return best[1], None


def _rows(graph: Any) -> list[tuple[int, int]]:
    pointer = graph.positive.indptr.tolist()
    return list(pairwise(pointer))


def measure(tool: str, case: str) -> dict[str, Any]:
    """Run one tool on one case, in this process; seconds are the best of three where they are few."""
    from icml_btt import disagreements
    from icml_btt.cost import canonical_labels

    solve = globals()[tool.replace("-", "_")]
    solve(planted_graph(12, 2, 0.1))  # imports, and what is compiled or cached on first use
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    while not seconds or (len(seconds) < 3 and sum(seconds) < 2):
        graph = planted_graph(*CASES[case])
        begin = time.perf_counter()
        labels, bound = solve(graph)
        seconds.append(time.perf_counter() - begin)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": min(seconds),
        "peak_bytes": (after - before) * 1024,
        "cost": float(disagreements(graph, canonical_labels(labels))),
        "bound": bound,
    }


def pivot_rate() -> dict[str, float]:
    """Seconds for a hundred runs of KwikCluster on the largest case: vectorised here, and plain Python."""
    from icml_btt import disagreements, kwik_cluster

    graph = planted_graph(*list(CASES.values())[-1])
    timed = {}
    for name, work in (
        ("ours", lambda: disagreements(graph, kwik_cluster(graph, runs=KWIK_RUNS)).min()),
        ("python", lambda: python_kwik(graph)),
    ):
        work()
        begin = time.perf_counter()
        work()
        timed[name] = time.perf_counter() - begin
    return timed


def main() -> None:
    """Measure everything, print the table, write the results."""
    rows = []
    for number, case in enumerate(CASES):
        figures = {}
        for tool in TOOLS:
            if number >= FIRST_CASES.get(tool, len(CASES)):
                continue
            command = [sys.executable, __file__, tool, case]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=3 * PATIENCE, check=True
                )
                figures[tool] = json.loads(done.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                figures[tool] = None
        us = figures.pop("ours")
        peers = {tool: found for tool, found in figures.items() if found is not None}
        for name, found in peers.items():
            distribution = "icml-btt" if name.startswith("ours") else name
            found["version"] = "this file" if name == "python-kwik" else metadata.version(distribution)
        ratios = {name: found["seconds"] / us["seconds"] for name, found in peers.items()}
        rows.append({"case": case, "ours": us, "peers": peers, "ratios": ratios})
        print(f"\n{case}: certified optimum >= {us['bound']:g}")
        for name, found in {"ours": us, **peers}.items():
            print(
                f"  {name:24} {found['seconds']:9.3f} s  {found['peak_bytes'] / 2**20:8.1f} MiB"
                f"  cost {found['cost']:8g}  x{ratios.get(name, 1.0):.3g}"
            )
    rate = pivot_rate()
    print(f"\n{KWIK_RUNS} pivot runs, n=1000: ours {rate['ours']:.3f} s, plain Python {rate['python']:.3f} s")
    rows.append(
        {
            "case": f"{KWIK_RUNS} runs of KwikCluster, planted n=1000",
            "ours": {"seconds": rate["ours"], "peak_bytes": None},
            "peers": {"python-kwik": {"version": "this file", "seconds": rate["python"], "peak_bytes": None}},
            "ratios": {"python-kwik": rate["python"] / rate["ours"]},
        }
    )
    document = {"benchmark": "peers", "environment": public(provenance()), "rows": rows}
    path = Path(__file__).parent / "results" / "peers.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] in TOOLS:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
