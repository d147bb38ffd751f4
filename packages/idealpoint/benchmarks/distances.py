"""`pairwise` as users call it, beside the libraries that they have: shapes, threads, a first call.

python packages/idealpoint/benchmarks/distances.py [--small] [--out
packages/idealpoint/benchmarks/results]
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from icml_idealpoint import pairwise

FIRST_CALL = """
import time, numpy as np
from icml_idealpoint import pairwise
X = np.random.default_rng(0).normal(size=(3, 50))
pairwise(X[:1], X[:1], dtype="float64")
begin = time.perf_counter()
pairwise(X)
print(time.perf_counter() - begin)
"""


def best(call: Callable[[], Any], repeats: int = 3) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def peers(X: np.ndarray, Y: np.ndarray, metric: str) -> dict[str, Callable[[], Any]]:
    """What computes the same cross product elsewhere."""
    found: dict[str, Callable[[], Any]] = {}
    if importlib.util.find_spec("aeon") is not None:
        import aeon.distances as aeon

        a, b = X[:, None], Y[:, None]
        if metric == "twed":
            found["aeon"] = lambda: aeon.twe_pairwise_distance(a, b, nu=0.05, lmbda=1.0)
        else:
            found["aeon"] = lambda: aeon.dtw_pairwise_distance(a, b)
    if metric == "dtw" and importlib.util.find_spec("tslearn") is not None:
        from tslearn.metrics import cdist_dtw

        found["tslearn"] = lambda: cdist_dtw(X, Y, n_jobs=1)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    points = 20 if options.small else 200
    scale = 10 if options.small else 1
    rng = np.random.default_rng(0)
    rows: list[dict[str, Any]] = []
    for left, right in ((1, 1500 // scale), (1500 // scale, 1), (40, 40), (100 // scale, 100 // scale)):
        X, Y = rng.normal(size=(left, points)), rng.normal(size=(right, points))
        for metric in ("twed", "dtw"):
            ours = {
                jobs: best(lambda j=jobs, m=metric, X=X, Y=Y: pairwise(X, Y, m, dtype="float32", n_jobs=j))
                for jobs in (1, 2)
            }
            beside = {name: best(call, 2) for name, call in peers(X, Y, metric).items()}
            row = {"case": f"{metric}, {left} x {right}, {points} points", "ours": {"seconds": ours[1]}}
            row["peers"] = {name: {"version": version(name), "seconds": s} for name, s in beside.items()}
            row["ratios"] = {name: s / ours[1] for name, s in beside.items()} | {
                "two threads": ours[1] / ours[2]
            }
            rows.append(row)
            ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in row["ratios"].items())
            print(f"{row['case']:36} {ours[1]:9.5f} s  times: {ratios}", flush=True)
    done = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    rows.append({"case": "a call after loading, 3 x 3", "ours": {"seconds": float(done.stdout)}, "peers": {}})
    print(f"{'a call after loading, 3 x 3':36} {float(done.stdout):9.5f} s")
    environment = {
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "distances", "environment": environment, "rows": rows}
    (options.out / "distances.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
