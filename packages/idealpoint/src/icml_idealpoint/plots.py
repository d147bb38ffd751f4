"""Pictures of a fitted ranking: the ideal series with the items aligned to it, and the ranking with
intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from icml_idealpoint.ranker import IdealPointRanker
from icml_idealpoint.series import as_series
from icml_idealpoint.warping import alignment


def ideal_series(ranker: IdealPointRanker, X: Any, path: Path, *, shown: int = 5) -> None:
    """Draw the ideal series of each channel, with the best and the worst items warped onto its time axis.

    Points that TWED deletes are left out of the warped items.
    """
    ideal = ranker.ideal_point_
    items = as_series(X, layout=ranker.layout, nan=ranker.nan)
    order = ranker.rank(items)
    figure = Figure(figsize=(7, 2.6 * ideal.shape[1] + 0.4), layout="constrained")
    for channel, axes in enumerate(figure.subplots(ideal.shape[1], 1, squeeze=False)[:, 0]):
        for group, colour, name in (
            (order[:shown], "tab:blue", "best"),
            (order[-shown:], "tab:orange", "worst"),
        ):
            for k, item in enumerate(group.tolist()):
                place, value = _warped(ranker, items.points(item).double().numpy(), channel)
                axes.plot(place, value, color=colour, alpha=0.5, lw=0.9, label=name if k == 0 else None)
        axes.plot(np.arange(len(ideal)), ideal[:, channel], color="black", lw=2, label="ideal")
        axes.set_ylabel(f"channel {channel}")
        axes.legend(fontsize=8)
    axes.set_xlabel("point of the ideal series")
    figure.savefig(path, dpi=120)


def _warped(ranker: IdealPointRanker, series: np.ndarray, channel: int) -> tuple[np.ndarray, np.ndarray]:
    if ranker.metric == "euclidean":
        return np.arange(len(series)), series[:, channel]
    metric = "dtw" if ranker.metric.endswith("dtw") else "twed"
    spread = ranker._spread.cpu().double().numpy()
    options = {"nu": ranker.nu, "lam": ranker.lam, "window": ranker.window, "nan": ranker.nan}
    steps = alignment(series / spread, ranker.ideal_point_ / spread, metric, **options).path.numpy()
    if metric == "twed":
        before = np.concatenate([[[-1, -1]], steps[:-1]])
        steps = steps[(steps - before).min(1) == 1]
    return steps[:, 1], series[steps[:, 0], channel]


def ranking(scores: Any, path: Path, *, intervals: Any = None, names: list[str] | None = None) -> None:
    """Draw the scores in order, best on top, with their intervals where there are."""
    values = np.asarray(scores, dtype=np.float64)
    values = values - values.mean()
    order = np.argsort(values, kind="stable")
    figure = Figure(figsize=(6, max(2.0, 0.16 * len(values) + 0.8)), layout="constrained")
    axes = figure.subplots()
    rows = np.arange(len(values))
    if intervals is not None:
        low, high = np.asarray(intervals)[order].T
        axes.hlines(rows, low, high, color="tab:blue", alpha=0.5)
    axes.plot(values[order], rows, "o", ms=3, color="black")
    if names is not None and len(values) <= 80:
        axes.set_yticks(rows, [names[k] for k in order], fontsize=6)
    axes.set_xlabel("score (centred; a difference of 1 is odds of e to 1)")
    axes.set_ylabel("item")
    figure.savefig(path, dpi=120)
