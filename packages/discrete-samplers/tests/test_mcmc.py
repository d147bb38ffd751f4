"""Markov chains against enumeration, constraints, schedules, tempering, and whether stuck chains are
noticed.
"""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest
import torch
from icml_discrete_samplers import (
    Ising2D,
    OneHot,
    Polynomial,
    Potts2D,
    SwendsenWang,
    enumerate_law,
    from_callable,
    mcmc,
)
from icml_discrete_samplers.diagnostics import diagnose
from icml_discrete_samplers.exact import index_of
from icml_discrete_samplers.moves import Categorical, HammingBall
from scipy.stats import chisquare

ISING, POTTS = Ising2D(2, 0.4, h=0.15), Potts2D(2, 3, 0.6)
PLAIN = from_callable(ISING.log_density, 4, 2)


@pytest.mark.parametrize(
    ("energy", "kernel", "steps"),
    [
        (ISING, "hamming_ball", 60),
        (PLAIN, "hamming_ball", 60),
        (POTTS, "hamming_ball", 60),
        (PLAIN, Categorical(0.3), 60),
        (POTTS, "categorical", 60),
        (ISING, "single_site_mh", 100),
        (ISING, "gibbs", 240),
        (POTTS, "gibbs", 100),
        (POTTS, "swendsen_wang", 12),
        (ISING, SwendsenWang(ghost_site=True), 15),
        (Ising2D(2, 0.4, h=-0.3), SwendsenWang(ghost_site=True), 15),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_ends_of_chains_have_the_law_of_the_energy(energy, kernel, steps):
    n = 20_000
    found = mcmc.run(energy, n, kernel, steps, steps, seed=3, diagnose=False)
    expected = n * enumerate_law(energy).log_prob.exp()
    counts = torch.bincount(index_of(found.x, energy.V), minlength=len(expected)).double()
    assert chisquare(counts, expected).pvalue > 1e-4
    torch.testing.assert_close(found.log_density, energy.log_density(found.x))
    assert 0 < found.accept_rate <= 1


def constrained_law(energy, allowed):
    values = energy.log_density(allowed)
    return torch.softmax(values, 0)


def test_swap_keeps_the_composition_and_visits_it_rightly():
    """Ten sites, three of them 1: 120 states."""
    g = torch.Generator().manual_seed(0)
    terms = {(i,): float(torch.randn((), generator=g)) for i in range(10)}
    terms |= {(i, i + 1): 0.8 for i in range(9)}
    energy = Polynomial(terms)
    allowed = torch.tensor(
        [[int(i in chosen) for i in range(10)] for chosen in itertools.combinations(range(10), 3)]
    )
    n = 30_000
    found = mcmc.run(
        energy, init=allowed[:1].repeat(n, 1), kernel="swap", n_steps=80, thin=80, seed=1, diagnose=False
    )
    assert bool((found.x.sum(1) == 3).all())
    places = {int(i): k for k, i in enumerate(index_of(allowed, 2))}
    counts = np.bincount([places[int(i)] for i in index_of(found.x, 2)], minlength=120)
    assert chisquare(counts, (n * constrained_law(energy, allowed)).numpy()).pvalue > 1e-4


def test_one_hot_keeps_one_of_each_group_and_visits_it_rightly():
    groups = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    g = torch.Generator().manual_seed(2)
    energy = Polynomial({(i, j): float(torch.randn((), generator=g)) for i in range(10) for j in range(i)})
    rows = []
    for picks in itertools.product(*groups):
        rows.append([int(i in picks) for i in range(10)])
    allowed = torch.tensor(rows)
    n = 20_000
    found = mcmc.run(
        energy,
        init=allowed[:1].repeat(n, 1),
        kernel=OneHot(groups),
        n_steps=80,
        thin=80,
        seed=1,
        diagnose=False,
    )
    for group in groups:
        assert bool((found.x[:, list(group)].sum(1) == 1).all())
    places = {int(i): k for k, i in enumerate(index_of(allowed, 2))}
    counts = np.bincount([places[int(i)] for i in index_of(found.x, 2)], minlength=len(allowed))
    assert chisquare(counts, (n * constrained_law(energy, allowed)).numpy()).pvalue > 1e-4


def test_only_real_changes_count_as_accepted():
    """On a level energy every proposal is taken: a swap always changes, a ball of two on one site never
    does.
    """
    level = from_callable(lambda x: torch.zeros(len(x)), 4, 2)
    start = torch.tensor([[1, 0, 0, 1]]).repeat(10, 1)
    assert mcmc.run(level, start, "swap", 30, diagnose=False).accept_rate == 1.0
    single = from_callable(lambda x: torch.zeros(len(x)), 1, 2)
    assert mcmc.run(single, 10, HammingBall(2), 30, diagnose=False).accept_rate == 0.0
    assert mcmc.run(single, 10, HammingBall(1), 30, diagnose=False).accept_rate == 1.0


def test_hard_constraints_hold_once_they_are_met():
    def log_rho(x):
        return torch.where(x.sum(1) == 2, 0.0, -math.inf)

    energy = from_callable(log_rho, 5, 2)
    found = mcmc.run(energy, 500, HammingBall(3), 200, 200, diagnose=False)
    assert bool((found.x.sum(1) == 2).all())


def test_sweeps_that_leave_the_lattice_as_it_was_are_no_moves():
    """Two by two and frozen: one cluster, whose new state is another one in half of the sweeps."""
    n, sweeps = 2000, 10
    start = torch.zeros(n, 4, dtype=torch.int64)
    found = mcmc.run(Ising2D(2, 20.0), start, "swendsen_wang", sweeps, sweeps, seed=1, diagnose=False)
    assert found.accept_rate == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(n * sweeps))


def test_the_schedule_comes_back_as_it_was_executed():
    betas = [0.1, 0.4, 1.0]
    found = mcmc.run(ISING, 4, "single_site_mh", 12, betas=betas)
    np.testing.assert_array_equal(found.betas, np.repeat(betas, 4))
    assert found.betas[-1] == 1.0
    assert mcmc.run(ISING, 4, "gibbs", 3, diagnose=False).betas.tolist() == [1.0, 1.0, 1.0]


def test_one_spin_flips_at_the_rate_of_each_temperature():
    """From up, in a field h: probability exp(-2 beta h) at each entry of a schedule, within 4 standard
    errors.
    """
    h, n = 0.8, 100_000
    energy = Polynomial({("s",): -h}, "spin")
    up = torch.ones(n, 1, dtype=torch.int64)
    for beta in (0.25, 0.5, 1.0):
        schedule = [beta, 1.0] if beta < 1 else [1.0]
        steps = len(schedule)
        first = mcmc.run(energy, up, "single_site_mh", steps, betas=schedule, keep=True, seed=int(100 * beta))
        assert first.betas[0] == beta
        rate, wanted = float((first.kept[0] == 0).double().mean()), math.exp(-2 * beta * h)
        assert abs(rate - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / n)


def test_annealing_finds_a_lower_state_than_a_quench():
    """A random spin glass: the same sweeps, cold from the start or slowly cooled."""
    g = torch.Generator().manual_seed(1)
    energy = Polynomial(
        {(i, j): float(torch.randn((), generator=g)) for i in range(30) for j in range(i)}, "spin", beta=8.0
    )
    start = torch.randint(0, 2, (200, 30), generator=g)
    cold = mcmc.run(energy, start, "single_site_mh", 2000, 2000, diagnose=False)
    slow = mcmc.run(energy, start, "single_site_mh", 2000, betas=np.linspace(0.02, 1, 100), diagnose=False)
    assert float(slow.log_density.mean()) > float(cold.log_density.mean())


@pytest.mark.parametrize("kernel", ["single_site_mh", "gibbs", "swendsen_wang"])
def test_tempering_gives_log_z_and_swap_rates(kernel):
    energy = Ising2D(3, 0.5)
    temperatures = [1.0, 1.4, 2.0, 3.0, 6.0, math.inf]
    found = mcmc.run(
        energy, 64, kernel, 600, 3, burn_in=60, temperatures=temperatures, seed=2, diagnose=False
    )
    assert len(found.swap_rates) == 5
    assert all(0.2 < rate <= 1 for rate in found.swap_rates)
    assert found.log_z_se < 0.05
    assert abs(found.log_z - enumerate_law(energy).log_z) < 3 * found.log_z_se


def test_tempering_within_a_constraint_gives_the_constraints_z():
    """Three ones on ten sites, and one of each group: log of the sum over the allowed states alone."""
    g = torch.Generator().manual_seed(0)
    terms = {(i,): float(torch.randn((), generator=g)) for i in range(10)}
    energy = Polynomial(terms | {(i, i + 1): 0.8 for i in range(9)})
    groups = ((0, 1, 2, 3), (4, 5, 6), (7, 8, 9))
    cases = {
        "swap": [[int(i in chosen) for i in range(10)] for chosen in itertools.combinations(range(10), 3)],
        OneHot(groups): [[int(i in picks) for i in range(10)] for picks in itertools.product(*groups)],
    }
    for kernel, rows in cases.items():
        allowed = torch.tensor(rows)
        found = mcmc.run(
            energy,
            allowed[torch.randint(0, len(allowed), (64,), generator=g)],
            kernel,
            400,
            4,
            burn_in=40,
            temperatures=[1.0, 1.5, 2.5, 6.0, math.inf],
            seed=2,
            diagnose=False,
        )
        wanted = float(energy.log_density(allowed).logsumexp(0))
        assert found.log_z_se < 0.05
        assert abs(found.log_z - wanted) < 3 * found.log_z_se
    mixed = torch.tensor([[1, 1, 0, 0, 0, 0, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0, 0, 0, 0, 0]])
    apart = mcmc.run(energy, mixed, "swap", 8, temperatures=[1.0, math.inf], diagnose=False)
    assert apart.log_z is None


@pytest.mark.parametrize("kernel", ["single_site_mh", "categorical", "gibbs"])
def test_impossible_states_leave_log_z_unknown(kernel):
    """Half of all states are ruled out: log Z over all of them is not log V^D plus an integral."""

    def log_rho(x):
        return torch.where(x[:, 0] == x[:, 1], x.sum(1).double(), -math.inf)

    energy = from_callable(log_rho, 4, 2)
    start = torch.zeros(32, 4, dtype=torch.int64)
    found = mcmc.run(energy, start, kernel, 60, 2, temperatures=[1.0, 3.0, math.inf], seed=0, diagnose=False)
    assert found.log_z is None
    assert bool((found.x[:, 0] == found.x[:, 1]).all())
    # At beta = 0 every state is as likely, the impossible ones too.
    hot = mcmc.run(energy, start.repeat(200, 1), kernel, 40, 20, betas=[0.0, 1.0], keep=True, diagnose=False)
    assert float((hot.kept[0][:, 0] == hot.kept[0][:, 1]).double().mean()) == pytest.approx(0.5, abs=0.03)


def test_tempering_leaves_the_cold_law():
    energy = Ising2D(2, 0.9)
    n = 20_000
    found = mcmc.run(energy, n, "single_site_mh", 60, 3, temperatures=[1.0, 2.0, 5.0], seed=1, diagnose=False)
    expected = n * enumerate_law(energy).log_prob.exp()
    counts = torch.bincount(index_of(found.x, 2), minlength=16).double()
    assert chisquare(counts, expected).pvalue > 1e-4
    assert found.log_z is None


def test_single_flips_in_a_cold_lattice_are_flagged_and_clusters_are_not():
    energy = Ising2D(16, 0.6)
    with pytest.warns(RuntimeWarning, match="they have not mixed"):
        stuck = mcmc.run(energy, 8, "single_site_mh", 40_000, 400, burn_in=20_000, seed=1)
    assert stuck.rhat > 1.05
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fine = mcmc.run(energy, 8, "swendsen_wang", 400, burn_in=100, seed=1)
    assert fine.rhat < 1.05
    assert fine.ess > 100


def test_diagnostics_of_known_chains():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(4000, 4))
    independent = diagnose(noise)
    assert independent.rhat == pytest.approx(1.0, abs=0.01)
    assert independent.ess == pytest.approx(16_000, rel=0.15)
    # An autoregression of coefficient a has autocorrelation time (1 + a) / (1 - a).
    a = 0.8
    walk = np.zeros_like(noise)
    for t in range(1, len(walk)):
        walk[t] = a * walk[t - 1] + noise[t]
    assert diagnose(walk).autocorrelation_time == pytest.approx(9.0, rel=0.25)
    assert diagnose(noise + np.arange(4)).rhat > 1.3
    assert diagnose(np.ones((10, 4))).rhat == 1.0
    assert diagnose(np.tile(np.arange(4.0), (10, 1))).rhat == np.inf
    with pytest.raises(ValueError, match="four or more"):
        diagnose(np.ones((3, 2)))


