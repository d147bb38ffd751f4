"""Pictures: where the contours lie, what was found, how good predictions are, and what each way costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from icml_deepcontour.contour import Contour
from icml_deepcontour.density import density
from icml_deepcontour.eigensolver import EigsStats

INK, ACCENT, PALE, BLUE = "#222222", "#c2410c", "#9ca3af", "#1d4ed8"


def draw_spectrum(values: np.ndarray, stats: EigsStats, path: Path) -> None:
    """Eigenvalues over their index, shifts as lines, and residuals below."""
    plt = _pyplot()
    figure, (top, low) = plt.subplots(
        2, 1, figsize=(7, 5), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    k = np.arange(1, len(values) + 1)
    top.plot(k, values, ".", color=BLUE, label="eigenvalues")
    for i, shift in enumerate(stats.shifts):
        top.axhline(shift, color=ACCENT, linewidth=0.8, label=None if i else "shifts")
    for first, last in stats.clusters:
        top.axvspan(first + 0.6, last + 0.4, color=PALE, alpha=0.3, linewidth=0)
    proof = "counted by inertia" if stats.count is not None and stats.count.exact else "not certified"
    top.set(ylabel="eigenvalue", title=f"{len(values)} eigenvalues, {proof}")
    top.legend(frameon=False, fontsize=8)
    low.semilogy(k, np.maximum(stats.residuals, 1e-18), ".", color=INK)
    low.set(xlabel="index", ylabel="residual")
    _save(figure, path)


def draw_contours(values: np.ndarray, contours: list[Contour], path: Path, w: float = 200.0) -> None:
    """Predicted eigenvalues, their density, and the contours around them."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(8, 3.4), layout="constrained")
    t = np.linspace(0, 2 * np.pi, 200)
    for c in contours:
        z = c.center + np.exp(1j * c.angle) * c.radius * (np.cos(t) + 1j * c.aspect * np.sin(t))
        axis.plot(z.real, z.imag, color=ACCENT, linewidth=1)
        axis.annotate(
            str(c.expected), (np.real(c.center), z.imag.max()), ha="center", fontsize=8, color=ACCENT
        )
    axis.plot(
        np.real(values), np.imag(values), "|" if np.isrealobj(values) else ".", color=BLUE, markersize=9
    )
    if np.isrealobj(values) and len(values) > 1:
        x = np.linspace(values.min(), values.max(), 800)
        g = density(x, np.sort(values), w)
        height = max(c.radius * c.aspect for c in contours)
        axis.fill_between(x, -height * g / g.max(), 0, color=PALE, alpha=0.4, linewidth=0)
    axis.set(xlabel="real part", ylabel="imaginary part", title=f"{len(contours)} contours")
    _save(figure, path)


def draw_training(rows: list[dict[str, float]], path: Path) -> None:
    """Loss of training and validation over epochs."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
    epochs = [row["epoch"] for row in rows]
    axis.semilogy(epochs, [row["loss"] for row in rows], color=BLUE, label="training")
    axis.semilogy(epochs, [row["validation"] for row in rows], color=ACCENT, label="validation")
    axis.set(xlabel="epoch", ylabel="loss")
    axis.legend(frameon=False)
    _save(figure, path)


def draw_errors(exact: np.ndarray, predicted: np.ndarray, q95: np.ndarray, path: Path) -> None:
    """Errors of held-out predictions at every index, under their calibrated quantile."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 3.6), layout="constrained")
    k = np.arange(1, exact.shape[1] + 1)
    axis.semilogy(k, np.abs(predicted - exact).T, ".", color=BLUE, markersize=3)
    axis.semilogy(k, q95, color=ACCENT, label="calibrated 95 %")
    axis.set(xlabel="index", ylabel="absolute error", title="predictions of instances never seen")
    axis.legend(frameon=False)
    _save(figure, path)


def draw_sweep(rows: list[dict[str, Any]], path: Path) -> None:
    """Seconds of every instance, and the factorizations and solves behind them."""
    plt = _pyplot()
    figure, (top, low) = plt.subplots(2, 1, figsize=(7, 4.6), sharex=True, layout="constrained")
    k = np.arange(1, len(rows) + 1)
    top.bar(k, [float(row["seconds"]) for row in rows], color=BLUE)
    top.set(ylabel="seconds")
    low.plot(k, [int(row["solves"]) for row in rows], ".-", color=INK, label="solves")
    low.plot(k, [int(row["factorizations"]) for row in rows], ".-", color=ACCENT, label="factorizations")
    counted = any(int(row["solves"]) for row in rows)  # none where LAPACK solved all
    low.set(xlabel="instance", ylabel="count", yscale="log" if counted else "linear")
    low.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure.savefig(path, dpi=140)
    plt.close(figure)
