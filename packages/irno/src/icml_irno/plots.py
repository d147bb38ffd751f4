"""Pictures: errors over refinement steps, a training, a field before and after, bands over lead time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from icml_irno.metrics import BANDS
from icml_irno.spectrum import LeadTimeReport, SpectrumReport

COLOURS = ("tab:blue", "tab:orange", "tab:green")


def refinement(report: SpectrumReport, path: Path, trained: int | None = None) -> None:
    """VRMSE, and each band's error relative to the base's, over steps; the trained K is marked."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = np.arange(len(report.vrmse))
    left.plot(steps, report.vrmse, color="black", marker="o", ms=3)
    left.set_ylabel("VRMSE")
    left.set_ylim(bottom=0)
    for band, colour in enumerate(COLOURS):
        right.semilogy(
            steps, [row[band] for row in report.bands], color=colour, marker="o", ms=3, label=BANDS[band]
        )
    right.set_ylabel("squared error / base's")
    right.legend(title="band")
    for axes in (left, right):
        axes.set_xlabel("refinement step k (0: the base)")
        if trained is not None:
            axes.axvline(trained, color="grey", lw=0.8, ls="--")
    figure.savefig(path, dpi=120)


def training(rows: Sequence[dict[str, float]], best: int, path: Path, base: float | None = None) -> None:
    """Loss and validation VRMSE over epochs, the kept epoch marked."""
    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    epochs = [row["epoch"] + 1 for row in rows]
    axes.semilogy(epochs, [row["loss"] for row in rows], color="tab:grey", label="loss")
    if "vrmse" in rows[0]:
        axes.semilogy(epochs, [row["vrmse"] for row in rows], color="tab:blue", label="VRMSE, validation")
    if base is not None:
        axes.axhline(base, color="tab:orange", lw=0.8, label="VRMSE of the base")
    axes.axvline(best + 1, color="grey", lw=0.8, ls="--", label="kept")
    axes.set_xlabel("epoch")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def sample(base: Tensor, refined: Tensor, target: Tensor, path: Path) -> None:
    """The first channel of one sample [channels, *space], of volumes the middle: truth, base, refined."""
    fields = [f[0].detach().cpu().numpy() for f in (target, base, refined)]
    fields = [f[f.shape[0] // 2] if f.ndim == 3 else f for f in fields]
    names = ("truth", "base", "refined")
    if fields[0].ndim == 1:
        figure = Figure(figsize=(8, 3), layout="constrained")
        axes = figure.subplots()
        for field, name, colour in zip(fields, names, ("black", "tab:orange", "tab:blue"), strict=True):
            axes.plot(field, color=colour, lw=1.2, label=name)
        axes.legend(fontsize=8)
        axes.set_xlabel("cell")
    else:
        figure = Figure(figsize=(11, 6.2), layout="constrained")
        grid = figure.subplots(2, 3)
        low, high = float(fields[0].min()), float(fields[0].max())
        spread = float(np.abs(fields[1] - fields[0]).max()) or 1.0
        for axes, field, name in zip(grid[0], fields, names, strict=True):
            shown = axes.imshow(field, vmin=low, vmax=high, cmap="viridis", origin="lower")
            axes.set_title(name)
        figure.colorbar(shown, ax=list(grid[0]), shrink=0.8)
        for axes, field, name in zip(grid[1], fields, names, strict=True):
            shown = axes.imshow(field - fields[0], vmin=-spread, vmax=spread, cmap="coolwarm", origin="lower")
            axes.set_title("" if name == "truth" else f"{name} - truth")
        figure.colorbar(shown, ax=list(grid[1]), shrink=0.8)
    figure.savefig(path, dpi=120)


def lead_times(reports: dict[str, LeadTimeReport], path: Path) -> None:
    """Energy and error of each band over lead time, for each forecast by name."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (name, report), style in zip(reports.items(), ("-", "--", ":", "-."), strict=False):
        leads = np.arange(1, len(report.vrmse) + 1)
        for band, colour in enumerate(COLOURS):
            label = f"{name}, {BANDS[band]}"
            left.plot(leads, [row[band] for row in report.energy], color=colour, ls=style, label=label)
            right.semilogy(leads, [row[band] for row in report.error], color=colour, ls=style)
    left.axhline(1.0, color="grey", lw=0.8)
    left.set_ylabel("energy / truth's")
    right.set_ylabel("squared error / truth's energy")
    for axes in (left, right):
        axes.set_xlabel("lead time (steps)")
    left.legend(fontsize=7)
    figure.savefig(path, dpi=120)
