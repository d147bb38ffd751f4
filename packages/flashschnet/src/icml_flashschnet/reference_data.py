"""Reference data for force matching: short all-atom simulations of peptides and proteins, coarse-grained.

Amber ff14SB (Maier et al., J. Chem. Theory Comput. 11, 3696 (2015)) with generalised-Born water, 300 K,
Langevin dynamics without constraints, by OpenMM (extra `openmm`). Peptides are capped (acetyl, N-methyl
amide; the caps are not mapped), so that their ends carry no charge, and start from random places of the
Ramachandran map.
"""

from __future__ import annotations

import gzip
import io
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gemmi
import numpy as np
from icml_core.run import write_atomically
from jaxtyping import Float, Int

from icml_flashschnet.beads import ONE_LETTER, bead_names, standard_name
from icml_flashschnet.mapping import ForceMap, force_variance, map_forces, map_positions
from icml_flashschnet.structure import Molecule, chain_molecule
from icml_flashschnet.units import to_internal

if TYPE_CHECKING:
    from openmm import System, app

Solvent = Literal["obc2", "gbn2"]
BASINS = ((-65.0, -42.0), (-120.0, 130.0), (-70.0, 145.0))
"""φ, ψ (degrees) of the α, β and polyproline II regions, from which peptides start."""
LEFT_HANDED = (57.0, 45.0)
"""φ, ψ of the left-handed α region, where glycine may start too."""
JITTER = 15.0
"""Standard deviation (degrees) of the starting angles around a basin."""
HYDROGEN_MASS = 3.0
"""amu; heavy hydrogens leave averages as they are, and make 2 fs safe without constraints."""
SHIPPED = (("1ejg", 12000),)
"""Proteins that the shipped model was trained on, and the steps of each; ubiquitin is new to it."""
PROTEIN_SAVE_EVERY = 30
OBC_OFFSET = 0.009
"""Dielectric offset of the OBC model, nm."""


@dataclass(frozen=True, eq=False)
class ReferenceData:
    """Mapped positions and forces of one molecule.

    Attributes:
        coords: positions, Å.
        forces: mapped forces, kcal/mol/Å.
        types: bead types.
        sequence: one-letter codes.
        segment: number of the simulation that each frame comes from; frames of one are correlated.
        variance: mean square of the forces under each force map, (kcal/mol/Å)².
    """

    coords: Float[np.ndarray, "frames beads 3"]
    forces: Float[np.ndarray, "frames beads 3"]
    types: Int[np.ndarray, " beads"]
    sequence: str
    segment: Int[np.ndarray, " frames"]
    variance: dict[str, float]

    def molecule(self, frame: int = 0) -> Molecule:
        """The molecule in one of the frames, with its topology."""
        return chain_molecule(self.sequence, self.coords[frame])


def save_reference(data: ReferenceData, path: Path) -> None:
    """Write a data set as .npz (no pickles inside), whole or not at all."""
    with write_atomically(Path(path)) as temporary:
        np.savez_compressed(
            temporary,
            coords=data.coords.astype(np.float32),
            forces=data.forces.astype(np.float32),
            types=data.types.astype(np.int64),
            sequence=np.array(data.sequence),
            segment=data.segment.astype(np.int32),
            variance_names=np.array(list(data.variance), dtype=np.str_),
            variance=np.array(list(data.variance.values())),
        )


