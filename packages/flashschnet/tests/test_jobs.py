"""The jobs behind `icml run`: what they leave in the run directory, and how they go on."""

from __future__ import annotations

import csv
import warnings

import numpy as np
import pytest
from icml_core import Run
from icml_flashschnet import jobs
from icml_flashschnet.checkpoint import load_model, save_model
from icml_flashschnet.prior_fit import fit_prior
from icml_flashschnet.reference_data import ReferenceData, load_reference, save_reference
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.structure import chain_molecule, example_structure, read_pdb, write_pdb
from icml_flashschnet.trajectory import load_trajectory

NETWORK = jobs.Network(hidden=8, filters=8, n_rbf=8, layers=1, r_cut=6.0, out=(8,))


@pytest.fixture(scope="module")
def crambin(tmp_path_factory):
    """A piece of crambin, a data set of it (shaken, with the forces of springs), and a model file."""
    folder = tmp_path_factory.mktemp("crambin")
    whole = read_pdb(example_structure("1ejg"))
    molecule = chain_molecule(whole.sequence[:13], whole.pos[whole.residue_of < 13])
    write_pdb(molecule, folder / "piece.pdb")
    shifts = 0.06 * np.random.default_rng(0).standard_normal((60, molecule.n_beads, 3))
    data = ReferenceData(
        molecule.pos + shifts, -50.0 * shifts, molecule.types, molecule.sequence, np.zeros(60), {"slice": 1.0}
    )
    save_reference(data, folder / "piece.npz")
    config = SchNetConfig(hidden=8, filters=8, n_rbf=8, layers=1, r_cut=6.0, out=(8,))
    prior = fit_prior([(molecule, data.coords)], min_count=50)
    save_model(folder / "model.safetensors", FlashSchNet(config, seed=1), prior=prior)
    return folder


def simulate(crambin, directory, **options):
    return jobs.langevin(
        run=Run(directory, seed=3, device="cpu", resumed=options.pop("resumed", False)),
        pdb=crambin / "piece.pdb", model=crambin / "model.safetensors",
        **{"replicas": 2, "steps": 40, "save_every": 10, "checkpoint_every": 20, "dt": 0.002, **options},
    )  # fmt: skip


