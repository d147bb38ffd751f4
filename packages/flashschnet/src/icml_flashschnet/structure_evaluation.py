"""How a simulated protein compares with a reference structure: RMSD, native contacts, radius of gyration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from icml_flashschnet.geometry import native_contacts, radius_of_gyration, rmsd
from icml_flashschnet.structure import Molecule
from icml_flashschnet.trajectory import Trajectory


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
        trace = np.array([name == "CA" for name in self.reference.names])
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
        """Means over all frames, and over the last fifth of them (`..._late`).

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
        return figures | {f"{name}_late": float(values[:, -late:].mean()) for name, values in series.items()}
