"""A sampler trained by another package's optimizer, chosen by its name."""

from __future__ import annotations

import pytest
from icml_discrete_samplers import Polynomial, enumerate_law, fit
from icml_discrete_samplers.exact import sampler_law
from icml_discrete_samplers.metrics import total_variation


@pytest.mark.parametrize("optimizer", ["sso.sso", "sso.muonsphere"])
def test_matrix_optimizers_train_the_sampler(optimizer):
    """The exact distance to the target falls."""
    energy = Polynomial({(i, i + 1): (-1.0) ** i for i in range(5)}, "spin")
    p = enumerate_law(energy).log_prob.exp()
    options = {
        "k": 1,
        "batch": 64,
        "network": {"hidden": 32, "layers": 2},
        "coverage": False,
        "mcmc_every": 50,
    }
    after = fit(energy, steps=200, optimizer=optimizer, lr=1e-2, anneal=0.2, **options)
    before = fit(energy, steps=1, optimizer=optimizer, lr=1e-9, anneal=0.2, **options)
    found = [total_variation(sampler_law(s.model), p) for s in (before, after)]
    assert found[1] < 0.5 * found[0]
