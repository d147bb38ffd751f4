"""A training step with IDFT beside SFT, the published formula, and the fused losses of others where they run.

    python benchmarks/training_step.py [--quick] [--threads 1] [--clock wall|cpu]

A TinyLM of width 256 over vocabularies of 8,192 and 49,152 tokens; forward, backward and AdamW, on the GPU
where there is one. liger-kernel and cut-cross-entropy are Triton kernels without a CPU route: peers on a GPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from icml_idft import IDFTLoss
from icml_lm import TinyConfig, TinyLM
from measuring import Case, Work, run
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def published(logits: Tensor, labels: Tensor) -> Tensor:
    """The loss as its formulas read, on logits of all rows."""
    every = F.log_softmax(logits.flatten(0, 1), dim=1)
    logp = every.gather(1, labels.flatten()[:, None])[:, 0]
    p = F.softmax(logits.flatten(0, 1), dim=1)
    entropy = -(p * every).sum(1)
    exponent = torch.exp(-(logp + entropy)).clamp(0.1, 2.0)
    weight = (logp.exp() ** exponent).detach()
    return -(weight * logp).mean()


def steps(batch: int, tokens: int, vocabulary: int, d: int = 256, layers: int = 4) -> Mapping[str, Work]:
    """One step of each loss."""
    model = TinyLM(TinyConfig(vocab=vocabulary, d=d, layers=layers)).to(DEVICE)
    ids = torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    targets = ids[:, 1:]

    def step(loss: Callable[[], Any]) -> float:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        if DEVICE != "cpu":
            torch.cuda.synchronize()
        return 1.0

    def ours(kind: str) -> Callable[[], Any]:
        rule = IDFTLoss(kind)
        return lambda: rule.of_model(model, {"input_ids": ids, "labels": ids})

    def hidden() -> Tensor:
        return model.model(ids).last_hidden_state[:, :-1].flatten(0, 1)

    works: dict[str, Work] = {
        "IDFT": partial(step, ours("idft")),
        "SFT, the same kernel": partial(step, ours("sft")),
        "SFT, torch's cross-entropy": partial(
            step, lambda: F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), targets.flatten())
        ),
        "IDFT, published formula": partial(step, lambda: published(model(ids).logits[:, :-1], targets)),
    }
    if DEVICE != "cpu" and importlib.util.find_spec("liger_kernel"):
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        fused = LigerFusedLinearCrossEntropyLoss()
        works["liger-kernel, SFT"] = partial(
            step, lambda: fused(model.lm_head.weight, hidden(), targets.flatten())
        )
    else:
        print("liger-kernel is left out: it needs a GPU and to be installed")
    if DEVICE != "cpu" and importlib.util.find_spec("cut_cross_entropy"):
        from cut_cross_entropy import linear_cross_entropy

        works["cut-cross-entropy, SFT"] = partial(
            step, lambda: linear_cross_entropy(hidden(), model.lm_head.weight, targets.flatten())
        )
    return works


CASES: dict[str, Case] = {
    "8 x 128 tokens, vocabulary 8,192": partial(steps, 8, 128, 8192),
    "8 x 128 tokens, vocabulary 49,152": partial(steps, 8, 128, 49_152),
}
QUICK: dict[str, Case] = {"2 x 16 tokens, vocabulary 512": partial(steps, 2, 16, 512, 32, 1)}

if __name__ == "__main__":
    run("training_step", CASES, QUICK, __file__)
