"""How a simulated protein compares with a reference structure: RMSD, native contacts, radius of gyration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from icml_flashschnet.geometry import native_contacts, radius_of_gyration, rmsd
from icml_flashschnet.global_distance import gdt_ts
from icml_flashschnet.structure import Molecule
from icml_flashschnet.trajectory import Trajectory

GDT_FRAMES = 20
"""Frames whose GDT-TS is searched for, evenly spread."""


@dataclass(frozen=True, eq=False)
class StructureEvaluator:
    """Measures of shape against a reference, frame by frame.

    Attributes:
        reference: the native structure, in the representation of the trajectory.

    Example:
        >>> from icml_flashschnet import example_structure, read_pdb
        >>> molecule = read_pdb(example_structure("1ubi"))
        >>> StructureEvaluator(molecule).evaluate(molecule.pos[None, None])["rmsd"]
        0.0
    """

    reference: Molecule

    def series(
        self, pos: Float[np.ndarray, "replicas frames beads 3"]
    ) -> dict[str, Float[np.ndarray, "replicas frames"]]:
        """RMSD of the CA beads (Å), fraction of native contacts between them, radius of gyration (Å).

        Args:
            pos: positions, Å.

        Raises:
            ValueError: another shape than that of the reference.
        """
        n = self.reference.n_beads
        if pos.ndim != 4 or pos.shape[2:] != (n, 3):
            raise ValueError(f"positions must be [replicas, frames, {n}, 3], got {list(pos.shape)}")
        trace = self._trace()
        measured = {
            "rmsd": rmsd(pos[:, :, trace], self.reference.pos[trace]),
            "radius_of_gyration": radius_of_gyration(pos, self.reference.masses),
        }
        try:
            measured["native_contacts"] = native_contacts(pos[:, :, trace], self.reference.pos[trace])
        except ValueError:
            # A short peptide has no contacts to lose.
            return measured
        return measured

    def evaluate(
        self, subject: Trajectory | Float[np.ndarray, "replicas frames beads 3"]
    ) -> dict[str, float]:
        """Means over all frames, and over the last fifth of them (`..._late`); GDT-TS over up to 20 of these.

        Args:
            subject: a trajectory or its positions.

        Raises:
            ValueError: no frames, or another shape than that of the reference.
        """
        pos = subject.pos if isinstance(subject, Trajectory) else np.asarray(subject)
        series = self.series(pos)
        if not pos.shape[1]:
            raise ValueError("the trajectory holds no frames")
        late = max(1, pos.shape[1] // 5)
        figures = {name: float(values.mean()) for name, values in series.items()}
        figures |= {f"{name}_late": float(values[:, -late:].mean()) for name, values in series.items()}
        trace = self._trace()
        if trace.sum() >= 3:
            frames = pos[:, -late:, trace].reshape(-1, int(trace.sum()), 3)
            some = frames[np.unique(np.linspace(0, len(frames) - 1, GDT_FRAMES).astype(int))]
            figures["gdt_ts_late"] = float(np.mean([gdt_ts(x, self.reference.pos[trace]) for x in some]))
        return figures

    def _trace(self) -> Bool[np.ndarray, " beads"]:
        return np.array([name == "CA" for name in self.reference.names])
