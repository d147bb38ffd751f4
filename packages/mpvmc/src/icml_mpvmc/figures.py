"""Pictures: how a training went, and what precisions do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from icml_mpvmc import bounds
from icml_mpvmc.report import PrecisionReport
from icml_mpvmc.vmc import History

BLUE, ORANGE, GREEN, GREY = "#1d4ed8", "#c2410c", "#047857", "#9ca3af"


def draw_training(history: History, path: Path, exact: float | None = None) -> None:
    """Energy with its error, variance, σ and the bias that it allows, and seconds of the parts."""
    plt = _pyplot()
    figure, axes = plt.subplots(4, 1, figsize=(8, 9), sharex=True, layout="constrained")
    steps = np.arange(len(history))
    energy, err = np.array(history.energy), np.array(history.err)
    axes[0].plot(steps, energy, color=BLUE, linewidth=1)
    axes[0].fill_between(steps, energy - err, energy + err, color=BLUE, alpha=0.25, linewidth=0)
    if exact is not None:
        axes[0].axhline(exact, color=ORANGE, linestyle=":", label="exact")
        axes[0].legend(frameon=False)
    axes[0].set(ylabel="energy")
    axes[1].semilogy(steps, np.maximum(history.variance, 1e-16), color=BLUE)
    axes[1].set(ylabel="variance of E(x)")
    axes[2].semilogy(steps, np.maximum(history.sigma, 1e-12), color=GREEN, label="σ of δ")
    axes[2].semilogy(steps, np.maximum(history.bound, 1e-12), color=ORANGE, label="bias allowed")
    axes[2].semilogy(steps, np.maximum(err, 1e-12), color=GREY, label="Monte Carlo error")
    axes[2].legend(frameon=False, fontsize=8)
    for k in range(1, len(history)):
        if history.dtype[k] != history.dtype[k - 1]:
            for ax in axes:
                ax.axvline(k, color=GREY, linestyle="--", linewidth=0.8)
            axes[2].annotate(history.dtype[k], (k, axes[2].get_ylim()[1]), fontsize=8, va="top")
    parts = [history.t_sample, history.t_eloc, history.t_solve]
    axes[3].stackplot(steps, *parts, labels=("sampling", "local energies", "derivatives and solve"),
                      colors=(BLUE, ORANGE, GREEN), alpha=0.7)  # fmt: skip
    axes[3].set(ylabel="seconds", xlabel="iteration")
    axes[3].legend(frameon=False, fontsize=8)
    _save(figure, path)


def draw_report(report: PrecisionReport, path: Path) -> None:
    """The bounds as functions of σ, and where each precision lies."""
    plt = _pyplot()
    figure, axis = plt.subplots(figsize=(7, 4.5), layout="constrained")
    sigma = np.logspace(-7, 1, 200)
    axis.loglog(
        sigma, [bounds.bias(float(s), report.f_max) for s in sigma], color=BLUE, label="bound on the bias"
    )
    axis.loglog(
        sigma, [bounds.acceptance(float(s)) for s in sigma], color=GREEN, label="bound on |Δ acceptance|"
    )
    axis.axhline(report.tolerance, color=ORANGE, linestyle=":", label="accepted")
    for row in report.rows:
        if math.isfinite(row.sigma) and row.sigma > 0:
            axis.axvline(row.sigma, color=GREY, linewidth=0.8)
            axis.annotate(
                f"{row.dtype}: {row.verdict}",
                (row.sigma, 2e-7),
                rotation=90,
                fontsize=9,
                va="bottom",
                ha="right",
            )
            if row.total_variation:
                axis.plot([row.sigma], [2 * row.total_variation * report.f_max], "o", color=BLUE)
    axis.set(xlabel="σ of δ", ylabel="bias, change of acceptance", ylim=(1e-7, 5))
    axis.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=150)
    _pyplot().close(figure)
