"""A decoder's step without the model: ours beside the loops that are in use, and the bytes that each holds.

    python benchmarks/overhead.py [--quick] [--threads 1] [--clock wall|cpu]

One row of 256 masked positions, all of which are decoded at one token a step; logits are given, so that
nothing but the decoder is timed. Seconds are those of a step, the smallest of several decodings, taken in
turns. Peers are written here after the published loops, each with its own number of passes over positions
times vocabulary:

    released CCD loop   github.com/tonyckc/CCD-DLM-code: softmax of all masked rows for the entropy, again for
    the
                        buffer's tokens, and again for the tokens that are written
    Dream's loop        softmax, log and sum of all masked rows, then the surest (entropy)
    LLaDA's loop        float64 softmax of the whole sequence and argmax, then the surest (low confidence)

``dinfer`` is imported where it is installed and named in the report; its decoders want its own model classes,
so that its loop is not timed here.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from icml_ccd import decode
from icml_core.run import provenance, public, write_json
from icml_kernels.memory import peak_bytes
from torch import Tensor

CASES = {"V = 50,000": 50_000, "V = 152,000": 152_000}
QUICK = {"V = 2,000": 2_000}
POSITIONS, STEPS = 256, 24
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def released_loop(logits: Tensor, steps: int) -> None:
    """Two-step agreement as released: three softmaxes of all masked rows a step."""
    mask = torch.ones(logits.shape[0], dtype=torch.bool)
    response = torch.full((logits.shape[0],), -1)
    before: dict[int, int] = {}
    for _ in range(steps):
        masked = logits[mask]
        p = torch.softmax(masked, -1)
        confidence, token = p.max(-1)
        confidence = (p * torch.log(p + 1e-10)).sum(-1)
        full = torch.full((logits.shape[0],), -torch.inf)
        full[mask] = confidence
        best = full.topk(5).indices
        again = torch.softmax(logits[mask], -1).argmax(-1)
        written = torch.softmax(logits[mask], -1).max(-1).indices
        tokens = torch.full((logits.shape[0],), -1)
        tokens[mask] = again
        agree = [int(i) for i in best if before.get(int(i)) == int(tokens[i])]
        chosen = agree[:1] or [int(best[0])]
        before = {int(i): int(tokens[i]) for i in best}
        place = torch.full((logits.shape[0],), -1)
        place[mask] = torch.arange(int(mask.sum()))
        response[chosen] = written[place[chosen]]
        mask[chosen] = False
        del token


def dream_loop(logits: Tensor, steps: int) -> None:
    """The entropy order: softmax, logarithm and sum of all masked rows a step."""
    mask = torch.ones(logits.shape[0], dtype=torch.bool)
    response = torch.full((logits.shape[0],), -1)
    for _ in range(steps):
        p = torch.softmax(logits[mask], -1)
        _, token = p.max(-1)
        confidence = (p * torch.log(p + 1e-10)).sum(-1)
        full = torch.full((logits.shape[0],), -torch.inf)
        full[mask] = confidence
        tokens = torch.full((logits.shape[0],), -1)
        tokens[mask] = token
        best = full.topk(1).indices
        response[best] = tokens[best]
        mask[best] = False


def llada_loop(logits: Tensor, steps: int) -> None:
    """Low-confidence remasking: softmax of the whole response in float64 a step."""
    mask = torch.ones(logits.shape[0], dtype=torch.bool)
    response = torch.full((logits.shape[0],), -1)
    for _ in range(steps):
        token = logits.argmax(-1)
        p = torch.softmax(logits.to(torch.float64), -1)
        confidence = p.gather(-1, token[:, None])[:, 0]
        confidence = torch.where(mask, confidence, -torch.inf)
        best = confidence.topk(1).indices
        response[best] = token[best]
        mask[best] = False


def works(vocab: int, steps: int, seed: int = 0) -> dict[str, Callable[[], Any]]:
    """Ours first."""
    logits = 3 * torch.randn(POSITIONS, vocab, generator=torch.Generator().manual_seed(seed))
    ids = torch.zeros(1, 0, dtype=torch.int64)

    class Enough(Exception):
        """So many steps are measured."""

    def ours(rule: str, **options: Any) -> Callable[[], None]:
        def stop(step: int, state: Any, selection: Any) -> None:
            if step + 1 == steps:
                raise Enough

        def run() -> None:
            with suppress(Enough):
                decode(
                    lambda _: logits[None],
                    ids,
                    POSITIONS,
                    rule=rule,
                    budget=1,
                    mask_id=vocab,
                    shift_logits=False,
                    callback=stop,
                    **options,
                )

        return run

    return {
        "ours, ccd": ours("ccd"),
        "ours, ccd_released": ours("ccd_released"),
        "ours, entropy": ours("neg_entropy"),
        "ours, ccd_plus": ours("ccd_plus"),
        "released CCD loop": lambda: released_loop(logits, steps),
        "Dream's loop": lambda: dream_loop(logits, steps),
        "LLaDA's loop": lambda: llada_loop(logits, steps),
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a small vocabulary, nothing written")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock, steps = CLOCKS[options.clock], 4 if options.quick else STEPS
    rows = []
    for case, vocab in (QUICK if options.quick else CASES).items():
        found = works(vocab, steps)
        best = dict.fromkeys(found, math.inf)
        peak = {name: peak_bytes(work) for name, work in found.items()}
        for _ in range(1 if options.quick else options.repeats):
            for name, work in found.items():
                begin = clock()
                work()
                best[name] = min(best[name], (clock() - begin) / steps)
        ours, *peers = found
        ratios = {name: best[name] / best[ours] for name in peers}
        print(f"\n{case}, {POSITIONS} positions")
        for name in found:
            print(
                f"  {name:20} {1e3 * best[name]:9.2f} ms a step {peak[name] / 2**20:8.1f} MiB "
                f"x{ratios.get(name, 1.0):.3g}",
                flush=True,
            )
        figures = {name: {"seconds": best[name], "peak_bytes": peak[name]} for name in found}
        peers_found = {name: {"version": "after the published code", **figures[name]} for name in peers}
        rows.append({"case": case, "ours": figures[ours], "peers": peers_found, "ratios": ratios})
        if not options.quick:
            write(rows, options)


def write(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """What has been measured so far."""
    environment = {**public(provenance()), "threads": options.threads, "clock": options.clock}
    environment["dinfer"] = importlib.util.find_spec("dinfer") is not None
    path = Path(__file__).parent / "results" / "overhead.json"
    path.parent.mkdir(exist_ok=True)
    write_json(
        path, json.loads(json.dumps({"benchmark": "overhead", "environment": environment, "rows": rows}))
    )


if __name__ == "__main__":
    main()
