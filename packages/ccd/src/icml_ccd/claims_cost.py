"""Claims about what decoding costs beside the model: memory of the buffer, time of a step."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

VOCABULARY = {"smoke": 2_000, "small": 50_000, "full": 152_000}
POSITIONS = {"smoke": 16, "small": 64, "full": 256}
STEPS = {"smoke": 4, "small": 24, "full": 64}
"""That are timed of a decoding at one token a step."""


def memory(run: Run, seed: int) -> dict[str, float]:
    """Bytes that a decoding holds at once beyond given logits, over the buffer's d V |X| floats."""
    import torch
    from icml_kernels.memory import peak_bytes

    from icml_ccd.decoding import decode

    vocab, n, d, width = VOCABULARY[run.scale], POSITIONS[run.scale], 3, 4
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, n, vocab, generator=generator)
    ids = torch.zeros(1, 0, dtype=torch.int64)

    def work() -> None:
        decode(lambda _: logits, ids, n, n, "ccd", d=d, V=width, mask_id=vocab, shift_logits=False)

    peak = peak_bytes(work)
    buffer = d * width * vocab * 4
    return {"beyond_the_buffer": float(peak - buffer), "peak": float(peak), "buffer": float(buffer)}


def step_time(run: Run, seed: int) -> dict[str, float]:
    """Share of a decoder's step in a forward pass of a model of a million weights.

    128 + 256 tokens, CCD at one token a step; the first steps are timed.
    """
    import statistics
    import time
    from contextlib import suppress

    import torch

    from icml_ccd.decoding import decode
    from icml_ccd.tiny_mdm import MDMConfig, TinyMDM

    vocab = 512
    model = TinyMDM(MDMConfig(vocab, vocab - 1, d=128, layers=4, heads=4), seed=seed)
    weights = sum(p.numel() for p in model.parameters())
    ids = torch.randint(0, vocab - 1, (1, 128), generator=torch.Generator().manual_seed(seed))
    n, steps = 32 if run.scale == "smoke" else 256, STEPS[run.scale]

    class Enough(Exception):
        """So many steps are timed."""

    def stop(step: int, state: Any, selection: Any) -> None:
        if step + 1 == steps:
            raise Enough

    shares, forward_seconds, step_seconds = [], [], []
    for _ in range(1 if run.scale == "smoke" else 3):
        spent = 0.0

        def timed(tokens: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            with torch.no_grad():
                found = model(tokens)
            spent += time.perf_counter() - began
            return found

        decode(timed, ids, 8, rule="ccd", mask_id=vocab - 1, shift_logits=False)
        spent = 0.0
        began = time.perf_counter()
        with suppress(Enough):
            decode(timed, ids, n, None, "ccd", mask_id=vocab - 1, budget=1, shift_logits=False, callback=stop)
        whole = time.perf_counter() - began
        shares.append((whole - spent) / spent)
        forward_seconds.append(spent / steps)
        step_seconds.append((whole - spent) / steps)
    return {
        "share": statistics.median(shares),
        "forward_ms": 1e3 * statistics.median(forward_seconds),
        "step_ms": 1e3 * statistics.median(step_seconds),
        "weights": float(weights),
    }


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 1, "full": 1}, exclusive=True)(memory)
    suite.measure(seeds={"smoke": 1, "small": 3, "full": 3}, exclusive=True)(step_time)
    suite.claim(
        "memory-is-the-buffer",
        of=memory,
        figure="beyond_the_buffer",
        kind="every",
        at_most=2.0**20,
        statement="Beyond logits, decoding holds the buffer's d V |X| floats and at most one MiB.",
        paper="d V |X|, negligible beside T N |X|.",
        unit="bytes",
    )
    suite.claim(
        "overhead-below-five-percent",
        of=step_time,
        figure="share",
        kind="every",
        at_most=0.05,
        statement="A step of CCD takes at most 5 % of a forward pass of a model of a million weights.",
        paper="Negligible.",
    )
