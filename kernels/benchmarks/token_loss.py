"""Losses of tokens beside plain torch, on the CPU: time, memory, and the products that they are made of.

    python kernels/benchmarks/token_loss.py [--threads 2] [--quick] [--out kernels/benchmarks/results]

2,048 rows, 576 features and 49,152 tokens in float32: the head of SmolLM2-135M. The loss with weight 1
and with the weights of IDFT (arXiv 2602.12222) beside torch's cross-entropy, beside torch's own fused
loss in chunks (``linear_cross_entropy``, where this torch has it), and beside the published formula on
logits of all rows and in checkpointed chunks; the most probable tokens and the divergence from them
beside log-softmax. liger-kernel's fused loss is a Triton kernel without a CPU route: it is a peer where
a GPU is and it is installed. Each time is the smallest of several, taken in turns; memory is the growth
of the process's peak, each in a process of its own. On a machine that others use, ``--threads 1 --clock
cpu`` counts the time on the processor alone. ``--quick`` tries everything on a small head, and writes
nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from icml_kernels import topk_kl, topk_logprobs, weighted_nll
from torch import Tensor
from torch.utils.checkpoint import checkpoint

CHUNK = 256  # rows of a chunk of plain torch
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Call = Callable[[], Any]


class Size(NamedTuple):
    """Rows, features, tokens of the vocabulary, tokens listed."""

    rows: int
    features: int
    vocabulary: int
    k: int


FULL, QUICK = Size(2048, 576, 49_152, 100), Size(256, 64, 4096, 20)


def published_idft(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of IDFT as its formulas read, on logits of all rows; the weights are detached."""
    logp_all = F.log_softmax(logits, dim=1)
    logp = logp_all.gather(1, targets[:, None])[:, 0]
    p_all = F.softmax(logits, dim=1)
    entropy = -(p_all * logp_all).sum(1)
    exponent = torch.exp(-(logp + entropy)).clamp(0.1, 2.0)
    weight = (logp.exp() ** exponent).detach()
    return -(weight * logp).mean()


def in_chunks(
    loss: Callable[[Tensor, Tensor], Tensor], hidden: Tensor, weight: Tensor, targets: Tensor
) -> Tensor:
    """The mean loss chunk by chunk; the backward pass computes each chunk's logits anew."""

    def part(h: Tensor, w: Tensor, y: Tensor) -> Tensor:
        return loss(h @ w.T, y) * len(y)

    pieces = zip(hidden.split(CHUNK), targets.split(CHUNK), strict=True)
    parts = [checkpoint(part, h, weight, y, use_reentrant=False) for h, y in pieces]
    return torch.stack(parts).sum() / len(targets)


def plain_kl(logits: Tensor, idx: Tensor, logp: Tensor, tail: Tensor) -> Tensor:
    """The bucket form in plain torch."""
    logq = F.log_softmax(logits, dim=1).gather(1, idx)
    rest = torch.log1p(-logq.exp().sum(1).clamp(max=1 - 1e-7))
    return ((logp.exp() * (logp - logq)).sum(1) + tail * (tail.log() - rest)).mean()


