"""Pictures of what the jobs find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from icml_idft.finetuning import TrainLog

OWN, OTHER = "#1b6ca8", "#d1603d"


def scores(phi: Sequence[float], z: Sequence[float], path: Path) -> None:
    """Mean φ of texts, and their z beside the standard normal."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(phi, bins=30, color=OWN)
    left.axvline(0, color="black", linewidth=0.8)
    left.set(xlabel="mean φ of a text (nats a token)", ylabel="texts")
    shown = np.clip(np.nan_to_num(np.asarray(z), nan=0.0, posinf=40.0, neginf=-40.0), -40, 40)
    right.hist(shown, bins=40, density=True, color=OWN)
    grid = np.linspace(min(-4.0, float(shown.min())), max(4.0, float(shown.max())), 400)
    right.plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color=OTHER, label="the model's own")
    right.set(xlabel="z", ylabel="density")
    right.legend(frameon=False)
    figure.savefig(path, dpi=140)


def weights(points: Sequence[tuple[float, float]], path: Path) -> None:
    """φ of tokens, and the weight that IDFT gives them."""
    phi, w = np.asarray(points, dtype=float).reshape(-1, 2).T
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.hist(np.clip(phi, -12, 4), bins=40, color=OWN)
    left.set(xlabel="φ of a token (nats)", ylabel="tokens")
    right.scatter(np.clip(phi, -12, 4), w, s=4, alpha=0.3, color=OTHER, edgecolors="none")
    right.set(xlabel="φ of a token (nats)", ylabel="weight", ylim=(0, 1.02))
    figure.savefig(path, dpi=140)


def training(log: TrainLog, path: Path) -> None:
    """Loss and plain NLL, mean weight, φ, and the evaluations."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    (a, b), (c, d) = figure.subplots(2, 2)
    a.plot(log.loss, color=OWN, label="loss")
    a.plot(log.figures["nll"], color=OTHER, label="plain NLL")
    a.set(xlabel="step", ylabel="nats a token")
    a.legend(frameon=False)
    b.plot(log.figures["mean_weight"], color=OWN, label="mean weight")
    b.plot(log.figures["suppressed"], color=OTHER, label="share below 0.1")
    b.set(xlabel="step", ylim=(0, 1.02))
    b.legend(frameon=False)
    c.plot(log.figures["phi"], color=OWN)
    c.set(xlabel="step", ylabel="mean φ (nats a token)")
    names = [name for name in (log.evaluations[0] if log.evaluations else {}) if name != "step"]
    for name in names:
        d.plot(
            [row["step"] for row in log.evaluations], [row[name] for row in log.evaluations], "o-", label=name
        )
    d.set(xlabel="step")
    if names:
        d.legend(frameon=False)
    else:
        d.plot(log.lr, color=OWN)
        d.set_ylabel("learning rate")
    figure.savefig(path, dpi=140)


def realigned(rows: Sequence[dict[str, Any]], phi_min: float, path: Path) -> None:
    """Mean φ of the rewritten answers, those that replaced the original and those that did not."""
    kept = [row["phi"] for row in rows if row["realigned"]]
    others = [max(row["phi"], -20.0) for row in rows if not row["realigned"]]
    figure = Figure(figsize=(5.5, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.hist(
        [kept, others], bins=30, stacked=True, color=[OWN, OTHER], label=["realigned", "kept as it was"]
    )
    axes.axvline(phi_min, color="black", linewidth=0.8, label="least φ")
    axes.set(xlabel="mean φ of the rewritten answer (nats a token)", ylabel="rows")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)


def preferences(steps: Sequence[Mapping[str, float]], path: Path) -> None:
    """Loss and accuracy of the rewards of a training on pairs, and the answers' log-probabilities."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    axes = figure.subplots(1, 3)
    at = [line["step"] for line in steps]
    for axis, names in zip(axes, (("loss",), ("accuracies", "margins"), ("chosen", "rejected")), strict=True):
        for name, colour in zip(names, (OWN, OTHER), strict=False):
            axis.plot(at, [line.get(name, np.nan) for line in steps], color=colour, label=name)
        axis.set(xlabel="step")
        axis.legend(frameon=False)
    axes[2].set(ylabel="log-probability (nats)")
    figure.savefig(path, dpi=140)
