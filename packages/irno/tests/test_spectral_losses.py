"""The spectral loss against loops over the full transform, its options, precisions and reductions."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from icml_irno import SpectralLoss, spectral_loss, target_amplitude
from icml_irno.spectral_losses import progressive_lam


def fields(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))


def dense(pred: torch.Tensor, target: torch.Tensor, lam: float, phase: bool, hermitian: bool) -> float:
    """Of one 8 x 8 field by a double loop over the full transform, without an FFT."""
    n = 8

    def coefficient(field: torch.Tensor, a: int, b: int) -> complex:
        points = ((x, y) for x in range(n) for y in range(n))
        return sum(float(field[x, y]) * cmath.exp(-2j * math.pi * (a * x + b * y) / n) for x, y in points) / n

    total = weights = 0.0
    for a in range(n):
        for b in range(n):
            if not hermitian and b > n // 2:
                continue
            radius = math.hypot(min(a, n - a), min(b, n - b)) / n
            w = 1 + (radius / 0.5) ** lam
            p, y = coefficient(pred, a, b), coefficient(target, a, b)
            total += w * (abs(p - y) ** 2 if phase else (abs(p) - abs(y)) ** 2)
            weights += w
    return total / weights


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("phase", [False, True])
@pytest.mark.parametrize("lam", [1.0, 1.75])
def test_equals_a_double_loop(lam, phase, hermitian):
    pred, target = fields(8, 8)
    found = spectral_loss(pred[None, None], target[None, None], lam, phase, hermitian)
    assert float(found) == pytest.approx(dense(pred, target, lam, phase, hermitian), rel=1e-10)


@pytest.mark.parametrize("options", [{}, {"phase": True}, {"hermitian": True}], ids=str)
def test_gradient(options):
    pred, target = fields(2, 1, 4, 5)
    pred.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: spectral_loss(p, target, 1.5, **options), pred)


def test_amplitudes_are_blind_to_position_and_phases_are_not():
    _, target = fields(1, 1, 16)
    moved = target.roll(5, -1)
    assert float(spectral_loss(moved, target)) == pytest.approx(0, abs=1e-24)
    assert float(spectral_loss(moved, target, phase=True)) > 0.1


def test_a_kept_amplitude_gives_the_same_bits():
    pred, target = fields(3, 2, 6, 7)
    kept = target_amplitude(target)
    assert torch.equal(spectral_loss(pred, None, target_amp=kept), spectral_loss(pred, target))


def test_repeating_a_batch_changes_nothing_and_parts_average():
    pred, target = fields(4, 2, 12)
    whole = spectral_loss(pred, target)
    torch.testing.assert_close(spectral_loss(pred.repeat(3, 1, 1), target.repeat(3, 1, 1)), whole)
    parts = [spectral_loss(p, t) for p, t in zip(pred.split(2), target.split(2), strict=True)]
    torch.testing.assert_close(torch.stack(parts).mean(), whole)
    each = spectral_loss(pred, target, reduction="none")
    assert each.shape == (4,)
    torch.testing.assert_close(each.mean(), whole)


def test_what_stands_under_the_mask_does_not_matter():
    pred, target = fields(2, 1, 6, 6)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool)
    mask[..., 2:4, 1:3] = False
    values, gradients = [], []
    for rubbish in (0.0, 1e8, math.nan):
        p, t = pred.clone(), target.clone()
        p[~mask.expand_as(p)] = 7.0 if math.isnan(rubbish) else rubbish
        t[~mask.expand_as(t)] = rubbish
        p.requires_grad_()
        value = spectral_loss(p, t, mask=mask)
        (gradient,) = torch.autograd.grad(value, p)
        values.append(float(value.detach()))
        gradients.append(gradient)
    assert values[0] == values[1] == values[2]
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[0], gradients[2])
    assert float(gradients[0][~mask.expand_as(pred)].abs().max()) == 0


def test_a_wall_makes_no_jump():
    ramp = torch.linspace(-1, 1, 32, dtype=torch.float64)[None, None]
    half = target_amplitude(ramp, extension=("reflect",)).square()[0, 0]
    jump = target_amplitude(ramp).square()[0, 0]
    assert float(half[16:].sum() / half.sum()) < 0.1 * float(jump[8:].sum() / jump.sum())


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(2, 1, 20, 20, 10), (2, 2, 100, 64)], ids=str)
def test_half_precision_under_autocast(shape, half):
    pred, target = (t.float() for t in fields(*shape))
    exact = spectral_loss(pred, target)
    with torch.autocast("cpu", dtype=half):
        found = spectral_loss(pred.to(half), target.to(half))
    assert math.isfinite(found)
    assert float(found) == pytest.approx(float(exact), rel=1e-2)


def test_the_weight_rises_linearly_over_iterates():
    assert [progressive_lam(k, 5, (1.0, 2.0)) for k in range(5)] == [1.0, 1.25, 1.5, 1.75, 2.0]
    assert progressive_lam(0, 1, (1.0, 2.0)) == 1.0


def test_bad_input():
    pred, target = fields(2, 1, 8)
    with pytest.raises(ValueError, match="needs target, or target_amp"):
        spectral_loss(pred, None)
    with pytest.raises(ValueError, match="no target_amp"):
        spectral_loss(pred, target, phase=True, target_amp=target_amplitude(target))
    with pytest.raises(ValueError, match="differ"):
        spectral_loss(pred, target[:1])
    with pytest.raises(ValueError, match="reduction='sum'"):
        spectral_loss(pred, target, reduction="sum")
    with pytest.raises(ValueError, match="reduction='max'"):
        SpectralLoss(reduction="max")
    with pytest.raises(ValueError, match="lam=-1"):
        spectral_loss(pred, target, lam=-1)
    with pytest.raises(TypeError, match="complex"):
        spectral_loss(pred.to(torch.complex128), target.to(torch.complex128))
