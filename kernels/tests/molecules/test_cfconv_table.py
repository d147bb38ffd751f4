"""The tabulated convolution against a dense sum, SciPy's splines and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import cfconv_table, half_list
from icml_kernels.molecules.cases import with_spare_places
from icml_kernels.molecules.cfconv_table.cases import CASES, CUTOFF, arguments
from icml_kernels.molecules.cfconv_table.reference import interpolate
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
)
from scipy.interpolate import CubicHermiteSpline

SMALL = arguments((3, 2), 2, intervals=3, r_min=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(cfconv_table), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(cfconv_table, SMALL) == {
        "icml::cfconv_table",
        "icml::cfconv_table_backward",
        "icml::cfconv_table_second_backward",
    }


def test_derivatives():
    check_derivatives(cfconv_table, SMALL)


def test_compiled():
    check_compiled(cfconv_table, SMALL, by=1)


def test_third_derivative_by_distances():
    x, r, pairs, table, cutoff, r_min = SMALL

    def curvature(r):
        gradient = torch.func.grad(lambda r: (cfconv_table(x, r, pairs, table, cutoff, r_min) ** 2).sum())
        return (torch.func.grad(lambda r: (gradient(r) ** 2).sum())(r) ** 2).sum()

    direction = torch.cos(torch.arange(len(r), dtype=r.dtype))
    h = 1e-5
    expected = (curvature(r + h * direction) - curvature(r - h * direction)) / (2 * h)
    torch.testing.assert_close(torch.func.grad(curvature)(r) @ direction, expected, rtol=1e-6, atol=0)


def test_filter_is_the_hermite_spline_of_scipy():
    table = SMALL[3]
    nodes = np.linspace(1.0, CUTOFF, table.shape[0])
    spacing = nodes[1] - nodes[0]
    spline = CubicHermiteSpline(nodes, table[:, 0].numpy(), table[:, 1].numpy() / spacing)
    # Below the first node the first interval's cubic goes on, which is what SciPy does too.
    r = np.linspace(0.4, CUTOFF - 1e-9, 301)
    for ours, order in zip(interpolate(torch.from_numpy(r), table, CUTOFF, 1.0), (0, 1, 2), strict=True):
        np.testing.assert_allclose(ours.numpy(), spline(r, order), rtol=1e-9, atol=1e-9)


def test_convolution_is_a_dense_sum_over_both_directions():
    x, r, pairs, table, cutoff, r_min = arguments((6, 5), 4)
    i, j = pairs.ij()
    w = interpolate(r, table, cutoff, r_min)[0]
    dense = torch.zeros(11, 11, 4, dtype=torch.float64)
    dense[i, j], dense[j, i] = w, w
    expected = torch.einsum("ijf,jf->if", dense, x)
    torch.testing.assert_close(cfconv_table(x, r, pairs, table, cutoff, r_min), expected)


def test_nothing_passes_the_cutoff():
    pairs = half_list(torch.tensor([0]), torch.tensor([1]), 2)
    x, table = torch.ones(2, 3, dtype=torch.float64), torch.ones(5, 2, 3, dtype=torch.float64)
    for r, silent in ((CUTOFF, True), (CUTOFF + 1, True), (float("inf"), True), (CUTOFF - 1e-6, False)):
        out = derivatives(
            lambda x, r: cfconv_table(x, r, pairs, table, CUTOFF), (x, torch.tensor([r], dtype=torch.float64))
        )
        assert all(bool((t == 0).all()) for t in out) == silent


def test_nan_is_seen():
    x, r, pairs, table, cutoff, r_min = arguments((5,), 4)
    r[0] = float("nan")
    i, j = (int(t[0]) for t in pairs.ij())
    out = cfconv_table(x, r, pairs, table, cutoff, r_min)
    assert out[[i, j]].isnan().all()
    assert out[[k for k in range(5) if k not in (i, j)]].isfinite().all()


@pytest.mark.parametrize("filters", [8, 96, 128, 200])
def test_bits_do_not_depend_on_the_number_of_threads(filters, monkeypatch):
    x, r, pairs, *rest = cast(arguments((23, 9, 14), filters), torch.float32)
    results = []
    for shares in (1, 2, 3, 7):
        monkeypatch.setattr("icml_kernels.molecules.cfconv_table.cpu.threads", lambda shares=shares: shares)
        results.append(derivatives(lambda x, r: cfconv_table(x, r, pairs, *rest), (x, r)))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_order_of_the_pairs_does_not_matter():
    x, r, pairs, table, cutoff, r_min = arguments((12, 9), 8)
    i, j = pairs.ij()
    shuffle = torch.randperm(len(i), generator=torch.Generator().manual_seed(3))
    again, order = half_list(j[shuffle], i[shuffle], 21, return_order=True)
    first = cfconv_table(x, r, pairs, table, cutoff, r_min)
    assert torch.equal(cfconv_table(x, r[shuffle][order], again, table, cutoff, r_min), first)


def test_spare_places_hold_anything():
    x, r, pairs, table, cutoff, r_min = arguments((6, 5), 8)
    padded = with_spare_places(pairs, 4)
    poison = torch.cat([r, torch.tensor([float("nan"), 0.0, -1.0, float("inf")], dtype=r.dtype)])
    plain = derivatives(lambda x, r: cfconv_table(x, r, pairs, table, cutoff, r_min), (x, r), order=1)
    spare = derivatives(lambda x, r: cfconv_table(x, r, padded, table, cutoff, r_min), (x, poison), order=1)
    assert torch.equal(spare[0], plain[0])
    assert spare[2][-4:].eq(0).all()


def test_bad_arguments_are_named():
    x, r, pairs, table, cutoff, _ = SMALL
    with pytest.raises(ValueError, match=r"distances has shape \[2\]; expected \[\d+\]"):
        cfconv_table(x, r[:2], pairs, table, cutoff)
    with pytest.raises(TypeError, match=r"distances has dtype torch.float32 but x has torch.float64"):
        cfconv_table(x, r.float(), pairs, table, cutoff)
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        cfconv_table(x.long(), r, pairs, table, cutoff)
    with pytest.raises(TypeError, match="pairs is a tuple; expected a HalfList"):
        cfconv_table(x, r, pairs.ij(), table, cutoff)
    with pytest.raises(ValueError, match=r"table has shape \[4, 2, 2\]; expected \[any, 2, 1\]"):
        cfconv_table(x[:, :1], r, pairs, table, cutoff)
    with pytest.raises(ValueError, match="table has 1 nodes"):
        cfconv_table(x, r, pairs, table[:1], cutoff)
    with pytest.raises(ValueError, match="cutoff=1.0 does not lie beyond r_min=1.0"):
        cfconv_table(x, r, pairs, table, 1.0, 1.0)
