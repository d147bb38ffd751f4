"""The job that trains a masked diffusion model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from icml_core import Run

from icml_ccd.tiny_mdm import MDMConfig
from icml_ccd.trained_tasks import TASKS, TRAINING
from icml_ccd.training import MaskedDiffusionTraining

POOL = 20_000
"""Examples of a task from which batches are drawn."""
LARGEST_TEXT = 1 << 30
"""Bytes of a text file that is read."""


def run_training(
    run: Run,
    *,
    data: Path | None,
    task: str,
    start: str,
    length: int,
    steps: int,
    batch: int,
    lr: float,
    width: int,
    layers: int,
    optimizer: str,
    checkpoint_every: int,
) -> dict[str, Any]:
    """Train, follow the loss, and write model and picture."""
    if steps < 1 or batch < 1 or length < 2:
        raise ValueError(
            f"--steps {steps}, --batch {batch} and --length {length} must be at least 1, 1 and 2"
        )
    if start not in ("new", "smollm2"):
        raise ValueError(f"--start {start} is neither new nor smollm2")
    if start == "smollm2" and data is None:
        raise ValueError("--start smollm2 learns text; say --data FILE")
    tokens, maskable, config, model, tokenizer = (
        _task_data(task, width, layers, run.seed)
        if data is None
        else _text_data(data, start, length, width, layers)
    )
    training = MaskedDiffusionTraining(
        tokens,
        config,
        maskable=maskable,
        steps=steps,
        batch=batch,
        lr=lr,
        optimizer=optimizer,
        seed=run.seed,
        model=None if model is None else model.to(run.device),
    )
    training.model.to(run.device)
    with run.progress("training", total=steps) as bar:

        def log(step: int, figures: dict[str, float], model: Any) -> None:
            run.log(step, **figures)

        training.fit(
            checkpoint=run.file("checkpoint"),
            checkpoint_every=checkpoint_every,
            callbacks=[log],
            progress=bar,
        )
    losses = training.log_.loss if training.log_ is not None else []
    training.model.save(run.file("model"))
    if tokenizer is not None:
        if start == "new":
            tokenizer.save(run.file("model") / "tokenizer.json")
        else:
            tokenizer.save_pretrained(run.file("model"))
    _picture(run, losses)
    last = losses[-max(len(losses) // 20, 1) :]
    return {"loss": sum(last) / len(last), "weights": sum(p.numel() for p in training.model.parameters())}


def _task_data(task: str, width: int, layers: int, seed: int) -> tuple[Any, ...]:
    if task not in TASKS:
        raise ValueError(f"--task {task}; there are {', '.join(TASKS)}")
    found = TASKS[task]
    whole, answer = found.sample(POOL, seed=TRAINING + seed)
    config = MDMConfig(found.vocab, found.mask_id, width, layers, positions=found.length)
    return whole, answer, config, None, None


def _text_data(data: Path, start: str, length: int, width: int, layers: int) -> tuple[Any, ...]:
    from icml_ccd.text_mdm import smollm2_mdm, text_windows

    if data.stat().st_size > LARGEST_TEXT:
        raise ValueError(f"{data} has {data.stat().st_size} bytes; text files up to {LARGEST_TEXT} are read")
    text = data.read_text(encoding="utf-8")
    if start == "smollm2":
        model, tokenizer = smollm2_mdm()
        windows = text_windows([text], tokenizer, length, most=1 << 20)
        return windows, torch.ones(length, dtype=torch.bool), model.config, model, tokenizer
    from icml_lm import ByteTokenizer

    tokenizer = ByteTokenizer()
    windows = text_windows([text], tokenizer, length, most=1 << 20)
    config = MDMConfig(len(tokenizer) + 1, len(tokenizer), width, layers, eos_id=tokenizer.eos_token_id)
    return windows, torch.ones(length, dtype=torch.bool), config, None, tokenizer


def _picture(run: Run, losses: list[float]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.5), dpi=150)
    axes = figure.subplots()
    axes.plot(losses, linewidth=0.8)
    axes.set_xlabel("step")
    axes.set_ylabel("loss, nats a token")
    axes.set_yscale("log")
    with run.path("loss.png") as temporary:
        figure.savefig(temporary, bbox_inches="tight")
