"""Pictures of a run: training curves, states in the plane or on the lattice, images of latents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure


def training_curves(history: Sequence[dict[str, float]], path: Path) -> None:
    """The figures of training over its steps, those that there are of loss, ELBO and learned log Z, or of
    rounds.
    """
    names = [
        n
        for n in ("loss", "elbo", "log_z", "nll_backward", "variance_forward")
        if any(n in h for h in history)
    ]
    figure = Figure(figsize=(4.2 * max(1, len(names)), 3.2), layout="constrained")
    for axes, name in zip(np.atleast_1d(figure.subplots(1, max(1, len(names)))), names, strict=False):
        points = [(i + 1, h[name]) for i, h in enumerate(history) if name in h and math.isfinite(h[name])]
        axes.plot([p[0] for p in points], [p[1] for p in points], lw=0.8)
        axes.set_title(name.replace("_", " "))
        axes.set_xlabel("round" if "forward" in name or "backward" in name else "update")
        if name in ("loss", "variance_forward") and all(p[1] > 0 for p in points):
            axes.set_yscale("log")
    figure.savefig(path, dpi=120)


def states(energy: Any, x: Any, path: Path, truth: Any = None) -> None:
    """Samples: points of a Gray-coded plane, squares of a lattice, else rows of symbols; true ones beside
    them.
    """
    sides = [("samples", x)] + ([("truth", truth)] if truth is not None else [])
    if hasattr(energy, "L"):
        figure = Figure(figsize=(8, 2.1 * len(sides)), layout="constrained")
        grid = np.atleast_2d(figure.subplots(len(sides), 8))
        for row, (name, given) in zip(grid, sides, strict=True):
            for axes, state in zip(row, given[:8], strict=False):
                axes.imshow(state.view(energy.L, energy.L).numpy(), vmin=0, vmax=energy.V - 1, cmap="viridis")
                axes.set_axis_off()
            row[0].set_title(name)
    else:
        figure = Figure(figsize=(4.2 * len(sides), 4), layout="constrained")
        for axes, (name, given) in zip(np.atleast_1d(figure.subplots(1, len(sides))), sides, strict=True):
            points = energy.decode(given).numpy() if hasattr(energy, "d") and energy.d >= 2 else None
            if points is not None:
                axes.scatter(points[:, 0], points[:, 1], s=3, alpha=0.4)
                axes.set_aspect("equal")
            else:
                axes.imshow(given[:64].numpy(), aspect="auto", interpolation="nearest", cmap="viridis")
            axes.set_title(name)
    figure.savefig(path, dpi=120)


def images(rows: Sequence[tuple[str, Any]], side: int, path: Path) -> None:
    """Rows of square images, each with its name."""
    figure = Figure(figsize=(8, 1.1 * len(rows)), layout="constrained")
    grid = np.atleast_2d(figure.subplots(len(rows), 10))
    for row, (name, given) in zip(grid, rows, strict=True):
        for axes in row:
            axes.set_axis_off()
        for axes, image in zip(row, given[:10], strict=False):
            axes.imshow(image.reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
        row[0].set_title(name, fontsize=8, loc="left")
    figure.savefig(path, dpi=120)
