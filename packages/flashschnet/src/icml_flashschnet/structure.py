"""Molecules: proteins read from PDB and mmCIF files, whole or coarse-grained to a few beads a residue."""

from __future__ import annotations

import gzip
import io
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

import gemmi
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from icml_flashschnet import beads as bead_map
from icml_flashschnet.beads import Representation, bead_label, bead_names, bead_type, standard_name
from icml_flashschnet.topology import Topology, backbone_topology, covalent_topology, trace_topology

MAX_BYTES = 1 << 30
"""A structure file may unpack to this size at most."""
OTHER_NAMES = {"O": ("OT1", "OC1")}
"""What CHARMM and GROMACS call the last residue's oxygen."""
CB_FROM_BACKBONE = (-0.58273431, 0.56802827, -0.54067466)
"""CB - CA in the basis (b x c, b, c) with b = CA - N and c = C - CA, for ideal tetrahedral geometry
(the constants of trRosetta, Yang et al., PNAS 2020)."""


@dataclass(frozen=True)
class Residue:
    """One residue as the structure file names it."""

    name: str
    number: int
    insertion: str
    chain: str

    def __str__(self) -> str:
        return f"residue {self.name} {self.number}{self.insertion} chain {self.chain}"


@dataclass(frozen=True, eq=False)
class Molecule:
    """Beads (or atoms), their positions, and the terms that a classical potential needs.

    Attributes:
        pos: positions, Å.
        types: bead types for the network's embedding; atomic numbers without coarse-graining.
        masses: amu.
        names: name of each bead in its residue: "CA".
        labels: class of each bead in tables of prior terms: "CB(ALA)".
        residues: residues in the file's order.
        residue_of: residue of each bead.
        topology: bonds, angles and dihedrals.
        representation: "5bead", "ca", or None for all atoms.
        notes: what the reader had to decide or leave out.
    """

    pos: Float[np.ndarray, "beads 3"]
    types: Int[np.ndarray, " beads"]
    masses: Float[np.ndarray, " beads"]
    names: tuple[str, ...]
    labels: tuple[str, ...]
    residues: tuple[Residue, ...]
    residue_of: Int[np.ndarray, " beads"]
    topology: Topology
    representation: Representation | None
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n = len(self.types)
        if self.pos.shape != (n, 3):
            raise ValueError(f"pos must have shape [{n}, 3] for {n} types, got {list(self.pos.shape)}")
        if not np.isfinite(self.pos).all():
            bead = int(np.nonzero(~np.isfinite(self.pos).all(1))[0][0])
            raise ValueError(f"pos of bead {bead} is not finite: {self.pos[bead].tolist()}")
        if len(self.masses) != n or not (np.asarray(self.masses) > 0).all():
            wrong = [float(m) for m in self.masses if not m > 0]
            raise ValueError(f"masses must be {n} positive numbers (amu), got {wrong or len(self.masses)}")

    @property
    def n_beads(self) -> int:
        """Number of beads."""
        return len(self.types)

    @property
    def bonds(self) -> Int[np.ndarray, "bonds 2"]:
        """Bonded pairs."""
        return self.topology.bonds

    @property
    def angles(self) -> Int[np.ndarray, "angles 3"]:
        """Triples with the vertex in the middle."""
        return self.topology.angles

    @property
    def dihedrals(self) -> Int[np.ndarray, "dihedrals 4"]:
        """Quadruples; `topology.dihedral_kinds` says which is φ, ψ, ω, chirality, carbonyl."""
        return self.topology.dihedrals

    @property
    def sequence(self) -> str:
        """One-letter codes, chains separated by a slash."""
        letters, previous = [], None
        for residue in self.residues:
            if previous is not None and residue.chain != previous:
                letters.append("/")
            previous = residue.chain
            letters.append(bead_map.ONE_LETTER.get(standard_name(residue.name) or "", "X"))
        return "".join(letters)


def read_pdb(
    source: str | os.PathLike[str] | IO[bytes] | IO[str],
    cg: Representation | None = "5bead",
    *,
    chain: str | None = None,
    model: int = 1,
    incomplete: Literal["raise", "skip"] = "raise",
) -> Molecule:
    """Read the proteins of a PDB or mmCIF file (plain or gzipped), coarse-grained or whole.

    Water, ligands, ions and nucleic acids are left out. Of alternative locations the one with the highest
    occupancy is taken, residue by residue. A CB that is missing is placed by ideal geometry, with a warning.
    No bond is laid across a break of the chain.

    Args:
        source: path or open file.
        cg: "5bead" (N, CA, CB, C, O), "ca", or None for all atoms.
        chain: name of the only chain to read; all protein chains by default.
        model: number of the model in a file with several (NMR).
        incomplete: what to do with a residue that lacks a needed atom: raise, or leave it out.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a structure file, no such model or chain, no protein, or a needed atom is missing.

    Example:
        >>> from icml_flashschnet import example_structure
        >>> read_pdb(example_structure("1ubi"), cg="ca").n_beads
        76
    """
    structure, title = _parse(source)
    return coarse_grained(structure, title, cg, chain=chain, model=model, incomplete=incomplete)


