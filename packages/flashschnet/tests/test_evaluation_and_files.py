"""Measures of shape against mdtraj, reference data in and out, and the units of other programs."""

from __future__ import annotations

import warnings

import mdtraj
import numpy as np
import openmm
import pytest
from icml_core import Run
from icml_flashschnet.geometry import native_contacts, radius_of_gyration, rmsd
from icml_flashschnet.plots import plot_energies, plot_history
from icml_flashschnet.reference_data import (
    ReferenceData,
    capped_peptide,
    coarse_grain,
    load_reference,
    peptide_library,
    read_references,
    reference_set,
    save_reference,
    simulate,
)
from icml_flashschnet.run_reports import report_trajectory
from icml_flashschnet.structure import example_structure, read_pdb, write_pdb
from icml_flashschnet.structure_evaluation import StructureEvaluator
from icml_flashschnet.trajectory import Trajectory
from icml_flashschnet.units import check_length_unit, ns_per_day, to_internal

GLYCINE = {"types": np.zeros(4), "sequence": np.array("G")}


@pytest.fixture(scope="module")
def frames():
    """Ubiquitin, and six bent, turned and shifted copies of it as two replicas of three frames."""
    molecule = read_pdb(example_structure("1ubi"))
    rng = np.random.default_rng(0)
    pos = []
    for _ in range(6):
        rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
        rotation *= np.sign(np.linalg.det(rotation))
        bent = molecule.pos * rng.uniform(0.9, 1.1, 3) + 0.5 * rng.standard_normal(molecule.pos.shape)
        pos.append(bent @ rotation.T + rng.uniform(-20, 20, 3))
    return molecule, np.array(pos).reshape(2, 3, -1, 3)


def test_rmsd_and_gyration_are_those_of_mdtraj(frames, tmp_path):
    molecule, pos = frames
    write_pdb(molecule, tmp_path / "reference.pdb")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = mdtraj.load_pdb(str(tmp_path / "reference.pdb"))
    trajectory = mdtraj.Trajectory(pos.reshape(-1, *pos.shape[2:]) / 10.0, reference.topology)
    np.testing.assert_allclose(
        rmsd(pos, molecule.pos).ravel(), 10.0 * mdtraj.rmsd(trajectory, reference), rtol=2e-3
    )
    expected = 10.0 * mdtraj.compute_rg(trajectory, masses=molecule.masses)
    np.testing.assert_allclose(radius_of_gyration(pos, molecule.masses).ravel(), expected, rtol=1e-5)


def test_rmsd_does_not_superpose_a_mirror_image(frames):
    molecule, _ = frames
    mirrored = molecule.pos * [-1.0, 1.0, 1.0]
    assert rmsd(mirrored, molecule.pos) > 5.0
    assert rmsd(molecule.pos @ np.diag([-1.0, -1.0, 1.0]), molecule.pos) < 1e-6


def test_native_contacts_are_the_sum_over_pairs(frames):
    molecule, pos = frames
    trace = np.array(molecule.names) == "CA"
    x, y = pos[1, 2][trace], molecule.pos[trace]
    terms = []
    for i in range(len(y)):
        for j in range(i + 4, len(y)):
            if (r0 := np.linalg.norm(y[i] - y[j])) < 8.0:
                terms.append(1.0 / (1.0 + np.exp(5.0 * (np.linalg.norm(x[i] - x[j]) - 1.2 * r0))))
    assert native_contacts(x, y) == pytest.approx(np.mean(terms), rel=1e-9)
    with pytest.raises(ValueError, match="no two residues"):
        native_contacts(y[:3], y[:3])


def test_the_evaluator_names_its_figures(frames):
    molecule, pos = frames
    figures = StructureEvaluator(molecule).evaluate(pos)
    assert set(figures) == {
        f"{name}{late}"
        for name in ("rmsd", "radius_of_gyration", "native_contacts")
        for late in ("", "_late")
    } | {"gdt_ts_late"}
    trace = np.array(molecule.names) == "CA"
    assert figures["rmsd_late"] == pytest.approx(rmsd(pos[:, -1:, trace], molecule.pos[trace]).mean())
    with pytest.raises(ValueError, match=r"\[replicas, frames, 374, 3\], got \[2, 3, 9, 3\]"):
        StructureEvaluator(molecule).evaluate(pos[:, :, :9])
    with pytest.raises(ValueError, match="no frames"):
        StructureEvaluator(molecule).evaluate(pos[:, :0])


