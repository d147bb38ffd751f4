"""Figures of a run: the best molecules, and how training went."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

_COLUMNS, _SIZE = 5, (240, 190)  # molecules a row, pixels of each


def top_molecules(smiles: Sequence[str], scores: Sequence[float], path: Path, *, top: int = 20) -> int:
    """Draw the best different molecules with their scores; how many were drawn.

    Raises:
        ValueError: different numbers of SMILES and scores.
    """
    from rdkit import Chem
    from rdkit.Chem import Draw

    if len(smiles) != len(scores):
        raise ValueError(f"{len(smiles)} SMILES and {len(scores)} scores; there must be as many")
    best: dict[str, float] = {}
    for name, score in zip(smiles, scores, strict=True):
        if np.isfinite(score):
            best.setdefault(name, float(score))
    chosen = sorted(best.items(), key=lambda item: (-item[1], item[0]))[:top]
    mols = [Chem.MolFromSmiles(name) for name, _ in chosen]
    if not mols:
        return 0
    image = Draw.MolsToGridImage(
        mols, molsPerRow=_COLUMNS, subImgSize=_SIZE, legends=[f"{score:.3f}" for _, score in chosen]
    )
    image.save(path)
    return len(mols)


def training_curves(history: Sequence[dict[str, float]], path: Path) -> None:
    """Loss, mean log R, and the shares of different and of cut-off objects, over the steps."""
    from matplotlib.figure import Figure

    panels = (("loss",), ("mean_log_reward",), ("unique", "unique_expected", "cut"))
    names = {
        "loss": "loss",
        "mean_log_reward": "mean log R",
        "unique": "different among the last 100",
        "unique_expected": "to be expected from their R",
        "cut": "cut off",
    }
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    for axes, keys in zip(figure.subplots(1, len(panels)), panels, strict=True):
        for key in keys:
            points = [(row["step"], row[key]) for row in history if key in row]
            if points:
                x, y = np.array(points, dtype=float).T
                axes.plot(x, _smooth(y), label=names[key], linewidth=1.2)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        if keys == ("loss",):
            axes.set_yscale("log")
    figure.savefig(path, dpi=120)


def _smooth(values: Any) -> Any:
    """A running mean over about a fortieth of the points."""
    width = max(1, len(values) // 40)
    padded = np.concatenate([[0.0], np.cumsum(values)])
    begin = np.maximum(np.arange(len(values)) - width + 1, 0)
    return (padded[1:] - padded[begin]) / (np.arange(len(values)) - begin + 1)
