"""Weights in 16 bits: exact scales, the bound of rounding, GPTQ against brute force, errors of forces."""

from __future__ import annotations

import itertools

import pytest
import torch
from icml_flashschnet import compress
from icml_flashschnet.activation import rounded
from icml_flashschnet.half_weights import HalfLinear, half_channels
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig


@pytest.fixture
def model() -> FlashSchNet:
    config = SchNetConfig(n_types=5, hidden=24, filters=24, n_rbf=16, layers=2, r_cut=6.0, out=(16,))
    return FlashSchNet(config, seed=1)


@pytest.fixture
def frames() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    grid = torch.tensor(list(itertools.product(range(3), repeat=3)), dtype=torch.float32) * 3.0
    pos = grid + 0.5 * torch.rand(6, 27, 3, generator=generator)
    return pos, torch.arange(27) % 5


def test_every_channel_has_its_own_scale_and_the_precision_of_float16():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(6, 40, generator=generator, dtype=torch.float64)
    scales = torch.tensor([1e-9, 1e-4, 1.0, 3.0, 1e5, 7e9], dtype=torch.float64)  # beyond float16's range
    weight *= scales[:, None]
    stored = half_channels(weight)
    assert stored.mantissa.dtype == torch.float16
    assert (stored.mantissa.abs().amax(1) <= 1).all()
    assert (stored.mantissa.abs().amax(1) >= 0.5).all()
    largest = weight.abs().amax(1, keepdim=True)
    assert ((stored.value(torch.float64) - weight).abs() <= largest * 2.0**-11).all()


@pytest.mark.parametrize("scale", [2.0**-20, 1.0, 2.0**30])
def test_a_power_of_two_changes_nothing_but_the_exponent(scale):
    weight = torch.randn(3, 8, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    one, other = half_channels(weight), half_channels(weight * scale)
    assert torch.equal(one.mantissa, other.mantissa)
    assert torch.equal(one.value(torch.float64) * scale, other.value(torch.float64))
    assert torch.equal(half_channels(torch.zeros(2, 3)).value(torch.float32), torch.zeros(2, 3))


def test_compensation_follows_the_inputs():
    """Uncorrelated inputs leave nothing to compensate; with correlated ones the error |(W - Q) X| falls."""
    generator = torch.Generator().manual_seed(2)
    weight = torch.randn(30, 12, generator=generator, dtype=torch.float64)
    nearest = half_channels(weight)
    alike = half_channels(weight, torch.eye(12, dtype=torch.float64))
    assert torch.equal(nearest.mantissa, alike.mantissa)
    x = torch.randn(12, 3, generator=generator, dtype=torch.float64) @ torch.randn(
        3, 200, generator=generator, dtype=torch.float64
    )
    compensated = half_channels(weight, 2 * x @ x.T)
    plain, better = (
        float(((stored.value(torch.float64) - weight) @ x).norm()) for stored in (nearest, compensated)
    )
    assert better < 0.7 * plain


def test_the_layer_is_the_rounded_product_and_its_gradient_that_of_the_weights():
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(5, 7, generator=generator, dtype=torch.float64)
    layer = HalfLinear(half_channels(weight), torch.ones(5, dtype=torch.float64), torch.float64)
    x = torch.randn(3, 7, generator=generator, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    torch.testing.assert_close(y, x.half().double() @ layer.weight.T + 1, rtol=1e-12, atol=1e-12)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, layer.weight.sum(0).expand(3, 7), rtol=1e-12, atol=1e-12)
    assert torch.equal(rounded(x), x.half().double())


@pytest.mark.parametrize("rounding", ["nearest", "compensated"])
def test_forces_change_by_less_than_a_percent_and_both_paths_agree(model, frames, rounding):
    fast, report = compress(model, tol=1e-5, weights="w16a16", calib=frames, rounding=rounding)
    assert 0 < report.half.rms_error < 0.01
    assert report.half.max_error < 0.01
    assert report.half.bytes_after < 0.53 * report.half.bytes_before
    pos, types = frames[0][0].clone().requires_grad_(), frames[1]
    energy, forces = fast.energy_forces(pos.detach(), types)
    by_autograd = -torch.autograd.grad(fast(pos, types).sum(), pos)[0]
    torch.testing.assert_close(forces, by_autograd, rtol=1e-3, atol=1e-4 * float(forces.abs().max()))
    exact, exact_forces = model.energy_forces(pos.detach(), types)
    assert float((energy - exact).abs()) < 0.01 * float(exact.abs())
    assert not torch.equal(forces, exact_forces)
    assert isinstance(model.readout[0], torch.nn.Linear)  # the original is as it was


def test_a_network_that_loses_too_much_is_refused_and_left_alone(model, frames):
    with pytest.raises(ValueError, match="more than max_force_rmse=1e-07"):
        compress(model, tol=1e-5, weights="w16a16", calib=frames, max_force_rmse=1e-7)
    with pytest.raises(ValueError, match="needs calib"):
        compress(model, weights="w16a16")
    with pytest.raises(ValueError, match="weights must be"):
        compress(model, weights="int4")
    with pytest.raises(ValueError, match="two frames or more"):
        compress(model, tol=1e-5, weights="w16a16", calib=(frames[0][:1], frames[1]))
    with torch.no_grad():
        model.embedding.weight.mul_(1e6)
    with pytest.raises(ValueError, match="beyond float16"):
        compress(model, tol=1e-5, weights="w16a16", calib=frames)
