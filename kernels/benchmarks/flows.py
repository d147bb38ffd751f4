"""Operators of flow networks on one thread beside plain torch, NumPy and networkx, in nanoseconds an item.

    python kernels/benchmarks/flows.py [--clock cpu] [--small] [--out kernels/benchmarks/results]

A peer that is not installed is left out. On a machine that others use, ``--clock cpu`` counts processor time.
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
from icml_kernels import BlockKinds, canonical_trees, dag_levels, segment_logsumexp, unique_rows
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


def logsumexp_case(rows: int, longest: int) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Value and gradient over ragged rows."""
    generator = torch.Generator().manual_seed(0)
    counts = torch.randint(1, longest + 1, (rows,), generator=generator)
    ptr = torch.cat([torch.zeros(1), counts.cumsum(0)]).to(torch.int32)
    values = torch.randn(int(ptr[-1]), generator=generator).requires_grad_()

    def own() -> None:
        (torch.autograd.grad(segment_logsumexp(values, ptr).sum(), values))

    index = torch.repeat_interleave(torch.arange(rows), counts)

    def scattered() -> None:
        top = torch.full((rows,), -torch.inf).scatter_reduce(0, index, values.detach(), "amax")
        total = torch.zeros(rows).index_add(0, index, torch.exp(values - top[index]))
        torch.autograd.grad((top + torch.log(total)).sum(), values)

    return len(values), own, {"plain torch": scattered}


def rows_case(n: int, width: int) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Distinct rows, each twice on average."""
    rows = np.random.default_rng(0).integers(0, 3, (n // 2, width)).astype(np.int16)
    doubled = torch.from_numpy(
        np.concatenate([rows, rows])[np.random.default_rng(1).permutation(2 * len(rows))]
    )
    peers = {
        "torch.unique": lambda: torch.unique(doubled, dim=0, return_inverse=True),
        "numpy.unique": lambda: np.unique(doubled.numpy(), axis=0, return_inverse=True),
    }
    return n, lambda: unique_rows(doubled), peers


def levels_case(n: int) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """A layered graph of four children a vertex."""
    rng = np.random.default_rng(0)
    parents = np.repeat(np.arange(n - 100), 4)
    children = parents + rng.integers(1, 100, len(parents))
    ptr = torch.from_numpy(np.searchsorted(parents, np.arange(n + 1)).astype(np.int64))
    ends = torch.from_numpy(children)
    peers: dict[str, Callable[[], Any]] = {}
    try:
        import networkx as nx
    except ImportError:
        print("networkx is not installed; it is left out")
    else:
        graph = nx.DiGraph(list(zip(parents.tolist(), children.tolist(), strict=True)))
        peers["networkx"] = lambda: list(nx.topological_generations(graph))
    return len(ends), lambda: dag_levels(ptr, ends), peers


def trees_case(n: int, nodes: int) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Trees of stars with three equal slots."""
    generator = torch.Generator().manual_seed(0)
    trees = torch.full((n, 4, nodes), -1)
    trees[:, 0] = 0
    for i in range(1, nodes):
        trees[:, 1, i] = (i - 1) // 2
        trees[:, 2, i] = torch.where(torch.tensor(i == 1 or i == 2), i - 1, 1 + (i - 1) % 2)
        trees[:, 3, i] = 0
    trees[:, 0, nodes // 2 :] = torch.randint(0, 2, (n, nodes - nodes // 2), generator=generator)
    perms = torch.tensor([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
    kinds = BlockKinds(torch.tensor([3, 3]), torch.tensor([0, 6, 12]), torch.cat([perms, perms]))
    few = trees[: max(1, n // 200)]

    def by_definition() -> None:
        with use_route("reference"):
            canonical_trees(few, kinds)

    return n, lambda: canonical_trees(trees, kinds), {"definition (1/200 of them)": by_definition}


def main() -> None:
    """Run all cases, writing after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("kernels/benchmarks/results"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    clock, scale = CLOCKS[given.clock], 50 if given.small else 1
    cases = {
        "segment_logsumexp, value and gradient, rows of 1 to 5": lambda: logsumexp_case(400_000 // scale, 5),
        "segment_logsumexp, value and gradient, rows of 1 to 200": lambda: logsumexp_case(
            10_000 // scale, 200
        ),
        "unique_rows, 33 numbers a row": lambda: rows_case(400_000 // scale, 33),
        "dag_levels, 4 children a vertex": lambda: levels_case(400_000 // scale),
        "canonical_trees, 8 blocks of 3 equal slots": lambda: trees_case(100_000 // scale, 8),
    }
    report: dict[str, Any] = {
        "benchmark": "flows",
        "environment": {"python": platform.python_version(), "torch": torch.__version__, "threads": 1},
        "rows": [],
    }
    for name, make in cases.items():
        items, own, peers = make()
        seconds = best(own, clock)
        others = {peer: best(call, clock, 3) for peer, call in peers.items()}
        if "definition (1/200 of them)" in others:
            others = {"definition": others["definition (1/200 of them)"] * 200}
        print(
            f"{name}: {seconds / items * 1e9:.1f} ns; "
            + ", ".join(f"{peer} {t / seconds:.1f} times" for peer, t in others.items()),
            flush=True,
        )
        report["rows"].append(
            {
                "case": name,
                "items": items,
                "ours": {"seconds": seconds, "peak_bytes": None},
                "peers": {p: {"version": "", "seconds": t, "peak_bytes": None} for p, t in others.items()},
                "ratios": {p: t / seconds for p, t in others.items()},
            }
        )
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "flows.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
