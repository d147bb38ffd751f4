"""Moments of spectra against eigenvalues, and gradients where those of eigenvalues are not finite."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_kernels import spectrum_moments
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route

SHAPES = [(2, 1), (5, 3), (3, 5), (40, 7), (7, 40), (6, 6)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def eigenvalues(x: torch.Tensor, correction: int) -> np.ndarray:
    centred = x.numpy() - x.numpy().mean(0)
    return np.linalg.eigvalsh(centred.T @ centred / (len(centred) - correction))


@pytest.mark.parametrize("correction", [0, 1])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_moments_are_those_of_the_eigenvalues(shape, correction):
    x = random(*shape)
    values = eigenvalues(x, correction)
    found = spectrum_moments(x, correction=correction)
    assert float(found.trace) == pytest.approx(values.sum(), rel=1e-12)
    assert float(found.square) == pytest.approx((values**2).sum(), rel=1e-12)
    assert float(found.mean(shape[1])) == pytest.approx(values.mean(), rel=1e-12)
    assert float(found.variance(shape[1])) == pytest.approx(values.var(), rel=1e-9, abs=1e-12)
    if shape[1] > 1:
        assert float(found.variance(shape[1], 1)) == pytest.approx(values.var(ddof=1), rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(2, 9), dim=st.integers(1, 9), shift=st.floats(-100, 100), seed=st.integers(0, 99))
def test_shifts_and_rotations_change_nothing(rows, dim, shift, seed):
    x = random(rows, dim, seed=seed)
    rotation, _ = torch.linalg.qr(random(dim, dim, seed=seed + 1))
    plain, moved = spectrum_moments(x), spectrum_moments(x @ rotation + shift)
    torch.testing.assert_close(plain.trace, moved.trace, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(plain.square, moved.square, rtol=1e-8, atol=1e-8)


def test_batches_equal_their_members():
    x = random(2, 3, 6, 4)
    together = spectrum_moments(x)
    assert together.trace.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = spectrum_moments(x[i, j])
            torch.testing.assert_close(together.trace[i, j], alone.trace)
            torch.testing.assert_close(together.square[i, j], alone.square)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_blas_equals_the_definition(shape, dtype):
    check_route(
        spectrum_moments, (random(*shape),), dtype=dtype, tolerance=1e-4 if dtype == torch.float32 else 1e-10
    )


@pytest.mark.parametrize("shape", [(4, 3), (3, 4), (2, 3, 4)], ids=str)
def test_derivatives(shape):
    check_derivatives(spectrum_moments, (random(*shape),))


def test_gradient_equals_that_of_eigenvalues_where_they_are_simple():
    x = random(9, 4).requires_grad_()
    centred = x - x.mean(0)
    values = torch.linalg.eigvalsh(centred.T @ centred / 8)
    (expected,) = torch.autograd.grad(values.var(), x)
    (found,) = torch.autograd.grad(spectrum_moments(x).variance(4, 1), x)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_gradient_is_finite_and_zero_where_all_eigenvalues_are_equal():
    # The corners of a cross: a covariance that is a multiple of the identity.
    x = torch.cat([torch.eye(5), -torch.eye(5)]).double().requires_grad_()
    (found,) = torch.autograd.grad(spectrum_moments(x).variance(5, 1), x)
    torch.testing.assert_close(found, torch.zeros_like(found), atol=1e-14, rtol=0)


def test_half_precision_is_computed_in_float32():
    found = spectrum_moments(random(9, 4).to(torch.bfloat16))
    assert found.trace.dtype == torch.float32


def test_raw_operators_are_well_formed():
    found = check_raw_ops(spectrum_moments, (random(5, 3),))
    assert found == {"icml::spectrum_moments", "icml::spectrum_moments_gradient"}


def test_compiled():
    check_compiled(spectrum_moments, (random(5, 3),))


def test_bad_input():
    with pytest.raises(ValueError, match="x has 1 rows and correction is 1"):
        spectrum_moments(torch.ones(1, 4))
    with pytest.raises(ValueError, match="correction is 2"):
        spectrum_moments(torch.ones(5, 4), correction=2)
    with pytest.raises(TypeError, match="int64"):
        spectrum_moments(torch.ones(5, 4, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"\[4\]"):
        spectrum_moments(torch.ones(4))
