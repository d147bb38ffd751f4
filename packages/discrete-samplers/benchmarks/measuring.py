"""What the benchmarks share: clocks, peak memory, tables and JSON."""

from __future__ import annotations

import argparse
import gc
import json
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def arguments(doc: str) -> argparse.Namespace:
    """The options of every script."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    return given


def seconds(call: Callable[[], Any], given: argparse.Namespace) -> float:
    """Median of some calls, after one that is not counted."""
    clock = CLOCKS[given.clock]
    call()
    taken = []
    for _ in range(3 if given.quick else 9):
        gc.collect()
        begin = clock()
        call()
        taken.append(clock() - begin)
    return sorted(taken)[len(taken) // 2]


def peak_bytes() -> int:
    """Peak resident memory of the process so far, with all rows and peers before it: an upper bound."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Report:
    """Rows of ours beside peers, printed and written as they come."""

    def __init__(self, name: str, given: argparse.Namespace) -> None:
        self.path = given.out / f"{name}.json"
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "threads": given.threads,
        }
        self.report: dict[str, Any] = {"benchmark": name, "environment": environment, "rows": []}

    def add(self, case: str, ours: float, peers: dict[str, tuple[str, float]], **more: Any) -> None:
        """A row: seconds of ours and of each peer (version, seconds) for the same work."""
        row = {
            "case": case,
            "ours": {"seconds": ours, "peak_bytes": peak_bytes()},
            "peers": {n: {"version": v, "seconds": s, "peak_bytes": None} for n, (v, s) in peers.items()},
            "ratios": {n: s / ours for n, (_, s) in peers.items()},
            **more,
        }
        self.report["rows"].append(row)
        ratios = ", ".join(f"{n} {r:.2f} times" for n, r in row["ratios"].items())
        extra = ", ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in more.items())
        print(f"{case}: {ours * 1e3:.3g} ms; {ratios}{'; ' + extra if extra else ''}", flush=True)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