def coarse_grained(
    structure: gemmi.Structure,
    title: str,
    cg: Representation | None = "5bead",
    *,
    chain: str | None = None,
    model: int = 1,
    incomplete: Literal["raise", "skip"] = "raise",
) -> Molecule:
    """The proteins of a structure that gemmi holds; arguments and errors as for :func:`read_pdb`.

    Args:
        structure: atoms in chains and residues.
        title: what messages call it.
        cg: "5bead", "ca", or None for all atoms.
        chain: name of the only chain to take.
        model: number of the model.
        incomplete: what to do with a residue that lacks a needed atom.
    """
    if cg not in ("5bead", "ca", None):
        raise ValueError(f"cg must be '5bead', 'ca' or None, got {cg!r}")
    found = next((m for m in structure if m.num == model), None)
    if found is None:
        raise ValueError(f"{title}: no model {model}; it has {', '.join(str(m.num) for m in structure)}")
    chains = [c for c in found if chain is None or c.name == chain]
    if not chains:
        raise ValueError(
            f"{title}: no chain {chain!r}; it has {', '.join(repr(c.name) for c in found) or 'none'}"
        )
    notes: list[str] = []
    residues = [
        (Residue(name, atoms_of.seqid.num or 0, atoms_of.seqid.icode.strip(), c.name), atoms)
        for c in chains
        for atoms_of in _residues(c, notes)
        if (name := standard_name(atoms_of.name)) and (atoms := _atoms(atoms_of))
    ]
    if not residues:
        where = f"chain {chain!r}" if chain is not None else "any chain"
        raise ValueError(f"{title}: no amino acids with coordinates in {where}")
    if cg is None:
        molecule = _all_atoms(residues, notes)
    else:
        molecule = _coarse_grained(residues, cg, incomplete, notes, title)
    for note in molecule.notes:
        if "placed by ideal geometry" in note or "incomplete" in note:
            warnings.warn(f"{title}: {note}", stacklevel=2)
    return molecule


def chain_molecule(
    sequence: str, pos: ArrayLike, cg: Representation = "5bead", *, first_number: int = 1
) -> Molecule:
    """A molecule from a sequence and the positions of its beads, as coarse-grained data sets hold them.

    Args:
        sequence: one-letter codes; a slash begins another chain.
        pos: positions [beads, 3], N, CA, CB, C, O of each residue (no CB on glycine) or CA; Å.
        cg: the representation.
        first_number: number of each chain's first residue.

    Raises:
        ValueError: a letter that is no amino acid, or another number of beads.
    """
    three = {letter: name for name, letter in bead_map.ONE_LETTER.items()}
    residues: list[Residue] = []
    for place, chain in enumerate(sequence.split("/")):
        for offset, letter in enumerate(chain):
            if letter not in three:
                raise ValueError(f"sequence {sequence!r}: {letter!r} is none of the twenty amino acids")
            residues.append(Residue(three[letter], first_number + offset, "", chr(ord("A") + place % 26)))
    n_beads = sum(len(bead_names(r.name, cg)) for r in residues)
    x = np.asarray(pos, dtype=np.float64)
    if x.shape != (n_beads, 3):
        raise ValueError(f"{sequence} has {n_beads} beads in the {cg} map, pos has shape {list(x.shape)}")
    return _assemble(residues, cg, x, ())


