"""Growth to ten million wedges: multiplicative weights beside HiGHS, pivot runs beside plain Python.

    python packages/btt/benchmarks/scale.py

Every measurement runs in a process of its own, on one thread, with the kernels of the extra ``fast``. HiGHS
is the package's exact solver, which adds rows as needed; it is stopped after ``PATIENCE`` seconds, and the
ratio is then a lower bound. Prints a table and writes ``results/scale.json``.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from icml_core.run import provenance, public

PATIENCE = 60.0
# Clusters of 30 vertices with three wrong judgements at each vertex; then noise of 10 % and a random graph.
GRAPHS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "planted, 1e5 wedges": ("scaled", (1_250,)),
    "planted, 1e6 wedges": ("scaled", (12_500,)),
    "planted, 1e7 wedges": ("scaled", (125_000,)),
    "dense and noisy, 1e6 wedges": ("planted", (410, 6, 0.10)),
    "random, 1e6 wedges": ("gnp", (4_000, 0.0056)),
}
HIGHS = ("planted, 1e5 wedges", "planted, 1e6 wedges", "dense and noisy, 1e6 wedges", "random, 1e6 wedges")
PIVOTS = ("planted, 1e5 wedges", "planted, 1e6 wedges", "planted, 1e7 wedges")
RUNS = 100


def graph_of(case: str) -> Any:
    """The instance of a case."""
    from icml_btt import gnp, planted
    from icml_btt.claims_of_scale import scaled_graph

    kind, options = GRAPHS[case]
    if kind == "scaled":
        return scaled_graph(*options, 0)
    return (planted if kind == "planted" else gnp)(*options, seed=0).graph


def measure(what: str, case: str) -> dict[str, Any]:
    """One measurement in this process; peak memory is what the work adds to the graph."""
    from icml_btt import count_bad_triangles, kwik_cluster, planted
    from icml_btt.claims_of_scale import neighbour_sets, plain_kwik_cluster
    from icml_btt.linear_program import solve_cover
    from icml_btt.multiplicative_weights import approximate_cover
    from icml_btt.packing import maximal_packing
    from icml_btt.triangles import TriangleSystem

    small = planted(20, 2, 0.2, seed=0).graph  # loads what is compiled
    approximate_cover(small, TriangleSystem.of(small))
    kwik_cluster(small)
    graph = graph_of(case)
    graph.positive.sum()
    figures: dict[str, Any] = {"wedges": count_bad_triangles(graph), "edges": int(graph.positive.nnz // 2)}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if what in ("weights", "highs"):
        begin = time.perf_counter()
        system = TriangleSystem.of(graph)
        figures["listing_seconds"] = time.perf_counter() - begin
        begin = time.perf_counter()
        if what == "weights":
            found = approximate_cover(graph, system)
        else:
            found = solve_cover(graph, system, time_limit=PATIENCE)
        figures |= {"seconds": time.perf_counter() - begin, "bound": found.bound, "value": found.value}
        figures |= {"status": found.status, "rounds": found.rounds}
    else:
        neighbours = neighbour_sets(graph) if what == "python-kwik" else []
        begin = time.perf_counter()
        if what == "packing":
            figures["bound"] = maximal_packing(graph)[0].total
        elif what == "pivots":
            kwik_cluster(graph, runs=RUNS)
        else:
            plain_kwik_cluster(neighbours, 10, 0)
        figures["seconds"] = time.perf_counter() - begin
        if what == "python-kwik":
            figures["seconds"] *= RUNS / 10
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return figures | {"peak_bytes": (after - before) * 1024}


def run(what: str, case: str) -> dict[str, Any]:
    """The same in a fresh process, on one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    command = [sys.executable, __file__, what, case]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure everything, print the table, write the results."""
    rows = []
    for case in GRAPHS:
        ours, packing = run("weights", case), run("packing", case)
        peers = {"maximal packing": packing | {"version": "this package"}}
        gap = ours["value"] / ours["bound"] - 1
        print(
            f"\n{case}: {ours['wedges']} wedges, {ours['edges']} edges\n"
            f"  multiplicative weights {ours['seconds']:8.2f} s, listing {ours['listing_seconds']:.2f} s, "
            f"{ours['peak_bytes'] / 2**20:.0f} MiB, gap {gap:.4f}\n"
            f"  maximal packing        {packing['seconds']:8.2f} s, {packing['peak_bytes'] / 2**20:.0f} MiB, "
            f"{1 - packing['bound'] / ours['bound']:.4f} below",
            flush=True,
        )
        if case in HIGHS:
            exact = run("highs", case)
            peers["HiGHS, rows as needed"] = exact | {"version": "SciPy"}
            lost = 1 - ours["bound"] / min(exact["value"], ours["value"])
            print(
                f"  HiGHS, {exact['status']} {exact['seconds']:13.2f} s, "
                f"{exact['peak_bytes'] / 2**20:.0f} MiB, "
                f"bound at most {lost:.4f} below the optimum",
                flush=True,
            )
        ratios = {name: peer["seconds"] / ours["seconds"] for name, peer in peers.items()}
        print("  ratios: " + ", ".join(f"{name} {ratio:.3g}" for name, ratio in ratios.items()), flush=True)
        rows.append({"case": f"linear program: {case}", "ours": ours, "peers": peers, "ratios": ratios})
    for case in PIVOTS:
        ours, python = run("pivots", case), run("python-kwik", case)
        ratio = python["seconds"] / ours["seconds"]
        print(
            f"\n{RUNS} pivot runs, {case}: {ours['seconds']:.3f} s, {ours['peak_bytes'] / 2**20:.0f} MiB; "
            f"Python {python['seconds']:.1f} s, x{ratio:.0f}",
            flush=True,
        )
        peers = {"python-kwik": python | {"version": "claims_of_scale"}}
        rows.append(
            {"case": f"{RUNS} pivots: {case}", "ours": ours, "peers": peers, "ratios": {"python-kwik": ratio}}
        )
    document = {"benchmark": "scale", "environment": public(provenance()), "rows": rows}
    path = Path(__file__).parent / "results" / "scale.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    print(f"written: {path}")


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(measure(sys.argv[1], sys.argv[2])))
    else:
        main()
