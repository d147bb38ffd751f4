"""The step of hinted decoding beside plain torch: entropy, mixture, nucleus, temperature, draw.

    python kernels/benchmarks/geometric_mix.py [--threads 1] [--clock cpu] [--quick]

1, 4 and 16 rows over vocabularies of 500, 5,000 and 50,000 tokens, and 1 and 32 over 151,936, in float32;
peaked distributions, as language models have them, and flat ones, whose nucleus holds most tokens. Plain
torch sorts every row, as published code does, or takes the 512 most probable tokens first, and sorts all only
where these are no nucleus. Each time is the smallest of several, in turns.
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
from icml_kernels import geometric_mix_sample
from torch import Tensor

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
CASES = [(rows, vocabulary) for vocabulary in (500, 5_000, 50_000) for rows in (1, 4, 16)]
CASES += [(1, 151_936), (32, 151_936)]
KEPT = 512
SPREADS = {"peaked": 3.0, "flat": 0.3}
BETA, TOP_P, TEMPERATURE = 1.0, 0.95, 0.3


def plain(logp: Tensor, logq: Tensor, uniform: Tensor, keep: int | None = None) -> Tensor:
    """The formulas in plain torch; ``keep`` sorts the most probable tokens only, where they are a nucleus."""
    p, q = logp.log_softmax(1), logq.log_softmax(1)
    entropy = -(p.exp() * p).sum(1, keepdim=True)
    share = (BETA * entropy / math.log(p.shape[1])).clamp(0, 1)
    m = ((1 - share) * p + share * q).log_softmax(1)
    ordered, order = m.topk(keep, 1) if keep else m.sort(1, descending=True)
    probability = ordered.exp()
    if keep and bool((probability.sum(1) < TOP_P).any()):
        ordered, order = m.sort(1, descending=True)
        probability = ordered.exp()
    kept = torch.where(probability.cumsum(1) - probability < TOP_P, ordered, -torch.inf)
    cumulated = (kept / TEMPERATURE).softmax(1).cumsum(1)
    place = torch.searchsorted(cumulated, uniform[:, None] * cumulated[:, -1:], right=True)
    return order.gather(1, place.clamp(max=order.shape[1] - 1))[:, 0]


def calls(rows: int, vocabulary: int, spread: float, device: str) -> dict[str, Callable[[], Any]]:
    """Every contender, ours first."""
    generator = torch.Generator().manual_seed(0)
    p, q = ((spread * torch.randn(rows, vocabulary, generator=generator)).to(device) for _ in range(2))
    u = torch.rand(rows, generator=generator, dtype=torch.float64).to(device)
    options = {"beta": BETA, "top_p": TOP_P, "temperature": TEMPERATURE}
    return {
        "ours": lambda: geometric_mix_sample(p, q, u, **options),  # type: ignore[arg-type]
        "torch, sorted": lambda: plain(p, q, u.float()),
        f"torch, {KEPT} most probable first": lambda: plain(p, q, u.float(), min(KEPT, vocabulary)),
    }


def race(
    contenders: dict[str, Callable[[], Any]], budget: float, clock: Callable[[], float], device: str
) -> dict[str, float]:
    """Smallest time of each call, the calls taking turns until the budget in seconds is spent."""
    seconds = dict.fromkeys(contenders, math.inf)
    for call in contenders.values():
        call()
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - begin < budget:
        for name, call in contenders.items():
            start = clock()
            call()
            if device != "cpu":
                torch.cuda.synchronize()
            seconds[name] = min(seconds[name], clock() - start)
        rounds += 1
    return seconds


def write(options: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    """The report, after every case."""
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    environment |= {"threads": options.threads, "clock": options.clock, "device": options.device}
    environment |= {"processor": platform.processor() or platform.machine()}
    report = {"benchmark": "geometric_mix", "environment": environment, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "geometric_mix.json"
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run every case, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds for each row")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small vocabulary, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for count, vocabulary in [(4, 5000)] if options.quick else CASES:
        for shape, spread in SPREADS.items():
            contenders = calls(count, vocabulary, spread, options.device)
            budget = 0.2 if options.quick else options.budget
            seconds = race(contenders, budget, CLOCKS[options.clock], options.device)
            own, *peers = contenders
            ratios = {name: seconds[name] / seconds[own] for name in peers}
            row = {
                "case": f"{count} x {vocabulary}, {shape}",
                "ours": {"seconds": seconds[own], "peak_bytes": None},
                "peers": {
                    name: {"version": torch.__version__, "seconds": seconds[name], "peak_bytes": None}
                    for name in peers
                },
                "ratios": ratios,
            }
            rows.append(row)
            beside = "; ".join(f"{name} {ratio:.2f}x" for name, ratio in ratios.items())
            print(f"{row['case']}: {1e3 * seconds[own]:.2f} ms; {beside}", flush=True)
            if not options.quick:
                write(options, rows)


if __name__ == "__main__":
    main()
