"""Whole training steps of a decoder: SSO beside MuonSphere, Muon, AdamW and the optimizers of other packages.

    python benchmarks/pretraining.py            # widths 64, 192 and 384, three layers, on this machine
    python benchmarks/pretraining.py --device cuda --widths 1024 2048 --layers 8 --batch 16 --context 2048
    python benchmarks/pretraining.py --quick    # a small case, to see that it runs

Every contestant trains in a process of its own with the same number of threads, from the same weights, on the
same windows of the standard library's sources. Seconds are medians of whole steps (forward, backward,
optimizer) and of the optimizer's part; memory is the growth of the resident set (CPU) or the allocator's peak
(CUDA). The held-out loss is that at the end, at equal steps and a common learning rate. torch.optim.Muon
splits nothing and has five Newton-Schulz steps of its own; SpectralSphere is that of pytorch-optimizer, on
the same matrices, where installed. A contestant that takes longer than --limit seconds stops there: its
medians are those of the steps it has done, and it has no loss. Prints a table, and writes
benchmarks/results/pretraining.json after each width.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "pretraining.json"
OURS = "sso"
OWN = ("sso", "muonsphere", "muon", "adamw")
PEERS = ("torch.optim.Muon", "pytorch-optimizer")
WARM_UP = 3


class Joined:
    """Two optimizers as one: of matrices, and of everything else."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def step(self) -> None:
        """Step both."""
        for part in self.parts:
            part.step()


def optimizer_of(name: str, model: Any, lr: float) -> Any:
    """The contestant's optimizer."""
    import torch
    from icml_sso.named_optimizers import ADAMW_BETAS, named_optimizer

    if name in OWN:
        return named_optimizer(name, model, lr=lr)
    matrices = [p for n, p in model.named_parameters() if ".layers." in n and p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    rest = torch.optim.AdamW(others, lr=lr, betas=ADAMW_BETAS, weight_decay=0.1)
    if name == "torch.optim.Muon":
        return Joined(torch.optim.Muon(matrices, lr=lr, momentum=0.9, weight_decay=0.1), rest)
    from pytorch_optimizer import SpectralSphere

    return Joined(SpectralSphere(matrices, lr=lr), rest)


def probe(text: str) -> None:
    """Train one contestant on one case, and print its figures as JSON."""
    case = json.loads(text)
    import torch
    from icml_core.run import peak_memory
    from icml_sso.corpus import standard_library
    from icml_sso.pretraining import Pretraining, PretrainingOptions
    from icml_sso.small_trainings import decoder

    torch.set_num_threads(case["threads"])
    device = case["device"]
    options = PretrainingOptions(
        optimizer="adamw",
        lr=case["lr"],
        steps=case["steps"],
        batch=case["batch"],
        measure_every=0,
        spectra_every=0,
        precision="bfloat16" if device.startswith("cuda") else "float32",
    )
    model = decoder(case["width"], case["layers"], context=case["context"])
    training = Pretraining(model, standard_library(), options, seed=case["seed"], device=device)
    before = peak_memory() or 0
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
    optimizer = optimizer_of(case["name"], training.model, case["lr"])

    def now() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    whole, own = [], []
    for step in range(case["steps"]):
        if sum(whole) > case["limit"]:
            break
        training.step = step
        begin = now()
        training._gradient()
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        middle = now()
        optimizer.step()
        end = now()
        whole.append(end - begin)
        own.append(end - middle)
    timed = slice(WARM_UP if len(whole) > 2 * WARM_UP else len(whole) // 2, None)
    peak = torch.cuda.max_memory_allocated() if device.startswith("cuda") else (peak_memory() or 0) - before
    figures = {
        "seconds": statistics.median(whole[timed]),
        "optimizer_seconds": statistics.median(own[timed]),
        "peak_bytes": peak,
        "steps": len(whole),
        "validation": training.evaluate() if len(whole) == case["steps"] else None,
        "version": _version(case["name"]),
    }
    print(json.dumps(figures))


def _version(name: str) -> str:
    package = {"torch.optim.Muon": "torch", "pytorch-optimizer": "pytorch-optimizer"}.get(name, "icml-sso")
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """The figures of one contestant, from a process of its own, or why there are none."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(case["threads"])}
    done = subprocess.run(
        [sys.executable, __file__, "--probe", json.dumps(case)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        return {"missing": (done.stderr.strip().splitlines() or ["no message"])[-1]}
    figures: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return figures


def main() -> None:
    """Run all contestants on all widths; print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 192, 384])
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--context", type=int, default=96)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--limit", type=float, default=6.0, help="seconds of steps of one contestant")
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        probe(given.probe)
        return
    rows = []
    for width in [32] if given.quick else given.widths:
        case = {
            "width": width,
            "layers": 1 if given.quick else given.layers,
            "batch": 2 if given.quick else given.batch,
            "context": 16 if given.quick else given.context,
            "steps": 4 if given.quick else given.steps,
            "lr": given.lr,
            "device": given.device,
            "limit": given.limit,
        }
        print(f"\nwidth {width}, {case['layers']} layers, {case['batch']} x {case['context']} tokens a step")
        measured = {}
        for name in (*OWN, *PEERS):
            measured[name] = measure({**case, "name": name, "seed": 1, "threads": given.threads})
            _tell(name, measured[name])
        rows.append(_row(case, measured))
        if not given.quick:
            _write(rows, given.threads)


def _tell(name: str, figures: dict[str, Any]) -> None:
    if "missing" in figures:
        print(f"  {name:18s} left out ({figures['missing']})", flush=True)
        return
    loss = "" if figures["validation"] is None else f", loss {figures['validation']:.4f}"
    whole, own = (1e3 * figures[key] for key in ("seconds", "optimizer_seconds"))
    print(
        f"  {name:18s} {whole:9.2f} ms a step, {own:9.2f} ms of it the optimizer, "
        f"{figures['peak_bytes'] / 1e6:8.1f} MB{loss}",
        flush=True,
    )


def _row(case: dict[str, Any], measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ours = measured[OURS]
    if "missing" in ours:
        raise SystemExit(f"{OURS} did not run: {ours['missing']}")
    kept = ("seconds", "optimizer_seconds", "peak_bytes", "steps", "validation")
    peers = {}
    for name, figures in measured.items():
        if "missing" not in figures and name != OURS:
            peers[name] = {key: figures[key] for key in ("version", *kept)}
    ratios = {name: figures["seconds"] / ours["seconds"] for name, figures in peers.items()}
    return {"case": case, "ours": {key: ours[key] for key in kept}, "peers": peers, "ratios": ratios}


def _write(rows: list[dict[str, Any]], threads: int) -> None:
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": threads,
        "versions": {name: version(name) for name in ("torch", "icml-kernels", "icml-sso")},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"benchmark": "pretraining", "environment": environment, "rows": rows}
    temporary = RESULTS.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    temporary.replace(RESULTS)


if __name__ == "__main__":
    main()
