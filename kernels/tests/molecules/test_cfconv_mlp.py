"""The filter-network convolution against a module of torch.nn, SciPy's derivatives and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from icml_kernels import cfconv_mlp, cfconv_table
from icml_kernels.molecules.cases import random
from icml_kernels.molecules.cfconv_mlp.cases import CASES, CUTOFF, EXPNORM, arguments
from icml_kernels.molecules.cfconv_mlp.reference import filter_derivatives
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route, derivatives


def convolve(x, r, pairs, w1, b1, w2, b2, centers, widths, **options):
    return cfconv_mlp(x, r, pairs, w1, b1, w2, b2, centers=centers, widths=widths, cutoff=CUTOFF, **options)


SMALL = arguments((3, 2), 3, hidden=2, n_basis=3)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_tiles_equal_the_definition(case, dtype):
    check_route(case.bind(convolve), case.arguments(), dtype=dtype)


def test_many_tiles_equal_one(monkeypatch):
    inputs = arguments((30, 12), 8)
    expected = derivatives(convolve, inputs)
    monkeypatch.setattr("icml_kernels.molecules.cfconv_mlp.cpu.TILE", 7)
    for a, e in zip(derivatives(convolve, inputs), expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(convolve, SMALL) == {"icml::cfconv_mlp", "icml::cfconv_mlp_backward"}


@pytest.mark.parametrize("options", [{}, dict(EXPNORM) | {"activation": "ssp"}], ids=["gaussian", "expnorm"])
def test_derivatives_by_everything(options):
    check_derivatives(lambda *a: convolve(*a, **options), SMALL, forward_mode=False)


@pytest.mark.parametrize("options", [{}, dict(EXPNORM) | {"activation": "ssp"}], ids=["gaussian", "expnorm"])
def test_forward_mode_by_features_and_distances(options):
    check_derivatives(lambda *a: convolve(*a, **options), SMALL, by=(0, 1))


def test_forward_mode_by_weights_is_refused():
    with pytest.raises(RuntimeError, match="use reverse mode"):
        torch.func.jvp(lambda w1: convolve(*SMALL[:3], w1, *SMALL[4:]), (SMALL[3],), (SMALL[3],))


def test_compiled():
    check_compiled(convolve, SMALL, by=1)


def test_equals_a_network_of_torch_nn():
    x, r, pairs, w1, b1, w2, _, centers, widths = arguments((7, 6), 8, hidden=8)
    network = torch.nn.Sequential(
        torch.nn.Linear(7, 8, dtype=torch.float64),
        torch.nn.Tanh(),
        torch.nn.Linear(8, 8, bias=False, dtype=torch.float64),
    )
    with torch.no_grad():
        for parameter, value in zip(network.parameters(), (w1, b1, w2), strict=True):
            parameter.copy_(value)
    c = torch.where(r < CUTOFF, 0.5 * (torch.cos(math.pi * r / CUTOFF) + 1), 0.0)[:, None]
    basis = torch.exp(-widths * (r[:, None] - centers) ** 2) * c
    w = (network(basis) * c).detach()
    i, j = pairs.ij()
    expected = torch.zeros_like(x)
    for p in range(len(r)):
        expected[i[p]] += w[p] * x[j[p]]
        expected[j[p]] += w[p] * x[i[p]]
    out = cfconv_mlp(x, r, pairs, w1, b1, w2, centers=centers, widths=widths, cutoff=CUTOFF)
    torch.testing.assert_close(out, expected)


def test_the_envelope_is_differentiated_too():
    """Without dC/dr of the outer envelope (as in kernels that lose it) the gradient would be far off."""
    x, r, *rest = arguments((7, 6), 8)
    r = r.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(convolve(x, r, *rest).sum(), r)
    h = 1e-6
    for p in range(0, len(r), 5):
        step = torch.zeros_like(r)
        step[p] = h
        with torch.no_grad():
            change = (convolve(x, r + step, *rest).sum() - convolve(x, r - step, *rest).sum()) / (2 * h)
        torch.testing.assert_close(gradient[p], change, rtol=1e-6, atol=1e-7)


def test_a_table_of_the_network_gives_its_values():
    x, r, pairs, *weights = arguments((9, 5), 8)
    nodes = torch.linspace(0, CUTOFF, 1025, dtype=torch.float64)
    options = (CUTOFF, "gaussian", 1.0, 0.0, "tanh", True, True)
    w, dw, _ = filter_derivatives(nodes, *weights, *options)
    table = torch.stack([w, dw * (nodes[1] - nodes[0])], dim=1)
    exact = derivatives(lambda x, r: convolve(x, r, pairs, *weights), (x, r), order=1)
    tabulated = derivatives(lambda x, r: cfconv_table(x, r, pairs, table, CUTOFF), (x, r), order=1)
    for a, b in zip(tabulated, exact, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("case", CASES[5:10], ids=str)
def test_derivatives_of_the_filter_are_finite_differences(case):
    options = {"cutoff": CUTOFF, "basis": "gaussian", "alpha": 1.0, "origin": 0.0, "activation": "tanh"}
    options |= {"basis_envelope": True, "filter_envelope": True} | dict(case.options)
    r = torch.linspace(0.3, CUTOFF - 0.1, 23, dtype=torch.float64)
    h = 1e-5

    def filters(r):
        return filter_derivatives(r, *arguments()[3:], **options)

    (_, dw, ddw), before, after = filters(r), filters(r - h), filters(r + h)
    torch.testing.assert_close(dw, (after[0] - before[0]) / (2 * h), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(ddw, (after[1] - before[1]) / (2 * h), rtol=1e-6, atol=1e-7)


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="basis='bessel' is not one of gaussian, expnorm"):
        convolve(*SMALL, basis="bessel")
    with pytest.raises(ValueError, match="activation='relu' is not one of tanh, ssp"):
        convolve(*SMALL, activation="relu")
    with pytest.raises(ValueError, match=r"w2 has shape \[3, 5\]; expected \[3, 2\]"):
        convolve(*SMALL[:5], random(3, 5), *SMALL[6:])
    with pytest.raises(ValueError, match="cutoff=0.0 is not positive"):
        cfconv_mlp(*SMALL[:7], centers=SMALL[7], widths=SMALL[8], cutoff=0.0)