def write_pdb(
    molecule: Molecule, path: str | os.PathLike[str], pos: Float[np.ndarray, "beads 3"] | None = None
) -> None:
    """Write the beads as a PDB file with their bonds (CONECT), the topology that viewers open with a
    trajectory.

    Args:
        molecule: what to write.
        path: the file.
        pos: positions to write instead of the molecule's, Å.
    """
    pos = molecule.pos if pos is None else np.asarray(pos, dtype=np.float64)
    structure = gemmi.Structure()
    model = gemmi.Model(1)
    first = 0
    for number, residue in enumerate(molecule.residues):
        if number == 0 or residue.chain != molecule.residues[number - 1].chain:
            model.add_chain(gemmi.Chain(residue.chain[:1] or "A"))
        out = gemmi.Residue()
        out.name = residue.name
        out.seqid = gemmi.SeqId(residue.number, residue.insertion or " ")
        out.het_flag = "A"
        while first < molecule.n_beads and molecule.residue_of[first] == number:
            atom = gemmi.Atom()
            atom.name = molecule.names[first]
            element = molecule.labels[first] if molecule.representation is None else molecule.names[first][0]
            atom.element = gemmi.Element(element)
            atom.pos = gemmi.Position(*(float(v) for v in pos[first]))
            atom.occ, atom.serial = 1.0, first + 1
            out.add_atom(atom)
            first += 1
        model[-1].add_residue(out)
    structure.add_model(model)
    for i, j in molecule.bonds:
        structure.add_conect(int(i) + 1, int(j) + 1, 1)
    options = gemmi.PdbWriteOptions(minimal=True)
    options.conect_records, options.preserve_serial = True, True
    options.ter_records, options.cryst1_record = False, False
    Path(path).write_text(structure.make_pdb_string(options))


def example_structure(name: str = "1ubi") -> Path:
    """Path of a protein structure that ships with the package.

    Args:
        name: "1ubi" (ubiquitin, 76 residues) or "1ejg" (crambin, 46 residues with alternative locations),
            both of the Protein Data Bank (https://www.rcsb.org), which is in the public domain (CC0).

    Raises:
        ValueError: another name.
    """
    folder = Path(__file__).parent / "data"
    there = sorted(p.name.removesuffix(".pdb.gz") for p in folder.glob("*.pdb.gz"))
    if name not in there:
        raise ValueError(f"no example structure {name!r}; there are {', '.join(there)}")
    return folder / f"{name}.pdb.gz"


def _parse(source: str | os.PathLike[str] | IO[bytes] | IO[str]) -> tuple[gemmi.Structure, str]:
    """The structure, and what messages call the file."""
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.exists():
            raise FileNotFoundError(f"no structure file {path}")
        if path.is_dir():
            raise ValueError(f"{path} is a folder; give a PDB or mmCIF file")
        title, data = path.name, path.read_bytes()
    else:
        content = source.read()
        title = str(getattr(source, "name", "structure"))
        data = content.encode() if isinstance(content, str) else content
    if data[:2] == b"\x1f\x8b":
        try:
            with gzip.open(io.BytesIO(data)) as stream:
                data = stream.read(MAX_BYTES + 1)
        except (OSError, EOFError) as error:
            raise ValueError(f"{title}: broken gzip file: {error}") from error
    if len(data) > MAX_BYTES:
        raise ValueError(f"{title}: more than {MAX_BYTES >> 20} MiB when unpacked")
    text = data.decode("utf-8", errors="replace")
    head = next((s for line in text.splitlines() if (s := line.strip()) and not s.startswith("#")), "")
    form = gemmi.CoorFormat.Mmcif if head.lower().startswith("data_") else gemmi.CoorFormat.Pdb
    try:
        structure = gemmi.read_structure_string(text, format=form)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"{title}: not a PDB or mmCIF file: {error}") from error
    if len(structure) == 0 or structure[0].count_atom_sites() == 0:
        raise ValueError(f"{title}: no atoms found; a PDB or mmCIF file is expected")
    return structure, title


def _residues(chain: gemmi.Chain, notes: list[str]) -> Iterator[gemmi.Residue]:
    """Residues of a chain, at each place of the sequence the one with the highest occupancy."""
    places: dict[str, list[gemmi.Residue]] = {}
    for residue in chain:
        hetero = residue.het_flag == "H" and residue.name not in bead_map.SAME_AS
        if standard_name(residue.name) is None or hetero:
            if not residue.is_water():
                notes.append(f"{residue.name} {residue.seqid} chain {chain.name} left out")
            continue
        places.setdefault(str(residue.seqid), []).append(residue)
    for candidates in places.values():
        best = max(candidates, key=lambda r: sum(a.occ for a in r) / max(len(r), 1))
        if len(candidates) > 1:
            others = ", ".join(r.name for r in candidates if r is not best)
            notes.append(f"{best.name} {best.seqid} chain {chain.name} taken, {others} left out")
        yield best


def _atoms(residue: gemmi.Residue) -> dict[str, gemmi.Atom]:
    """Atoms by name, of the alternative location with the highest mean occupancy (ties: the first)."""
    occupancies: dict[str, list[float]] = {}
    for atom in residue:
        if atom.has_altloc():
            occupancies.setdefault(atom.altloc, []).append(atom.occ)
    mean = {label: sum(occ) / len(occ) for label, occ in sorted(occupancies.items())}
    order = sorted(mean, key=lambda label: -mean[label])
    rank = {label: place for place, label in enumerate(order)}
    chosen: dict[str, gemmi.Atom] = {}
    for atom in residue:
        other = chosen.get(atom.name)
        if other is None or rank.get(atom.altloc, -1) < rank.get(other.altloc, -1):
            chosen[atom.name] = atom
    return chosen


