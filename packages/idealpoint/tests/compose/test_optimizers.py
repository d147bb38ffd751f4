"""The ideal point as a module among others: trained by name, with optimizers of another package."""

import numpy as np
import pytest
import torch
from icml_core.optimizers import torch_optimizer
from icml_idealpoint import Bumps, TimeWarpIdealPoint, compare, kendall_tau
from icml_idealpoint.comparisons import as_comparisons


@pytest.mark.parametrize("optimizer", ["sso.sso", "sso.muonsphere"])
def test_matrix_optimizers_train_the_ideal_series_from_comparisons(optimizer):
    """An ideal series of two channels is a matrix: the loss falls, and unseen items turn into order."""
    one, severity = Bumps(24, 0.03).items(68, seed=0)
    other = 0.5 * one + 0.3 * np.random.default_rng(1).normal(size=one.shape)
    X = torch.from_numpy(np.stack([one, other], axis=2)).float()
    answers = as_comparisons(compare(severity[:28], 200, seed=0), 28)
    module = TimeWarpIdealPoint(2, 24, nu=0.003, lam=0.1, generator=torch.Generator().manual_seed(0))
    stepper = torch_optimizer(optimizer)(module.named_parameters(), lr=3e-2)
    with torch.no_grad():
        before = kendall_tau(module(X[28:]), severity[28:])
    losses = []
    for _ in range(60):
        stepper.zero_grad()
        loss = module.loss(module(X[:28]), answers)
        loss.backward()
        stepper.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.3 * losses[0]
    with torch.no_grad():
        assert kendall_tau(module(X[28:]), severity[28:]) > before + 0.5
