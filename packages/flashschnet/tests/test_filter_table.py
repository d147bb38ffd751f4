import math

import pytest
import torch
from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.filter_table import FilterTable
from icml_flashschnet.radial import RadialBasis

R_CUT = 6.0


@pytest.fixture
def network():
    basis = RadialBasis("gauss", 12, R_CUT)
    return FilterNetwork(basis, 7, generator=torch.Generator().manual_seed(3)).double()


def fine_grid(table):
    t = torch.linspace(0.01, 0.99, 15, dtype=torch.float64)
    nodes = torch.arange(table.intervals, dtype=torch.float64)
    return ((nodes[:, None] + t) * table.spacing).flatten()


def test_a_table_of_a_cubic_is_the_cubic():
    r = torch.linspace(0, R_CUT, 5, dtype=torch.float64)
    polynomial = 2 - r + 0.5 * r**2 - 0.1 * r**3
    slope = -1 + r - 0.3 * r**2
    table = FilterTable(torch.stack([polynomial, slope * R_CUT / 4], 1)[:, :, None], R_CUT)
    points = torch.tensor([0.0, 0.4, 1.6, 3.3, 5.999], dtype=torch.float64)
    values, slopes = table.with_slope(points)
    exact = 2 - points + 0.5 * points**2 - 0.1 * points**3
    torch.testing.assert_close(values[:, 0], exact, rtol=0, atol=1e-13)
    torch.testing.assert_close(slopes[:, 0], -1 + points - 0.3 * points**2, rtol=0, atol=1e-13)


def test_the_table_is_exact_at_its_nodes(network):
    table = FilterTable.of(network, 32)
    nodes = torch.arange(32, dtype=torch.float64) * table.spacing
    for got, exact in zip(table.with_slope(nodes), network.with_slope(nodes), strict=True):
        torch.testing.assert_close(got, exact, rtol=0, atol=1e-13)


def test_errors_keep_the_bounds_of_hermite_interpolation(network):
    """|W - table| <= h^4/384 max|W''''| and |W' - table'| <= sqrt(3) h^3/216 max|W''''|."""
    grid = torch.linspace(0.0, R_CUT - 1e-9, 4001, dtype=torch.float64).requires_grad_()
    fourth = network(grid)
    worst = 0.0
    for column in fourth.unbind(1):
        d = column
        for _ in range(4):
            (d,) = torch.autograd.grad(d.sum(), grid, create_graph=True)
        worst = max(worst, float(d.detach().abs().max()))
    for intervals in (64, 128, 256):
        table = FilterTable.of(network, intervals)
        r = fine_grid(table)
        (values, slopes), (exact, exact_slopes) = table.with_slope(r), network.with_slope(r)
        h = table.spacing
        assert (values - exact).abs().max() <= 1.01 * h**4 / 384 * worst
        assert (slopes - exact_slopes).abs().max() <= 1.01 * math.sqrt(3) * h**3 / 216 * worst


def test_the_force_is_the_exact_slope_of_the_interpolated_energy(network):
    table = FilterTable.of(network, 16)
    r = fine_grid(table).requires_grad_()
    values = table(r)
    expected = torch.stack(
        [torch.autograd.grad(c.sum(), r, retain_graph=True)[0] for c in values.unbind(1)], 1
    )
    torch.testing.assert_close(table.with_slope(r.detach())[1], expected, rtol=1e-10, atol=1e-13)


def test_value_and_slope_are_continuous_across_nodes(network):
    table = FilterTable.of(network, 16)
    nodes = torch.arange(1, 17, dtype=torch.float64) * table.spacing
    below, above = table.with_slope(nodes * (1 - 1e-13)), table.with_slope(nodes * (1 + 1e-13))
    for a, b in zip(below, above, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


def test_nothing_at_and_beyond_the_cutoff(network):
    table = FilterTable.of(network, 16)
    values, slopes = table.with_slope(torch.tensor([R_CUT, R_CUT * 1.5], dtype=torch.float64))
    assert not values.any()
    assert not slopes.any()


def test_tabulating_leaves_the_network_as_it_is(network):
    network = network.float()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    table = FilterTable.of(network, 16)
    assert table.table.dtype == torch.float32
    assert all(torch.equal(before[name], value) for name, value in network.state_dict().items())


def test_a_table_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"\[intervals \+ 1, 2, filters\], got \[3, 4\]"):
        FilterTable(torch.zeros(3, 4), R_CUT)
