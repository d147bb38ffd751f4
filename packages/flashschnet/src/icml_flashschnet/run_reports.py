"""What a simulation leaves in its run directory beside the trajectory: tables, figures, files for viewers."""

from __future__ import annotations

import csv
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from icml_core import Run

from icml_flashschnet.plots import plot_energies, plot_shape
from icml_flashschnet.structure import Molecule
from icml_flashschnet.structure_evaluation import StructureEvaluator
from icml_flashschnet.trajectory import Trajectory, write_dcd, write_xtc

LABELS = {
    "rmsd": "CA-RMSD to the start (Å)",
    "native_contacts": "native contacts Q",
    "radius_of_gyration": "radius of gyration (Å)",
}


def report_trajectory(
    run: Run, molecule: Molecule, trajectory: Trajectory, *, target: float | None
) -> dict[str, float]:
    """Write energies and shape as CSV and PNG; the figures of the last fifth of the frames.

    Args:
        run: the run.
        molecule: beads and starting structure.
        trajectory: at least one frame.
        target: temperature of the thermostat, K.
    """
    energies = {"energy_kcal_mol": trajectory.energy, "temperature_K": trajectory.temperature}
    _write_table(run, "energies.csv", trajectory, energies)
    plot_energies(trajectory, run.file("energies.png"), target=target)
    shape = StructureEvaluator(molecule).series(trajectory.pos)
    _write_table(run, "shape.csv", trajectory, shape)
    plot_shape(
        trajectory.time, {LABELS[name]: values for name, values in shape.items()}, run.file("shape.png")
    )
    late = max(1, len(trajectory) // 5)
    return {
        f"late_mean_{name}": _mean(values[:, -late:])
        for name, values in {"energy_kcal_mol": trajectory.energy, **shape}.items()
    }


def write_replicas(run: Run, molecule: Molecule, trajectory: Trajectory, ending: str) -> str:
    """DCD or XTC files of all replicas where mdtraj is installed; says what was done."""
    if find_spec("mdtraj") is None:
        return 'none: needs mdtraj (pip install "icml-flashschnet[mdtraj]")'
    write = {"dcd": write_dcd, "xtc": write_xtc}[ending]
    files = write(trajectory, molecule, run.file(ending))
    return f"{len(files)} files in {Path(ending)}, topology.pdb beside them"


def write_rows(run: Run, name: str, rows: list[dict[str, Any]]) -> None:
    """Write dictionaries of the same keys as a CSV file."""
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _write_table(run: Run, name: str, trajectory: Trajectory, columns: dict[str, np.ndarray]) -> None:
    """One row a frame and replica."""
    rows = [
        {"step": int(step), "time_ps": round(float(time), 6), "replica": replica,
         **{key: f"{values[replica, frame]:.8g}" for key, values in columns.items()}}
        for frame, (step, time) in enumerate(zip(trajectory.step, trajectory.time, strict=True))
        for replica in range(len(trajectory.pos))
    ]  # fmt: skip
    write_rows(run, name, rows)


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else math.nan
