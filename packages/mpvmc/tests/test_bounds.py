"""The bounds against numerical integrals of what they are expectations of."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icml_mpvmc import bounds
from scipy.integrate import quad


def mean_over_normal(function, mean, deviation):
    """E f(ε) for ε ~ N(mean, deviation²), split where |ε| has its corner."""

    def density(e):
        return (
            function(e)
            * math.exp(-(((e - mean) / deviation) ** 2) / 2)
            / (deviation * math.sqrt(2 * math.pi))
        )

    ends = mean - 12 * deviation, mean + 12 * deviation
    cuts = [ends[0], *([0.0] if ends[0] < 0 < ends[1] else []), ends[1]]
    return sum(quad(density, a, b, limit=200)[0] for a, b in pairwise(cuts))


@pytest.mark.parametrize("mu", [0.0, 0.3, -0.3, 4.0])
@pytest.mark.parametrize("sigma", [1e-3, 0.1, 0.7, 2.0, 6.0])
def test_acceptance_is_the_mean_of_one_minus_exp(sigma, mu):
    expected = mean_over_normal(lambda e: 1 - math.exp(-abs(e)), mu, math.sqrt(2) * sigma)
    assert bounds.acceptance(sigma, mu) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("sigma", [1e-6, 1e3, 1e8])
def test_acceptance_at_extremes(sigma):
    value = bounds.acceptance(sigma)
    assert value == pytest.approx(2 * sigma / math.sqrt(math.pi), rel=1e-4) if sigma < 1 else value > 0.99
    assert bounds.acceptance(1e-3 * min(sigma, 1.0), 1e4) == 1.0
    assert bounds.acceptance(0.0, 0.5) == pytest.approx(1 - math.exp(-0.5))


@given(s=st.floats(0, 1e6), epsilon=st.floats(-50, 50))
def test_no_proposal_changes_by_more_than_the_pointwise_bound(s, epsilon):
    change = abs(min(1.0, s * math.exp(epsilon)) - min(1.0, s))
    assert change <= float(bounds.pointwise(s, epsilon)) + 1e-9
    assert float(bounds.pointwise(s, epsilon)) <= bounds.worst_case(abs(epsilon) / 2) + 1e-12


@given(sigma=st.floats(1e-8, 5), f_max=st.floats(1e-3, 1e3), r=st.one_of(st.none(), st.floats(0, 0.99)))
def test_required_sigma_is_the_inverse_of_the_bias(sigma, f_max, r):
    tol = bounds.bias(sigma, f_max, r)
    found = bounds.required_sigma(tol, f_max, r)
    assert found >= sigma * (1 - 1e-6)
    if math.isfinite(found):
        assert bounds.bias(found, f_max, r) <= tol * (1 + 1e-6)


@pytest.mark.parametrize("sigma", [0.05, 0.5, 1.5])
def test_delayed_acceptance_is_the_mean_over_independent_ends(sigma):
    expected = mean_over_normal(lambda e: min(1.0, math.exp(e)), -(sigma**2), math.sqrt(2) * sigma)
    assert bounds.delayed_acceptance(sigma) == pytest.approx(expected, rel=1e-6)
    assert bounds.delayed_acceptance(0.01) == pytest.approx(1 - 0.01 / math.sqrt(math.pi), abs=1e-5)


def test_mcmc_bound_and_the_smaller_of_both():
    assert bounds.mcmc(0.1, 2.0, 0.5) == pytest.approx(8 * bounds.acceptance(0.1))
    assert bounds.bias(0.1, 2.0) == pytest.approx(0.2)
    assert bounds.bias(50.0, 2.0) == 4.0
    assert bounds.bias(10.0, 1.0, 0.0) == pytest.approx(2 * bounds.acceptance(10.0))
    assert bounds.reweighting_ess(0.2) == pytest.approx(math.exp(-0.04))


@pytest.mark.parametrize(
    "call",
    [
        lambda: bounds.acceptance(-1.0),
        lambda: bounds.acceptance(math.nan),
        lambda: bounds.kl(-1.0),
        lambda: bounds.mcmc(0.1, 1.0, 1.0),
        lambda: bounds.required_sigma(0.0),
        lambda: bounds.worst_case(-1.0),
        lambda: bounds.reweighting_ess(math.nan),
    ],
)
def test_numbers_out_of_range_are_refused(call):
    with pytest.raises(ValueError, match="expected|lies in"):
        call()


def test_pointwise_takes_arrays():
    found = bounds.pointwise(np.array([0.0, 2.0]), np.array([1.0, 1.0]))
    np.testing.assert_allclose(found, [0.0, 1 - math.exp(-1)])
