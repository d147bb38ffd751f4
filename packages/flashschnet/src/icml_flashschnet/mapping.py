"""Coarse-graining maps: which atoms become beads, and what force acts on a bead.

Positions are mapped by slicing, x_I = x_i(I): the bead sits on an atom that is kept. Any linear force map
F_I = sum_i W_Ii F_i averages to the mean force of that representation where W is the identity on the kept
atoms and, in each group of atoms that constraints hold together, the same in every row (Noid et al., J.
Chem. Phys. 128, 244114 (2008); Ciccotti, Kapral and Vanden-Eijnden, ChemPhysChem 6, 1809 (2005)). The maps
differ in their noise:

- "slice": the force on the kept atom alone. Wrong where that atom is held by constraints.
- "aggregate": the force on the kept atom and all the atoms of its group (its hydrogens, what it is
  constrained to).
- "optimal": the weights that minimise the mean square of the mapped forces (Krämer et al., J. Phys. Chem.
  Lett. 14, 3970 (2023)), from a trajectory, among the atoms that each bead is allowed to draw from.
- a matrix of the user's, which is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

ForceMap = Literal["slice", "aggregate", "optimal"]
RIDGE = 1e-4
"""Damping of the optimal map, relative to the mean diagonal of its normal matrix."""


def map_positions(
    coords: Float[np.ndarray, "frames atoms 3"], kept: Int[np.ndarray, " beads"]
) -> Float[np.ndarray, "frames beads 3"]:
    """Positions of the beads: those of the kept atoms."""
    _check_kept(kept, coords.shape[-2])
    return coords[..., kept, :]


def map_forces(
    forces: Float[np.ndarray, "frames atoms 3"],
    mode: ForceMap | Float[np.ndarray, "beads atoms"],
    *,
    kept: Int[np.ndarray, " beads"],
    groups: Iterable[Sequence[int]] = (),
    constraints: Iterable[Sequence[int]] = (),
    sources: Bool[np.ndarray, "beads atoms"] | None = None,
) -> Float[np.ndarray, "frames beads 3"]:
    """Forces on the beads from forces on the atoms.

    Args:
        forces: atomistic forces, in any unit, without the forces of constraints.
        mode: "slice", "aggregate", "optimal", or the matrix itself.
        kept: the atom that each bead sits on.
        groups: sets of atoms that "aggregate" and "optimal" move as one (a heavy atom and its hydrogens).
        constraints: sets of atoms that were held together rigidly; always moved as one.
        sources: for "optimal", the atoms that each bead may draw from; all by default.

    Returns:
        Forces on the beads, in the same unit.

    Raises:
        ValueError: shapes that do not fit, two kept atoms in one group, or a matrix that is no valid map.

    Example:
        >>> forces = np.array([[[1.0, 0, 0], [2.0, 0, 0], [4.0, 0, 0]]])
        >>> map_forces(forces, "aggregate", kept=np.array([0, 2]), groups=[(0, 1)])[0, :, 0].tolist()
        [3.0, 4.0]
    """
    matrix = force_map(forces, mode, kept=kept, groups=groups, constraints=constraints, sources=sources)
    return np.einsum("ba,tad->tbd", matrix, forces, optimize=True)


def force_map(
    forces: Float[np.ndarray, "frames atoms 3"],
    mode: ForceMap | Float[np.ndarray, "beads atoms"],
    *,
    kept: Int[np.ndarray, " beads"],
    groups: Iterable[Sequence[int]] = (),
    constraints: Iterable[Sequence[int]] = (),
    sources: Bool[np.ndarray, "beads atoms"] | None = None,
) -> Float[np.ndarray, "beads atoms"]:
    """The matrix W of `map_forces`, with the same arguments.

    Raises:
        ValueError: as `map_forces`.
    """
    forces = np.asarray(forces)
    if forces.ndim != 3 or forces.shape[2] != 3:
        raise ValueError(f"forces must have shape [frames, atoms, 3], got {list(forces.shape)}")
    n_atoms = forces.shape[1]
    _check_kept(kept, n_atoms)
    held = _components(constraints, n_atoms)
    if not isinstance(mode, str):
        matrix = np.asarray(mode, dtype=np.float64)
        _check_map(matrix, kept, held, n_atoms)
        return matrix
    if mode == "slice":
        matrix = np.zeros((len(kept), n_atoms))
        matrix[np.arange(len(kept)), kept] = 1.0
        _check_map(matrix, kept, held, n_atoms)
        return matrix
    together = _components([*groups, *constraints], n_atoms)
    _check_groups(together, kept)
    if mode == "aggregate":
        return (together[kept][:, None] == together[None]).astype(np.float64)
    if mode == "optimal":
        return _optimal_map(forces, kept, together, sources)
    raise ValueError(f"force map {mode!r} is none of 'slice', 'aggregate', 'optimal', and no matrix")


def force_variance(forces: Float[np.ndarray, "frames beads 3"]) -> float:
    """Mean square of the mapped forces: of the mean forces and of the noise that no model explains."""
    return float(np.square(forces, dtype=np.float64).mean())


def _optimal_map(
    forces: np.ndarray, kept: np.ndarray, together: np.ndarray, sources: np.ndarray | None
) -> np.ndarray:
    """Least squares of each bead's force over the weights of the groups that hold no kept atom."""
    n_atoms = forces.shape[1]
    if sources is not None and sources.shape != (len(kept), n_atoms):
        raise ValueError(f"sources must have shape [{len(kept)}, {n_atoms}], got {list(sources.shape)}")
    matrix = (together[kept][:, None] == together[None]).astype(np.float64)
    free_groups = [g for g in np.unique(together) if g not in set(together[kept].tolist())]
    for bead in range(len(kept)):
        members = [np.nonzero(together == g)[0] for g in free_groups]
        if sources is not None:
            members = [atoms for atoms in members if sources[bead, atoms].all()]
        if not members:
            continue
        base = (forces * matrix[bead][None, :, None]).sum(1, dtype=np.float64).ravel()
        design = np.stack([forces[:, atoms].sum(1, dtype=np.float64).ravel() for atoms in members], 1)
        normal = design.T @ design
        normal[np.diag_indices(len(members))] += RIDGE * np.trace(normal) / len(members)
        weights = -np.linalg.solve(normal, design.T @ base)
        for atoms, weight in zip(members, weights, strict=True):
            matrix[bead, atoms] = weight
    return matrix


