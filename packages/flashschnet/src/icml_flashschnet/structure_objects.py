"""Molecules from the objects of other packages: an mdtraj trajectory, an OpenMM topology, ASE atoms.

None of them is imported: an object is read by the attributes that its package documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import gemmi
import numpy as np
from jaxtyping import Float

from icml_flashschnet.beads import Representation
from icml_flashschnet.structure import Molecule, coarse_grained

Atoms = Iterable[tuple[str, str, int, str, str, str]]
"""Chain, residue name, residue number, insertion code, atom name and element of each atom."""

NANOMETRE = 10.0  # Å


def from_mdtraj(
    trajectory: Any,
    cg: Representation | None = "5bead",
    *,
    frame: int = 0,
    chain: str | None = None,
    incomplete: Literal["raise", "skip"] = "raise",
) -> Molecule:
    """The proteins of a frame of an ``mdtraj.Trajectory``.

    Args:
        trajectory: with topology; positions in nm, as mdtraj holds them.
        cg: "5bead" (N, CA, CB, C, O), "ca", or None for all atoms.
        frame: number of the frame.
        chain: name of the only chain to take.
        incomplete: what to do with a residue that lacks a needed atom: raise, or leave it out.

    Raises:
        ValueError: no such frame, no protein, or a needed atom is missing.
    """
    if not -len(trajectory.xyz) <= frame < len(trajectory.xyz):
        raise ValueError(f"no frame {frame}; the trajectory has {len(trajectory.xyz)}")
    atoms = (
        (
            getattr(a.residue.chain, "chain_id", None) or _letter(a.residue.chain.index),
            a.residue.name,
            a.residue.resSeq,
            "",
            a.name,
            a.element.symbol if a.element is not None else "X",
        )
        for a in trajectory.topology.atoms
    )
    pos = np.asarray(trajectory.xyz[frame], dtype=np.float64) * NANOMETRE
    return coarse_grained(_structure(atoms, pos), "trajectory", cg, chain=chain, incomplete=incomplete)


def from_openmm(
    topology: Any,
    positions: Any,
    cg: Representation | None = "5bead",
    *,
    chain: str | None = None,
    incomplete: Literal["raise", "skip"] = "raise",
) -> Molecule:
    """The proteins of an ``openmm.app.Topology``.

    Args:
        topology: chains, residues and atoms.
        positions: a quantity with a unit of length, or numbers in nm, as OpenMM means them.
        cg: "5bead" (N, CA, CB, C, O), "ca", or None for all atoms.
        chain: name of the only chain to take.
        incomplete: what to do with a residue that lacks a needed atom: raise, or leave it out.

    Raises:
        ValueError: another number of positions than atoms, no protein, or a needed atom is missing.
    """
    if hasattr(positions, "value_in_unit_system"):
        from openmm import unit

        positions = positions.value_in_unit(unit.nanometer)
    pos = np.array([[float(v) for v in row] for row in positions]) * NANOMETRE
    atoms = (
        (
            a.residue.chain.id or _letter(a.residue.chain.index),
            a.residue.name,
            int(a.residue.id),
            a.residue.insertionCode.strip(),
            a.name,
            a.element.symbol if a.element is not None else "X",
        )
        for a in topology.atoms()
    )
    return coarse_grained(_structure(atoms, pos), "topology", cg, chain=chain, incomplete=incomplete)


def from_ase(
    atoms: Any,
    cg: Representation | None = "5bead",
    *,
    incomplete: Literal["raise", "skip"] = "raise",
) -> Molecule:
    """The protein of ``ase.Atoms`` that know their residues, as ``ase.io.read`` of a PDB file makes them.

    ASE keeps no chains: where residue numbers fall, another chain begins.

    Args:
        atoms: with the arrays ``atomtypes``, ``residuenames`` and ``residuenumbers``; positions in Å.
        cg: "5bead" (N, CA, CB, C, O), "ca", or None for all atoms.
        incomplete: what to do with a residue that lacks a needed atom: raise, or leave it out.

    Raises:
        ValueError: an array is missing, no protein, or a needed atom is missing.
    """
    needed = ("atomtypes", "residuenames", "residuenumbers")
    if missing := [name for name in needed if name not in atoms.arrays]:
        raise ValueError(
            f"the atoms lack the arrays {', '.join(missing)}, which say what is a residue; "
            "ase.io.read of a PDB file gives them, or use read_pdb"
        )
    numbers = np.asarray(atoms.arrays["residuenumbers"], dtype=np.int64)
    chains = np.concatenate([[0], np.cumsum(np.diff(numbers) < 0)])
    rows = (
        (_letter(int(c)), str(residue).strip(), int(number), "", str(name).strip(), symbol)
        for c, residue, number, name, symbol in zip(
            chains,
            atoms.arrays["residuenames"],
            numbers,
            atoms.arrays["atomtypes"],
            atoms.get_chemical_symbols(),
            strict=True,
        )
    )
    return coarse_grained(_structure(rows, atoms.positions), "atoms", cg, incomplete=incomplete)


def _letter(index: int) -> str:
    return chr(ord("A") + index % 26)


def _structure(atoms: Atoms, pos: Float[np.ndarray, "atoms 3"]) -> gemmi.Structure:
    rows = list(atoms)
    if len(rows) != len(pos):
        raise ValueError(f"{len(pos)} positions for {len(rows)} atoms")
    model = gemmi.Model(1)
    chain: gemmi.Chain | None = None
    residue: gemmi.Residue | None = None
    place: tuple[str, int, str, str] | None = None
    for (chain_name, residue_name, number, insertion, name, element), x in zip(rows, pos, strict=True):
        if chain is None or chain.name != chain_name:
            model.add_chain(gemmi.Chain(chain_name))
            chain, place = model[-1], None
        if place != (chain_name, number, insertion, residue_name):
            place = (chain_name, number, insertion, residue_name)
            new = gemmi.Residue()
            new.name, new.het_flag = residue_name, "A"
            new.seqid = gemmi.SeqId(number, insertion or " ")
            residue = chain.add_residue(new)
        atom = gemmi.Atom()
        atom.name, atom.element, atom.occ = name, gemmi.Element(element), 1.0
        atom.pos = gemmi.Position(*(float(v) for v in x))
        assert residue is not None
        residue.add_atom(atom)
    structure = gemmi.Structure()
    structure.add_model(model)
    return structure
