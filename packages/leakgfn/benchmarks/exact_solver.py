"""Seconds and memory of the exact solver on worlds of fragments, up to more than a million states.

    python benchmarks/exact_solver.py [--quick]

Each size runs in a process of its own, whose peak memory is its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

CODE = """
import json, resource, time
import numpy as np
from icml_leakgfn import FragmentEnv, exact_flow
flat = lambda mols: np.ones(len(mols))
flat.vectorised = True
blocks = ("*C(=O)O*", "*C(*)C*", "*C")
exact_flow(FragmentEnv(blocks, 2, 2, stop="closed"), flat)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
begin = time.perf_counter()
flows = exact_flow(FragmentEnv({blocks}, {length}, 2, stop="closed"), flat)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps(dict(seconds=seconds, peak_bytes=peak, added_bytes=peak - before, states=len(flows.graph),
                      edges=len(flows.graph.child))))
"""
STARS = '("*C(=O)O*", "*C(*)C*", "*C")'
EIGHT = '("*c1ccc(*)cc1","*C(=O)N*","*N1CCN(*)CC1","*c1ccc(*)c(*)c1","*C","*OC","*F","*c1ccncc1")'
CASES = [(EIGHT, 4), (EIGHT, 5), (STARS, 6), (EIGHT, 6)]
QUICK = [(EIGHT, 3), (EIGHT, 4)]


def main() -> None:
    """Run all sizes, writing after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    report: dict[str, Any] = {
        "benchmark": "exact_solver",
        "environment": {"python": platform.python_version()},
        "rows": [],
    }
    for blocks, length in QUICK if given.quick else CASES:
        code = CODE.replace("{blocks}", blocks).replace("{length}", str(length))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        found = json.loads(done.stdout)
        case = f"{found['states']} states, {found['edges']} edges, up to {length} blocks"
        print(
            f"{case}: {found['seconds']:.1f} s, {found['peak_bytes'] / 2**20:.0f} MiB, "
            f"{found['seconds'] / found['states'] * 1e6:.0f} µs a state",
            flush=True,
        )
        own = {"seconds": found["seconds"], "peak_bytes": found["peak_bytes"]}
        report["rows"].append({"case": case, "ours": own, "peers": {}, "ratios": {}})
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "exact_solver.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
