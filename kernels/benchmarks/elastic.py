"""Elastic distances on one core beside the libraries that people use, in nanoseconds a cell of the table.

    python kernels/benchmarks/elastic.py [--clock cpu] [--small] [--out kernels/benchmarks/results]

64 x 64 pairs of 200 points for distances, 64 pairs for values with gradients, a window, and how time grows. A
peer that is not installed is left out. On a machine that others use, ``--clock cpu`` counts processor time.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from icml_kernels import elastic_cross, soft_elastic

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
KINDS = {"float32": torch.float32, "float64": torch.float64}


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return importlib.util.find_spec(name) is not None


def best(call: Callable[[], Any], clock: Callable[[], float], repeats: int = 5) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return min(taken)


def distance_peers(x: np.ndarray, metric: str) -> dict[str, Callable[[], Any]]:
    """What computes the matrix of distances of x [series, points] elsewhere, at its best settings on one
    core."""
    peers: dict[str, Callable[[], Any]] = {}
    if installed("aeon"):
        import aeon.distances as aeon

        three = x[:, None]
        if metric == "twed":
            peers["aeon"] = lambda: aeon.twe_pairwise_distance(three, three, nu=0.05, lmbda=1.0)
        else:
            peers["aeon"] = lambda: aeon.dtw_pairwise_distance(three, three)
    if installed("tsdistances"):
        import tsdistances

        if metric == "twed":
            options = {"stifness": 0.05, "penalty": 1.0, "par": False}
            peers["tsdistances"] = lambda: tsdistances.twe_distance(x, x, **options)
        else:
            peers["tsdistances"] = lambda: tsdistances.dtw_distance(x, x, par=False)
    if metric == "dtw" and installed("dtaidistance"):
        from dtaidistance import dtw

        half = (0, len(x)), (0, len(x))
        peers["dtaidistance"] = lambda: dtw.distance_matrix_fast(
            x, block=half, parallel=False, only_triu=True
        )
    return peers


def gradient_peers(x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Soft DTW with its gradient elsewhere."""
    peers: dict[str, Callable[[], Any]] = {}
    if installed("tslearn"):
        from tslearn.metrics import SoftDTWLossPyTorch

        loss = SoftDTWLossPyTorch(gamma=0.1)

        def both() -> None:
            leaf = y.clone().requires_grad_()
            loss(x, leaf).sum().backward()

        peers["tslearn"] = both
    return peers


def cells(name: str, points: int, metric: str) -> float:
    """Cells that a peer fills for 64 x 64 pairs; dtaidistance fills the upper triangle alone."""
    whole = 64 * 64 * points**2
    return whole * 63 / 128 if name == "dtaidistance" and metric == "dtw" else whole


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    numba.set_num_threads(1)  # tslearn's soft DTW takes all cores otherwise
    clock = CLOCKS[options.clock]
    points, pairs = (20, 64) if options.small else (200, 64)
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []

    def report(case: str, ours: float, peers: dict[str, tuple[str, float]]) -> None:
        row = {"case": case, "unit": "ns a cell", "ours": {"seconds": ours * 1e-9}}
        row["peers"] = {n: {"version": v, "seconds": s * 1e-9} for n, (v, s) in peers.items()}
        row["ratios"] = {n: s / ours for n, (_, s) in peers.items()}
        rows.append(row)
        beside = ", ".join(f"{n} {s:.3g} ({s / ours:.1f} times)" for n, (_, s) in peers.items())
        print(f"{case:44} {ours:8.3g} ns  {beside}", flush=True)

    x = rng.normal(size=(64, points))
    for metric in ("twed", "dtw"):
        beside = {}
        for name, call in distance_peers(x, metric).items():
            seconds = best(call, clock, 2) / cells(name, points, metric)
            beside[name] = (version(name), seconds * 1e9)
        for kind, dtype in KINDS.items():
            for channels in (1, 3):
                series = torch.from_numpy(rng.normal(size=(64, points, channels))).to(dtype)
                seconds = best(lambda s=series, m=metric: elastic_cross(s, s, m, threads=1), clock)
                ours = seconds / (64 * 64 * points**2) * 1e9
                report(f"{metric}, {kind}, channels {channels}", ours, beside if channels == 1 else {})
    for kind, dtype in KINDS.items():
        a, b = (torch.from_numpy(rng.normal(size=(pairs, points, 1))).to(dtype) for _ in range(2))
        found = gradient_peers(a, b)
        beside = {
            name: (version(name), best(call, clock, 2) / (pairs * points**2) * 1e9)
            for name, call in found.items()
        }
        for metric in ("twed", "dtw"):

            def both(a: torch.Tensor = a, b: torch.Tensor = b, metric: str = metric) -> None:
                leaf = b.clone().requires_grad_()
                soft_elastic(a, leaf, metric).sum().backward()

            report(
                f"soft {metric} with gradient, {kind}", best(both, clock) / (pairs * points**2) * 1e9, beside
            )
    long = torch.from_numpy(rng.normal(size=(32, 5 * points, 1))).float()
    whole = best(lambda: elastic_cross(long, long, threads=1), clock, 2)
    inside = best(lambda: elastic_cross(long, long, window=0.1, threads=1), clock, 2)
    every = 32 * 32 * (5 * points) ** 2 / 1e9
    report("twed, window of 10 %, beside none", inside / every, {"no window": ("", whole / every)})
    environment = {"python": platform.python_version(), "threads": 1, "clock": options.clock}
    environment |= {"processor": platform.processor() or platform.machine(), "points": points}
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "elastic", "environment": environment, "rows": rows}
    (options.out / "elastic.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
