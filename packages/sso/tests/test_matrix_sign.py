"""The polar factor, its verification, and the check that catches wrong ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_sso import MatrixSign, exact_msign, msign
from icml_sso.matrix_sign import has_outliers


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 2**31))
def test_the_exact_factor_is_dual_to_the_nuclear_norm(m, n, seed):
    x = random(m, n, seed=seed)
    factor = exact_msign(x)
    assert float(torch.linalg.matrix_norm(factor, ord=2)) <= 1 + 1e-12
    torch.testing.assert_close((factor * x).sum(), torch.linalg.matrix_norm(x, ord="nuc"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_the_result_has_the_dtype_of_the_input_which_stays_as_it_is(dtype):
    x = random(6, 15).to(dtype)
    before = x.clone()
    found = msign(x)
    assert found.dtype == dtype
    assert torch.equal(x, before)
    error = (found.double() - exact_msign(x.double())).norm() / 6**0.5
    assert float(error) < 0.05


def test_wrong_factors_are_refused():
    x = random(2, 6, 9)
    solver = MatrixSign(dtype=torch.float32)
    found = solver.solve(x.float())
    found.verify(x.float())
    with pytest.raises(ValueError, match="singular value of 1.2"):
        replace(found, factor=1.2 * found.factor).verify(x)
    with pytest.raises(ValueError, match="misses the nuclear norm"):
        replace(found, factor=-found.factor).verify(x)


@pytest.mark.parametrize("shape", [(64, 64), (32, 300), (200, 40), (2, 500)], ids=str)
@pytest.mark.parametrize("outlier", [1.5, 3.0, 1e4, 1e20, float("nan"), float("inf")])
def test_every_planted_outlier_is_caught_and_no_good_factor_accused(shape, outlier):
    good = exact_msign(random(4, *shape))
    good[1] = exact_msign(random(*shape) * 0)  # zero
    u, _, vh = torch.linalg.svd(random(*shape, seed=1), full_matrices=False)
    rank = max(1, min(shape) // 2)
    good[2] = u[:, :rank] @ vh[:rank]
    bad = good.clone()
    for k, row in ((0, 0), (2, rank - 1)):
        left, s, right = torch.linalg.svd(good[k], full_matrices=False)
        if outlier == outlier and outlier < 1e30:
            s[row] = outlier
            bad[k] = (left * s) @ right
        else:
            bad[k, 0, 0] = outlier
    for dtype in (torch.bfloat16, torch.float32):
        assert has_outliers(good.to(dtype)).tolist() == [False] * 4
        assert has_outliers(bad.to(dtype)).tolist() == [True, False, True, False]


@pytest.mark.parametrize("decay", [1e-3, 1e-6])
@pytest.mark.parametrize("form", ["standard", "gram"])
def test_small_singular_values_do_not_blow_up_in_16_bits(decay, form):
    u, _ = torch.linalg.qr(random(64, 64))
    v, _ = torch.linalg.qr(random(256, 64, seed=1))
    x = (u * torch.logspace(0, torch.log10(torch.tensor(decay)), 64, dtype=torch.float64)) @ v.T
    largest = torch.linalg.matrix_norm(msign(x, form=form), ord=2)
    assert 0.98 < float(largest) < 1.05


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="NaN or infinite"):
        MatrixSign().solve(torch.full((2, 2), float("nan")))
    with pytest.raises(TypeError, match="the problem is a list"):
        MatrixSign().solve([[1.0]])
    with pytest.raises(ValueError, match="steps=0"):
        MatrixSign(steps=0)
    with pytest.raises(TypeError, match="torch.int64"):
        msign(torch.ones(2, 2, dtype=torch.int64))
