"""TinyLM beside transformers' Llama of the same size, and arms trained together beside one by one.

    python benchmarks/tiny.py [--quick] [--threads 1] [--clock wall|cpu]

A step is forward, backward and nothing else; a training of arms is 5 steps of AdamW. Ratios say how many
times as long the peer takes. Arms gain where a step is bound by the starting of operations: at few tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from icml_lm.arms import train_many
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.training import train
from measuring import Case, Work, run

ARMS, SEEDS, STEPS = 9, 3, 5


def step_of(model: Any, ids: torch.Tensor) -> None:
    """Forward and backward."""
    model.zero_grad()
    model(input_ids=ids, labels=ids).loss.backward()


def step(rows: int, tokens: int, d: int, layers: int, vocab: int) -> Mapping[str, Work]:
    """One step of both."""
    model = TinyLM(TinyConfig(vocab=vocab, d=d, layers=layers))
    ids = torch.randint(vocab, (rows, tokens), generator=torch.Generator().manual_seed(0))
    return {
        "TinyLM": partial(step_of, model, ids),
        "transformers Llama": partial(step_of, model.to_llama(), ids),
    }


def together(config: TinyConfig, rates: list[float], ids: torch.Tensor) -> None:
    """All arms in one training."""
    models = [TinyLM(config, seed=k) for k in range(len(rates))]
    train_many(models, lambda s: {"input_ids": ids[s], "labels": ids[s]}, steps=STEPS, lr=rates)


def one_by_one(config: TinyConfig, rates: list[float], ids: torch.Tensor, llama: bool) -> None:
    """One training after the other."""
    for k, rate in enumerate(rates):
        model = TinyLM(config, seed=k)
        model = model.to_llama() if llama else model
        train(model, lambda s, k=k: {"input_ids": ids[s, k], "labels": ids[s, k]}, steps=STEPS, lr=rate)


def arms(rows: int, tokens: int, d: int, n: int = ARMS * SEEDS) -> Mapping[str, Work]:
    """Trainings of ``n`` arms with rates and batches of their own."""
    config = TinyConfig(vocab=24, d=d, layers=2)
    ids = torch.randint(24, (STEPS, n, rows, tokens), generator=torch.Generator().manual_seed(0))
    rates = [1e-3 * (1 + k / n) for k in range(n)]
    return {
        "train_many": partial(together, config, rates, ids),
        "TinyLM one by one": partial(one_by_one, config, rates, ids, False),
        "transformers Llama one by one": partial(one_by_one, config, rates, ids, True),
    }


CASES: dict[str, Case] = {
    "step, 8 x 16 tokens, d 64, 2 layers": partial(step, 8, 16, 64, 2, 24),
    "step, 48 x 48 tokens, d 64, 2 layers": partial(step, 48, 48, 64, 2, 24),
    "step, 64 x 32 tokens, d 96, 3 layers": partial(step, 64, 32, 96, 3, 40),
    "step, 8 x 128 tokens, d 192, 4 layers": partial(step, 8, 128, 192, 4, 1000),
    "27 arms, 4 x 8 tokens, d 32": partial(arms, 4, 8, 32),
    "27 arms, 8 x 16 tokens, d 32": partial(arms, 8, 16, 32),
    "27 arms, 8 x 16 tokens, d 64": partial(arms, 8, 16, 64),
    "27 arms, 48 x 48 tokens, d 64": partial(arms, 48, 48, 64),
}
QUICK: dict[str, Case] = {
    "step, 4 x 8 tokens, d 32, 2 layers": partial(step, 4, 8, 32, 2, 24),
    "6 arms, 2 x 8 tokens, d 32": partial(arms, 2, 8, 32, 6),
}

if __name__ == "__main__":
    run("tiny", CASES, QUICK, __file__)
