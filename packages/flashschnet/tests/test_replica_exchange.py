"""Replica exchange against exact canonical averages of harmonic wells, and the exact rate of swaps."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from icml_flashschnet import replica_exchange
from icml_flashschnet.replica_exchange import ReplicaExchangeSimulator, swap_probability
from icml_flashschnet.simulation import CHECKPOINT
from icml_flashschnet.structure import Molecule, Residue
from icml_flashschnet.topology import Topology
from icml_flashschnet.units import BOLTZMANN
from scipy.special import betainc

LADDER = (300.0, 360.0, 440.0)
STIFFNESS = 2.0  # kcal/mol/Å²


def beads(n: int) -> Molecule:
    """Beads on a line, far from each other."""
    none = np.zeros((0, 2), dtype=np.int64)
    return Molecule(
        pos=np.stack([4.0 * np.arange(n), np.zeros(n), np.zeros(n)], 1), types=np.ones(n, dtype=np.int64),
        masses=np.full(n, 12.0), names=("CA",) * n, labels=("CA",) * n,
        residues=(Residue("UNK", 1, "", "A"),),
        residue_of=np.zeros(n, dtype=np.int64),
        topology=Topology(none, none.reshape(0, 3), none.reshape(0, 4), ()), representation=None,
    )  # fmt: skip


class Wells:
    """Every bead in a harmonic well of its own: E = k/2 |x - x0|²."""

    def __init__(self, molecule: Molecule) -> None:
        self.centre = torch.tensor(molecule.pos)

    def energy_forces(self, pos, types, n_replicas=1, nlist=None):
        shift = pos.view(n_replicas, -1, 3) - self.centre.to(pos.dtype)
        return 0.5 * STIFFNESS * shift.square().sum((1, 2)), (-STIFFNESS * shift).view(-1, 3)


def simulator(n_beads: int = 4, every: int = 5, **options) -> ReplicaExchangeSimulator:
    molecule = beads(n_beads)
    settings = {"friction": 5.0, "dt": 0.01, "seed": 3, "device": "cpu", "dtype": "float64"} | options
    return ReplicaExchangeSimulator(Wells(molecule), molecule, LADDER, every, **settings)


def test_the_probability_is_that_of_metropolis():
    energy, temperature = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([300.0, 400.0, 500.0])
    beta = 1 / (BOLTZMANN * np.array([300.0, 400.0, 500.0]))
    expected = [1.0, np.exp((beta[1] - beta[2]) * (1.0 - 2.0))]
    np.testing.assert_allclose(swap_probability(energy, temperature), expected, rtol=1e-12)


def deviations(moved: ReplicaExchangeSimulator, steps: int) -> np.ndarray:
    """Standard errors of the mean square displacement of every slot from k T / stiffness."""
    moved.run(400)
    trajectory = moved.run(steps, save_every=10)
    shift = trajectory.pos - moved.molecule.pos[None, None]
    blocks = np.square(shift).mean((2, 3)).reshape(len(LADDER), 20, -1).mean(2)
    error = blocks.std(1, ddof=1) / np.sqrt(20)
    return (blocks.mean(1) - BOLTZMANN * np.array(LADDER) / STIFFNESS) / error


def test_every_temperature_keeps_its_canonical_distribution_and_free_swaps_do_not(monkeypatch):
    assert np.abs(deviations(simulator(), 16_000)).max() < 4
    always = lambda energy, temperature: torch.ones(len(LADDER) - 1, dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr(replica_exchange, "swap_probability", always)
    assert np.abs(deviations(simulator(), 16_000)).max() > 8


def test_swaps_are_accepted_at_the_exact_rate_of_harmonic_oscillators():
    """With d harmonic coordinates the rate is 2 I_x(d/2, d/2), x = 1 / (1 + T_hot / T_cold)."""
    n_beads = 4
    moved = simulator(n_beads, every=20)
    moved.run(40_000, save_every=40_000)
    statistics = moved.statistics
    d = 3 * n_beads
    for pair, (cold, hot) in enumerate(pairwise(LADDER)):
        exact = 2 * betainc(d / 2, d / 2, 1 / (1 + hot / cold))
        spread = np.sqrt(exact * (1 - exact) / statistics.attempts[pair])
        assert abs(statistics.acceptance[pair] - exact) < 5 * spread
        assert statistics.attempts[pair] == 1000
    assert sorted(statistics.walkers) == [0, 1, 2]


def test_pieces_and_a_resumed_run_are_the_uninterrupted_one(tmp_path):
    whole = simulator()
    expected = whole.run(60, save_every=10)
    simulator().run(27, save_every=10, out=tmp_path)
    resumed = simulator()
    found = resumed.run(60, save_every=10, out=tmp_path, resume=True)
    np.testing.assert_array_equal(found.pos, expected.pos)
    assert resumed.statistics == whole.statistics
    assert sum(whole.statistics.accepted) > 0
    with pytest.raises(ValueError, match="exchange_every"):
        simulator(every=7).restore(tmp_path / CHECKPOINT)


def test_a_frozen_replica_takes_no_part():
    moved = simulator()
    moved.state.frozen[1] = True
    before = moved.state.pos[1].clone()
    moved.run(40)
    assert moved.statistics.attempts == (0, 0)
    assert torch.equal(moved.state.pos[1], before)


def test_samples_leave_the_statistics_alone():
    moved = simulator()
    moved.run(20)
    before = moved.statistics
    moved.sample(2, seed=5, steps_between=20)
    assert moved.statistics == before


@pytest.mark.parametrize(
    ("temperatures", "options", "message"),
    [
        ((300.0,), {}, "at least two numbers that rise or fall"),
        ((300.0, 320.0, 310.0), {}, "rise or fall"),
        ((300.0, -5.0), {}, "must be positive"),
        ((300.0, 320.0), {"exchange_every": 0}, "exchange_every must be at least 1, got 0"),
        ((300.0, 320.0), {"integrator": "nve"}, "needs a thermostat"),
    ],
)
def test_bad_ladders_are_named(temperatures, options, message):
    molecule = beads(2)
    with pytest.raises(ValueError, match=message):
        ReplicaExchangeSimulator(Wells(molecule), molecule, temperatures, **options)
