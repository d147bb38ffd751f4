"""Dynamics against ASE's velocity Verlet and closed forms; noise, checkpoints and accidents."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.calculators.calculator import Calculator, all_changes
from ase.md.verlet import VelocityVerlet
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.simulation import CHECKPOINT, LangevinSimulator
from icml_flashschnet.structure import Molecule, Residue, chain_molecule, example_structure, read_pdb
from icml_flashschnet.topology import Topology
from icml_flashschnet.trajectory import load_trajectory, write_dcd, write_xtc
from icml_flashschnet.units import ACCELERATION, BOLTZMANN
from icml_kernels.molecules.neighbors import half_list

KT = BOLTZMANN * 300.0


def beads(n: int, spacing: float = 4.0) -> Molecule:
    """Unbonded beads on a line."""
    none = np.zeros((0, 2), dtype=np.int64)
    return Molecule(
        pos=np.stack([spacing * np.arange(n), np.zeros(n), np.zeros(n)], 1), types=np.ones(n, dtype=np.int64),
        masses=np.full(n, 12.0), names=("CA",) * n, labels=("CA",) * n,
        residues=(Residue("UNK", 1, "", "A"),),
        residue_of=np.zeros(n, dtype=np.int64),
        topology=Topology(none, none.reshape(0, 3), none.reshape(0, 4), ()), representation=None,
    )  # fmt: skip


class Wells:
    """Every bead in a harmonic well of its own: E = k/2 |x - x0|². No neighbour lists, no module."""

    def __init__(self, molecule: Molecule, k: float) -> None:
        self.centre, self.k = torch.tensor(molecule.pos), k

    def energy_forces(self, pos, types, n_replicas=1, nlist=None):
        shift = pos.view(n_replicas, -1, 3) - self.centre.to(pos.dtype)
        return 0.5 * self.k * shift.double().square().sum((1, 2)), (-self.k * shift).view(-1, 3)


class Cliff(Wells):
    """Wells in which replica 1 meets an absurd or infinite force once its bead 2 has moved a little."""

    def __init__(self, molecule: Molecule, k: float, wrong: float) -> None:
        super().__init__(molecule, k)
        self.wrong = wrong

    def energy_forces(self, pos, types, n_replicas=1, nlist=None):
        energy, force = super().energy_forces(pos, types, n_replicas)
        shift = pos.view(n_replicas, -1, 3) - self.centre.to(pos.dtype)
        if n_replicas > 1 and shift[1, 2].norm() > 0.05:
            force.view(n_replicas, -1, 3)[1, 2, 0] = self.wrong
        return energy, force


@pytest.fixture(scope="module")
def potential():
    """The first 13 residues of crambin on a small random network and a prior fitted to their surroundings."""
    from icml_flashschnet.prior import CGPrior
    from icml_flashschnet.prior_fit import fit_prior

    whole = read_pdb(example_structure("1ejg"))
    molecule = chain_molecule(whole.sequence[:13], whole.pos[whole.residue_of < 13])
    rng = np.random.default_rng(0)
    samples = molecule.pos + 0.06 * rng.standard_normal((60, molecule.n_beads, 3))
    prior = CGPrior(molecule, fit_prior([(molecule, samples)], min_count=500))
    network = FlashSchNet(
        SchNetConfig(hidden=16, filters=16, n_rbf=12, layers=2, r_cut=8.0, out=(16,)), seed=1
    )
    return molecule, network, prior


def test_nve_trajectory_is_that_of_ase(potential):
    """100 steps of 2 fs, float64, forces of network and prior: the same positions to 1e-9 Å."""
    molecule, network, prior = potential
    model = SumPotential(network, prior).double()
    simulator = LangevinSimulator(model, molecule, 1, integrator="nve", dt=0.002, dtype="float64", seed=3)
    types = torch.tensor(molecule.types)
    # One Å of ASE is ours; its force is chosen such that its accelerations are 418.4 F/m in Å/ps².
    to_ase = ACCELERATION / (1000.0 * units.fs) ** 2

    class Ours(Calculator):
        implemented_properties = ("energy", "forces")

        def calculate(self, atoms=None, properties=("energy",), system_changes=all_changes):
            super().calculate(atoms, properties, system_changes)
            energy, forces = model.energy_forces(torch.tensor(atoms.positions), types)
            self.results = {"energy": float(energy) * to_ase, "forces": forces.numpy() * to_ase}

    atoms = Atoms("C" * molecule.n_beads, positions=molecule.pos, masses=molecule.masses)
    atoms.calc = Ours()
    atoms.set_velocities(simulator.state.vel[0].numpy() / (1000.0 * units.fs))
    simulator.run(100)
    VelocityVerlet(atoms, timestep=2.0 * units.fs).run(100)
    moved = np.abs(atoms.positions - molecule.pos).max()
    assert moved > 0.5
    np.testing.assert_allclose(simulator.state.pos[0].numpy(), atoms.positions, atol=1e-9)


def test_acceleration_agrees_with_the_constants_of_ase():
    assert pytest.approx(units.kcal / units.mol * (1000.0 * units.fs) ** 2, rel=1e-6) == ACCELERATION
    assert pytest.approx(units.kB * units.mol / units.kcal, rel=1e-6) == BOLTZMANN


def test_nve_conserves_energy(potential):
    molecule, network, prior = potential
    simulator = LangevinSimulator(
        SumPotential(network, prior),
        molecule,
        2,
        integrator="nve",
        dt=0.001,
        dtype="float64",
        temperature=100.0,
    )

    def total():
        kinetic = 0.5 * (simulator.state.vel.square().sum(-1) * simulator.motion.mass).sum(-1) / ACCELERATION
        return simulator.state.energy + kinetic

    before = total()
    simulator.run(150)
    assert (total() - before).abs().max() < 2e-3 * 1.5 * molecule.n_beads * BOLTZMANN * 100.0


@pytest.mark.parametrize("integrator", ["baoab", "overdamped"])
def test_harmonic_wells_have_the_exact_variance(integrator):
    """<x²> = kT/k, exact in both at any time step; BAOAB's <v²> = kT/m (1 - (ω dt/2)²)."""
    molecule, k, dt = beads(16), 40.0, 0.02
    friction = 20.0 if integrator == "baoab" else 100.0
    simulator = LangevinSimulator(
        Wells(molecule, k), molecule, 128, 300.0, friction, dt, integrator=integrator, dtype="float64", seed=5
    )
    simulator.run(200)
    shifts = simulator.run(1000, save_every=10).pos - molecule.pos.astype(np.float32)
    by_replica = np.square(shifts, dtype=np.float64).mean((1, 2, 3))
    error = by_replica.std(ddof=1) / math.sqrt(len(by_replica))
    assert abs(by_replica.mean() - KT / k) < 3.5 * error
    assert error < 0.02 * KT / k
    if integrator == "baoab":
        temperatures = simulator.run(400, save_every=10).temperature.mean(1)
        expected = 300.0 * (1.0 - k * ACCELERATION / 12.0 * dt**2 / 4.0)
        error = temperatures.std(ddof=1) / math.sqrt(128)
        assert abs(temperatures.mean() - expected) < 3.5 * error
        assert abs(expected - 300.0) > 20 * error  # the correction is seen


