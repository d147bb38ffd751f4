"""Hinted decoding with caches and batches beside the published loop, which reads all prefixes each token.

    python benchmarks/decoding.py [--quick] [--threads 1] [--clock wall|cpu] [--repeats 2]

Times are those of one token. The published loop writes one row at a time, so that two rows stand for many.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from icml_idft import HintedDecoder, published_loop
from icml_lm import ByteTokenizer, TinyConfig, TinyLM
from measuring import Case, Work, run

NEVER = 10**6  # an end token that no vocabulary has, so that all write equally many tokens


def decoding(rows: int, tokens: int, slow_rows: int = 1, d: int = 64, layers: int = 2) -> Mapping[str, Work]:
    """Answers to ``rows`` questions, of ``tokens`` tokens each."""
    model = TinyLM(TinyConfig(vocab=259, d=d, layers=layers)).eval()
    decoder = HintedDecoder(
        model,
        ByteTokenizer(),
        beta=0.9,
        split=None,
        hinted_prompt=lambda prompt, hint: f"{prompt} ({hint})",
        temperature=1.0,
        eos_id=NEVER,
    )
    prompts = [f"question number {i}:" for i in range(rows)]
    hints = [f"the answer is {i}" for i in range(rows)]

    def write(call: Work, count: int) -> float:
        call(decoder, prompts[:count], hints[:count], tokens, torch.Generator().manual_seed(0))
        return count * tokens

    return {
        "cached and batched": partial(write, HintedDecoder.generate, rows),
        "published loop": partial(write, published_loop, min(rows, slow_rows)),
    }


CASES: dict[str, Case] = {
    "0.1 M weights, 1 row, 256 tokens": partial(decoding, 1, 256),
    "0.1 M weights, 16 rows, 256 tokens": partial(decoding, 16, 256),
    "0.1 M weights, 64 rows, 256 tokens": partial(decoding, 64, 256),
    "0.1 M weights, 16 rows, 512 tokens": partial(decoding, 16, 512),
    "5 M weights, 16 rows, 256 tokens": partial(decoding, 16, 256, 1, 256, 6),
}
QUICK: dict[str, Case] = {"0.1 M weights, 4 rows, 16 tokens": partial(decoding, 4, 16)}

if __name__ == "__main__":
    run("decoding", CASES, QUICK, __file__)
