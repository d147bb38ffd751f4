"""The FNO beside neuralop's, a refinement step, a step of training, and the spectral loss as published.

    python benchmarks/operators.py [--quick] [--threads 1] [--clock wall|cpu] [--repeats 5]

Times are the least of several calls, interleaved, in one process; memory is the growth of the peak of one
call in a process of its own. About five minutes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from icml_core.run import provenance, public, write_json
from icml_irno import FNO, IRNO, Refiner, spectral_loss, target_amplitude
from icml_irno.objective import Objective, Truth, detached_loss, unrolled_loss

Work = Callable[[], Any]
Case = Callable[[], Mapping[str, Work]]
HERE = Path(__file__).parent


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def fno(size: int, width: int, batch: int, train: bool = False) -> dict[str, Work]:
    """A forward pass of four layers on size x size, or with the gradient by all weights."""
    if util.find_spec("neuralop") is None:
        print("neuralop is not installed; its rows are skipped")
        theirs = None
    else:
        from neuralop.models import FNO as Theirs

        torch.manual_seed(0)
        theirs = Theirs(n_modes=(16, 16), in_channels=3, out_channels=1, hidden_channels=width, n_layers=4)
    ours = FNO((16, 16), 3, 1, width) if theirs is None else FNO.from_neuralop(theirs)
    x = random(batch, 3, size, size)

    def call(model: torch.nn.Module) -> None:
        if train:
            model(x).square().mean().backward()
        else:
            with torch.no_grad():
                model(x)

    works = {"ours": partial(call, ours)}
    if theirs is not None:
        works["neuraloperator"] = partial(call, theirs)
    return works


def published_spectral_loss(pred: torch.Tensor, target: torch.Tensor, lam: float) -> torch.Tensor:
    """The formula as it is written down: both transforms and the grid at every call, derivatives by
    autograd."""
    P, Y = (torch.fft.rfft2(t, norm="ortho") for t in (pred, target))
    fy = torch.fft.fftfreq(pred.shape[-2])[:, None]
    fx = torch.fft.rfftfreq(pred.shape[-1])[None, :]
    w = 1 + (torch.sqrt(fy**2 + fx**2) / 0.5) ** lam
    return ((w / w.mean()) * (P.abs() - Y.abs()) ** 2).mean()


def losses(size: int, K: int = 6) -> dict[str, Work]:
    """Value and gradient for K iterates of one batch."""
    preds, target = [random(8, 1, size, size) for _ in range(K)], random(8, 1, size, size)

    def ours() -> None:
        amplitude = target_amplitude(target)
        for k, p in enumerate(preds):
            leaf = p.detach().requires_grad_()
            spectral_loss(leaf, None, 1 + k / (K - 1), target_amp=amplitude).backward()

    def published() -> None:
        for k, p in enumerate(preds):
            leaf = p.detach().requires_grad_()
            published_spectral_loss(leaf, target, 1 + k / (K - 1)).backward()

    return {"ours": ours, "as published": published}


def refinement(size: int, channels: int) -> dict[str, Work]:
    """One step of the U-Net of depth 4; the same by compilation, and in channels-last memory."""
    net = Refiner(4, 1, base_channels=channels)
    x = random(1, 5, size, size)
    last = x.to(memory_format=torch.channels_last)
    net_last = Refiner(4, 1, base_channels=channels).to(memory_format=torch.channels_last)

    def call(model: Callable[[torch.Tensor], torch.Tensor], given: torch.Tensor) -> None:
        with torch.no_grad():
            model(given)

    return {"ours": partial(call, net, x), "channels last": partial(call, net_last, last)}


def training(size: int, K: int) -> dict[str, Work]:
    """One step of training: detached (its mean over k is K/2 + 1 passes), unrolled, and K = 1."""
    model = IRNO(torch.nn.Identity(), Refiner(1, 1, base_channels=16, depth=3), 0.2, K)
    x = random(4, 1, size, size)
    objective = Objective(beta_spec=1.0)
    truth = Truth.of(x, objective, None)

    def step(kind: str, k: int) -> None:
        if kind == "detached":
            detached_loss(model, x, x, truth, objective, K=K, k=k, fp_weight=0.01).backward()
        else:
            unrolled_loss(model, x, x, truth, objective, K=k, fp_weight=0.01).backward()

    return {
        "detached": partial(step, "detached", K // 2),
        "unrolled": partial(step, "unrolled", K),
        "K = 1": partial(step, "unrolled", 1),
    }


CASES: dict[str, Case] = {
    "FNO, 64^2, width 32, batch 1": partial(fno, 64, 32, 1),
    "FNO, 64^2, width 32, batch 8": partial(fno, 64, 32, 8),
    "FNO, 64^2, width 64, batch 8": partial(fno, 64, 64, 8),
    "FNO, 128^2, width 32, batch 8": partial(fno, 128, 32, 8),
    "FNO, 256^2, width 32, batch 2": partial(fno, 256, 32, 2),
    "FNO with gradients, 64^2, width 32, batch 8": partial(fno, 64, 32, 8, True),
    "spectral loss, K = 6, 64^2": partial(losses, 64),
    "spectral loss, K = 6, 256^2": partial(losses, 256),
    "refinement step, 256^2, c = 16": partial(refinement, 256, 16),
    "training step, 64^2, K = 4": partial(training, 64, 4),
    "training step, 64^2, K = 6": partial(training, 64, 6),
}
QUICK: dict[str, Case] = {
    "FNO, 16^2, width 8, batch 1": partial(fno, 16, 8, 1),
    "spectral loss, K = 3, 16^2": partial(losses, 16, 3),
    "refinement step, 32^2, c = 4": partial(refinement, 32, 4),
    "training step, 16^2, K = 2": partial(training, 16, 2),
}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small cases, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--memory-of", nargs=2, metavar=("CASE", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    chosen = QUICK if options.quick else CASES
    if options.memory_of:
        print(json.dumps(_growth(chosen[options.memory_of[0]]()[options.memory_of[1]])))
        return
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    rows: list[dict[str, Any]] = []
    for name, case in chosen.items():
        works = case()
        seconds = dict.fromkeys(works, float("inf"))
        for repeat in range(options.repeats + 1):
            for work, call in works.items():
                begin = clock()
                call()
                if repeat:
                    seconds[work] = min(seconds[work], clock() - begin)
        base = [
            sys.executable,
            __file__,
            *(["--quick"] if options.quick else []),
            "--threads",
            str(options.threads),
        ]
        peak = {w: _peak([*base, "--memory-of", name, w]) for w in works}
        ours, *peers = works
        print(f"\n{name}")
        for work in works:
            memory = "" if peak[work] is None else f"{peak[work] / 2**20:8.1f} MiB"
            print(
                f"  {work:16} {1e3 * seconds[work]:10.2f} ms {memory}  x{seconds[work] / seconds[ours]:.2f}",
                flush=True,
            )
        rows.append(
            {
                "case": name,
                "ours": {"seconds": seconds[ours], "peak_bytes": peak[ours]},
                "peers": {
                    p: {"version": _version(p), "seconds": seconds[p], "peak_bytes": peak[p]} for p in peers
                },
                "ratios": {p: seconds[p] / seconds[ours] for p in peers},
            }
        )
        if not options.quick:
            environment = {**public(provenance()), "threads": options.threads, "clock": options.clock}
            path = HERE / "results" / "operators.json"
            path.parent.mkdir(exist_ok=True)
            write_json(path, {"benchmark": "operators", "environment": environment, "rows": rows})


def _growth(work: Work) -> int:
    Path("/proc/self/clear_refs").write_text("5")

    def resident(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(x.split()[1]) * 1024 for x in lines if x.startswith(key))

    before = resident("VmRSS")
    work()
    return resident("VmHWM") - before


def _peak(command: list[str]) -> int | None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def _version(peer: str) -> str:
    try:
        return metadata.version(peer)
    except metadata.PackageNotFoundError:
        return "this distribution"


if __name__ == "__main__":
    main()