def test_initial_velocities_are_those_of_maxwell():
    molecule = beads(200)
    simulator = LangevinSimulator(
        Wells(molecule, 1.0), molecule, 32, [250.0] * 16 + [400.0] * 16, dtype="float64"
    )
    vel = simulator.state.vel
    for part, temperature in ((vel[:16], 250.0), (vel[16:], 400.0)):
        variance = BOLTZMANN * temperature * ACCELERATION / 12.0
        n = part.numel()
        assert abs(part.square().mean() / variance - 1.0) < 3.5 * math.sqrt(2.0 / n)
        assert abs(part.mean()) < 3.5 * math.sqrt(variance / n)
    still = LangevinSimulator(Wells(molecule, 1.0), molecule, 2, remove_drift=True, dtype="float64")
    assert still.state.vel.mean(1).abs().max() < 1e-12


def test_pieces_checkpoints_and_company_change_nothing(potential, tmp_path):
    """One run of 60 steps, two of 30, one resumed by a new process, and a replica alone: the same bits."""
    molecule, _, prior = potential

    def simulator(n_replicas=3, **options):
        return LangevinSimulator(prior, molecule, n_replicas, dt=0.002, seed=11, skin=0.3, **options)

    whole = simulator()
    whole.run(60)
    pieces = simulator()
    pieces.run(30)
    pieces.run(30)
    assert torch.equal(pieces.state.pos, whole.state.pos)
    assert torch.equal(pieces.state.vel, whole.state.vel)

    simulator().run(37, save_every=10, out=tmp_path, checkpoint_every=20)
    resumed = simulator()
    trajectory = resumed.run(60, save_every=10, out=tmp_path, resume=True)
    assert torch.equal(resumed.state.pos, whole.state.pos)
    assert torch.equal(resumed.state.vel, whole.state.vel)
    assert trajectory.step.tolist() == [10, 20, 30, 40, 50, 60]
    np.testing.assert_array_equal(trajectory.pos[:, -1], whole.state.pos.numpy())

    alone = simulator(1, first_replica=2)
    alone.run(60)
    assert torch.equal(alone.state.pos[0], whole.state.pos[2])


