"""Time and memory of several ways to do one thing: times in turns in one process, memory each in its own."""

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

Work = Callable[[], float]
"""Does the work and gives its amount (tokens, steps): times are those of one unit."""
Case = Callable[[], Mapping[str, Work]]


def run(benchmark: str, cases: Mapping[str, Case], quick: Mapping[str, Case], script: str) -> None:
    """Parse the command line, measure, print a table, and write ``results/<benchmark>.json``."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = quick if options.quick else cases
    if options.memory_of:
        print(json.dumps(_memory(chosen[options.memory_of[0]], options.memory_of[1])))
        return
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows: list[dict[str, Any]] = []
    for name, case in chosen.items():
        works = case()
        seconds = _times(works, clock, 1 if options.quick else options.repeats)
        base = [script, *(["--quick"] if options.quick else []), "--threads", str(options.threads)]
        peak = {work: _peak([*base, "--memory-of", name, work]) for work in works}
        figures = {w: {"seconds": seconds[w], "peak_bytes": peak[w]} for w in works}
        ours, *peers = works
        ratios = {peer: seconds[peer] / seconds[ours] for peer in peers}
        print(f"\n{name}")
        for work, found in figures.items():
            memory = "" if found["peak_bytes"] is None else f"{found['peak_bytes'] / 2**20:9.1f} MiB"
            print(f"  {work:34} {1e3 * found['seconds']:11.4f} ms {memory}  x{ratios.get(work, 1.0):.3g}")
        versions = {peer: {"version": _version(peer), **figures[peer]} for peer in peers}
        rows.append({"case": name, "ours": figures[ours], "peers": versions, "ratios": ratios})
        if not options.quick:
            _write(Path(script).parent / "results" / f"{benchmark}.json", benchmark, options, rows)


def _write(path: Path, benchmark: str, options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    environment = {**public(provenance()), "threads": options.threads, "clock": options.clock}
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"benchmark": benchmark, "environment": environment, "rows": rows})


def _times(works: Mapping[str, Work], clock: Callable[[], float], repeats: int) -> dict[str, float]:
    best = dict.fromkeys(works, float("inf"))
    for work in works.values():
        if repeats > 1:
            work()
    for _ in range(repeats):
        for name, work in works.items():
            begin = clock()
            amount = work()
            best[name] = min(best[name], (clock() - begin) / amount)
    return best


def _memory(case: Case, name: str) -> int | None:
    work = case()[name]
    work()
    reset, status = Path("/proc/self/clear_refs"), Path("/proc/self/status")
    if not reset.exists():
        return None

    def resident(key: str) -> int:
        return next(int(x.split()[1]) * 1024 for x in status.read_text().splitlines() if x.startswith(key))

    reset.write_text("5")  # the peak starts anew from what is resident now
    before = resident("VmRSS")
    work()
    return max(0, resident("VmHWM") - before)


def _peak(command: list[str]) -> int | None:
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _version(peer: str) -> str:
    for distribution in ("liger-kernel", "cut-cross-entropy", "trl"):
        if peer.startswith(distribution):
            return metadata.version(distribution)
    return f"torch {torch.__version__}"
