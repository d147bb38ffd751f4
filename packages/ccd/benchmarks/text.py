"""SmolLM2-135M turned into a masked diffusion model: a short training on text, then infilling by every rule.

    python benchmarks/text.py [--quick] [--steps 30] [--windows 16] [--threads 2]

The text is the prose of Python's standard library; the last windows are held out. A quarter of their tokens
is masked, and the share that comes back as it was is reported for each rule with its forward passes, beside
the likelihood bound in nats a token before and after the training. transformers' own left-to-right SmolLM2,
which sees what stands before a gap only, is the ceiling of an autoregressive model of the same size (greedy
token by token). Two minutes on two cores at the defaults; the claim's full scale trains 2000 steps on a GPU.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from icml_ccd import MaskedDiffusionTraining, decode, loglik, smollm2_mdm
from icml_ccd.text_mdm import library_prose, text_windows
from icml_core.run import provenance, public, write_json

LENGTH, SHARE = 64, 0.25
RULES: dict[str, dict[str, Any]] = {
    "ccd": {"rule": "ccd", "budget": 1},
    "ccd_plus": {"rule": "ccd_plus", "budget": 1},
    "entropy": {"rule": "neg_entropy", "budget": 1},
    "confidence": {"rule": "confidence", "budget": 1},
    "left to right": {"rule": "left_to_right", "budget": 1},
    "ccd_ds": {"rule": "ccd_ds"},
    "ccd_plus, dynamic": {"rule": "ccd_plus"},
    "threshold 0.9": {"rule": "threshold"},
}


def autoregressive(windows: torch.Tensor, masked: torch.Tensor) -> float:
    """Share of masked tokens that the left-to-right model names, given all that stands before each."""
    from icml_lm import load

    model, _ = load("smollm2")
    with torch.no_grad():
        named = model(windows).logits[:, :-1].argmax(-1)
    return float((named == windows[:, 1:])[masked[:, 1:]].double().mean())


def main() -> None:
    """Train, fill, print and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a step and two windows, nothing written")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--windows", type=int, default=16)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    steps, count = (1, 2) if options.quick else (options.steps, options.windows)
    model, tokenizer = smollm2_mdm()
    windows = text_windows(library_prose(60), tokenizer, LENGTH, most=1024)
    train, held_out = windows[:-64], windows[-64:][:count]
    generator = torch.Generator().manual_seed(0)
    masked = torch.rand(held_out.shape, generator=generator).argsort(1).argsort(1) < SHARE * LENGTH
    masked[:, 0] = False
    given = torch.where(masked, model.mask_id, held_out)
    half = LENGTH // 2

    def nats() -> float:
        found = [loglik(model, row[:half], row[half:], 4, generator=1).value for row in held_out[:4]]
        return -sum(found) / len(found) / half

    before = nats()
    began = time.perf_counter()
    MaskedDiffusionTraining(train, model.config, steps=steps, batch=8, lr=1e-4, model=model).fit()
    print(f"{steps} steps in {time.perf_counter() - began:.0f} s: {before:.2f} to {nats():.2f} nats a token")
    rows = []
    for name, config in RULES.items():
        began = time.perf_counter()
        out = decode(model, given, infill=True, **config)
        share = float((out.sequences == held_out)[masked].double().mean())
        row = {
            "rule": name,
            "share": share,
            "n_forward": out.n_forward,
            "seconds": time.perf_counter() - began,
        }
        rows.append(row)
        print(
            f"  {name:18} {share:.3f} of the tokens, {out.n_forward} passes, {row['seconds']:.1f} s",
            flush=True,
        )
        if not options.quick:
            write(rows, options, {"before": before, "after": None})
    ceiling = autoregressive(held_out, masked)
    print(f"  left-to-right SmolLM2, all tokens before each gap given: {ceiling:.3f}")
    if not options.quick:
        write(rows, options, {"before": before, "after": nats(), "autoregressive": ceiling})


def write(rows: list[dict[str, Any]], options: argparse.Namespace, nats: dict[str, Any]) -> None:
    """What has been measured so far."""
    environment = {**public(provenance()), "threads": options.threads, "steps": options.steps}
    path = Path(__file__).parent / "results" / "text.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, {"benchmark": "text", "environment": environment, "nats": nats, "rows": rows})


if __name__ == "__main__":
    main()
