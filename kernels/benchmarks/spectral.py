"""The spectral loss beside its published expression, and spectral convolutions beside neuralop's, one thread.

    python kernels/benchmarks/spectral.py [--clock cpu] [--small] [--out kernels/benchmarks/results]

The loss: K = 6 iterates of a batch with value and gradient; its floor is two transforms an iterate. The
convolution: both transforms and the mixing of channels.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch
from icml_kernels import (
    radial_spectral_loss,
    spectral_amplitude,
    spectral_conv,
    truncated_irfft,
    truncated_rfft,
)

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def best(
    calls: dict[str, Callable[[], Any]], clock: Callable[[], float], repeats: int = 7
) -> dict[str, float]:
    """Least seconds of a few interleaved calls, after one that is not counted."""
    seconds = dict.fromkeys(calls, float("inf"))
    for repeat in range(repeats + 1):
        for name, call in calls.items():
            begin = clock()
            call()
            if repeat:
                seconds[name] = min(seconds[name], clock() - begin)
    return seconds


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def published(pred: torch.Tensor, target: torch.Tensor, lam: float) -> torch.Tensor:
    """The formula as it is written down: both transforms and the grid at every call."""
    P, Y = (torch.fft.rfft2(t, norm="ortho") for t in (pred, target))
    fy = torch.fft.fftfreq(pred.shape[-2])[:, None]
    w = 1 + (torch.sqrt(fy**2 + torch.fft.rfftfreq(pred.shape[-1])[None, :] ** 2) / 0.5) ** lam
    return ((w / w.mean()) * (P.abs() - Y.abs()) ** 2).mean()


def losses(batch: int, size: int, K: int) -> dict[str, Callable[[], Any]]:
    """Value and gradient of K iterates; and the transforms alone."""
    preds, target = [random(batch, 1, size, size) for _ in range(K)], random(batch, 1, size, size)
    lams = [1 + k / max(1, K - 1) for k in range(K)]

    def ours() -> None:
        amplitude = spectral_amplitude(target)
        for p, lam in zip(preds, lams, strict=True):
            leaf = p.detach().requires_grad_()
            radial_spectral_loss(leaf, amplitude, lam).mean().backward()

    def theirs() -> None:
        for p, lam in zip(preds, lams, strict=True):
            leaf = p.detach().requires_grad_()
            published(leaf, target, lam).backward()

    def floor() -> None:
        for p in preds:
            torch.fft.irfft2(torch.fft.rfft2(p))

    return {"ours": ours, "as published": theirs, "floor: two transforms": floor}


def convolutions(
    batch: int, width: int, size: int, modes: int, gradient: bool
) -> dict[str, Callable[[], Any]]:
    """From field to field."""
    x = random(batch, width, size, size)
    kept = (modes, modes // 2 + 1)
    weight = (0.1 * random(width, width, *kept, 2)).requires_grad_()
    complex_weight = torch.view_as_complex(weight.detach().clone()).requires_grad_()

    def call(function: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def run() -> None:
            if gradient:
                function().square().sum().backward()
            else:
                with torch.no_grad():
                    function()

        return run

    def plain() -> torch.Tensor:
        full = torch.fft.rfft2(x, norm="forward")
        full = torch.fft.fftshift(full, dim=-2)
        out = torch.zeros_like(full)
        at = slice(size // 2 - modes // 2, size // 2 + modes // 2)
        out[:, :, at, : kept[1]] = torch.einsum("bixy,ioxy->boxy", full[:, :, at, : kept[1]], complex_weight)
        return torch.fft.irfft2(torch.fft.ifftshift(out, dim=-2), s=(size, size), norm="forward")

    calls = {
        "ours": call(lambda: truncated_irfft(spectral_conv(truncated_rfft(x, kept), weight), (size, size))),
        "plain torch": call(plain),
    }
    if util.find_spec("neuralop") is not None:
        from neuralop.layers.spectral_convolution import SpectralConv

        layer = SpectralConv(width, width, (modes, modes), bias=False)
        calls["neuraloperator"] = call(lambda: layer(x))
    return calls


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    clock = CLOCKS[options.clock]
    environment = {
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "threads": 1,
        "clock": options.clock,
        "processor": platform.processor() or platform.machine(),
    }
    cases: dict[str, Callable[[], dict[str, Callable[[], Any]]]] = {}
    for batch, size, K in [(1, 16, 2)] if options.small else [(8, 64, 6), (8, 128, 6), (8, 256, 6)]:
        cases[f"loss, batch {batch}, {size}^2, K={K}"] = lambda b=batch, s=size, k=K: losses(b, s, k)
    shapes = (
        [(1, 4, 16, 4)]
        if options.small
        else [(1, 32, 64, 16), (8, 32, 64, 16), (8, 64, 64, 16), (2, 32, 256, 32)]
    )
    for batch, width, size, modes in shapes:
        for gradient in (False, True):
            kind = "convolution and gradient" if gradient else "convolution"
            name = f"{kind}, batch {batch}, width {width}, {size}^2, modes {modes}"
            cases[name] = lambda a=(batch, width, size, modes, gradient): convolutions(*a)
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        seconds = best(case(), clock)
        ours, *peers = seconds
        rows.append(
            {
                "case": name,
                "ours": {"seconds": seconds[ours]},
                "peers": {p: {"version": _version(p), "seconds": seconds[p]} for p in peers},
                "ratios": {p: seconds[p] / seconds[ours] for p in peers},
            }
        )
        beside = ", ".join(f"{p} {seconds[p] / seconds[ours]:.2f} times" for p in peers)
        print(f"{name:70} {1e3 * seconds[ours]:9.2f} ms  {beside}", flush=True)
        if not options.small:
            options.out.mkdir(parents=True, exist_ok=True)
            text = (
                json.dumps({"benchmark": "spectral", "environment": environment, "rows": rows}, indent=1)
                + "\n"
            )
            (options.out / "spectral.json").write_text(text, encoding="utf-8")


def _version(peer: str) -> str:
    try:
        return metadata.version(peer)
    except metadata.PackageNotFoundError:
        return metadata.version("torch")


if __name__ == "__main__":
    main()