def test_resume_is_exact_with_a_network(potential, tmp_path):
    molecule, network, prior = potential
    model = SumPotential(network, prior)
    whole = LangevinSimulator(model, molecule, 2, seed=1, dt=0.002)
    expected = whole.run(40, save_every=5)
    LangevinSimulator(model, molecule, 2, seed=1, dt=0.002).run(23, save_every=5, out=tmp_path)
    resumed = LangevinSimulator(model, molecule, 2, seed=1, dt=0.002).run(
        40, save_every=5, out=tmp_path, resume=True
    )
    np.testing.assert_array_equal(resumed.pos, expected.pos)
    np.testing.assert_array_equal(resumed.energy, expected.energy)


def test_noise_of_resumed_and_of_other_replicas_is_fresh():
    molecule = beads(400)
    simulator = LangevinSimulator(Wells(molecule, 0.0), molecule, 2, friction=1e3, dt=0.01, dtype="float64")
    first = simulator.state.vel.clone()
    simulator.run(1)
    second = simulator.state.vel.clone()
    simulator.run(1)
    third = simulator.state.vel
    for a, b in ((first, second), (second, third), (third[:1], third[1:])):
        correlation = float((a * b).mean() / (a.std() * b.std()))
        assert abs(correlation) < 4.0 / math.sqrt(a.numel())


def test_temperature_schedules_follow_the_step(tmp_path):
    molecule = beads(300)

    def ramp(step):
        return 100.0 if step < 50 else 500.0

    simulator = LangevinSimulator(Wells(molecule, 10.0), molecule, 4, ramp, 50.0, 0.005, dtype="float64")
    cold = simulator.run(50, save_every=50, out=tmp_path).temperature
    again = LangevinSimulator(Wells(molecule, 10.0), molecule, 4, ramp, 50.0, 0.005, dtype="float64")
    both = again.run(150, save_every=50, out=tmp_path, resume=True).temperature
    assert abs(cold.mean() - 100.0) < 15.0
    assert abs(both[:, 2].mean() - 500.0) < 60.0


@pytest.mark.parametrize("wrong", [1e7, math.inf, math.nan])
def test_a_blown_replica_is_frozen_and_named_and_the_others_go_on(wrong):
    molecule = beads(5)
    options = {"friction": 5.0, "dt": 0.005, "seed": 2, "check_every": 7}
    simulator = LangevinSimulator(Cliff(molecule, 20.0, wrong), molecule, 3, **options)
    with pytest.warns(RuntimeWarning, match="replica 1 blew up by step .* at bead 2"):
        trajectory = simulator.run(200, save_every=10)
    quiet = LangevinSimulator(Wells(molecule, 20.0), molecule, 3, **options)
    quiet.run(200)
    for replica in (0, 2):
        assert torch.equal(simulator.state.pos[replica], quiet.state.pos[replica])
    assert simulator.state.frozen.tolist() == [False, True, False]
    assert np.isfinite(trajectory.pos).all()
    assert np.isnan(trajectory.energy[1, -1])
    assert np.isfinite(trajectory.energy[[0, 2]]).all()
    (report,) = simulator.blown
    assert (report.replica, report.bead) == (1, 2)
    assert 0 < report.step < 200


