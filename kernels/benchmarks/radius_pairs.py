"""Neighbour lists side by side with vesin: sorted half lists with periodic shifts, on the CPU.

    python kernels/benchmarks/radius_pairs.py [--threads 2] [--out kernels/benchmarks/results]

Ours also holds the transpose of the list, which vesin does not build. Both run at the same number of
threads, in turns; the smallest of the times is reported. On a machine that others use,
``--threads 1 --clock cpu`` counts processor time instead.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels import radius_pairs

Call = Callable[[], int]
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CASES = (
    # name, beads, beads/Å³, cutoff in Å, periodic
    ("water-like, 1k beads, 5 Å", 1_000, 0.1, 5.0, True),
    ("water-like, 10k beads, 5 Å", 10_000, 0.1, 5.0, True),
    ("water-like, 10k beads, 6 Å", 10_000, 0.1, 6.0, True),
    ("coarse-grained, 10k beads, 10 Å", 10_000, 0.03, 10.0, True),
    ("water-like, 100k beads, 5 Å", 100_000, 0.1, 5.0, True),
    ("open, 10k beads, 5 Å", 10_000, 0.1, 5.0, False),
    ("64 replicas of 269 beads, 15 Å", 64 * 269, 0.0042, 15.0, False),
)


def system(n_beads: int, density: float, n_replicas: int) -> tuple[np.ndarray, np.ndarray]:
    """Uniform positions [beads, 3] and the cubic cell that holds one replica."""
    cell = np.eye(3) * (n_beads / n_replicas / density) ** (1 / 3)
    return np.random.default_rng(0).random((n_beads, 3)) @ cell, cell


def ours(pos: np.ndarray, cell: np.ndarray, cutoff: float, periodic: bool, n_replicas: int) -> Call:
    """A call of radius_pairs that gives the number of pairs."""
    x = torch.from_numpy(pos)
    ptr = torch.arange(n_replicas + 1) * (len(pos) // n_replicas)
    options = {"cell": torch.from_numpy(cell)} if periodic else {}
    return lambda: radius_pairs(x, ptr, cutoff, **options)[0].capacity


def vesins(pos: np.ndarray, cell: np.ndarray, cutoff: float, periodic: bool, n_replicas: int) -> Call:
    """The same from vesin, a replica at a time."""
    from vesin import NeighborList

    lists = NeighborList(cutoff=cutoff, full_list=False, sorted=True)
    quantities = "ijS" if periodic else "ij"

    def call() -> int:
        found = 0
        for replica in np.split(pos, n_replicas):
            found += len(lists.compute(points=replica, box=cell, periodic=periodic, quantities=quantities)[0])
        return found

    return call


BUILDERS: dict[str, Callable[..., Call]] = {"icml": ours, "vesin": vesins}


def case_of(name: str) -> tuple[np.ndarray, np.ndarray, float, bool, int]:
    """Arguments of the builders for one row of the table."""
    _, n_beads, density, cutoff, periodic = next(case for case in CASES if case[0] == name)
    n_replicas = 64 if "replicas" in name else 1
    return (*system(n_beads, density, n_replicas), cutoff, periodic, n_replicas)


def race(
    calls: dict[str, Call], repeats: int, clock: Callable[[], float]
) -> tuple[dict[str, float], dict[str, int]]:
    """Smallest time of each call, the calls taking turns, and what each returned."""
    seconds, values = dict.fromkeys(calls, float("inf")), {}
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            values[name] = call()
            seconds[name] = min(seconds[name], clock() - start)
    return seconds, values


def peak_bytes(builder: str, name: str) -> int | None:
    """Growth of a fresh process's memory while it builds a list; None where /proc does not tell."""
    if not Path("/proc/self/statm").exists():
        return None
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_build_once, args=(there, builder, name))
    process.start()
    # Without this end here, a child that dies is seen.
    there.close()
    here.recv()
    before = peak = _resident_bytes(process.pid)
    here.send("build")
    while not here.poll(0.0005):
        peak = max(peak, _resident_bytes(process.pid))
    peak = max(peak, _resident_bytes(process.pid))
    here.send("end")
    process.join()
    return peak - before


def _build_once(pipe: Connection, builder: str, name: str) -> None:
    for periodic in (True, False):
        # Loads the code.
        BUILDERS[builder](*system(100, 0.1, 1), 5.0, periodic, 1)()
    call = BUILDERS[builder](*case_of(name))
    pipe.send("ready")
    pipe.recv()
    call()
    pipe.send("done")
    pipe.recv()


def _resident_bytes(pid: int | None) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    """Run every case, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for name, *_ in CASES:
        arguments = case_of(name)
        calls = {who: build(*arguments) for who, build in BUILDERS.items()}
        seconds, pairs = race(calls, options.repeats, CLOCKS[options.clock])
        if pairs["icml"] != pairs["vesin"]:
            raise RuntimeError(f"{name}: the lists differ in length: {pairs}")
        used = {who: peak_bytes(who, name) for who in BUILDERS}
        ratio = seconds["vesin"] / seconds["icml"]
        rows.append(
            {
                "case": name,
                "pairs": pairs["icml"],
                "ours": {"seconds": seconds["icml"], "peak_bytes": used["icml"]},
                "peers": {
                    "vesin": {
                        "version": version("vesin"),
                        "seconds": seconds["vesin"],
                        "peak_bytes": used["vesin"],
                    }
                },
                "ratios": {"vesin": ratio},
            }
        )
        ours_of, vesin_of = (
            f"{1e3 * seconds[w]:7.1f} ms {(used[w] or 0) / 2**20:5.0f} MiB" for w in BUILDERS
        )
        print(f"{name:32} {pairs['icml']:9,} pairs | icml {ours_of} | vesin {vesin_of} | {ratio:.2f}x")
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    environment |= {
        "threads": options.threads,
        "clock": options.clock,
        "processor": platform.processor() or platform.machine(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "radius_pairs", "environment": environment, "rows": rows}
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (options.out / "radius_pairs.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
