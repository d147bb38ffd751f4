"""Samplers against enumeration, corrections against exact averages, chains against known times."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_mpvmc import RBM, AmplitudePhase, EnumeratedSampler, Metropolis, Sector, complex_rbm, exact
from icml_mpvmc.chains import estimate, split_r_hat, tau_int
from icml_mpvmc.hamiltonian import state_numbers
from icml_mpvmc.hamiltonians import TFIM, Heisenberg
from icml_mpvmc.precision import check_precision, precision_name


def chi_squared(samples, states, p):
    """Counts of independent states against probabilities, in deviations of χ² from its degrees of freedom."""
    place = {k: i for i, k in enumerate(state_numbers(states).tolist())}
    counts = np.bincount([place[k] for k in state_numbers(samples).tolist()], minlength=len(p))
    expected = len(samples) * p.numpy()
    return (((counts - expected) ** 2 / expected).sum() - len(p) + 1) / math.sqrt(2 * len(p))


@pytest.mark.parametrize("rule", ["flip", "flip:2", "flip:3", "exchange", "exchange:2"])
@pytest.mark.parametrize("incremental", [True, False])
def test_every_rule_samples_the_square_of_the_amplitude(rule, incremental):
    model = RBM(6, 2, std=0.3, seed=1)
    total = 0 if rule.startswith("exchange") else None
    sampler = Metropolis(
        model, 6, rule, 6000, "f64", sweep=40, total_sz=total, incremental=incremental, seed=2
    )
    samples = sampler.sample(6000, discard=1)
    states, p = exact.distribution(model, 6, sampler.sectors)
    assert abs(chi_squared(samples.x, states, p)) < 5
    torch.testing.assert_close(samples.log_p, 2 * model(samples.x.double()).detach())


def test_compiled_and_dense_chains_are_the_same_chain():
    model = RBM(9, 2, std=0.3, seed=3)
    runs = [
        Metropolis(model, 9, n_chains=50, dtype="f64", incremental=i, seed=4).sample(200)
        for i in (True, False)
    ]
    assert torch.equal(runs[0].x, runs[1].x)
    assert runs[0].acceptance == runs[1].acceptance


@pytest.mark.parametrize("incremental", [True, False])
def test_delta_is_what_the_precision_did(incremental):
    model = RBM(8, 2, std=0.4, seed=5)
    sampler = Metropolis(model, 8, n_chains=64, dtype="bf16", correction="reweight", incremental=incremental)
    samples = sampler.sample(640)
    again = sampler.log_density(samples.x).double() - samples.log_p
    torch.testing.assert_close(samples.delta, again - again.mean(), rtol=1e-6, atol=1e-6)
    assert 1e-3 < samples.sigma < 0.2
    assert samples.ess == pytest.approx(math.exp(-(samples.sigma**2)), abs=0.01)
    assert float(samples.weights.sum()) == pytest.approx(1.0)
    assert float(samples.log_w.exp().mean()) == pytest.approx(1.0)


def noisy(n, sigma, seed=0):
    """log π uniform, with quenched noise in every precision but float64."""
    noise = sigma * torch.randn(2**n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    powers = 2.0 ** torch.arange(n - 1, -1, -1)

    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.anchor = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))

        def forward(self, x):
            value = self.anchor.float() + torch.zeros(len(x))
            if x.dtype == torch.float64:
                return value.double()
            number = ((x.float() < 0) * powers).sum(1).long()
            return value + 0.5 * noise[number].float()

    return Noisy()


@pytest.mark.parametrize("correction", [None, "reweight", "delayed"])
def test_corrections_are_exact_where_plain_chains_are_biased(correction):
    """Uniform π over 8 states, σ = 0.8: the mean of an indicator of the likeliest perturbed state."""
    n, chains = 3, 2000
    sampler = Metropolis(
        noisy(n, 0.8, seed=1), n, n_chains=chains, dtype="f32", correction=correction, block=4, sweep=12
    )
    samples = sampler.sample(chains * 15)
    numbers = state_numbers(samples.x)
    off = []
    for state in range(8):
        found = samples.mean((numbers == state).astype(float))
        off.append((found.mean - 1 / 8) / found.error)
    if correction is None:
        assert max(np.abs(off)) > 10
    else:
        assert max(np.abs(off)) < 4
    if correction == "delayed":
        assert 0.4 < samples.block_acceptance < 0.9


def test_chains_go_on_and_start_anew():
    sampler = Metropolis(RBM(6, 1, std=0.2), 6, n_chains=8, dtype="f32", seed=1)
    first, second = sampler.sample(16), sampler.sample(16)
    assert not torch.equal(first.x, second.x)
    assert torch.equal(sampler.sample(16, seed=1).x, first.x)
    state = sampler.state_dict()
    third = sampler.sample(16)
    other = Metropolis(sampler.model, 6, n_chains=8, dtype="f32", seed=9)
    other.load_state_dict(state)
    assert torch.equal(other.sample(16).x, third.x)
    more = Metropolis(sampler.model, 6, n_chains=12, dtype="f32")
    with pytest.warns(UserWarning, match="8 chains were stored and 12 are wanted: they are repeated"):
        more.load_state_dict(state)
    assert torch.equal(more.x[8:], state["x"][:4])


def test_a_function_proposes_and_is_probed():
    model = RBM(6, 1, std=0.3)

    def swap(x, generator):
        i, k = torch.randperm(6, generator=generator)[:2].tolist()
        new = x.clone()
        new[:, [i, k]] = x[:, [k, i]]
        return new

    sampler = Metropolis(model, 6, swap, 4000, "f64", total_sz=0, sweep=40)
    samples = sampler.sample(4000, discard=1)
    states, p = exact.distribution(model, 6, sampler.sectors)
    assert abs(chi_squared(samples.x, states, p)) < 5
    with pytest.raises(ValueError, match="leaves the sector in 1000 of 1000"):
        Metropolis(model, 6, lambda x, g: torch.cat([-x[:, :1], x[:, 1:]], 1), 4, "f64", total_sz=0)
    with pytest.raises(ValueError, match="other than ±1"):
        Metropolis(model, 6, lambda x, g: 0 * x, 4, "f64")


def test_only_the_amplitude_is_sampled():
    phase = RBM(6, 1, std=2.0, seed=7)
    amplitude = RBM(6, 1, std=0.3, seed=8)
    both = Metropolis(AmplitudePhase(amplitude, phase), 6, n_chains=16, dtype="bf16")
    alone = Metropolis(amplitude, 6, n_chains=16, dtype="bf16")
    assert torch.equal(both.sample(32).x, alone.sample(32).x)
    assert both.walks_incrementally
    assert Metropolis(complex_rbm(4), 4, n_chains=2).sample(2).x.shape == (2, 4)


def test_plain_functions_are_densities():
    """A function gives log π, not log ψ: independent spins with ⟨x⟩ = tanh(1/2)."""
    sampler = Metropolis(lambda x: 0.5 * x.sum(1), 4, n_chains=2000, dtype="f32")
    found = sampler.sample(20_000)
    average = found.mean(found.x.double().mean(1))
    assert abs(average.mean - math.tanh(0.5)) < 5 * average.error
    assert found.sigma < 1e-6


def test_enumerated_samples_are_normalised_in_float64():
    model = RBM(12, 1, std=0.5)
    samples = EnumeratedSampler(model, 12, "f32").sample(50_000)
    assert len(samples) == 50_000
    states, p = exact.distribution(model, 12)
    mean = samples.mean(samples.x.double()[:, 0] * samples.x.double()[:, 1])
    truth = float((p * states.double()[:, 0] * states.double()[:, 1]).sum())
    assert abs(mean.mean - truth) < 5 * mean.error
    assert torch.equal(
        EnumeratedSampler(model, 12, seed=3).sample(9).x, EnumeratedSampler(model, 12).sample(9, seed=3).x
    )


def test_thermalise_stops_early_or_raises():
    H = TFIM(10, h=2.0)
    easy = Metropolis.for_hamiltonian(H, RBM(10, 1, std=0.1), n_chains=64, dtype="f32")
    assert easy.thermalise(max_sweeps=2000) < 400

    def wells(x):
        return 40.0 * (x.sum(1).abs() == 8) + 0.0 * x[:, 0]

    stuck = Metropolis(wells, 8, n_chains=16, dtype="f64")
    signs = torch.tensor([1, -1], dtype=torch.int8).repeat(8)[:, None]
    stuck.x = signs.expand(16, 8).clone()
    with pytest.raises(RuntimeError, match="separate wells"):
        stuck.thermalise(max_sweeps=60)


def test_correlation_times():
    rng = np.random.default_rng(0)
    white = rng.normal(size=(32, 500))
    assert tau_int(white) == pytest.approx(1.0, abs=0.2)
    assert split_r_hat(white) == pytest.approx(1.0, abs=0.01)
    drifting = np.linspace(0, 5, 500) + 0.2 * rng.normal(size=(32, 500)) + rng.normal(size=(32, 1))
    assert tau_int(drifting) > 30
    assert split_r_hat(drifting) > 1.5
    rho, walk = 0.9, np.zeros((200, 2000))
    for t in range(1, 2000):
        walk[:, t] = rho * walk[:, t - 1] + rng.normal(size=200)
    assert tau_int(walk[:, 200:]) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)
    found = estimate(walk[:, 200:].ravel(), 200)
    assert abs(found.mean) < 4 * found.error
    assert found.error == pytest.approx(math.sqrt(19 / (1 - rho**2) / walk[:, 200:].size), rel=0.2)
    assert math.isnan(tau_int(np.zeros((3, 1))))
    assert estimate(np.ones(8), 2).error == 0


def test_weights_in_averages():
    values = np.array([0.0, 1.0, 2.0, 3.0])
    found = estimate(values, 2, np.log([1.0, 1.0, 2.0, 4.0]))
    assert found.mean == pytest.approx((1 + 4 + 12) / 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": "flip", "total_sz": 0}, "use rule='exchange'"),
        ({"rule": "hop"}, "rule='hop'"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"dtype": "f16"}, "pass force=True"),
        ({"correction": "delayed", "block": 0}, "K >= 1"),
        ({"correction": "both"}, "correction='both'"),
        ({"n_chains": 0}, "n_chains=0"),
        ({"seed": -1}, "seed=-1"),
        ({"rule": "exchange", "total_sz": 0.5}, "cannot have the sum"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        Metropolis(RBM(6), 6, **options)


def test_bad_requests_are_named():
    sampler = Metropolis(RBM(6), 6, n_chains=4, dtype="f32")
    with pytest.raises(ValueError, match="n=6 is no multiple of n_chains=4"):
        sampler.sample(6)
    with pytest.raises(ValueError, match="discard=-1"):
        sampler.sample(4, discard=-1)
    with pytest.raises(ValueError, match="no states of these 6 spins"):
        sampler.load_state_dict({"x": torch.ones(4, 5)})
    with pytest.raises(ValueError, match="n_chains=1"):
        Metropolis(RBM(6), 6, n_chains=1, dtype="f32").thermalise()
    check_precision("f16", "cpu", force=True)
    assert precision_name(torch.bfloat16) == "bf16"
    assert precision_name("half") == "f16"


def test_chains_that_do_not_move_are_told_of():
    def peak(x):
        return 60.0 * (x.sum(1) == 6)

    sampler = Metropolis(peak, 6, n_chains=16, dtype="f64", sweep=50)
    sampler.x = torch.ones(16, 6, dtype=torch.int8)
    with pytest.raises(RuntimeError, match="all samples are equal"):
        sampler.sample(16)

    def wells(x):
        return 60.0 * (x.sum(1).abs() == 6)

    two = Metropolis(wells, 6, n_chains=16, dtype="f64", sweep=50)
    two.x = torch.tensor([1, -1], dtype=torch.int8).repeat(8)[:, None].expand(16, 6).clone()
    with pytest.warns(UserWarning, match="larger moves"):
        two.sample(16)


def test_zero_amplitudes_are_left_at_the_start():
    def half(x):
        return torch.where(x[:, 0] > 0, 0.0, -torch.inf)

    assert bool((Metropolis(half, 4, n_chains=64, dtype="f64").sample(128).x[:, 0] == 1).all())
    with pytest.raises(ValueError, match="ψ = 0 at the start of 4 of 4"):
        Metropolis(lambda x: x[:, 0] * 0 - torch.inf, 4, n_chains=4, dtype="f64")


def test_sectors_come_from_the_hamiltonian():
    H = Heisenberg((2, 4))
    sampler = Metropolis.for_hamiltonian(H, RBM(8), n_chains=32, dtype="f32")
    assert bool((sampler.sample(64).x.long().sum(1) == 0).all())
    assert sampler.sectors == (Sector(tuple(range(8)), 0),)
    assert len(sampler.rule.moves) == len(H.exchange_pairs)