def test_langevin_writes_what_people_open(crambin, tmp_path):
    summary = simulate(crambin, tmp_path, xtc=True)
    assert summary["structure"] == "13 residues, 65 beads"
    assert summary["frozen_replicas"] == []
    assert summary["aggregate_simulated_ns"] == pytest.approx(2 * 40 * 0.002 / 1000)
    assert summary["aggregate_ns_per_day"] == pytest.approx(
        2 * 39 * 0.002 * 86.4 / summary["seconds"], rel=1e-6
    )
    trajectory = load_trajectory(tmp_path / "trajectory")
    assert trajectory.pos.shape == (2, 4, 65, 3)
    with (tmp_path / "energies.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    energies = np.array([float(row["energy_kcal_mol"]) for row in rows]).reshape(4, 2).T
    np.testing.assert_allclose(energies, trajectory.energy, rtol=1e-7)
    files = ["dcd/replica-001.dcd", "xtc/replica-001.xtc", "xtc/topology.pdb"]
    for name in ("energies.png", "shape.png", "topology.pdb", "metrics.jsonl", *files):
        assert (tmp_path / name).stat().st_size > 100


def test_a_resumed_run_is_the_uninterrupted_one(crambin, tmp_path):
    simulate(crambin, tmp_path / "whole", dcd=False)
    simulate(crambin, tmp_path / "parts", steps=25, dcd=False)
    simulate(crambin, tmp_path / "parts", resumed=True, dcd=False)
    whole, parts = (load_trajectory(tmp_path / name / "trajectory") for name in ("whole", "parts"))
    np.testing.assert_array_equal(whole.pos, parts.pos)
    np.testing.assert_array_equal(whole.energy, parts.energy)


def test_tables_and_network_give_the_same_dynamics_at_first(crambin, tmp_path):
    simulate(crambin, tmp_path / "table", dcd=False, dtype="float64", tol=1e-8)
    simulate(crambin, tmp_path / "network", dcd=False, dtype="float64", filter="network", kernel="torch")
    table, network = (load_trajectory(tmp_path / name / "trajectory") for name in ("table", "network"))
    assert 0.0 < np.abs(table.pos - network.pos).max() < 1e-4


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cg": "ca"}, ValueError, "fitted on the 5bead map, the molecule is in the ca map"),
        ({"kernel": "triton"}, ValueError, "--kernel triton does not run on device cpu"),
        ({"temperature": -5.0}, ValueError, "temperature must be positive"),
        ({"chain": "Z"}, ValueError, "no chain 'Z'; it has 'A'"),
    ],
)
def test_bad_options_end_before_the_run_begins(crambin, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        simulate(crambin, tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


def test_absent_files_are_named(tmp_path):
    run = Run(tmp_path, device="cpu")
    with pytest.raises(FileNotFoundError, match="no structure file"):
        jobs.langevin(run=run, pdb=tmp_path / "none.pdb")
    with pytest.raises(FileNotFoundError, match="no model file"):
        jobs.langevin(run=run, model=tmp_path / "none.safetensors")
    with pytest.raises(FileNotFoundError, match="no data file"):
        jobs.force_match(run=run, data=[tmp_path / "none.npz"])


def test_force_match_trains_a_model_that_langevin_takes(crambin, tmp_path):
    training = jobs.Training(epochs=3, batch_size=8, learning_rate=1e-2)
    summary = jobs.force_match(
        run=Run(tmp_path, seed=1, device="cpu"),
        data=[crambin],
        network=NETWORK,
        training=training,
        min_count=50,
    )
    assert summary["epochs"] == 3
    assert summary["frames"] == 60
    assert summary["held_out_force_rmse"] < summary["prior_force_rmse"] * 1.5
    saved = load_model(tmp_path / "model.safetensors")
    assert saved.prior is not None
    assert saved.notes["data"] == "piece"
    assert "any bond CA-CB" in (tmp_path / "prior.txt").read_text()
    assert len((tmp_path / "history.csv").read_text().splitlines()) == 4
    again = jobs.langevin(
        run=Run(tmp_path / "run", device="cpu"), pdb=crambin / "piece.pdb",
        model=tmp_path / "model.safetensors", replicas=1, steps=4, save_every=2, dt=0.002, tol=1e-4,
        dcd=False,
    )  # fmt: skip
    assert np.isfinite(again["late_mean_energy_kcal_mol"])


def test_reference_data_are_made_once(tmp_path):
    peptides = jobs.Peptides(permutations=1, length=1, starts=1, steps=10, save_every=10)
    options = {"peptides": peptides, "shipped": False, "force_map": "aggregate"}
    (tmp_path / "data").mkdir()
    for number, letter in enumerate(peptide_letters()):
        if number > 1:
            (tmp_path / "data" / f"peptide-{number:02d}-{letter}.npz").touch()
    summary = jobs.reference_data(run=Run(tmp_path, device="cpu"), **options)
    assert summary["molecules"] == 20
    assert summary["new_frames"] == 2
    made = load_reference(tmp_path / "data" / f"peptide-00-{peptide_letters()[0]}.npz")
    assert made.sequence == peptide_letters()[0]
    with pytest.raises(ValueError, match="nothing to simulate"):
        jobs.reference_data(
            run=Run(tmp_path, device="cpu"), peptides=jobs.Peptides(permutations=0), shipped=False
        )


def peptide_letters() -> list[str]:
    from icml_flashschnet.reference_data import peptide_library

    return peptide_library(1, 1, seed=0)


def test_shipped_model_moves_both_shipped_proteins(tmp_path):
    """The defaults of the command: nothing blows up, bonds hold, side chains stay L."""
    from icml_flashschnet.geometry import dihedral_angles, distances

    for name in ("1ubi", "1ejg"):
        molecule = read_pdb(example_structure(name))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            summary = jobs.langevin(
                run=Run(tmp_path / name, device="cpu"), pdb=example_structure(name), replicas=2, steps=150,
                save_every=50, dcd=False,
            )  # fmt: skip
        assert summary["frozen_replicas"] == []
        assert summary["late_mean_rmsd"] < 2.0
        last = load_trajectory(tmp_path / name / "trajectory").pos[:, -1].astype(np.float64)
        stretched = distances(last, molecule.bonds) - distances(molecule.pos, molecule.bonds)
        assert np.abs(stretched).max() < 0.4
        chirality = molecule.dihedrals[np.array(molecule.topology.dihedral_kinds) == "chirality"]
        signs = np.sign(dihedral_angles(molecule.pos, chirality))
        assert (np.sign(dihedral_angles(last, chirality)) == signs).all()