def test_results_unpack_and_seeds_decide():
    x = torch.zeros(6, 4, dtype=torch.int64)
    before = x.clone()
    end, log_density, rate = mcmc.run(ISING, x, "hamming_ball", 10, seed=1, diagnose=False)
    again, *_ = mcmc.run(ISING, x, "hamming_ball", 10, seed=1, diagnose=False)
    other, *_ = mcmc.run(ISING, x, "hamming_ball", 10, seed=2, diagnose=False)
    assert torch.equal(x, before)
    assert torch.equal(end, again)
    assert not torch.equal(end, other)
    assert log_density.shape == (6,)
    assert 0 <= rate <= 1


def test_bad_runs_are_named():
    with pytest.raises(ValueError, match="thin=3 must divide n_steps=10"):
        mcmc.run(ISING, 2, n_steps=10, thin=3)
    with pytest.raises(ValueError, match="must be 1, the target's own"):
        mcmc.run(ISING, 2, n_steps=10, betas=[0.1, 0.5])
    with pytest.raises(ValueError, match="3 betas do not divide n_steps=10"):
        mcmc.run(ISING, 2, n_steps=10, betas=[0.1, 0.5, 1.0])
    with pytest.raises(ValueError, match="must begin at 1 and rise"):
        mcmc.run(ISING, 2, n_steps=10, temperatures=[2.0, 1.0])
    with pytest.raises(ValueError, match="not both"):
        mcmc.run(ISING, 2, n_steps=10, temperatures=[1.0], betas=[1.0])
    with pytest.raises(ValueError, match="unknown kernel 'wolff'"):
        mcmc.run(ISING, 2, "wolff", 10)
    with pytest.raises(ValueError, match=r"symbol 2 at site 0 outside 0\.\.1"):
        mcmc.run(ISING, torch.full((1, 4), 2), n_steps=10)
    with pytest.raises(ValueError, match="give the states to begin with"):
        mcmc.run(ISING, n_steps=10)
    with pytest.raises(ValueError, match="needs J > 0, and J=-1"):
        mcmc.run(Ising2D(3, 0.5, J=-1.0), 2, "swendsen_wang", 10)
    with pytest.raises(ValueError, match="needs J > 0, and J=0"):
        mcmc.run(Potts2D(3, 3, 0.5, J=0.0), 2, "swendsen_wang", 10)
    with pytest.raises(ValueError, match="ghost site needs h = 0, and h=0.15"):
        mcmc.run(ISING, 2, "swendsen_wang", 10)
    with pytest.raises(ValueError, match="works on Ising2D and Potts2D, not on CallableEnergy"):
        mcmc.run(PLAIN, 2, "swendsen_wang", 10)
    with pytest.raises(ValueError, match="equal symbols everywhere"):
        mcmc.run(ISING, torch.zeros(1, 4, dtype=torch.int64), "swap", 10)
    with pytest.raises(ValueError, match="has 0 ones in group"):
        mcmc.run(ISING, torch.zeros(1, 4, dtype=torch.int64), OneHot(((0, 1),)), 10)
    with pytest.raises(ValueError, match="disjoint and of two sites"):
        OneHot(((0,),))
    with pytest.raises(ValueError, match="needs its groups"):
        mcmc.run(ISING, 2, "one_hot", 10)
    with pytest.raises(ValueError, match="radius=0"):
        HammingBall(0)
    with pytest.raises(ValueError, match="rate=0"):
        Categorical(0.0)