def test_when_every_replica_is_blown_the_run_ends():
    molecule = beads(5)

    class Broken(Wells):
        def energy_forces(self, pos, types, n_replicas=1, nlist=None):
            energy, force = super().energy_forces(pos, types, n_replicas)
            return energy, force * math.nan

    simulator = LangevinSimulator(Broken(molecule, 20.0), molecule, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="every replica blew up.*smaller time step"):
            simulator.run(50)


def test_interrupt_leaves_a_run_that_resumes(potential, tmp_path):
    molecule, _, prior = potential
    seen = 0

    def interrupt(steps, figures):
        nonlocal seen
        seen += steps
        if seen == 30:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LangevinSimulator(prior, molecule, 2, seed=4).run(
            100, save_every=10, out=tmp_path, progress=interrupt
        )
    assert load_trajectory(tmp_path).step.tolist() == [10, 20, 30]
    resumed = LangevinSimulator(prior, molecule, 2, seed=4).run(50, save_every=10, out=tmp_path, resume=True)
    whole = LangevinSimulator(prior, molecule, 2, seed=4).run(50, save_every=10)
    np.testing.assert_array_equal(resumed.pos, whole.pos)


def test_frames_after_the_last_checkpoint_are_done_again(potential, tmp_path):
    """As after a crash between a chunk and its checkpoint: the frames beyond the checkpoint go."""
    molecule, _, prior = potential
    simulator = LangevinSimulator(prior, molecule, 1, seed=4)
    simulator.run(20, save_every=10, out=tmp_path)
    checkpoint = (tmp_path / CHECKPOINT).read_bytes()
    simulator.run(20, save_every=10, out=tmp_path)
    (tmp_path / CHECKPOINT).write_bytes(checkpoint)
    resumed = LangevinSimulator(prior, molecule, 1, seed=4).run(40, save_every=10, out=tmp_path, resume=True)
    assert resumed.step.tolist() == [10, 20, 30, 40]
    np.testing.assert_array_equal(
        resumed.pos, LangevinSimulator(prior, molecule, 1, seed=4).run(40, save_every=10).pos
    )


def test_a_checkpoint_of_another_simulation_is_refused(potential, tmp_path):
    molecule, _, prior = potential
    LangevinSimulator(prior, molecule, 2, seed=4, dt=0.002).run(2, out=tmp_path)
    other = LangevinSimulator(prior, molecule, 2, seed=5, dt=0.004)
    with pytest.raises(
        ValueError, match=r"another simulation: dt: 0.002 there, 0.004 here; seed: 4 there, 5 here"
    ):
        other.run(4, out=tmp_path, resume=True)
    (tmp_path / CHECKPOINT).write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="is no checkpoint"):
        other.run(4, out=tmp_path, resume=True)
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        other.restore(tmp_path / "none.npz")


def test_the_users_model_stays_as_it_is(potential):
    molecule, network, prior = potential
    model = SumPotential(network, prior)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    LangevinSimulator(model, molecule, 1, dtype="float64").run(3)
    assert torch.equal(state, torch.get_rng_state())
    assert all(
        torch.equal(before[n], v) and before[n].dtype == v.dtype for n, v in model.state_dict().items()
    )


