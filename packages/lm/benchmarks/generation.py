"""Generation beside ``transformers.generate``: SmolLM2 and 0.1 M weights, greedy, with shared prefixes.

    python benchmarks/generation.py [--quick] [--threads 1] [--clock wall|cpu]

Times are seconds for all tokens of a case; ratios say how many times as long the peer takes. The peak is what
the generation adds to the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from icml_lm import generation
from icml_lm.models import load
from icml_lm.tiny import TinyConfig, TinyLM
from measuring import Case, Work, run

NEVER = 10**6  # an end token that no vocabulary has, so that all write equally many tokens


def theirs(model: Any, ids: torch.Tensor, new: int, samples: int = 1) -> Any:
    """transformers' own loop: each prompt once per sample."""
    repeated = ids.repeat_interleave(samples, 0)
    return model.generate(
        repeated,
        attention_mask=torch.ones_like(repeated),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=NEVER,
        pad_token_id=0,
    )


def ours(model: Any, ids: torch.Tensor, new: int, samples: int = 1) -> Any:
    """This distribution's."""
    return generation.generate(model, ids, max_new_tokens=new, eos_id=NEVER, share_prefix=samples)


def tiny(rows: int, prompt: int, new: int, samples: int = 1) -> Mapping[str, Work]:
    """TinyLM of 0.1 M weights, the same weights as a Llama in our loop, and in transformers'."""
    model = TinyLM(TinyConfig(vocab=64, d=64, layers=2)).eval()
    llama = model.to_llama()
    ids = torch.randint(3, 64, (rows, prompt), generator=torch.Generator().manual_seed(0))
    return {
        "TinyLM": partial(ours, model, ids, new, samples),
        "Llama in our loop": partial(ours, llama, ids, new, samples),
        "transformers.generate": partial(theirs, llama, ids, new, samples),
    }


def smollm2(rows: int, prompt: int, new: int, samples: int = 1) -> Mapping[str, Work]:
    """SmolLM2-135M in both loops, and as a TinyLM that shares its weights."""
    model = load("smollm2").model
    ids = torch.randint(20, 40_000, (rows, prompt), generator=torch.Generator().manual_seed(0))
    return {
        "SmolLM2 in our loop": partial(ours, model, ids, new, samples),
        "as TinyLM in our loop": partial(ours, TinyLM.from_llama(model), ids, new, samples),
        "transformers.generate": partial(theirs, model, ids, new, samples),
    }


CASES: dict[str, Case] = {
    "tiny, 64 rows, 20 + 64 tokens": partial(tiny, 64, 20, 64),
    "tiny, 1 row, 20 + 64 tokens": partial(tiny, 1, 20, 64),
    "tiny, 8 prompts of 200, 8 samples each, 32 tokens": partial(tiny, 8, 200, 32, 8),
    "SmolLM2, 1 row, 32 + 32 tokens": partial(smollm2, 1, 32, 32),
    "SmolLM2, 8 rows, 32 + 32 tokens": partial(smollm2, 8, 32, 32),
    "SmolLM2, 1 prompt of 200, 8 samples, 16 tokens": partial(smollm2, 1, 200, 16, 8),
}
QUICK: dict[str, Case] = {
    "tiny, 8 rows, 5 + 8 tokens": partial(tiny, 8, 5, 8),
    "tiny, 2 prompts of 20, 4 samples each, 8 tokens": partial(tiny, 2, 20, 8, 4),
}

if __name__ == "__main__":
    run("generation", CASES, QUICK, __file__)
