"""Scores of masked positions and mixtures of contexts beside plain torch: time and memory.

    python kernels/benchmarks/diffusion_rows.py [--threads 1] [--clock wall|cpu] [--device cpu] [--quick]

``masked_entropy_argmax`` on 64 of 256 rows of 50,000 logits in float32 (and of 152,000) beside what decoders
of masked diffusion models do, softmax, logarithm and sum with a maximum, and beside ``torch.logsumexp`` with
``max`` and one product, which needs no logarithm; ``buffer_mix`` on three contexts of four positions beside
the same in torch. Each time is the smallest of several, taken in turns; the peak is what torch's allocator
holds at once. On a machine that others use, ``--threads 1 --clock cpu`` counts the time on the processor
alone.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_kernels import buffer_mix, masked_entropy_argmax
from icml_kernels.memory import peak_bytes
from torch import Tensor

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Call = Callable[[], Any]


def plain_scores(logits: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """As the published loops do."""
    p = torch.softmax(logits[rows], -1)
    maxprob, token = p.max(-1)
    return (p * torch.log(p + 1e-10)).sum(-1), maxprob, token


def better_scores(logits: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
    """Plain torch at its best: no logarithm of probabilities."""
    x = logits[rows]
    lse = torch.logsumexp(x, -1)
    top, token = x.max(-1)
    p = (x - lse[:, None]).exp_()
    return (p * x).sum(-1) - lse, torch.exp(top - lse), token


def plain_mix(logp: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """Mean, entropy and divergence in torch."""
    stored = logp[index]
    p = stored.exp()
    mean = p.mean(1)
    entropy = -(mean * mean.clamp(min=1e-30).log()).sum(-1)
    own = -(p * stored).sum(-1).mean(1)
    maxprob, token = mean.max(-1)
    return entropy, token, entropy - own, maxprob


def tasks(quick: bool, device: str) -> dict[str, dict[str, Call]]:
    """What is timed, ours first."""
    found: dict[str, dict[str, Call]] = {}
    generator = torch.Generator().manual_seed(0)
    for vocabulary in (2_000,) if quick else (50_000, 152_000):
        logits = (3 * torch.randn(256, vocabulary, generator=generator)).to(device)
        rows = torch.randperm(256, generator=generator)[:64].sort().values.to(device)
        found[f"scores, 64 rows of {vocabulary}"] = {
            "ours": lambda x=logits, r=rows: masked_entropy_argmax(x, r),
            "softmax, log and sum": lambda x=logits, r=rows: plain_scores(x, r),
            "logsumexp and a product": lambda x=logits, r=rows: better_scores(x, r),
        }
        logp = torch.log_softmax(logits[:12], 1)
        index = torch.arange(12, device=device).view(3, 4).T.contiguous()
        weights = torch.ones_like(index, dtype=torch.float32)
        found[f"mixtures, 4 positions of 3 contexts of {vocabulary}"] = {
            "ours": lambda x=logp, w=weights, i=index: buffer_mix(x, w, i),
            "mean, log and sums": lambda x=logp, i=index: plain_mix(x, i),
        }
    return found


def race(
    functions: dict[str, Call], budget: float, clock: Callable[[], float], device: str
) -> dict[str, float]:
    """Smallest time of each call, the calls taking turns until the budget in seconds is spent."""
    seconds = dict.fromkeys(functions, math.inf)
    for function in functions.values():
        function()
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - begin < budget:
        for name, function in functions.items():
            start = clock()
            function()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name] = min(seconds[name], clock() - start)
        rounds += 1
    return seconds


def main() -> None:
    """Run every task, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds for each row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small vocabulary, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    environment |= {"threads": options.threads, "clock": options.clock, "device": options.device}
    environment |= {"processor": platform.processor() or platform.machine()}
    rows = []
    for case, functions in tasks(options.quick, options.device).items():
        budget = 0.3 if options.quick else options.budget
        seconds = race(functions, budget, CLOCKS[options.clock], options.device)
        memory = {name: peak_bytes(function, options.device) for name, function in functions.items()}
        figures = {
            n: {"version": torch.__version__, "seconds": s, "peak_bytes": memory[n]}
            for n, s in seconds.items()
        }
        ours = figures.pop("ours")
        ours.pop("version")
        ratios = {name: seconds[name] / seconds["ours"] for name in figures}
        rows.append({"case": case, "ours": ours, "peers": figures, "ratios": ratios})
        beside = "; ".join(f"{n} {r:.2f}x, {memory[n] / 2**20:.1f} MiB" for n, r in ratios.items())
        print(
            f"{case}: {1e3 * seconds['ours']:.2f} ms, {memory['ours'] / 2**20:.2f} MiB; {beside}", flush=True
        )
        if not options.quick:
            options.out.mkdir(parents=True, exist_ok=True)
            document = {"benchmark": "diffusion_rows", "environment": environment, "rows": rows}
            temporary = options.out / "diffusion_rows.json.tmp"
            temporary.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            temporary.replace(options.out / "diffusion_rows.json")


if __name__ == "__main__":
    main()
