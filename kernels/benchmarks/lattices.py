"""Markov chains on lattices beside the definition in plain torch, in nanoseconds a site or change.

python kernels/benchmarks/lattices.py [--clock cpu] [--small] [--out kernels/benchmarks/results]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_kernels import hamming_ball_mh, sparse_terms, swendsen_wang
from icml_kernels.testing import use_route

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def best(call: Callable[[], Any], clock: Callable[[], float], repeats: int = 5) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return min(taken)


def reference(call: Callable[[], Any]) -> Callable[[], Any]:
    """The same by the definition in plain torch."""

    def run() -> None:
        with use_route("reference"):
            call()

    return run


def clusters(L: int, p: float, count: int) -> tuple[int, Callable[[], Any]]:
    """Swendsen-Wang sweeps of eight lattices."""
    g = torch.Generator().manual_seed(0)
    spins = torch.randint(0, 2, (8, L, L), generator=g).to(torch.int8)
    spins = swendsen_wang(spins, p, 2, 50, 0).spins
    return 8 * L * L * count, lambda: swendsen_wang(spins, p, 2, count, 1)


def changes(L: int, radius: int, count: int) -> tuple[int, Callable[[], Any]]:
    """Steps of 64 chains on an Ising lattice."""
    index = torch.arange(L * L).view(L, L)
    pairs = [
        list(pair)
        for axis in (0, 1)
        for pair in zip(index.flatten().tolist(), index.roll(-1, axis).flatten().tolist(), strict=True)
    ]
    terms = sparse_terms(L * L, pairs, torch.full((len(pairs),), 0.4), torch.tensor([-1.0, 1.0]))
    x = torch.randint(0, 2, (64, L * L), generator=torch.Generator().manual_seed(0))
    beta = torch.ones(64, dtype=torch.float64)
    return 64 * radius * count, lambda: hamming_ball_mh(x, beta, terms, radius, count, 1)


def main() -> None:
    """Run all cases, writing after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("kernels/benchmarks/results"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    clock, scale = CLOCKS[given.clock], 10 if given.small else 1
    cases = {
        "swendsen_wang, L = 64, p = 0.45": lambda n: clusters(64, 0.45, n),
        "swendsen_wang, L = 64, p = 0.586 (critical)": lambda n: clusters(64, 0.586, n),
        "swendsen_wang, L = 64, p = 0.7": lambda n: clusters(64, 0.7, n),
        "hamming_ball_mh, one change": lambda n: changes(16, 1, 10 * n),
        "hamming_ball_mh, five changes": lambda n: changes(16, 5, 2 * n),
    }
    environment = {"python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    report: dict[str, Any] = {"benchmark": "lattices", "environment": environment, "rows": []}
    for name, make in cases.items():
        items, own = make(200 // scale)
        few, slow = make(2)
        seconds, definition = best(own, clock) / items, best(reference(slow), clock, 2) / few
        print(f"{name}: {seconds * 1e9:.1f} ns; definition {definition / seconds:.0f} times", flush=True)
        report["rows"].append(
            {
                "case": name,
                "items": items,
                "ours": {"seconds": seconds * items, "peak_bytes": None},
                "peers": {"definition": {"version": "", "seconds": definition * items, "peak_bytes": None}},
                "ratios": {"definition": definition / seconds},
            }
        )
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "lattices.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
