"""Pictures: the cell on the array, the measured electrical image against the fitted one, activation curves
with bands, and how predictions meet outcomes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm
from torch import Tensor

from icml_hhmea.calibration import Calibration
from icml_hhmea.curves import ActivationCurve
from icml_hhmea.features import electrical_image
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.simulation import settle

COLOURS = {
    "dendrite": "tab:green",
    "soma": "black",
    "hillock": "tab:purple",
    "band": "tab:red",
    "narrow": "tab:orange",
    "axon": "tab:blue",
}
SHOWN = 12


def cell_on_array(posterior: NeuronPosterior, path: Path, *, pattern: Tensor | None = None) -> None:
    """Draw the heaviest particle's cell over the electrodes; circles grow with the image's troughs, and a
    pattern's currents stand beside its electrodes."""
    cell, array = posterior.cell, posterior.electrodes
    with torch.no_grad():
        segments = cell.segments(posterior.best)
    start, end = segments.start[0].double().numpy(), segments.end[0].double().numpy()
    radius = segments.radius[0].double().numpy()
    figure = Figure(figsize=(6.5, 6), layout="constrained")
    axes = figure.subplots()
    xy = array.xyz.numpy()
    sizes = np.full(len(xy), 12.0)
    if posterior.observation is not None:
        trough = np.maximum(-posterior.observation.recording.ei.min(1), 0)
        sizes = 12 + 260 * np.sqrt(trough / max(trough.max(), 1e-9))
    axes.scatter(xy[:, 0], xy[:, 1], s=sizes, facecolors="none", edgecolors="0.5", lw=0.8)
    named: set[str] = set()
    for k, index in enumerate(cell.region.tolist()):
        name = cell.regions[index]
        axes.plot(
            [start[k, 0], end[k, 0]],
            [start[k, 1], end[k, 1]],
            color=COLOURS.get(name, "tab:gray"),
            lw=max(1.0, min(9.0, radius[k])),
            solid_capstyle="round",
            label=None if name in named else name,
        )
        named.add(name)
    if pattern is not None:
        for e in torch.as_tensor(pattern).nonzero()[:, 0].tolist():
            axes.annotate(f"{float(pattern[e]):+.2g} µA", xy[e, :2], fontsize=8, color="tab:red")
    reach = np.abs(xy[:, :2]).max() + 40
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal", xlabel="x (µm)", ylabel="y (µm)")
    axes.legend(fontsize=7, loc="upper right")
    figure.savefig(path, dpi=120)


def image_against_fit(posterior: NeuronPosterior, path: Path) -> None:
    """Draw measured and fitted waveforms on the electrodes with the largest troughs, and all troughs against
    each other.

    Raises:
        ValueError: the posterior holds no recording (one that was loaded from a file).
    """
    observation = posterior.observation
    if observation is None:
        raise ValueError("the posterior holds no recording; draw it after the fit")
    ei = observation.recording.ei
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        phi, _ = electrical_image(
            posterior.cell,
            posterior.best,
            posterior.electrodes,
            dt=observation.dt,
            every=observation.every,
            duration=3.0,
            state=settle(
                posterior.cell, posterior.best, posterior.cell.cable(posterior.best), dt=observation.dt
            ),
        )
    fitted = phi[0].T.double().numpy()
    step = observation.dt * observation.every
    order = np.argsort(ei.min(1))[:SHOWN]
    first = int(ei[order[0]].argmin()) - int(fitted[order[0]].argmin())
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 1))
    for axes, e in zip(left.subplots(3, 4, sharex=True, sharey=True).ravel(), order.tolist(), strict=False):
        axes.plot(np.arange(ei.shape[1]) * step, ei[e], color="black", lw=1.2)
        axes.plot((np.arange(fitted.shape[1]) + first) * step, fitted[e], color="tab:red", lw=1.0)
        axes.set_title(f"electrode {e}", fontsize=7)
        axes.tick_params(labelsize=6)
    left.supxlabel("ms", fontsize=8)
    left.supylabel("µV (black: measured, red: fitted)", fontsize=8)
    axes = right.subplots()
    a, b = -ei.min(1), -fitted.min(1)
    low = max(observation.noise, 0.5)
    axes.loglog(np.maximum(a, low), np.maximum(b, low), "o", ms=4, color="tab:red", alpha=0.7)
    top = max(a.max(), b.max()) * 1.3
    axes.plot([low, top], [low, top], color="0.5", lw=0.8)
    axes.set(xlabel="measured trough (µV)", ylabel="fitted trough (µV)")
    figure.savefig(path, dpi=120)


