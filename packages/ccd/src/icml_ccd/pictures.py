"""Pictures: in which order positions were filled and why, and accuracy against forward passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from icml_ccd.step_state import REASONS
from icml_ccd.trace import DecodeTrace

COLOURS = dict(
    zip(
        REASONS,
        ("#d9d9d9", "#4c78a8", "#9ecae9", "#59a14f", "#f2b447", "#2f7d4f", "#d37295", "#b279a2", "#bab0ac"),
        strict=True,
    )
)
"""A colour for each reason of acceptance."""


def order_picture(
    trace: DecodeTrace, path: str | Path, *, row: int = 0, labels: Sequence[str] | None = None
) -> None:
    """Draw one row: its response positions across, forward passes down, coloured by why each was accepted.

    Args:
        trace: of a decoding.
        path: an image file.
        row: of the batch.
        labels: a text a position, such as its token; written where there are not too many.
    """
    from matplotlib.figure import Figure

    steps, reasons = trace.step[row].tolist(), trace.reasons(row)
    width = max(4.0, min(14.0, 0.22 * len(steps) + 1.5))
    figure = Figure(figsize=(width, max(2.5, min(9.0, 0.14 * (max([*steps, 0]) + 1) + 1.6))), dpi=150)
    axes = figure.subplots()
    for reason in dict.fromkeys(reasons):
        places = [i for i, r in enumerate(reasons) if r == reason and steps[i] >= 0]
        if places:
            heights = [steps[i] + 1 for i in places]
            axes.scatter(places, heights, s=28, marker="s", color=COLOURS[reason], label=reason)
    axes.invert_yaxis()
    axes.set_xlabel("position in the response")
    axes.set_ylabel("forward pass")
    if labels is not None and len(labels) <= 80:
        axes.set_xticks(range(len(labels)), labels, fontsize=6, rotation=90)
    settings = trace.settings
    axes.set_title(f"{settings.get('rule', '')}: {int(trace.forwards[row])} forward passes", fontsize=9)
    axes.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    figure.savefig(path, bbox_inches="tight")


def curve_picture(
    curves: Mapping[str, Sequence[tuple[float, float]]], path: str | Path, *, title: str
) -> None:
    """Draw accuracy against the mean number of forward passes, a line a rule.

    Args:
        curves: (forward passes, accuracy) by rule.
        path: an image file.
        title: above it.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.0), dpi=150)
    axes: Any = figure.subplots()
    for name, points in curves.items():
        x, y = zip(*sorted(points), strict=True)
        axes.plot(x, y, marker="o", markersize=3, linewidth=1.2, label=name)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("forward passes")
    axes.set_ylabel("share of answers that are right")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=7, frameon=False)
    figure.savefig(path, bbox_inches="tight")