def load_reference(path: Path, units: tuple[str, str] = ("Å", "kcal/mol/Å")) -> ReferenceData:
    """Read what `save_reference` wrote, or any .npz with coords, forces, types and sequence.

    Args:
        path: the file.
        units: of its positions and forces, such as ("nm", "kJ/mol/nm").

    Raises:
        FileNotFoundError: no such file.
        ValueError: an array is missing, holds objects, or has the wrong shape.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no data file {path}")
    length, force = to_internal(*units)
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except ValueError as error:
        raise ValueError(f"{path}: not a plain .npz archive: {error}") from error
    missing = [name for name in ("coords", "forces", "types", "sequence") if name not in arrays]
    if missing:
        raise ValueError(f"{path}: lacks {', '.join(missing)}; it holds {', '.join(arrays)}")
    coords, forces, types = arrays["coords"], arrays["forces"], arrays["types"].astype(np.int64)
    if coords.ndim != 3 or coords.shape[2] != 3 or coords.shape[1] != len(types):
        raise ValueError(f"{path}: coords must be [frames, {len(types)}, 3], got {list(coords.shape)}")
    if forces.shape != coords.shape:
        raise ValueError(
            f"{path}: coords {list(coords.shape)} and forces {list(forces.shape)} differ; "
            "map atomistic forces with icml_flashschnet.map_forces first"
        )
    return ReferenceData(
        coords=coords * np.float32(length),
        forces=forces * np.float32(force),
        types=types,
        sequence=str(arrays["sequence"]),
        segment=arrays.get("segment", np.zeros(len(coords), dtype=np.int32)),
        variance={
            str(name): float(value)
            for name, value in zip(arrays.get("variance_names", ()), arrays.get("variance", ()), strict=True)
        },
    )


def peptide_library(n_permutations: int = 8, length: int = 5, *, seed: int = 0) -> list[str]:
    """Short sequences in which each of the twenty amino acids stands equally often.

    Args:
        n_permutations: how often each amino acid appears.
        length: residues of a peptide; must divide 20.
        seed: of the shuffling.

    Raises:
        ValueError: a length that does not divide 20.
    """
    if length < 1 or 20 % length:
        raise ValueError(f"the length of the peptides must divide 20, got {length}")
    rng = np.random.default_rng(seed)
    letters = sorted(ONE_LETTER.values())
    shuffled = ["".join(rng.permutation(letters)) for _ in range(n_permutations)]
    return [order[i : i + length] for order in shuffled for i in range(0, 20, length)]


def capped_peptide(sequence: str, *, seed: int) -> str:
    """PDB text of a peptide with acetyl and N-methyl caps, without hydrogens, from a random conformation.

    Args:
        sequence: one-letter codes.
        seed: selects the basin of each residue.

    Raises:
        ModuleNotFoundError: PeptideBuilder is not installed.
    """
    from Bio.PDB import PDBIO
    from PeptideBuilder import Geometry, make_structure_from_geos

    rng = np.random.default_rng(seed)
    geometries = [Geometry.geometry(letter) for letter in f"G{sequence}G"]
    for letter, after, here, behind in zip(
        sequence, f"{sequence[1:]}G", geometries[1:-1], geometries[2:], strict=True
    ):
        choices = BASINS + ((LEFT_HANDED,) if letter == "G" else ())
        # A residue before proline hardly visits the α region: the rings would clash.
        phi, psi = choices[rng.integers(1 if after == "P" else 0, len(choices))]
        here.phi = -65.0 if letter == "P" else phi + JITTER * rng.standard_normal()
        behind.psi_im1 = psi + JITTER * rng.standard_normal()
    text = io.StringIO()
    writer = PDBIO()
    writer.set_structure(make_structure_from_geos(geometries))
    writer.save(text)
    structure = gemmi.read_pdb_string(text.getvalue())
    chain = structure[0][0]
    for residue, name, kept in (
        (chain[0], "ACE", {"CA": "CH3", "C": "C", "O": "O"}),
        (chain[-1], "NME", {"N": "N", "CA": "C"}),
    ):
        residue.name = name
        for place in reversed(range(len(residue))):
            if residue[place].name in kept:
                residue[place].name = kept[residue[place].name]
            else:
                del residue[place]
    return structure.make_pdb_string()


def bare_protein(path: Path) -> str:
    """PDB text of the protein in a structure file, without hydrogens, ligands and alternative locations."""
    data = Path(path).read_bytes()
    text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode("utf-8", errors="replace")
    structure = gemmi.read_structure_string(text)
    structure.remove_alternative_conformations()
    structure.remove_ligands_and_waters()
    structure.remove_hydrogens()
    while len(structure) > 1:
        del structure[1]
    return structure.make_pdb_string()


def simulate(
    pdb_text: str,
    *,
    steps: int,
    save_every: int,
    seed: int,
    warm_up: int = 1000,
    temperature: float = 300.0,
    dt: float = 0.002,
    friction: float = 1.0,
    solvent: Solvent = "obc2",
    threads: int = 1,
    advance: Callable[[int], None] = lambda steps: None,
) -> tuple[Any, Float[np.ndarray, "frames atoms 3"], Float[np.ndarray, "frames atoms 3"]]:
    """Simulate all atoms in implicit water after energy minimisation.

    Args:
        pdb_text: heavy atoms of the protein; hydrogens are added for pH 7.
        steps: steps after the warm-up.
        save_every: steps between frames.
        seed: of velocities and noise.
        warm_up: steps before the first frame.
        temperature: K.
        dt: time step, ps.
        friction: 1/ps.
        solvent: "obc2" (Onufriev, Bashford and Case 2004) or "gbn2" (Nguyen, Roe and Simmerling 2013), which
            OpenMM's CPU platform computes 4 to 7 times slower.
        threads: CPU threads of OpenMM.
        advance: called with the number of steps done, after each part.

    Returns:
        OpenMM's topology, positions (Å) and forces (kcal/mol/Å).

    Raises:
        ModuleNotFoundError: OpenMM is not installed (extra `openmm`).
        RuntimeError: the simulation blew up.
    """
    import openmm
    from openmm import app, unit

    pdb = app.PDBFile(io.StringIO(pdb_text))
    field = app.ForceField("amber14/protein.ff14SB.xml", f"implicit/{solvent}.xml")
    model = app.Modeller(pdb.topology, pdb.positions)
    platform = openmm.Platform.getPlatformByName("CPU")
    with _python_random(seed):
        model.addHydrogens(field, pH=7.0, platform=openmm.Platform.getPlatformByName("Reference"))
    system = field.createSystem(
        model.topology, nonbondedMethod=app.NoCutoff, constraints=None, rigidWater=False,
        hydrogenMass=HYDROGEN_MASS * unit.amu,
    )  # fmt: skip
    if solvent == "obc2":
        _use_builtin_obc(system)
    integrator = openmm.LangevinMiddleIntegrator(temperature, friction, dt)
    integrator.setRandomNumberSeed(seed + 1)
    properties = {"Threads": str(threads), "DeterministicForces": "true"}
    simulation = app.Simulation(model.topology, system, integrator, platform, properties)
    simulation.context.setPositions(model.positions)
    simulation.minimizeEnergy(maxIterations=500)
    simulation.context.setVelocitiesToTemperature(temperature, seed + 1)
    simulation.step(warm_up)
    advance(warm_up)
    coords, forces = [], []
    length, force = to_internal("nm", "kJ/mol/nm")
    for _ in range(steps // save_every):
        simulation.step(save_every)
        advance(save_every)
        state = simulation.context.getState(positions=True, forces=True)
        coords.append(state.getPositions(asNumpy=True)._value * length)
        forces.append(state.getForces(asNumpy=True)._value * force)
    x, f = np.array(coords, dtype=np.float32), np.array(forces, dtype=np.float32)
    if not (np.isfinite(x).all() and np.isfinite(f).all()):
        raise RuntimeError(
            "the all-atom simulation blew up; start from another conformation or take dt=0.001"
        )
    return model.topology, x, f


def coarse_grain(
    topology: app.Topology,
    coords: Float[np.ndarray, "frames atoms 3"],
    forces: Float[np.ndarray, "frames atoms 3"],
    segment: Int[np.ndarray, " frames"],
    mode: ForceMap = "optimal",
) -> ReferenceData:
    """Map an all-atom trajectory to five beads a residue.

    Args:
        topology: OpenMM's, with bonds.
        coords: Å.
        forces: kcal/mol/Å.
        segment: simulation of each frame.
        mode: the force map; each bead draws from its own residue, a hydrogen goes with its heavy atom.
    """
    kept, letters = [], []
    residue_of = np.array([atom.residue.index for atom in topology.atoms()])
    for residue in topology.residues():
        name = standard_name(residue.name)
        if name is None:
            continue
        atoms = {atom.name: atom.index for atom in residue.atoms()}
        kept += [atoms[bead] for bead in bead_names(name, "5bead")]
        letters.append(ONE_LETTER[name])
    groups = [
        (bond[0].index, bond[1].index)
        for bond in topology.bonds()
        if "H" in (bond[0].element.symbol, bond[1].element.symbol)
    ]
    kept_atoms = np.array(kept)
    mapped = {
        m: map_forces(
            forces, m, kept=kept_atoms, groups=groups, sources=residue_of[kept_atoms][:, None] == residue_of
        )
        for m in ("slice", "aggregate", "optimal")
    }
    x = map_positions(coords, kept_atoms)
    sequence = "".join(letters)
    return ReferenceData(
        coords=x.astype(np.float32),
        forces=mapped[mode].astype(np.float32),
        types=chain_molecule(sequence, x[0]).types,
        sequence=sequence,
        segment=np.asarray(segment),
        variance={name: force_variance(f) for name, f in mapped.items()},
    )


def reference_set(
    source: str | Path,
    *,
    starts: int,
    steps: int,
    save_every: int,
    seed: int,
    solvent: Solvent = "obc2",
    mode: ForceMap = "optimal",
    advance: Callable[[int], None] = lambda steps: None,
) -> ReferenceData:
    """Simulate one peptide (a sequence) or protein (a structure file) and coarse-grain it.

    Args:
        source: sequence, or path of a structure file.
        starts: independent simulations; a peptide starts from another conformation each time.
        steps: steps of each.
        save_every: steps between frames.
        seed: of everything random.
        solvent: as in `simulate`.
        mode: as in `coarse_grain`.
        advance: called with the number of steps done.
    """
    parts = []
    for start in range(starts):
        number = seed * 1000 + start
        text = bare_protein(source) if isinstance(source, Path) else capped_peptide(source, seed=number)
        parts.append(
            simulate(text, steps=steps, save_every=save_every, seed=number, solvent=solvent, advance=advance)
        )
    segment = np.repeat(np.arange(starts), [len(x) for _, x, _ in parts])
    return coarse_grain(
        parts[0][0], np.concatenate([x for _, x, _ in parts]), np.concatenate([f for _, _, f in parts]),
        segment, mode,
    )  # fmt: skip


def read_references(
    paths: Sequence[Path], units: tuple[str, str] = ("Å", "kcal/mol/Å")
) -> Iterator[tuple[Path, ReferenceData]]:
    """Read several data sets; a folder stands for the .npz files in it.

    Args:
        paths: files and folders.
        units: as in `load_reference`.

    Raises:
        FileNotFoundError: a path that is not there, or a folder without .npz files.
    """
    for path in paths:
        files = sorted(path.glob("*.npz")) if path.is_dir() else [path]
        if not files:
            raise FileNotFoundError(f"no .npz files in {path}")
        for file in files:
            yield file, load_reference(file, units)


@contextmanager
def _python_random(seed: int) -> Iterator[None]:
    """Lend Python's global generator, from which OpenMM draws the hydrogens' first places, a seeded state."""
    before = random.getstate()
    random.setstate(random.Random(seed).getstate())
    try:
        yield
    finally:
        random.setstate(before)


def _use_builtin_obc(system: System) -> None:
    """Replace the generic generalised-Born force by the built-in one, 4 to 7 times faster."""
    import openmm

    place, generic = next(
        (k, f) for k, f in enumerate(system.getForces()) if isinstance(f, openmm.CustomGBForce)
    )
    force = openmm.GBSAOBCForce()
    force.setNonbondedMethod(openmm.GBSAOBCForce.NoCutoff)
    for atom in range(generic.getNumParticles()):
        charge, radius, scaled = generic.getParticleParameters(atom)[:3]
        force.addParticle(charge, radius + OBC_OFFSET, scaled / radius)
    system.removeForce(place)
    system.addForce(force)
