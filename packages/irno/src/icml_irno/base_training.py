"""Training a base from nothing, for users who have none: mean squared error, Adam, cosine decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.randomness import seeded
from torch import nn

from icml_irno.batches import Batches
from icml_irno.metrics import vrmse
from icml_irno.training import cosine

KIND = "icml-irno-base-training"


def fit_base(
    model: nn.Module,
    train: Any,
    valid: Any = None,
    *,
    epochs: int = 100,
    batch: int = 16,
    lr: float = 1e-3,
    augment: str | None = None,
    seed: int = 0,
    checkpoint: Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callable[[dict[str, float]], None]] = (),
) -> list[dict[str, float]]:
    """Train a map x -> y in place; it ends in eval mode.

    Args:
        model: such as ``FNO``.
        train, valid: as ``Batches`` takes them.
        epochs, batch, lr: of Adam, by a cosine to lr / 1000.
        augment: ``"shift"`` rolls each batch around periodic axes.
        seed: of order and shifts.
        checkpoint: file that is written after every epoch.
        resume: go on from it.
        callbacks: called with the row of every epoch.

    Returns:
        of each epoch ``epoch``, ``loss``, and ``vrmse`` on the validation data.

    Raises:
        ValueError: data that do not fit, options out of range, or a checkpoint of another training.
        FloatingPointError: the loss is not finite.
    """
    if epochs < 1 or batch < 1 or not lr > 0:
        raise ValueError(f"epochs={epochs}, batch={batch} and lr={lr} must be positive")
    device = next(model.parameters()).device
    data = Batches(train, batch, device)
    held = None if valid is None else Batches(valid, batch, device)
    optimizer = torch.optim.Adam(model.parameters(), lr)
    rows: list[dict[str, float]] = []
    identity = {
        "epochs": epochs,
        "batch": batch,
        "lr": lr,
        "augment": augment,
        "seed": seed,
        "steps": len(data),
    }
    if resume:
        if checkpoint is None:
            raise ValueError("resume=True needs checkpoint=")
        state = load_state(checkpoint, kind=KIND, identity=identity, device=str(device))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        rows = state["rows"]
    for epoch in range(len(rows), epochs):
        generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        losses = []
        model.train()
        with seeded(int(torch.randint(2**31, (), generator=generator))):
            for step, (x, y, _) in enumerate(data.epoch(generator)):
                if augment == "shift":
                    shifts = [int(torch.randint(n, (), generator=generator)) for n in x.shape[2:]]
                    x, y = (t.roll(shifts, tuple(range(2, x.dim()))) for t in (x, y))
                for group in optimizer.param_groups:
                    group["lr"] = cosine(epoch * len(data) + step, epochs * len(data), lr, lr / 1000)
                loss = (model(x) - y).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        row = {"epoch": float(epoch), "loss": float(torch.stack(losses).mean())}
        if not math.isfinite(row["loss"]):
            raise FloatingPointError(f"the loss of epoch {epoch} is not finite; lower lr={lr}")
        model.eval()
        if held is not None:
            with torch.no_grad():
                scores = [vrmse(model(x), y).mean(1) for x, y, _ in held.epoch()]
            row["vrmse"] = float(torch.cat(scores).mean())
        rows.append(row)
        if checkpoint is not None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows}
            save_state(checkpoint, state, kind=KIND, identity=identity)
        for callback in callbacks:
            callback(row)
    model.eval()
    return rows