def inputs(size: Size, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """hidden, weight and targets; the logits' standard deviation is 2."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(size.rows, size.features, generator=generator)
    weight = torch.randn(size.vocabulary, size.features, generator=generator) * (2 / math.sqrt(size.features))
    targets = torch.randint(size.vocabulary, (size.rows,), generator=generator)
    return hidden.to(device).requires_grad_(), weight.to(device).requires_grad_(), targets.to(device)


def losses(size: Size, device: str) -> tuple[dict[str, dict[str, Call]], tuple[Tensor, Tensor]]:
    """For each kind of loss its value by every contender, ours first, and the leaves."""
    hidden, weight, targets = inputs(size, device)

    def ours(kind: str) -> Call:
        return lambda: weighted_nll(hidden, weight, targets, kind=kind).loss

    sft: dict[str, Call] = {
        "ours": ours("sft"),
        "cross-entropy": lambda: F.cross_entropy(hidden @ weight.T, targets),
        "cross-entropy in chunks": lambda: in_chunks(F.cross_entropy, hidden, weight, targets),
    }
    if hasattr(F, "linear_cross_entropy"):
        chunked = torch.nn.LinearCrossEntropyOptions()
        sft["linear_cross_entropy"] = lambda: F.linear_cross_entropy(hidden, weight, targets, options=chunked)
    idft: dict[str, Call] = {
        "ours": ours("idft"),
        "published formula": lambda: published_idft(hidden @ weight.T, targets),
        "published formula in chunks": lambda: in_chunks(published_idft, hidden, weight, targets),
        "cross-entropy": sft["cross-entropy"],
    }
    if device != "cpu" and importlib.util.find_spec("liger_kernel") is not None:
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        fused = LigerFusedLinearCrossEntropyLoss()
        sft["liger-kernel"] = idft["liger-kernel"] = lambda: fused(weight, hidden, targets)
    return {"sft": sft, "idft": idft}, (hidden, weight)


def tasks(size: Size, device: str) -> dict[str, dict[str, Call]]:
    """What is timed: for each task every contender as a call, ours first."""
    found: dict[str, dict[str, Call]] = {}
    values, leaves = losses(size, device)

    def value(call: Call) -> Call:
        def run() -> Any:
            with torch.no_grad():
                return call()

        return run

    def gradient(call: Call) -> Call:
        return lambda: torch.autograd.grad(call(), leaves)

    for name, contenders in values.items():
        found[f"{name}, value"] = {n: value(c) for n, c in contenders.items()}
        found[f"{name}, value and gradient"] = {n: gradient(c) for n, c in contenders.items()}
    hidden, weight = leaves
    found["most probable tokens"] = {
        "ours": value(lambda: topk_logprobs(hidden, weight, size.k)),
        "log-softmax and topk": value(lambda: F.log_softmax(hidden @ weight.T, dim=1).topk(size.k, dim=1)),
        "the product of matrices alone": value(lambda: hidden @ weight.T),
    }
    with torch.no_grad():
        teacher = topk_logprobs(hidden + 0.3 * hidden.flip(0), weight, size.k)
    found["divergence from listed tokens, value and gradient"] = {
        "ours": gradient(lambda: topk_kl(hidden, weight, *teacher).mean()),
        "plain torch": gradient(lambda: plain_kl(hidden @ weight.T, *teacher)),
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


def peak_growth(size: Size, task: str, name: str, device: str) -> int | None:
    """Bytes by which one call raises this process's peak, where Linux, or the GPU's allocator, tells them."""
    tasks(QUICK, device)[task][name]()
    function = tasks(size, device)[task][name]
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        function()
        return torch.cuda.max_memory_allocated() - before
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def kibibytes(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    reset.write_text("5")  # the peak starts anew from what is resident now
    before = kibibytes("VmRSS")
    function()
    return 1024 * max(0, kibibytes("VmHWM") - before)


def peak_of(quick: bool, task: str, name: str, device: str) -> int | None:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--device", device, "--peak", task, name]
    command += ["--quick"] if quick else []
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def mebibytes(size: int | None) -> str:
    """A size for the table."""
    return "memory unknown" if size is None else f"{size / 2**20:.0f} MiB"


def row_of(case: str, seconds: dict[str, float], memory: dict[str, int | None]) -> dict[str, Any]:
    """One row of the report; ratios above 1 mean that the peer takes longer, or more memory."""
    peers = [name for name in seconds if name != "ours"]
    own = memory["ours"]
    return {
        "case": case,
        "ours": {"seconds": seconds["ours"], "peak_bytes": own},
        "peers": {
            name: {
                "version": version("liger-kernel") if name == "liger-kernel" else torch.__version__,
                "seconds": seconds[name],
                "peak_bytes": memory[name],
            }
            for name in peers
        },
        "ratios": {name: seconds[name] / seconds["ours"] for name in peers},
        "memory_ratios": {name: memory[name] / own if own and memory[name] else None for name in peers},
    }


def write(options: argparse.Namespace, row: dict[str, Any]) -> None:
    """Put a row into the report, in place of an earlier one of the same case and environment."""
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    environment |= {"threads": options.threads, "clock": options.clock, "device": options.device}
    environment |= {"processor": platform.processor() or platform.machine()}
    path = options.out / "token_loss.json"
    rows: list[dict[str, Any]] = []
    if path.is_file():
        earlier = json.loads(path.read_text(encoding="utf-8"))
        if earlier["environment"] == environment:
            rows = [r for r in earlier["rows"] if r["case"] != row["case"]]
    report = {"benchmark": "token_loss", "environment": environment, "rows": [*rows, row]}
    options.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Run every task, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds for each row")
    parser.add_argument("--only", default="", help="tasks that hold this text; other rows stay as they are")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a small head, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--peak", nargs=2, metavar=("TASK", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    if options.peak:
        torch.set_num_threads(1)
        print(json.dumps(peak_growth(size, *options.peak, options.device)))
        return
    torch.set_num_threads(options.threads)
    for task, functions in tasks(size, options.device).items():
        if options.only not in task:
            continue
        budget = 0.5 if options.quick else options.budget
        seconds = race(functions, budget, CLOCKS[options.clock], options.device)
        memory = {name: peak_of(options.quick, task, name, options.device) for name in functions}
        row = row_of(f"{task}, {size.rows} x {size.features} x {size.vocabulary}", seconds, memory)
        if not options.quick:
            write(options, row)
        beside = "; ".join(
            f"{name} {ratio:.2f}x the time, {mebibytes(memory[name])}"
            for name, ratio in row["ratios"].items()
        )
        own = f"{1e3 * seconds['ours']:.1f} ms, {mebibytes(memory['ours'])}"
        print(f"{row['case']}: {own}; {beside}", flush=True)


if __name__ == "__main__":
    main()
