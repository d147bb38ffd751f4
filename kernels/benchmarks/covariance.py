"""Gram matrices of layers and moments of spectra beside plain torch, one thread.

    python kernels/benchmarks/covariance.py [--clock cpu] [--small] [--out kernels/benchmarks/results]

Gram matrices: beside a permuted copy and a batched product. Their floor is 2 n^2 D L operations for whole
matrices, half of it for a symmetric update; the table gives Gflop/s of the former. Moments with their
gradient: beside eigenvalues.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from icml_kernels import batched_gram, spectrum_moments

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


def gram_peers(x: torch.Tensor, dtype: torch.dtype) -> dict[str, Callable[[], Any]]:
    """What people write."""

    def product() -> torch.Tensor:
        layers = x.transpose(0, 1).to(dtype).contiguous()
        layers = layers - layers.mean(1, keepdim=True)
        return torch.bmm(layers, layers.mT)

    def einsum() -> torch.Tensor:
        centred = x.to(dtype) - x.to(dtype).mean(0)
        return torch.einsum("nld,mld->lnm", centred, centred)

    return {"torch.bmm": product, "torch.einsum": einsum}


def with_gradient(x: torch.Tensor, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], Any]:
    """Value and gradient of the variance of the spectrum."""

    def both() -> None:
        leaf = x.clone().requires_grad_()
        value(leaf).backward()

    return both


def by_eigenvalues(x: torch.Tensor) -> torch.Tensor:
    """Variance of the D eigenvalues, through their decomposition."""
    centred = x - x.mean(0)
    return torch.linalg.eigvalsh(centred.T @ centred / (len(x) - 1)).var()


def by_covariance(x: torch.Tensor) -> torch.Tensor:
    """The same from the D x D covariance, by autograd."""
    centred = x - x.mean(0)
    c = centred.T @ centred / (len(x) - 1)
    return (c.square().sum() - c.trace() ** 2 / len(c)) / (len(c) - 1)


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = CLOCKS[options.clock]
    rows: list[dict[str, Any]] = []
    environment = {
        "python": platform.python_version(),
        "torch": version("torch"),
        "threads": 1,
        "clock": options.clock,
        "processor": platform.processor() or platform.machine(),
    }

    def report(case: str, ours: float, peers: dict[str, float], note: str = "") -> None:
        row = {"case": case, "ours": {"seconds": ours}, "ratios": {n: s / ours for n, s in peers.items()}}
        row["peers"] = {n: {"version": version("torch"), "seconds": s} for n, s in peers.items()}
        rows.append(row)
        beside = ", ".join(f"{n} {s / ours:.2f} times" for n, s in peers.items())
        print(f"{case:44} {1e3 * ours:10.2f} ms {note}  {beside}", flush=True)
        if not options.small:
            options.out.mkdir(parents=True, exist_ok=True)
            document = {"benchmark": "covariance", "environment": environment, "rows": rows}
            text = json.dumps(document, indent=1) + "\n"
            (options.out / "covariance.json").write_text(text, encoding="utf-8")

    shapes = (
        [(16, 2, 8)] if options.small else [(128, 12, 768), (512, 12, 768), (512, 24, 1024), (1024, 12, 768)]
    )
    for n, layers, dim in shapes:
        x = torch.randn(n, layers, dim, generator=torch.Generator().manual_seed(0))
        for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
            seconds = best(lambda x=x, d=dtype: batched_gram(x, out_dtype=d), clock, 3)
            peers = {k: best(call, clock, 3) for k, call in gram_peers(x, dtype).items()}
            rate = 2e-9 * n * n * dim * layers / seconds
            report(f"Gram, n={n}, L={layers}, D={dim}, {name}", seconds, peers, f"{rate:6.1f} Gflop/s")
    sizes = [(8, 16)] if options.small else [(128, 256), (128, 512), (128, 1024), (128, 2048), (1024, 256)]
    for batch, dim in sizes:
        x = torch.randn(batch, dim, generator=torch.Generator().manual_seed(0))
        ours = best(with_gradient(x, lambda v, d=dim: spectrum_moments(v).variance(d, 1)), clock, 20)
        repeats = 2 if dim > 512 else 5
        peers = {
            "eigvalsh": best(with_gradient(x, by_eigenvalues), clock, repeats),
            "the covariance": best(with_gradient(x, by_covariance), clock, repeats),
        }
        report(f"variance and gradient, B={batch}, D={dim}", ours, peers)


if __name__ == "__main__":
    main()
