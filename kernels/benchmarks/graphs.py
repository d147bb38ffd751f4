"""Wedges, cover passes and pivots on one core, beside NumPy where there is a plain way to do the same.

    python kernels/benchmarks/graphs.py [--clock cpu] [--out kernels/benchmarks/results]

Two graphs: planted clusters, with long rows and most wedges closed, and a sparse random graph. Wedges are
listed in blocks of a million, as their users do, so that the memory of a block is used again. On a machine
that others use, ``--clock cpu`` counts processor time.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels import mwu_cover_pass, pivot_rounds, wedge_count, wedge_enumerate
from scipy import sparse

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BLOCK = 2**20


def symmetric(u: np.ndarray, v: np.ndarray, n: int) -> sparse.csr_array:
    """The graph with these edges."""
    both = np.concatenate([u, v]), np.concatenate([v, u])
    matrix = sparse.csr_array((np.ones(len(both[0]), dtype=np.int8), both), shape=(n, n))
    matrix.setdiag(0)
    matrix.eliminate_zeros()
    matrix.sort_indices()
    return matrix


def planted(n: int, size: int, noise: int) -> sparse.csr_array:
    """Clusters of consecutive vertices, and wrong edges between them."""
    rng = np.random.default_rng(0)
    u, v = (index.ravel() for index in np.triu_indices(size, 1))
    starts = np.arange(0, n, size)[:, None]
    wrong = rng.integers(n, size=(2, noise))
    inside = (starts + u).ravel(), (starts + v).ravel()
    return symmetric(np.concatenate([inside[0], wrong[0]]), np.concatenate([inside[1], wrong[1]]), n)


def random_graph(n: int, edges: int) -> sparse.csr_array:
    """Edges between random vertices."""
    u, v = np.random.default_rng(1).integers(n, size=(2, edges))
    return symmetric(u, v, n)


def best(call: Callable[[], Any], clock: Callable[[], float], repeats: int = 3) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return min(taken)


def blocks(matrix: sparse.csr_array) -> list[tuple[int, int]]:
    """Entries of about a million wedges each."""
    degree = np.diff(matrix.indptr).astype(np.int64)
    later = np.repeat(matrix.indptr[1:], degree) - np.arange(matrix.nnz) - 1
    done = np.cumsum(later)
    cuts = np.searchsorted(done, np.arange(BLOCK, int(done[-1]), BLOCK))
    return list(pairwise([0, *cuts.tolist(), matrix.nnz]))


def numpy_wedges(matrix: sparse.csr_array, first: int, last: int) -> np.ndarray:
    """The same by NumPy: pairs of entries of a row, and binary search among all edges."""
    n, indptr, indices = matrix.shape[0], matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64)
    row = np.repeat(np.arange(n), np.diff(indptr))
    keys = row * n + indices
    entry = np.arange(first, last)
    later = indptr[row[entry] + 1] - entry - 1
    one = np.repeat(entry, later)
    other = one + 1 + np.arange(len(one)) - np.repeat(np.cumsum(later) - later, later)
    a, b = indices[one], indices[other]
    wanted = a * n + b
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    is_open = keys[place] != wanted
    return np.stack([row[one[is_open]], a[is_open], b[is_open]], axis=1)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = CLOCKS[options.clock]
    rows: list[dict[str, Any]] = []

    def report(case: str, seconds: float, work: int, unit: str, numpy_seconds: float | None = None) -> None:
        peers = (
            {} if numpy_seconds is None else {"numpy": {"version": np.__version__, "seconds": numpy_seconds}}
        )
        ratios = {name: peer["seconds"] / seconds for name, peer in peers.items()}
        ours = {"seconds": seconds, "work": work, "rate": work / seconds}
        rows.append({"case": case, "unit": unit, "ours": ours, "peers": peers, "ratios": ratios})
        beside = f"; NumPy {ratios['numpy']:.1f} times" if ratios else ""
        print(f"{case:40} {seconds:8.3f} s  {work / seconds:10.3g} {unit} a second{beside}", flush=True)

    graphs = {
        "planted, 4000 vertices": planted(4000, 100, 24_000),
        "random, 50000 vertices": random_graph(50_000, 700_000),
    }
    for name, matrix in graphs.items():
        csr = torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)
        degree = np.diff(matrix.indptr).astype(np.int64)
        wedges = int((degree * (degree - 1) // 2).sum())
        parts = blocks(matrix)
        report(f"count, {name}", best(lambda csr=csr: wedge_count(*csr), clock), wedges, "wedges")

        def listed(csr: Any = csr, parts: Any = parts) -> None:
            for part in parts:
                wedge_enumerate(*csr, block=part, trusted=True)

        seconds = best(listed, clock)
        some = parts[: max(1, len(parts) // 8)]
        share = (
            best(lambda m=matrix, s=some: [numpy_wedges(m, *p) for p in s], clock, 1) * len(parts) / len(some)
        )
        report(f"list, {name}", seconds, wedges, "wedges", share)
        rng = np.random.default_rng(2)
        runs = 20
        bits = [torch.from_numpy(rng.integers(-(2**63), 2**63, k)) for k in (matrix.shape[0], runs, runs)]
        chance = torch.ones(matrix.nnz, dtype=torch.float64)
        work = runs * matrix.nnz // 2
        report(
            f"pivot, {name}",
            best(lambda c=csr, p=chance, b=bits: pivot_rounds(*c, p, *b), clock),
            work,
            "edges",
        )
    rng = np.random.default_rng(3)
    triples, edges = 2_000_000, 300_000
    index = torch.from_numpy(rng.integers(edges, size=(triples, 3)).astype(np.int32))
    ones, none = torch.ones(edges, dtype=torch.float64), torch.zeros(triples, dtype=torch.float64)
    half = mwu_cover_pass(index, ones, ones, none, 3.3, 0.2)
    seconds = best(lambda: mwu_cover_pass(index, ones, *half, 3.5, 0.2, 10, trusted=True), clock)
    report("ten cover passes, random triples", seconds, 10 * triples, "triples")
    environment = {"python": platform.python_version(), "threads": 1, "clock": options.clock}
    environment |= {"processor": platform.processor() or platform.machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "graphs", "environment": environment, "rows": rows}
    (options.out / "graphs.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
