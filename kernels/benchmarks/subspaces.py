"""Orthogonalisation of a block, contour moments and sparse products, beside plain torch, NumPy and SciPy.

    python kernels/benchmarks/subspaces.py [--quick] [--clock cpu] [--out kernels/benchmarks/results]

Sizes of an eigensolver: 10,000 and 50,000 rows, a basis of 150, blocks of 8; 8 moments of 32 columns; a
matrix of
13 entries a row. On a machine that others use, ``--clock cpu`` counts processor time.
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
import scipy
import scipy.sparse as sp
import torch
from icml_kernels import block_b_orth, moment_accumulate_, spmm_csr

NODE, WEIGHT = 0.6 + 0.8j, 0.1 + 0.2j
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


def column_by_column(q: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Gram-Schmidt, each column twice, as a solver with single vectors does."""
    done = [q]
    for j in range(w.shape[1]):
        x = w[:, j]
        for _ in range(2):
            for part in done:
                x = x - part @ (part.T @ x)
        done.append((x / np.linalg.norm(x))[:, None])
    return np.concatenate(done[1:], axis=1)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, nothing written")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = CLOCKS[options.clock]
    rows: list[dict[str, Any]] = []

    def report(case: str, seconds: float, peer: str, version: str, theirs: float) -> None:
        ratio = theirs / seconds
        peers = {peer: {"version": version, "seconds": theirs}}
        rows.append({"case": case, "ours": {"seconds": seconds}, "peers": peers, "ratios": {peer: ratio}})
        print(f"{case:44} {1e3 * seconds:9.3f} ms   {peer} {ratio:6.2f} times", flush=True)

    rng = np.random.default_rng(0)
    for n in (1000,) if options.quick else (10_000, 50_000):
        q, _ = np.linalg.qr(rng.normal(size=(n, 150)))
        w = rng.normal(size=(n, 8))
        tensors = torch.from_numpy(q), torch.from_numpy(w)
        ours = best(lambda t=tensors: block_b_orth(t[0], t[0], t[1], t[1]), clock)
        single = best(lambda q=q, w=w: column_by_column(q, w), clock)
        report(
            f"orthogonalise 8 against 150, {n} rows", ours, "numpy, column by column", np.__version__, single
        )
        s = torch.zeros(8, n, 32, dtype=torch.float64)
        y = torch.from_numpy(rng.normal(size=(n, 32)) + 1j * rng.normal(size=(n, 32)))
        stack, values = s.numpy().copy(), y.numpy()

        def plain(stack: np.ndarray = stack, values: np.ndarray = values) -> None:
            power = WEIGHT
            for k in range(len(stack)):
                stack[k] += (power * values).real
                power *= NODE

        ours = best(lambda s=s, y=y: moment_accumulate_(s, y, NODE, WEIGHT), clock)
        report(f"8 moments of 32 columns, {n} rows", ours, "numpy", np.__version__, best(plain, clock))
        m = sp.csr_array(sp.diags_array([np.ones(n)] * 13, offsets=list(range(-6, 7)), shape=(n, n)))
        csr = torch.from_numpy(m.data), torch.from_numpy(m.indices), torch.from_numpy(m.indptr)
        for b in (8, 64):
            x = rng.normal(size=(n, b))
            block = torch.from_numpy(x)
            ours = best(lambda c=csr, x=block: spmm_csr(*c, x), clock)
            report(
                f"13 entries a row times {b}, {n} rows",
                ours,
                "scipy",
                scipy.__version__,
                best(lambda m=m, x=x: m @ x, clock),
            )
    if options.quick:
        return
    environment = {"python": platform.python_version(), "threads": 1, "clock": options.clock}
    environment |= {"processor": platform.processor() or platform.machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "subspaces", "environment": environment, "rows": rows}
    (options.out / "subspaces.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