def activation_curves(posterior: NeuronPosterior, curves: Sequence[ActivationCurve], path: Path) -> None:
    """Draw measured shares with binomial bars, and predicted chances with the band that 90 % of the
    posterior's weight covers."""
    columns = min(5, max(1, len(curves)))
    rows = max(1, math.ceil(len(curves) / columns))
    figure = Figure(figsize=(2.4 * columns, 2.1 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, curve in zip(grid, curves, strict=False):
        size = np.abs(np.asarray(curve.amplitudes))
        p, n = np.asarray(curve.p), np.asarray(curve.trials or (20,) * len(size))
        axes.errorbar(size, p, np.sqrt(p * (1 - p) / n + 0.25 / n**2), fmt="o", ms=3, color="black", lw=0.8)
        one = torch.zeros(1, len(posterior.electrodes), dtype=torch.float64)
        one[0, curve.electrode] = curve.sign
        found = posterior.predict(one)
        kept = posterior.weights >= 1e-3 * float(posterior.weights.max())
        weights = (posterior.weights[kept] / posterior.weights[kept].sum()).numpy()
        rho = posterior.rho[kept].numpy()
        line = np.linspace(0.7 * size.min(), 1.3 * size.max(), 80)
        level = found.log_scale[:, 0].nan_to_num(nan=torch.inf, posinf=torch.inf).exp().numpy()
        each = norm.cdf((line[None] / level[:, None] - 1) / rho[:, None])
        low, high = (_weighted_quantile(each, weights, q) for q in (0.05, 0.95))
        axes.fill_between(line, low, high, color="tab:blue", alpha=0.3, lw=0)
        axes.plot(line, (weights[:, None] * each).sum(0), color="tab:blue", lw=1.2)
        sign = "anodic" if curve.sign > 0 else "cathodic"
        axes.set_title(f"electrode {curve.electrode}, {sign}", fontsize=7)
        axes.tick_params(labelsize=6)
        axes.set_ylim(-0.05, 1.05)
    figure.supxlabel("µA", fontsize=8)
    figure.supylabel("chance of a spike", fontsize=8)
    figure.savefig(path, dpi=120)


def outcomes(chance: Tensor, log_scale: Tensor, fired: Tensor, path: Path) -> None:
    """Draw predicted log threshold scales against outcomes: right and wrong calls by distance from
    threshold."""
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    right = (chance > 0.5) == fired
    for mask, colour, name in ((right, "tab:blue", "right"), (~right, "tab:red", "wrong")):
        axes.plot(log_scale[mask], chance[mask], "o", ms=3, color=colour, label=name)
    axes.axhline(0.5, color="0.5", lw=0.8)
    axes.set(xlabel="log of the predicted threshold over the pattern", ylabel="predicted chance of a spike")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=120)


def rank_histograms(found: Calibration, draws: int, path: Path) -> None:
    """Draw histograms of ranks; a calibrated posterior has flat ones, within the grey band in 99 % of
    bins."""
    count = len(found.names)
    columns = min(6, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(1.7 * columns, 1.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    expected = len(found.ranks) / 10
    band = 2.58 * math.sqrt(expected * 0.9)
    for axes, name, ranks, p in zip(grid, found.names, found.ranks.T.numpy(), found.p.tolist(), strict=False):
        axes.axhspan(expected - band, expected + band, color="0.85", lw=0)
        axes.hist(ranks, bins=10, range=(0, draws + 1), color="tab:blue")
        axes.set_title(f"{name} (p {p:.2g})", fontsize=6)
        axes.tick_params(labelsize=5)
    figure.savefig(path, dpi=120)


def _weighted_quantile(values: np.ndarray, weights: np.ndarray, q: float) -> np.ndarray:
    order = np.argsort(values, axis=0)
    ordered = np.take_along_axis(values, order, 0)
    total = np.cumsum(weights[order], 0)
    place = (total >= q * total[-1]).argmax(0)
    return np.take_along_axis(ordered, place[None], 0)[0]
