"""The oracles against each other: enumeration, Kaufman, transfer matrices, quadrature, Schrödinger
couplings.
"""

from __future__ import annotations

import math

import pytest
import torch
from icml_discrete_samplers import (
    Ising2D,
    Potts2D,
    UniformMLP,
    enumerate_law,
    from_callable,
    kaufman_log_z,
    target,
)
from icml_discrete_samplers.exact import (
    bridge_kernel,
    index_of,
    sampler_law,
    schroedinger_coupling,
    states_of,
    transfer_matrix_log_z,
)
from icml_discrete_samplers.targets import mixture
from oracles import ExactConditionals, all_states


@pytest.mark.parametrize("L", [2, 3, 4])
@pytest.mark.parametrize("beta", [0.1, 0.4, 0.4407, 0.6, 1.2])
def test_kaufmans_formula_is_enumeration(L, beta):
    assert kaufman_log_z(L, beta) == pytest.approx(enumerate_law(Ising2D(L, beta)).log_z, abs=1e-9)


@pytest.mark.parametrize(("L", "q"), [(2, 3), (3, 2), (3, 3)])
def test_the_transfer_matrix_is_enumeration(L, q):
    assert transfer_matrix_log_z(L, q, 0.9) == pytest.approx(
        enumerate_law(Potts2D(L, q, 0.9)).log_z, abs=1e-9
    )


def test_potts_targets_know_their_log_z_beyond_enumeration():
    assert target("potts_L3_q3_b0.8").log_z == pytest.approx(
        enumerate_law(Potts2D(3, 3, 0.8)).log_z, abs=1e-9
    )
    assert target("potts_L6_q2_b0.5").log_z == pytest.approx(kaufman_log_z(6, 0.25) + 0.25 * 72, abs=1e-8)
    assert target("potts_L16_q3_b1.2").log_z is None


def test_kaufman_and_the_transfer_matrix_agree_beyond_enumeration():
    """Potts with two states at beta is Ising at beta / 2, but for a constant."""
    L, beta = 7, 0.5
    potts = transfer_matrix_log_z(L, 2, 2 * beta)
    assert potts - beta * 2 * L * L == pytest.approx(kaufman_log_z(L, beta), abs=1e-8)


@pytest.mark.parametrize("name", ["9gmm", "manywell_2d"])
def test_log_z_by_quadrature_is_enumeration(name):
    one = target(name, 3)
    assert one.log_z == pytest.approx(enumerate_law(one.energy).log_z, abs=1e-10)


@pytest.mark.parametrize("make", [lambda: mixture(3, 2, 3, 60.0, 35.0, 1), lambda: target("manywell_2d")])
def test_exact_samples_have_the_law(make):
    one = make()
    p = enumerate_law(one.energy).log_prob.exp()
    n = 50_000
    x = one.sample(n, 4)
    found = torch.bincount(index_of(x, 2), minlength=len(p)).double() / n
    assert bool(((found - p).abs() < 5 * (p * (1 - p) / n).sqrt() + 2e-4).all())


def test_states_and_their_numbers():
    assert torch.equal(states_of(torch.arange(27), 3, 3), all_states(3, 3))
    assert torch.equal(index_of(all_states(3, 3), 3), torch.arange(27))


def test_the_law_of_exact_conditionals_is_the_target():
    law = enumerate_law(Potts2D(2, 3, 0.8))
    found = sampler_law(ExactConditionals(law.log_prob, 4, 3))
    torch.testing.assert_close(found, law.log_prob.exp(), rtol=1e-10, atol=1e-12)


def test_the_reference_bridge_is_a_product_of_two_state_chains():
    stay, steps = 1.5, 3
    p = math.exp(stay) / (math.exp(stay) + 1)
    one = torch.tensor([[p, 1 - p], [1 - p, p]], dtype=torch.float64)
    site = torch.linalg.matrix_power(one, steps)
    wanted = torch.kron(torch.kron(site, site), site)
    found = bridge_kernel(UniformMLP(3, 2, 8, 1, stay).double(), steps)
    torch.testing.assert_close(found, wanted)


def test_the_coupling_has_its_marginals_and_the_kernels_ratios():
    g = torch.Generator().manual_seed(0)
    kernel = torch.rand(5, 5, generator=g, dtype=torch.float64) + 0.1
    p0, p1 = (torch.rand(5, generator=g, dtype=torch.float64).softmax(0) for _ in range(2))
    plan = schroedinger_coupling(kernel, p0, p1)
    torch.testing.assert_close(plan.sum(1), p0)
    torch.testing.assert_close(plan.sum(0), p1)
    ratio = plan / kernel
    odds = ratio[0, 0] * ratio[1, 1] / (ratio[0, 1] * ratio[1, 0])
    assert float(odds) == pytest.approx(1.0, abs=1e-8)


def test_what_is_too_large_is_refused():
    with pytest.raises(ValueError, match="enumeration is too large"):
        enumerate_law(from_callable(lambda x: x.sum(1).double(), 40, 2))
    with pytest.raises(ValueError, match="transfer matrix is too large"):
        transfer_matrix_log_z(10, 3, 1.0)
    with pytest.raises(ValueError, match="beta J > 0"):
        kaufman_log_z(4, -1.0)
    with pytest.raises(ValueError, match="unknown target 'ising'"):
        target("ising")
