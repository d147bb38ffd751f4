"""Figures of a simulation, a training and a prior, written as PNG files without a display."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from icml_core.run import write_atomically
from jaxtyping import Float

from icml_flashschnet.trajectory import Trajectory

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MANY_REPLICAS = 12
"""Replicas above which single lines give way to the mean and the range of nine tenths of them."""


def plot_energies(trajectory: Trajectory, path: Path, *, target: float | None = None) -> None:
    """Potential energy and temperature of the replicas against time.

    Args:
        trajectory: the frames.
        path: the PNG file.
        target: temperature of the thermostat (K), drawn as a line.
    """
    panels: list[tuple[str, np.ndarray]] = [("potential energy (kcal/mol)", trajectory.energy)]
    if np.isfinite(trajectory.temperature).any():
        panels.append(("temperature of the motion (K)", trajectory.temperature))
    axes, save = _figure(len(panels))
    for axis, (label, values) in zip(axes, panels, strict=True):
        _lines(axis, trajectory.time, values)
        axis.set_ylabel(label)
    if target is not None and len(panels) == 2:
        axes[1].axhline(target, color="black", linewidth=0.8, linestyle="dashed")
    axes[-1].set_xlabel("time (ps)")
    save(path)


def plot_shape(
    time: Float[np.ndarray, " frames"], measures: dict[str, Float[np.ndarray, "replicas frames"]], path: Path
) -> None:
    """Measures of shape (RMSD, radius of gyration, native contacts) against time.

    Args:
        time: ps.
        measures: values by their label with unit.
        path: the PNG file.
    """
    axes, save = _figure(len(measures))
    for axis, (label, values) in zip(axes, measures.items(), strict=True):
        _lines(axis, time, values)
        axis.set_ylabel(label)
    axes[-1].set_xlabel("time (ps)")
    save(path)


def plot_history(history: Sequence[dict[str, float]], path: Path, *, prior: float | None = None) -> None:
    """Force errors of a training against the epoch.

    Args:
        history: lines with `epoch`, `train_rmse` and `validation_rmse`.
        path: the PNG file.
        prior: error of the prior alone, drawn as a line.
    """
    (axis,), save = _figure(1)
    epochs = [line["epoch"] for line in history]
    axis.plot(epochs, [line["train_rmse"] for line in history], label="training")
    axis.plot(epochs, [line["validation_rmse"] for line in history], label="held out")
    if prior is not None:
        axis.axhline(prior, color="black", linewidth=0.8, linestyle="dashed", label="prior alone")
    axis.set_xlabel("epoch")
    axis.set_ylabel("force error (kcal/mol/Å)")
    axis.legend(frameon=False)
    save(path)


def _figure(rows: int) -> tuple[Sequence[Axes], Any]:
    """Axes below each other, and what saves and closes their figure."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 1.2 + 2.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    axes: list[Axes] = list(figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0])

    def save(path: Path) -> None:
        with write_atomically(path) as temporary:
            figure.savefig(temporary, dpi=130)

    return axes, save


def _lines(axis: Axes, time: np.ndarray, values: np.ndarray) -> None:
    if len(values) <= MANY_REPLICAS:
        axis.plot(time, values.T, linewidth=0.9)
        return
    known = values[:, np.isfinite(values).any(0)]
    shown = time[np.isfinite(values).any(0)]
    low, high = np.nanpercentile(known, (5, 95), axis=0)
    axis.fill_between(shown, low, high, alpha=0.25, linewidth=0, label="5 to 95 % of the replicas")
    axis.plot(shown, np.nanmean(known, 0), label="mean")
    axis.legend(frameon=False)