def _coarse_grained(
    residues: list[tuple[Residue, dict[str, gemmi.Atom]]],
    cg: Representation,
    incomplete: str,
    notes: list[str],
    title: str,
) -> Molecule:
    pos: list[np.ndarray] = []
    kept: list[Residue] = []
    for residue, atoms in residues:
        wanted = bead_names(residue.name, cg)
        for bead, others in OTHER_NAMES.items():
            if bead not in atoms and (other := next((o for o in others if o in atoms), None)):
                atoms = {**atoms, bead: atoms[other]}
        missing = [bead for bead in wanted if bead != "CB" and bead not in atoms]
        if missing:
            if incomplete == "raise":
                raise ValueError(
                    f"{title}: {residue}: no {', '.join(missing)}; complete the structure, "
                    "or leave such residues out (incomplete='skip')"
                )
            notes.append(f"{residue} is incomplete (no {', '.join(missing)}) and left out")
            continue
        where = {b: np.array(atoms[b].pos.tolist()) for b in wanted if b in atoms}
        if "CB" in wanted and "CB" not in where:
            where["CB"] = _ideal_cb(where["N"], where["CA"], where["C"])
            notes.append(f"{residue}: no CB, placed by ideal geometry")
        pos += [where[bead] for bead in wanted]
        kept.append(residue)
    if not kept:
        raise ValueError(f"{title}: every residue is incomplete")
    return _assemble(kept, cg, np.array(pos, dtype=np.float64), tuple(notes))


def _assemble(
    residues: list[Residue], cg: Representation, pos: Float[np.ndarray, "beads 3"], notes: tuple[str, ...]
) -> Molecule:
    """Types, masses, labels and terms of coarse-grained residues whose beads lie at `pos`, in order."""
    owned = [(number, bead) for number, r in enumerate(residues) for bead in bead_names(r.name, cg)]
    beads: list[dict[str, int]] = [{} for _ in residues]
    for index, (number, bead) in enumerate(owned):
        beads[number][bead] = index
    chains = [r.chain for r in residues]
    return Molecule(
        pos=pos,
        types=np.array([bead_type(residues[n].name, bead, cg) for n, bead in owned], dtype=np.int64),
        masses=np.array([bead_map.MASSES[bead] for _, bead in owned]),
        names=tuple(bead for _, bead in owned),
        labels=tuple(bead_label(residues[n].name, bead, cg) for n, bead in owned),
        residues=tuple(residues),
        residue_of=np.array([n for n, _ in owned], dtype=np.int64),
        topology=trace_topology(chains, pos) if cg == "ca" else backbone_topology(beads, chains, pos),
        representation=cg,
        notes=notes,
    )


def _all_atoms(residues: list[tuple[Residue, dict[str, gemmi.Atom]]], notes: list[str]) -> Molecule:
    atoms = [atom for _, group in residues for atom in group.values()]
    ends = np.cumsum([len(group) for _, group in residues])
    groups = [range(end - len(group), end) for end, (_, group) in zip(ends, residues, strict=True)]
    pos = np.array([atom.pos.tolist() for atom in atoms], dtype=np.float64)
    radii = np.array([atom.element.covalent_r for atom in atoms])
    sulphurs = [i for i, atom in enumerate(atoms) if atom.element.name == "S"]
    elements = tuple(atom.element.name for atom in atoms)
    return Molecule(
        pos,
        np.array([atom.element.atomic_number for atom in atoms], dtype=np.int64),
        np.array([atom.element.weight for atom in atoms]),
        tuple(atom.name for atom in atoms),
        elements,
        tuple(residue for residue, _ in residues),
        np.repeat(np.arange(len(groups)), [len(g) for g in groups]),
        covalent_topology(groups, radii, pos, sulphurs),
        None,
        tuple(notes),
    )


def _ideal_cb(n: np.ndarray, ca: np.ndarray, c: np.ndarray) -> np.ndarray:
    """Position of CB from N, CA and C, for an L amino acid."""
    b, d = ca - n, c - ca
    normal = np.cross(b, d)
    return ca + CB_FROM_BACKBONE[0] * normal + CB_FROM_BACKBONE[1] * b + CB_FROM_BACKBONE[2] * d
