"""An optimizer step alone: SSO and MuonSphere beside Muon, AdamW, and other steepest-descent optimizers.

    python packages/sso/benchmarks/step.py [--quick] [--device cpu] [--out packages/sso/benchmarks/results]

Gradients are given, so that nothing but the step is timed. Muon-like optimizers take eight Newton-Schulz
steps. Each line is the median of several steps after two that are not counted, one process, one thread; fewer
where they take long, and only the last of one or two where that takes over 40 or 3 seconds. Peak memory is
what the step allocates beyond parameters, gradients and state: by torch's profiler, or a GPU's allocator.
Peers that are not installed (requirements.txt) are left out, with a message. The results are written after
each case.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from icml_sso import SSO, MuonSphere
from torch import nn

NS_STEPS = 8
ENOUGH = 4.0  # seconds, after which two counted steps are enough
# Seconds of the first step, which may compile, and of the second, after which no other is taken.
SLOW = (40.0, 3.0)
CASES = {
    "4 x 512 x 512": [(512, 512)] * 4,
    "4 x 512 x 2048": [(512, 2048)] * 4,
    "a block of width 512": [(512, 512)] * 4 + [(1408, 512)] * 2 + [(512, 1408)],
}
QUICK = {"2 x 64 x 128": [(64, 128)] * 2}


def heads(params: list[nn.Parameter], lr: float, **options: Any) -> SSO:
    """Every parameter whole, as the peers take it."""
    return SSO([{"params": params, "kind": "matrix"}], lr=lr, msign_steps=NS_STEPS, **options)


def optimizers() -> dict[str, tuple[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]]]:
    """Name -> version and how it is made, at its own best settings and as many Newton-Schulz steps."""
    found: dict[str, tuple[str, Callable[..., Any]]] = {
        "torch.optim.Muon": (
            torch.__version__,
            lambda p: torch.optim.Muon(p, lr=1e-2, momentum=0.9, weight_decay=0.0, ns_steps=NS_STEPS),
        ),
        "SSO": ("", lambda p: heads(p, 1e-2)),
        "SSO, float32 matrix signs": ("", lambda p: heads(p, 1e-2, msign_dtype=torch.float32)),
        "SSO, the paper's bisection": ("", lambda p: heads(p, 1e-2, solver="bisection")),
        "MuonSphere": (
            "",
            lambda p: MuonSphere([{"params": p, "kind": "matrix"}], 1e-2, msign_steps=NS_STEPS),
        ),
        "torch.optim.AdamW": (torch.__version__, lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=True)),
    }
    peer, muon = _peer("pytorch_optimizer", "SpectralSphere"), _peer("heavyball", "ForeachMuon")
    if peer is not None:
        found["pytorch-optimizer SpectralSphere"] = (
            _version("pytorch-optimizer"),
            lambda p: peer(p, lr=1e-2),
        )
    if (muon := muon or _peer("heavyball", "Muon")) is not None:
        found["heavyball Muon"] = (_version("heavyball"), lambda p: muon(p, lr=1e-2))
    return found


def _peer(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        print(f"{module} is left out: {error}", file=sys.stderr)
        return None


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""


def measure(
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    shapes: list[tuple[int, int]],
    device: str,
    repeats: int,
) -> tuple[float, int | None]:
    """Median seconds of a step, and peak bytes that a step allocates; None of one that is too slow."""
    generator = torch.Generator().manual_seed(0)
    params = [nn.Parameter((0.05 * torch.randn(s, generator=generator)).to(device)) for s in shapes]
    optimizer = make(params)

    def prepare() -> None:
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(device)
        if device != "cpu":
            torch.cuda.synchronize()

    taken = []
    for repeat in range(repeats + 2):
        prepare()
        begin = time.perf_counter()
        optimizer.step()
        if device != "cpu":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
        if repeat < 2 and taken[repeat] > SLOW[repeat]:
            return taken[repeat], None
        if repeat >= 3 and sum(taken[1:]) > ENOUGH:
            break
    taken = taken[2:]
    prepare()
    return sorted(taken)[len(taken) // 2], _peak(optimizer.step, device)


def _peak(call: Callable[[], Any], device: str) -> int:
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    held = peak = 0
    for event in record.profiler.kineto_results.events():  # allocations and releases in order
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one tiny case, to see that everything runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    contestants = optimizers()
    for case, shapes in (QUICK if options.quick else CASES).items():
        results = {}
        for name, (number, make) in contestants.items():
            seconds, peak = measure(make, shapes, options.device, options.repeats)
            results[name] = {"version": number, "seconds": seconds, "peak_bytes": peak}
            muon = results["torch.optim.Muon"]["seconds"]
            memory = "" if peak is None else f"{peak / 2**20:8.1f} MiB"
            print(
                f"{case:24} {name:34} {1e3 * seconds:9.2f} ms {seconds / muon:7.2f} x Muon {memory}",
                flush=True,
            )
        ours = results.pop("SSO")
        ratios = {name: row["seconds"] / ours["seconds"] for name, row in results.items()}
        rows.append({"case": case, "ours": ours, "peers": results, "ratios": ratios})
        write(rows, options)


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Write what has been measured so far."""
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": options.device,
        "threads": 1,
        "processor": platform.processor() or platform.machine(),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    document = {"benchmark": "step", "environment": environment, "rows": rows}
    temporary = options.out / "step.json.tmp"
    temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    temporary.replace(options.out / "step.json")


if __name__ == "__main__":
    main()
