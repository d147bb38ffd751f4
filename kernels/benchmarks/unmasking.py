"""Operators of unmasking samplers beside plain torch, in nanoseconds an item.

python kernels/benchmarks/unmasking.py [--clock cpu] [--small] [--out kernels/benchmarks/results]
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
from icml_kernels import prefix_embed_cumsum, unmask_step

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


def prefixes(
    paths: int, sites: int, hidden: int
) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """Value and gradient of all prefixes, one site a step."""
    g = torch.Generator().manual_seed(0)
    weight = torch.randn(sites, 3, hidden, generator=g).requires_grad_()
    x = torch.randint(0, 2, (paths, sites), generator=g)
    order = torch.rand(paths, sites, generator=g).argsort(1)
    sizes = torch.arange(sites)

    def own() -> None:
        torch.autograd.grad(prefix_embed_cumsum(weight, x, order, sizes, trusted=True).sum(), weight)

    rank = torch.empty_like(order).scatter_(1, order, sizes.expand_as(order))
    places = torch.arange(sites) * 3

    def bags() -> None:
        states = torch.where(rank[None] < sizes[:, None, None], x[None], 2).flatten(0, 1) + places
        pre = torch.nn.functional.embedding_bag(states, weight.flatten(0, 1), mode="sum")
        torch.autograd.grad(pre.sum(), weight)

    def cumulated() -> None:
        shown = weight[order, x.gather(1, order)] - weight[order, 2]
        pre = weight[:, 2].sum(0) + shown.cumsum(1) - shown
        torch.autograd.grad(pre.sum(), weight)

    return paths * sites * hidden, own, {"embedding bags": bags, "torch.cumsum": cumulated}


def draws(rows: int, symbols: int) -> tuple[int, Callable[[], Any], dict[str, Callable[[], Any]]]:
    """One symbol a row, with its log-probability."""
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, 1, symbols, generator=g)
    uniform = torch.rand(rows, 1, generator=g, dtype=torch.float64)

    def multinomial() -> None:
        logp = logits[:, 0].log_softmax(-1)
        logp.gather(1, torch.multinomial(logp.exp(), 1, generator=g))

    def gumbel() -> None:
        logp = logits[:, 0].log_softmax(-1)
        noise = -torch.empty_like(logp).exponential_(generator=g).log()
        logp.gather(1, (logp + noise).argmax(1, keepdim=True))

    return (
        rows * symbols,
        lambda: unmask_step(logits, uniform),
        {"multinomial": multinomial, "gumbel": gumbel},
    )


def main() -> None:
    """Run all cases, writing after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("kernels/benchmarks/results"))
    given = parser.parse_args()
    torch.set_num_threads(1)
    clock, scale = CLOCKS[given.clock], 8 if given.small else 1
    cases = {
        "prefix_embed_cumsum, 128 paths, 64 sites": lambda: prefixes(128 // scale, 64, 256),
        "prefix_embed_cumsum, 128 paths, 256 sites": lambda: prefixes(128 // scale, 256, 256),
        "unmask_step, 2 symbols": lambda: draws(4096 // scale, 2),
        "unmask_step, 64 symbols": lambda: draws(4096 // scale, 64),
    }
    environment = {"python": platform.python_version(), "torch": torch.__version__, "threads": 1}
    report: dict[str, Any] = {"benchmark": "unmasking", "environment": environment, "rows": []}
    for name, make in cases.items():
        items, own, peers = make()
        seconds = best(own, clock)
        others = {peer: best(call, clock, 3) for peer, call in peers.items()}
        ratios = {peer: t / seconds for peer, t in others.items()}
        text = ", ".join(f"{peer} {r:.1f} times" for peer, r in ratios.items())
        print(f"{name}: {seconds / items * 1e9:.2f} ns; {text}", flush=True)
        report["rows"].append(
            {
                "case": name,
                "items": items,
                "ours": {"seconds": seconds, "peak_bytes": None},
                "peers": {p: {"version": "", "seconds": t, "peak_bytes": None} for p, t in others.items()},
                "ratios": ratios,
            }
        )
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "unmasking.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