def test_reports_hold_every_frame_and_survive_frozen_replicas(frames, tmp_path):
    molecule, pos = frames
    energy = np.array([[1.0, 2.0, 3.0], [4.0, np.nan, np.nan]])
    trajectory = Trajectory(pos.astype(np.float32), np.array([10, 20, 30]), energy, energy * 100, 0.004)
    summary = report_trajectory(Run(tmp_path), molecule, trajectory, target=300.0)
    assert summary["late_mean_energy_kcal_mol"] == 3.0
    lines = (tmp_path / "energies.csv").read_text().splitlines()
    assert lines[0] == "step,time_ps,replica,energy_kcal_mol,temperature_K"
    assert lines[2] == "10,0.04,1,4,400"
    assert len(lines) == 7
    for name in ("energies.png", "shape.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")


def test_plots_of_many_replicas_and_of_a_training(tmp_path):
    rng = np.random.default_rng(0)
    many = Trajectory(
        np.zeros((40, 5, 1, 3)), np.arange(5), rng.random((40, 5)), np.full((40, 5), np.nan), 0.1
    )
    plot_energies(many, tmp_path / "many.png")
    plot_history(
        [{"epoch": 1, "train_rmse": 2.0, "validation_rmse": 2.1}], tmp_path / "history.png", prior=3.0
    )
    assert (tmp_path / "many.png").stat().st_size > 5000
    assert (tmp_path / "history.png").stat().st_size > 5000


def test_every_amino_acid_stands_equally_often_in_the_library():
    library = peptide_library(3, 4, seed=5)
    assert len(library) == 15
    assert sorted("".join(library)) == sorted("ACDEFGHIKLMNPQRSTVWY" * 3)
    assert library == peptide_library(3, 4, seed=5) != peptide_library(3, 4, seed=6)
    with pytest.raises(ValueError, match="must divide 20"):
        peptide_library(1, 3)


def test_mapped_forces_are_sums_of_the_forces_that_openmm_gives():
    """Ace-Ala-Gly-NMe: each bead's aggregated force is that of its heavy atom and its hydrogens."""
    pdb = capped_peptide("AG", seed=1)
    topology, coords, forces = simulate(pdb, steps=20, save_every=10, seed=3, warm_up=20)
    data = coarse_grain(topology, coords, forces, np.zeros(2), mode="aggregate")
    atoms = {(a.residue.name, a.name): a.index for a in topology.atoms()}
    assert data.sequence == "AG"
    assert data.coords.shape == (2, 9, 3)
    for bead, (residue, name, hydrogens) in enumerate(
        [("ALA", "N", ["H"]), ("ALA", "CA", ["HA"]), ("ALA", "CB", ["HB1", "HB2", "HB3"]),
         ("ALA", "C", []), ("ALA", "O", []), ("GLY", "N", ["H"]), ("GLY", "CA", ["HA2", "HA3"]),
         ("GLY", "C", []), ("GLY", "O", [])]
    ):  # fmt: skip
        np.testing.assert_array_equal(data.coords[:, bead], coords[:, atoms[residue, name]])
        together = [atoms[residue, n] for n in (name, *hydrogens)]
        np.testing.assert_allclose(data.forces[:, bead], forces[:, together].sum(1), atol=1e-4)
    # Every atom of alanine and glycine goes with a bead: the optimal map has nothing to choose.
    assert data.variance["optimal"] == pytest.approx(data.variance["aggregate"], rel=1e-6)


