"""Pictures: where each factor lives, what each term said of each layer, and how a training went."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from icml_loes.profile import LayerProfile
from icml_loes.result import LoesResult

INK, ACCENT, PALE = "#222222", "#c2410c", "#9ca3af"
SERIES = ("#1d4ed8", "#c2410c", "#047857", "#7e22ce", "#a16207", "#be123c")


def draw_profile(profile: LayerProfile, path: Path, selected: list[int] | None = None) -> None:
    """Score of every label over depth, its place marked; spectra below; redundancies beside."""
    plt = _pyplot()
    figure, axes = plt.subplots(2, 2, figsize=(10, 6), width_ratios=(3, 2), layout="constrained")
    depth = np.arange(len(profile.names))
    top = axes[0, 0]
    for i, (label, values) in enumerate(profile.score.items()):
        color = SERIES[i % len(SERIES)]
        top.plot(depth, values, color=color, marker="o", markersize=3, label=label)
        top.axvline(profile.depth(label), color=color, linestyle=":", linewidth=1)
    top.set(ylabel="left-out score", title="where each factor lives")
    if profile.score:
        top.legend(frameon=False, fontsize=8)
    for layer in selected or ():
        top.axvspan(layer - 0.4, layer + 0.4, color=ACCENT, alpha=0.12, linewidth=0)
    low = axes[1, 0]
    low.plot(depth, profile.isotropy, color=SERIES[0], label="isotropy")
    low.set(xlabel="layer", ylabel="isotropy")
    other = low.twinx()
    other.plot(depth, profile.entropy, color=SERIES[2], label="entropy (nats)")
    other.plot(depth, profile.dimension, color=SERIES[3], label="intrinsic dimension")
    lines = [*low.get_lines(), *other.get_lines()]
    low.legend(lines, [str(line.get_label()) for line in lines], frameon=False, fontsize=8)
    image = axes[0, 1].imshow(np.array(profile.redundancy), cmap="viridis", origin="lower", vmin=0)
    axes[0, 1].set(title="redundancy", xlabel="layer", ylabel="layer")
    figure.colorbar(image, ax=axes[0, 1], shrink=0.8)
    space = axes[1, 1]
    if profile.curvature is not None:
        space.plot(depth, profile.curvature, color=SERIES[4])
        space.set(xlabel="layer", ylabel="curvature (rad)")
    else:
        space.axis("off")
    _save(figure, path)


def draw_selection(result: LoesResult, path: Path) -> None:
    """Scores of all candidates at every step, the chosen one marked."""
    plt = _pyplot()
    steps = len(result.trace)
    figure, axes = plt.subplots(
        steps, 1, figsize=(7, 1.2 + 1.4 * steps), sharex=True, squeeze=False, layout="constrained"
    )
    for row, ax in zip(result.trace, axes[:, 0], strict=True):
        colors = [ACCENT if c == row["chosen"] else PALE for c in row["candidates"]]
        low = min(row["score"])
        ax.bar(row["candidates"], [s - low for s in row["score"]], color=colors)
        ax.plot([row["chosen"]], [0], marker="v", color=ACCENT, markersize=7, clip_on=False)
        note = ", rank exhausted" if row["exhausted"] else ""
        ax.set_ylabel(f"score {row['step'] + 1}\nabove least", fontsize=8)
        ax.set_title(f"chosen: {result.names[row['chosen']]}{note}", fontsize=9, loc="left", color=INK)
    axes[-1, 0].set_xlabel("layer")
    _save(figure, path)


def draw_training(rows: list[dict[str, float]], best_epoch: int, path: Path) -> None:
    """Loss and validation score over epochs."""
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    epochs = [r["epoch"] + 1 for r in rows]
    left.plot(epochs, [r["loss"] for r in rows], color=SERIES[0], label="cross-entropy")
    left.plot(epochs, [r["georeg"] for r in rows], color=SERIES[1], label="GeoReg")
    left.set(xlabel="epoch", ylabel="loss")
    left.legend(frameon=False, fontsize=8)
    for i, name in enumerate(
        n for n in ("accuracy", "balanced_accuracy", "mcc", "exact_match") if n in rows[0]
    ):
        right.plot(epochs, [r[name] for r in rows], color=SERIES[i], label=name.replace("_", " "))
    right.axvline(best_epoch + 1, color=PALE, linestyle=":")
    right.set(xlabel="epoch", ylabel="validation")
    if right.get_lines():
        right.legend(frameon=False, fontsize=8)
    _save(figure, path)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=130)
    _pyplot().close(figure)
