"""Time and memory of several ways to do one thing: times interleaved in one process, memory each in its own.

A case is a function that makes {name: work}; the first name is ours. A work may return figures of its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from icml_core.run import provenance, public, write_json
from threadpoolctl import threadpool_limits

Work = Callable[[], Any]
Case = Callable[[], Mapping[str, Work]]


def run(benchmark: str, cases: Mapping[str, Case], quick: Mapping[str, Case], script: str) -> None:
    """Parse the command line, measure, print a table, and write ``results/<benchmark>.json`` case by case."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    threadpool_limits(options.threads)  # NumPy's and scikit-learn's
    chosen = quick if options.quick else cases
    if options.memory_of:
        print(json.dumps(_memory(chosen[options.memory_of[0]], options.memory_of[1])))
        return
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows: list[dict[str, Any]] = []
    for name, case in chosen.items():
        works = case()
        seconds, returned = _times(works, clock, options.repeats)
        base = [script, *(["--quick"] if options.quick else []), "--threads", str(options.threads)]
        peak = {w: None if options.no_memory else _peak([*base, "--memory-of", name, w]) for w in works}
        figures = {w: {"seconds": seconds[w], "peak_bytes": peak[w], **returned[w]} for w in works}
        ours, *peers = works
        ratios = {peer: seconds[peer] / seconds[ours] for peer in peers}
        print(f"\n{name}")
        for work, found in figures.items():
            memory = "" if peak[work] is None else f"{peak[work] / 2**20:9.1f} MiB"
            extra = "  ".join(f"{k} {v:.4g}" for k, v in returned[work].items())
            print(
                f"  {work:34} {found['seconds']:9.4f} s {memory}  x{ratios.get(work, 1.0):.3g}  {extra}",
                flush=True,
            )
        versions = {peer: {"version": _version(peer), **figures[peer]} for peer in peers}
        rows.append({"case": name, "ours": figures[ours], "peers": versions, "ratios": ratios})
        if not options.quick:  # a run that is stopped keeps the cases that it has measured
            environment = {**public(provenance()), "threads": options.threads, "clock": options.clock}
            path = Path(script).parent / "results" / f"{benchmark}.json"
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"benchmark": benchmark, "environment": environment, "rows": rows})


def _times(
    works: Mapping[str, Work], clock: Callable[[], float], repeats: int
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Least seconds of each; what takes over five seconds is run once."""
    best: dict[str, float] = {}
    returned: dict[str, dict[str, float]] = {}
    for name, work in works.items():
        begin = clock()
        found = work()
        best[name] = clock() - begin
        returned[name] = found if isinstance(found, dict) else {}
    for _ in range(repeats - 1):
        for name, work in works.items():
            if best[name] > 5:
                continue
            begin = clock()
            work()
            best[name] = min(best[name], clock() - begin)
    return best, returned


def _memory(case: Case, name: str) -> int:
    work = case()[name]
    Path("/proc/self/clear_refs").write_text("5")

    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))

    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def _peak(command: list[str]) -> int | None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    return int(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _version(peer: str) -> str:
    try:
        return metadata.version(peer.split()[0])
    except metadata.PackageNotFoundError:
        return "this distribution"
