"""The operators of neurons beside plain torch and SciPy, on one core.

    python kernels/benchmarks/neurons.py [--small] [--clock cpu] [--out kernels/benchmarks/results]

``hines_solve`` in nanoseconds an unknown beside SciPy's sparse solver and the definition; ``hh_run``, forward
and with its gradient, in nanoseconds a compartment and step beside the definition, and how both grow.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels import hh_run, hines_solve
from icml_kernels.neurons.hh_run.cases import arguments, membrane
from icml_kernels.neurons.hines_solve import cases as trees
from icml_kernels.testing import use_route
from scipy import sparse
from scipy.sparse.linalg import splu

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


def scipy_solves(given: tuple[Any, ...]) -> Callable[[], Any]:
    """A factorisation and a solve for every column; the matrices are put together beforehand."""
    parent, d, u, l, rhs = (t.numpy() for t in given)
    child = np.flatnonzero(parent >= 0)
    above, own = parent[child], np.arange(len(parent))
    rows, columns = np.concatenate([own, child, above]), np.concatenate([own, above, child])
    made = [
        sparse.csc_matrix((np.concatenate([d[:, b], u[child, b], l[child, b]]), (rows, columns)))
        for b in range(rhs.shape[1])
    ]
    return lambda: [splu(a).solve(rhs[:, b]) for b, a in enumerate(made)]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = CLOCKS[options.clock]
    rows = []

    def report(case: str, ours: float, peers: dict[str, float]) -> None:
        ratios = {n: s / ours for n, s in peers.items()}
        rows.append(
            {
                "case": case,
                "unit": "ns",
                "ours": {"seconds": ours * 1e-9},
                "peers": {n: {"seconds": s * 1e-9} for n, s in peers.items()},
                "ratios": ratios,
            }
        )
        beside = ", ".join(f"{n} {s:.4g} ({ratios[n]:.1f} times)" for n, s in peers.items())
        print(f"{case:52} {ours:9.4g} ns  {beside}", flush=True)

    nodes = 40 if options.small else 200
    for batch in (1, 64, 1024) if not options.small else (8,):
        given = trees.arguments(nodes, batch, "random")
        unit = 1e9 / (nodes * batch)
        ours = unit * best(lambda g=given: hines_solve(*g), clock)
        peers = {"scipy": unit * best(scipy_solves(given), clock, 2)} if batch <= 64 else {}
        with use_route("reference"):
            peers["definition"] = unit * best(lambda g=given: hines_solve(*g), clock, 2)
        report(f"hines_solve, {nodes} nodes, batch {batch}", ours, peers)
    for kind in ("squid", "calcium"):
        for batch, steps in ((1, 200), (64, 200), (256, 200), (64, 800)) if not options.small else ((8, 10),):
            given = list(arguments(kind, nodes, batch, steps))
            given[5], given[6] = 0.1 * given[5][:1].contiguous(), given[6][:1].contiguous()
            table, site = membrane(kind), torch.tensor([0], dtype=torch.int32)

            def forward(given=given, table=table, site=site) -> Any:
                return hh_run(*given, table, site, dt=0.025)

            def both(given=given, table=table, site=site) -> None:
                leaves = [t.clone().requires_grad_() if k in (1, 2, 3, 5) else t for k, t in enumerate(given)]
                hh_run(*leaves, table, site, dt=0.025).trace.sum().backward()

            unit = 1e9 / (nodes * batch * steps)
            for name, call in (("forward", forward), ("with the gradient", both)):
                ours = unit * best(call, clock, 3)
                peers = {}
                if batch == 64 and steps == 200:
                    with use_route("reference"):
                        peers["definition"] = unit * best(call, clock, 1)
                report(f"hh_run, {kind}, batch {batch}, {steps} steps, {name}", ours, peers)
    if not options.small:
        options.out.mkdir(parents=True, exist_ok=True)
        environment = {
            "python": platform.python_version(),
            "processor": platform.machine(),
            "clock": options.clock,
        }
        document = {"benchmark": "neurons", "environment": environment, "rows": rows}
        (options.out / "neurons.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