def _components(groups: Iterable[Sequence[int]], n_atoms: int) -> np.ndarray:
    """Number of the connected set that each atom belongs to."""
    parent = list(range(n_atoms))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for group in groups:
        if min(group, default=0) < 0 or max(group, default=0) >= n_atoms:
            raise ValueError(f"group {tuple(group)} names an atom outside 0 to {n_atoms - 1}")
        for atom in group:
            parent[root(int(atom))] = root(int(group[0]))
    return np.array([root(i) for i in range(n_atoms)])


def _check_kept(kept: np.ndarray, n_atoms: int) -> None:
    kept = np.asarray(kept)
    if kept.ndim != 1 or len(np.unique(kept)) != len(kept):
        raise ValueError("kept must list each kept atom once, one a bead")
    if len(kept) and (kept.min() < 0 or kept.max() >= n_atoms):
        raise ValueError(f"kept names atom {int(kept.max())}, there are {n_atoms}")


def _check_groups(together: np.ndarray, kept: np.ndarray) -> None:
    sets, counts = np.unique(together[kept], return_counts=True)
    for group in sets[counts > 1]:
        pair = [int(atom) for atom in kept if together[atom] == group]
        raise ValueError(
            f"kept atoms {pair} stand in one group: a constraint between two beads leaves no mean force; "
            "simulate without that constraint, or keep one of them"
        )


def _check_map(matrix: np.ndarray, kept: np.ndarray, held: np.ndarray, n_atoms: int) -> None:
    if matrix.shape != (len(kept), n_atoms):
        raise ValueError(f"the force map must have shape [{len(kept)}, {n_atoms}], got {list(matrix.shape)}")
    if not np.allclose(matrix[:, kept], np.eye(len(kept)), atol=1e-8):
        row, column = np.argwhere(~np.isclose(matrix[:, kept], np.eye(len(kept)), atol=1e-8))[0]
        raise ValueError(
            f"the force map must be the identity on the kept atoms; bead {row} has weight "
            f"{matrix[row, kept[column]]:.3g} on the atom of bead {column}"
        )
    for group in np.unique(held):
        atoms = np.nonzero(held == group)[0]
        if len(atoms) > 1 and not np.allclose(matrix[:, atoms], matrix[:, atoms[:1]], atol=1e-8):
            raise ValueError(
                f"atoms {atoms.tolist()} were constrained to each other and need equal weights in the "
                "force map; use 'aggregate'"
            )
