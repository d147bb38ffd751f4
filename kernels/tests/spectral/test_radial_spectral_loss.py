"""The radial spectral loss against a double loop over the full transform, finite differences and Parseval."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from icml_kernels import radial_spectral_loss, radial_weight, spectral_amplitude
from icml_kernels.spectral.radial_spectral_loss.cases import CASES, fields
from icml_kernels.testing import (
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    use_route,
)

SMALL = fields(2, 2, 4, 5)


def dense_loss(pred: torch.Tensor, target: torch.Tensor, lam: float, hermitian: bool) -> float:
    """One channel of 8 x 8 by loops over every frequency of the full plane and every point; no FFT."""
    n = pred.shape[-1]

    def coefficient(field: torch.Tensor, a: int, b: int) -> complex:
        total = 0j
        for x in range(n):
            for y in range(n):
                total += float(field[x, y]) * cmath.exp(-2j * math.pi * (a * x + b * y) / n)
        return total / n

    numerator = denominator = 0.0
    for a in range(n):
        for b in range(n):
            if not hermitian and b > n // 2:
                continue  # the paper's mean is over the half plane
            first, second = (f if f <= n // 2 else f - n for f in (a, b))
            radius = math.hypot(first / n, second / n)
            w = 1 + (radius / 0.5) ** lam
            difference = abs(coefficient(pred, a, b)) - abs(coefficient(target, a, b))
            numerator += w * difference**2
            denominator += w
    return numerator / denominator


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("lam", [1.0, 1.5, 2.0])
@pytest.mark.parametrize("route", ["auto", "reference"])
def test_equals_a_double_loop_over_the_full_transform(route, lam, hermitian):
    generator = torch.Generator().manual_seed(3)
    pred, target = torch.randn(2, 8, 8, generator=generator, dtype=torch.float64)
    amplitude = spectral_amplitude(target[None, None])
    with use_route(route):
        found = radial_spectral_loss(pred[None, None], amplitude, lam, hermitian=hermitian)
    assert float(found) == pytest.approx(dense_loss(pred, target, lam, hermitian), rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    tolerance = 1e-4 if dtype == torch.float32 else None  # |P| - |Y| cancels, and P / |P| divides
    check_route(case.bind(radial_spectral_loss), case.arguments(), dtype=dtype, tolerance=tolerance)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(radial_spectral_loss, SMALL) == {"icml::radial_spectral_loss"}


def test_derivatives():
    check_derivatives(lambda p, t: radial_spectral_loss(p, t, 1.25), SMALL)
    check_derivatives(lambda p, t: radial_spectral_loss(p, t, 2.0, hermitian=True), fields(2, 1, 7))


def test_compiled():
    check_compiled(lambda p, t: radial_spectral_loss(p, t, 1.25), SMALL)


@pytest.mark.parametrize("shape", [(2, 3, 9), (1, 2, 6, 8), (1, 1, 5, 4, 6)], ids=str)
def test_parseval_holds_with_columns_that_count_twice(shape):
    pred, _ = fields(*shape)
    amplitude = torch.zeros_like(spectral_amplitude(pred))
    found = radial_spectral_loss(pred, amplitude, 0.0, hermitian=True)
    torch.testing.assert_close(found, pred.square().flatten(1).mean(1), rtol=1e-13, atol=0)


def test_weights_sum_to_one_and_exceed_two_in_corners():
    table = radial_weight((8, 8), 1.0, dtype=torch.float64)
    assert float(table.sum()) == pytest.approx(1, rel=1e-14)
    ratio = table / table[0, 0]  # the weight at frequency 0 is 1
    assert float(ratio[4, 0]) == pytest.approx(2)
    assert float(ratio[4, 4]) == pytest.approx(1 + math.sqrt(2))


def test_is_blind_to_phase():
    pred, _ = fields(1, 1, 16)
    shifted = pred.roll(3, -1)
    assert float(radial_spectral_loss(shifted, spectral_amplitude(pred))) == pytest.approx(0, abs=1e-25)


def test_gradient_is_zero_and_finite_where_the_field_is_zero():
    pred = torch.zeros(1, 1, 8, dtype=torch.float64, requires_grad=True)
    _, amplitude = fields(1, 1, 8)
    for route in ("auto", "reference"):
        with use_route(route):
            (gradient,) = torch.autograd.grad(radial_spectral_loss(pred, amplitude).sum(), pred)
        assert gradient.tolist() == [[[0.0] * 8]]


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_nan_is_seen(route):
    pred, amplitude = fields(2, 1, 8)
    pred[0, 0, 3] = math.nan
    with use_route(route):
        found = radial_spectral_loss(pred, amplitude)
    assert math.isnan(found[0])
    assert math.isfinite(found[1])


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 20, 20, 10), (2, 2, 100, 64)], ids=str)
def test_half_precision_of_any_size_is_transformed_in_float32(shape, half):
    pred, _ = fields(*shape)
    exact = radial_spectral_loss(pred.float(), spectral_amplitude(fields(*shape, seed=1)[0].float()))
    with torch.autocast("cpu", dtype=half):
        amplitude = spectral_amplitude(fields(*shape, seed=1)[0].to(half))
        found = radial_spectral_loss(pred.to(half), amplitude)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, exact, rtol=1e-2, atol=0)


def test_bad_input():
    pred, amplitude = SMALL
    with pytest.raises(TypeError, match="pred is torch.complex128"):
        radial_spectral_loss(pred.to(torch.complex128), amplitude)
    with pytest.raises(TypeError, match="pred is torch.int64"):
        radial_spectral_loss(pred.long(), amplitude)
    with pytest.raises(TypeError, match="target_amp is torch.complex128"):
        radial_spectral_loss(pred, amplitude.to(torch.complex128))
    with pytest.raises(ValueError, match=r"target_amp has shape \[2, 2, 4, 5\]; expected \[2, 2, 4, 3\]"):
        radial_spectral_loss(pred, pred)
    with pytest.raises(ValueError, match=r"pred has shape \[2, 2\]"):
        radial_spectral_loss(pred[:, :, 0, 0], amplitude)
    with pytest.raises(ValueError, match="none of them empty"):
        radial_spectral_loss(pred[:0], amplitude[:0])
    with pytest.raises(ValueError, match="lam=-1.0"):
        radial_spectral_loss(pred, amplitude, -1.0)
    with pytest.raises(ValueError, match=r"weight has shape \[2\]"):
        radial_spectral_loss(pred, amplitude, weight=pred.new_ones(2))
    with pytest.raises(ValueError, match="shape="):
        radial_weight((), 1.0)


def test_a_table_made_in_inference_mode_serves_a_backward_pass_and_is_no_ones_to_write_to():
    field = torch.randn(2, 1, 14, 26, requires_grad=True)  # a size that no other test has
    amplitude = torch.zeros(2, 1, 14, 14)
    with torch.inference_mode():
        first = radial_spectral_loss(field, amplitude, 1.28125)
    second = radial_spectral_loss(field, amplitude, 1.28125)
    second.sum().backward()
    assert bool(torch.isfinite(field.grad).all())
    torch.testing.assert_close(first.clone(), second.detach())
    table = radial_weight((14, 26), 1.28125)
    table.zero_()
    torch.testing.assert_close(radial_spectral_loss(field, amplitude, 1.28125), second)