def test_samples_repeat_with_the_seed(potential):
    molecule, _, prior = potential
    simulator = LangevinSimulator(prior, molecule, 2)
    a, b, c = (simulator.sample(2, seed=s, steps_between=3) for s in (1, 1, 2))
    assert a.shape == (2, 2, molecule.n_beads, 3)
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 0
    assert len(simulator.sample(0, seed=1)) == 0
    assert simulator.state.step == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive"),
        (
            {"temperature": [300.0, 310.0, 320.0]},
            r"temperature has shape \[3\]; give one, or one for each of 2",
        ),
        ({"dt": 0.0}, "dt must be positive .ps., got 0"),
        ({"friction": -1.0}, "friction must be at least 0, got -1"),
        ({"friction": 0.0, "integrator": "overdamped"}, "overdamped motion needs a friction"),
        ({"n_replicas": 0}, "n_replicas must be at least 1"),
        ({"integrator": "leapfrog"}, "'leapfrog' is none of baoab, nve, overdamped"),
        ({"dtype": "float16"}, "'float16' is none of"),
        ({"pos": np.zeros((4, 3))}, r"shape \[4, 3\]; expected \[5, 3\] or \[2, 5, 3\]"),
        ({"pos": np.full((5, 3), np.nan)}, "starting position of bead 0 is not finite"),
    ],
)
def test_bad_options_are_named(options, message):
    molecule = beads(5)
    with pytest.raises(ValueError, match=message):
        LangevinSimulator(Wells(molecule, 1.0), molecule, **{"n_replicas": 2, **options})


def test_positions_in_nanometres_are_noticed():
    molecule = beads(5, spacing=0.38)
    with pytest.warns(UserWarning, match="likely unit: nm"):
        LangevinSimulator(Wells(molecule, 1.0), molecule)


def test_ragged_runs_are_refused(tmp_path):
    molecule = beads(2)
    simulator = LangevinSimulator(Wells(molecule, 1.0), molecule)
    with pytest.raises(ValueError, match="save_every is out of range: 0"):
        simulator.run(10, save_every=0)
    with pytest.raises(ValueError, match="steps is out of range: -1"):
        simulator.run(-1)
    with pytest.raises(ValueError, match="resume needs the folder"):
        simulator.run(1, resume=True)
    assert len(simulator.run(0)) == 0
    with pytest.raises(FileNotFoundError, match="no trajectory chunks"):
        load_trajectory(tmp_path)


def test_one_bead_alone_diffuses():
    molecule = beads(1)
    simulator = LangevinSimulator(Wells(molecule, 0.0), molecule, 1)
    assert simulator.run(20, save_every=10).pos.shape == (1, 2, 1, 3)


@pytest.mark.parametrize(("write", "ending", "error"), [(write_dcd, "dcd", 1e-4), (write_xtc, "xtc", 5.1e-3)])
def test_files_of_replicas_hold_the_frames(potential, tmp_path, write, ending, error):
    """DCD keeps float32; XTC rounds to 0.001 nm."""
    import mdtraj

    molecule, _, prior = potential
    trajectory = LangevinSimulator(prior, molecule, 2, dt=0.004).run(20, save_every=10)
    (file,) = write(trajectory, molecule, tmp_path, [1])
    assert file.name == f"replica-001.{ending}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = mdtraj.load(str(file), top=str(tmp_path / "topology.pdb"))
    np.testing.assert_allclose(10.0 * read.xyz, trajectory.pos[1], atol=error)
    if ending == "xtc":
        np.testing.assert_allclose(read.time, [0.04, 0.08], atol=1e-7)


def test_a_list_that_lacks_a_pair_is_noticed(potential):
    """A run that is right passes; without the nearest pair of replica 1 the next look fails."""
    molecule, network, prior = potential
    options = {"dt": 0.002, "seed": 4, "device": "cpu", "check_nlist": 2, "n_replicas": 2}
    LangevinSimulator(SumPotential(network, prior), molecule, **options).run(20)
    broken = LangevinSimulator(network, molecule, **options)
    i, j = (end.long() for end in broken._list.ij())
    apart = (broken.state.pos.view(-1, 3)[j] - broken.state.pos.view(-1, 3)[i]).norm(dim=1)
    nearest = int(torch.where(i >= molecule.n_beads, apart, torch.inf).argmin())
    kept = torch.arange(len(i)) != nearest
    broken._list = half_list(i[kept], j[kept], broken._list.n_atoms)
    lost = int(i[nearest]) % molecule.n_beads, int(j[nearest]) % molecule.n_beads
    with pytest.raises(RuntimeError, match=f"step 2: .* replica 1 lacks the beads {lost[0]} and {lost[1]}"):
        broken.run(20)
