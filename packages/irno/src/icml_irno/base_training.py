"""Training a base from nothing, for users who have none: mean squared error, Adam, cosine decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.randomness import seeded
from torch import Tensor, nn

from icml_irno.batches import Batches
from icml_irno.fields import fill_masked
from icml_irno.metrics import mean_over_varying, varying, vrmse
from icml_irno.objective import masked_mean
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
    weight = next(model.parameters())
    dtype = weight.dtype if weight.is_floating_point() else None
    data = Batches(train, batch, weight.device, dtype=dtype)
    held = None if valid is None else Batches(valid, batch, weight.device, dtype=dtype)
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
        state = load_state(checkpoint, kind=KIND, identity=identity, device=str(weight.device))
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        rows = state["rows"]
    for epoch in range(len(rows), epochs):
        generator = torch.Generator().manual_seed(1_000_003 * seed + epoch)
        losses = []
        model.train()
        with seeded(int(torch.randint(2**31, (), generator=generator))):
            for step, (x, y, mask) in enumerate(data.epoch(generator)):
                x, y = _filled(x, y, mask)
                if augment == "shift":
                    shifts = [int(torch.randint(n, (), generator=generator)) for n in x.shape[2:]]
                    axes = tuple(range(2, x.dim()))
                    x, y = (t.roll(shifts, axes) for t in (x, y))
                    mask = None if mask is None else mask.roll(shifts, axes)
                for group in optimizer.param_groups:
                    group["lr"] = cosine(epoch * len(data) + step, epochs * len(data), lr, lr / 1000)
                loss = masked_mean((model(x) - y).square(), mask)
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
                row["vrmse"] = _score(model, held)
        rows.append(row)
        if checkpoint is not None:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows}
            save_state(checkpoint, state, kind=KIND, identity=identity)
        for callback in callbacks:
            callback(row)
    model.eval()
    return rows


def _score(model: nn.Module, held: Batches) -> float:
    """Mean VRMSE over samples and the channels that vary."""
    values, varies = [], []
    for x, y, mask in held.epoch():
        x, y = _filled(x, y, mask)
        h = model(x) if mask is None else torch.where(mask, model(x), y)
        values.append(vrmse(h, y))
        varies.append(varying(y))
    return float(mean_over_varying(torch.cat(values), torch.cat(varies)).mean())


def _filled(x: Tensor, y: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Channel means where no point exists."""
    return (x, y) if mask is None else (fill_masked(x, mask), fill_masked(y, mask))
