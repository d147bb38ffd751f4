"""Potentials as calculators of ASE, and molecules as its atoms (extra ``ase``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from icml_kernels.molecules.radius_pairs import list_is_stale
from jaxtyping import Int
from torch import Tensor, nn

try:
    from ase import Atoms, units
    from ase.calculators.calculator import Calculator, all_changes
    from ase.stress import full_3x3_to_voigt_6_stress
except ModuleNotFoundError as error:
    from icml_core.errors import NeedsError, install_command

    raise NeedsError("ase", hint=install_command("icml-flashschnet[ase]")) from error

from icml_flashschnet.periodic import energy_forces_stress, periodic_pairs
from icml_flashschnet.schnet import FlashSchNet
from icml_flashschnet.structure import Molecule
from icml_flashschnet.units import to_internal

TYPES = "bead_types"
"""Name of the array of an ``Atoms`` that holds bead types."""


def to_ase(molecule: Molecule) -> Atoms:
    """The beads as ``Atoms``: positions, masses, and types in the array ``bead_types``.

    The symbol is the first letter of the bead's name (C, N, O); ASE draws by it, and nothing here reads it.
    """
    symbols = [name[0] if name[:1] in ("C", "N", "O", "S", "H") else "X" for name in molecule.names]
    atoms = Atoms(symbols, positions=molecule.pos, masses=molecule.masses)
    atoms.set_array(TYPES, np.asarray(molecule.types))
    return atoms


class FlashSchNetCalculator(Calculator):
    """Energies (eV), forces (eV/Å) and, in a cell of three periodic axes, stress (eV/Å^3) for ASE.

    A neighbour list is kept while no bead has moved by half the skin and the cell stays the same.

    Args:
        model: a `FlashSchNet`, compressed or not, or for systems that are not periodic any potential of this
            package, such as a `SumPotential`.
        types: bead types; the array ``bead_types`` of the atoms (see `to_ase`) by default.
        units: force unit of the model: an energy over a length.
        skin: of the neighbour list, Å.

    Raises:
        ValueError: an unknown unit, or a skin below 0.

    Example:
        >>> from icml_flashschnet import demo_model, example_structure, read_pdb
        >>> atoms = to_ase(read_pdb(example_structure("1ejg")))
        >>> atoms.calc = FlashSchNetCalculator(demo_model().network)
        >>> atoms.get_forces().shape
        (226, 3)
    """

    implemented_properties: ClassVar[list[str]] = ["energy", "free_energy", "forces", "stress"]

    def __init__(
        self,
        model: nn.Module,
        types: Sequence[int] | Int[np.ndarray, " beads"] | None = None,
        *,
        units: str = "kcal/mol/Å",
        skin: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not skin >= 0:
            raise ValueError(f"skin must be at least 0 Å, got {skin}")
        self.model = model
        self.skin = float(skin)
        self._types = None if types is None else np.asarray(types)
        length = units.rpartition("/")[2]
        self._lengths, force = to_internal(length, units)
        self._energies = force * self._lengths  # kcal/mol in the model's unit of energy
        self._key: Any = None
        self._pairs: Any = None
        self._pos: Tensor | None = None

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = all_changes,
    ) -> None:
        """Compute what ASE asks for.

        Raises:
            ValueError: no bead types, a stress without three periodic axes, or a periodic system with a
                potential that cannot take one.
        """
        super().calculate(atoms, list(properties), list(system_changes))
        atoms = self.atoms
        parameter = next(self.model.parameters())
        pos = torch.as_tensor(atoms.positions / self._lengths, dtype=parameter.dtype, device=parameter.device)
        types = torch.as_tensor(self._bead_types(atoms), dtype=torch.int64, device=pos.device)
        periodic = bool(atoms.pbc.any())
        if "stress" in properties and not atoms.pbc.all():
            raise ValueError(f"stress needs three periodic axes; pbc is {atoms.pbc.tolist()}")
        if periodic and not isinstance(self.model, FlashSchNet):
            raise ValueError(
                f"{type(self.model).__name__} takes no periodic cell, a FlashSchNet does; "
                f"pbc is {atoms.pbc.tolist()}"
            )
        cell = torch.as_tensor(atoms.cell.array / self._lengths, dtype=pos.dtype, device=pos.device)
        pairs = self._neighbours(pos, cell, torch.as_tensor(atoms.pbc))
        energy_unit = self._energies * units.kcal / units.mol
        if "stress" in properties:
            energy, forces, stress = energy_forces_stress(self.model, pos, types, cell, *pairs)
            scaled = stress.double().cpu().numpy() * (energy_unit / self._lengths**3)
            self.results["stress"] = full_3x3_to_voigt_6_stress(scaled)
        elif periodic:
            shift = pairs[1].to(pos.dtype) @ cell
            energies, forces = self.model.energy_forces(pos, types, nlist=pairs[0], shift=shift)
            energy = float(energies)
        else:
            energies, forces = self.model.energy_forces(pos, types, nlist=pairs)
            energy = float(energies)
        self.results["energy"] = self.results["free_energy"] = energy * energy_unit
        self.results["forces"] = forces.double().cpu().numpy() * (energy_unit / self._lengths)

    def _bead_types(self, atoms: Atoms) -> np.ndarray:
        types = atoms.arrays.get(TYPES) if self._types is None else self._types
        if types is None:
            raise ValueError(
                f"the atoms carry no bead types: give types= to the calculator, or set the array {TYPES!r}"
            )
        if len(types) != len(atoms):
            raise ValueError(f"{len(types)} bead types for {len(atoms)} atoms")
        return types

    def _neighbours(self, pos: Tensor, cell: Tensor, pbc: Tensor) -> Any:
        key, skin = (len(pos), pbc.tolist(), cell[pbc].tolist()), self.skin / self._lengths
        if self._pos is None or key != self._key or bool(list_is_stale(pos, self._pos, skin)):
            if pbc.any():
                self._pairs = periodic_pairs(pos, float(self.model.r_cut), cell, pbc, skin=skin)
            else:
                self._pairs = self.model.neighbours(pos, skin=skin)
            self._pos, self._key = pos, key
        return self._pairs
