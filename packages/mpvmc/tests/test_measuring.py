"""Energies on many samples: exact weights over batches, and errors that chains which drift do not shrink."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_mpvmc import RBM, History, Metropolis, exact, measure
from icml_mpvmc.chains import estimate, split_r_hat
from icml_mpvmc.hamiltonians import TFIM
from icml_mpvmc.measuring import ChainSums


def test_sums_are_those_of_the_whole_series():
    rng = np.random.default_rng(0)
    e = rng.normal(size=(20, 30)) + rng.normal(size=(20, 1)) - 50
    log_w = 3 * rng.normal(size=(20, 30)) + 700  # whose exponentials are no doubles together
    for width in (1, 7, 30):
        sums = ChainSums(20, 30)
        for begin in range(0, 30, width):
            part = slice(begin, begin + width)
            sums.add(e[:, part].ravel(), log_w[:, part].ravel())
        found, whole = sums.estimate(), estimate(e.ravel(), 20, log_w.ravel())
        assert found.mean == pytest.approx(whole.mean, rel=1e-12)
        assert found.variance == pytest.approx(whole.variance, rel=1e-9)
        assert found.r_hat == pytest.approx(split_r_hat(e), rel=1e-9)
    alone = ChainSums(20, 1)
    alone.add(e[:, 0], np.zeros(20))
    assert math.isnan(alone.estimate().r_hat)


def test_errors_of_slow_chains_are_their_spread():
    """Batches of one draw a chain, one proposal apart: the errors of 20 runs against how the runs differ."""
    H, model = TFIM(6, h=0.5), RBM(6, 1, std=0.5, seed=3)
    means, errors, taus = [], [], []
    for seed in range(20):
        sampler = Metropolis(model, 6, n_chains=64, dtype="f64", sweep=1, seed=seed)
        found = measure(model, H, sampler, 64 * 60, discard=100, batch=64)
        means.append(found.mean)
        errors.append(found.error)
        taus.append(found.tau)
    truth = exact.energy(model, H)[0]
    assert np.mean(errors) == pytest.approx(np.std(np.array(means) - truth), rel=0.3)
    assert min(taus) > 3


def test_weights_of_batches_have_one_reference():
    """Batches as small as the chains; normalised one by one they would be biased by the order of 1/16."""
    H, model = TFIM(4), RBM(4, 1, std=0.3, seed=3)
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(16, generator=g, dtype=torch.float64)
    powers = 2.0 ** torch.arange(3, -1, -1)

    def rough(x):
        with torch.no_grad():
            return 2 * model(x.double()) + noise[((x < 0) * powers).sum(1).long()]

    sampler = Metropolis(
        model, 4, n_chains=16, dtype="f64", correction="reweight", sweep=8, seed=1, density=rough
    )
    found = measure(model, H, sampler, 16 * 300, discard=20, batch=16)
    truth = exact.energy(model, H)[0]
    assert abs(found.mean - truth) < 4 * found.error


def test_the_last_iterations_are_averaged():
    history = History(energy=[-2.0] * 5, err=[0.0] * 5)
    assert history.last(5) == (-2.0, 0.0)
    rng = np.random.default_rng(0)
    history = History(energy=list(rng.normal(size=400)), err=[1.0] * 400)
    energy, error = history.last(400)
    assert energy == pytest.approx(np.mean(history.energy))
    assert error == pytest.approx(0.05, rel=0.5)
    assert all(math.isnan(v) for v in History().last())
