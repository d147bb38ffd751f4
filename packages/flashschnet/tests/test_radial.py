import math

import numpy as np
import pytest
import torch
from icml_flashschnet.activation import activate, activation_backward, activation_slope
from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.radial import RadialBasis, cosine_cutoff, cosine_cutoff_slope

R_CUT = 7.0
DISTANCES = torch.tensor([0.3, 1.0, 3.49, 5.2, 6.999999, 7.0, 7.5], dtype=torch.float64)


def derivative(function, r):
    """d(function)/dr of every channel, by autograd."""
    r = r.clone().requires_grad_()
    values = function(r)
    columns = values[:, None] if values.ndim == 1 else values
    slopes = [torch.autograd.grad(column.sum(), r, retain_graph=True)[0] for column in columns.unbind(1)]
    return torch.stack(slopes, 1).reshape(values.shape)


def test_the_envelope_is_the_cosine_inside_and_nothing_outside():
    expected = [0.5 * (math.cos(math.pi * r / R_CUT) + 1) if r < R_CUT else 0.0 for r in DISTANCES.tolist()]
    np.testing.assert_allclose(cosine_cutoff(DISTANCES, R_CUT), expected, rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        cosine_cutoff_slope(DISTANCES, R_CUT),
        derivative(lambda r: cosine_cutoff(r, R_CUT), DISTANCES),
        rtol=0,
        atol=1e-15,
    )


@pytest.mark.parametrize("kind", ["gauss", "expnorm"])
def test_basis_values_are_those_of_the_formula(kind):
    n = 9
    basis = RadialBasis(kind, n, R_CUT)
    for r in DISTANCES.tolist():
        envelope = 0.5 * (math.cos(math.pi * r / R_CUT) + 1) if r < R_CUT else 0.0
        expected = []
        for k in range(n):
            if kind == "gauss":
                mu = k * R_CUT / (n - 1)
                value = math.exp(-0.5 / (R_CUT / (n - 1)) ** 2 * (r - mu) ** 2)
            else:
                start = math.exp(-R_CUT)
                mu = start + k * (1 - start) / (n - 1)
                beta = (2 / n * (1 - start)) ** -2
                value = math.exp(-beta * (math.exp(-5 / R_CUT * r) - mu) ** 2)
            expected.append(value * envelope)
        got = basis(torch.tensor([r], dtype=torch.float64))[0]
        np.testing.assert_allclose(got, expected, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("kind", ["gauss", "expnorm"])
@pytest.mark.parametrize("envelope", [True, False])
def test_basis_slopes_are_the_derivatives(kind, envelope):
    basis = RadialBasis(kind, 9, R_CUT, envelope)
    values, slopes = basis.with_slope(DISTANCES)
    torch.testing.assert_close(values, basis(DISTANCES), rtol=0, atol=1e-15)
    torch.testing.assert_close(slopes, derivative(basis, DISTANCES), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("activation", ["tanh", "ssp"])
@pytest.mark.parametrize("envelope", [True, False])
def test_filter_slopes_are_the_derivatives(activation, envelope):
    network = FilterNetwork(
        RadialBasis("gauss", 9, R_CUT),
        6,
        activation=activation,
        envelope=envelope,
        generator=torch.Generator().manual_seed(1),
    ).double()
    filters, slopes = network.with_slope(DISTANCES)
    torch.testing.assert_close(filters, network(DISTANCES).detach(), rtol=0, atol=1e-15)
    torch.testing.assert_close(slopes, derivative(network, DISTANCES), rtol=1e-12, atol=1e-14)


def test_filters_do_not_reach_beyond_the_cutoff():
    network = FilterNetwork(RadialBasis("gauss", 9, R_CUT), 6, generator=torch.Generator().manual_seed(1))
    filters, slopes = network.with_slope(torch.tensor([R_CUT, R_CUT + 1e-3, 100.0]))
    assert not filters.any()
    assert not slopes.any()


@pytest.mark.parametrize("activation", ["tanh", "ssp"])
def test_activation_slopes_follow_from_the_output(activation):
    z = torch.linspace(-6, 6, 25, dtype=torch.float64)
    output = activate(activation, z)
    exact = derivative(lambda v: activate(activation, v), z)
    torch.testing.assert_close(activation_slope(activation, output), exact, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        activation_backward(activation, torch.full_like(z, 2.0), output), 2 * exact, rtol=1e-10, atol=1e-12
    )


def test_the_shifted_softplus_vanishes_at_zero():
    assert activate("ssp", torch.zeros(1, dtype=torch.float64)).abs().item() < 1e-16