def test_fast_solvent_is_the_one_of_the_force_field():
    """The built-in OBC force against the force field's own expression of the same model: forces to 1e-4."""
    import io

    from icml_flashschnet.reference_data import _use_builtin_obc
    from openmm import app

    pdb = app.PDBFile(io.StringIO(capped_peptide("SK", seed=2)))
    field = app.ForceField("amber14/protein.ff14SB.xml", "implicit/obc2.xml")
    model = app.Modeller(pdb.topology, pdb.positions)
    model.addHydrogens(field)
    system = field.createSystem(model.topology, nonbondedMethod=app.NoCutoff)

    def forces():
        context = openmm.Context(
            system, openmm.VerletIntegrator(1e-3), openmm.Platform.getPlatformByName("Reference")
        )
        context.setPositions(model.positions)
        return context.getState(forces=True).getForces(asNumpy=True)._value

    generic = forces()
    _use_builtin_obc(system)
    np.testing.assert_allclose(forces(), generic, atol=1e-4 * np.sqrt(np.square(generic).mean()))


def test_data_sets_repeat_with_the_seed_and_survive_the_disk(tmp_path):
    made = [reference_set("G", starts=2, steps=20, save_every=10, seed=s) for s in (4, 4, 5)]
    np.testing.assert_array_equal(made[0].coords, made[1].coords)
    assert np.abs(made[0].coords - made[2].coords).max() > 0.1
    assert made[0].segment.tolist() == [0, 0, 1, 1]
    save_reference(made[0], tmp_path / "a.npz")
    ((path, read),) = read_references([tmp_path])
    assert path.name == "a.npz"
    np.testing.assert_array_equal(read.forces, made[0].forces)
    assert read.sequence == "G"
    assert read.variance == pytest.approx(made[0].variance)
    assert read.molecule().n_beads == 4


def test_data_of_other_units_are_converted(tmp_path):
    data = ReferenceData(
        np.random.default_rng(0).random((3, 4, 3)), np.ones((3, 4, 3)), np.array([21, 6, 23, 24]), "G",
        np.zeros(3), {},
    )  # fmt: skip
    save_reference(data, tmp_path / "nm.npz")
    read = load_reference(tmp_path / "nm.npz", units=("nm", "kJ/mol/nm"))
    np.testing.assert_allclose(read.coords, 10.0 * data.coords, rtol=1e-6)
    np.testing.assert_allclose(read.forces, 1.0 / 41.84, rtol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"coords": np.zeros((5, 4, 3))}, "lacks forces, types, sequence"),
        (
            {"coords": np.zeros((5, 4, 3)), "forces": np.zeros((5, 9, 3)), **GLYCINE},
            r"coords \[5, 4, 3\] and forces \[5, 9, 3\] differ; map",
        ),
        (
            {"coords": np.zeros((5, 4, 2)), "forces": np.zeros((5, 4, 2)), **GLYCINE},
            r"coords must be \[frames, 4, 3\]",
        ),
        ({"coords": np.array([{"a": 1}], dtype=object)}, "plain .npz"),
    ],
)  # fmt: skip
def test_broken_data_files_are_named(arrays, message, tmp_path):
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        load_reference(tmp_path / "bad.npz")


def test_absent_data_files_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no data file"):
        load_reference(tmp_path / "none.npz")
    with pytest.raises(FileNotFoundError, match=r"no \.npz files in"):
        list(read_references([tmp_path]))


def test_units():
    length, force = to_internal("nm", "kJ/mol/nm")
    assert (length, force) == (10.0, pytest.approx(1.0 / 41.84))
    assert to_internal("bohr", "hartree/bohr")[1] == pytest.approx(627.5094740631 / 0.529177210903)
    with pytest.raises(ValueError, match="'furlong' is none of"):
        to_internal("furlong", "eV/Å")
    with pytest.raises(ValueError, match="not an energy .* over a length"):
        to_internal("nm", "newton")
    # The paper's figure: 2861 replica-steps a second of 4 fs are about 989 ns a day.
    assert ns_per_day(2861, 1.0, 0.004) == pytest.approx(988.8, abs=0.1)


def test_lengths_in_other_units_warn():
    molecule = read_pdb(example_structure("1ubi"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert check_length_unit(molecule.pos)
        assert check_length_unit(molecule.pos[:1])
    with pytest.warns(UserWarning, match="likely unit: nm"):
        assert not check_length_unit(molecule.pos / 10.0)
