"""The operator: the iteration, its ends (K = 0, no base), masks, grids, state, every row of bad input."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from icml_irno import (
    FNO,
    IRNO,
    BicubicBase,
    FNORefiner,
    Refiner,
    band_energy,
    fit,
    spectral_loss,
    spectral_resample,
    super_resolution,
)
from icml_irno.fields import fill_masked
from torch import nn


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Pull(nn.Module):
    """Phi([x, h]) = A (2 x - h): a corrector whose fixed point 2 x is known."""

    out_channels = 1

    def __init__(self, strength: float = 1.0) -> None:
        super().__init__()
        self.strength = nn.Parameter(torch.tensor(strength, dtype=torch.float64))

    def forward(self, xh: torch.Tensor) -> torch.Tensor:
        return self.strength * (2 * xh[:, :1] - xh[:, 1:])


def small(base: object = None, **options: object) -> IRNO:
    return IRNO(base, Refiner(1, 1, base_channels=4, depth=1, dims=1).double(), **options)


def test_the_iteration_is_the_published_one():
    model = small(lambda x: 0.5 * x, alpha=0.3, K=3)
    x = random(2, 1, 8)
    h = 0.5 * x
    for k, found in enumerate(model.iterates(x)):
        torch.testing.assert_close(found, h)
        torch.testing.assert_close(model(x, K=k), h)
        h = h + 0.3 * model.refiner(torch.cat([x, h], 1))


def test_errors_fall_geometrically_to_a_known_fixed_point():
    model = IRNO(nn.Identity(), Pull(0.5), alpha=0.4, K=5)
    x = random(3, 1, 8)
    for k, h in enumerate(model.iterates(x, 10)):
        torch.testing.assert_close(2 * x - h, 0.8**k * x)
    torch.testing.assert_close(model.contraction(x), torch.full((3,), 0.8, dtype=torch.float64))
    h, info = model.solve(x, tol=1e-9, max_iter=200)
    torch.testing.assert_close(h, 2 * x, rtol=1e-7, atol=1e-7)
    fast, accelerated = model.solve(x, tol=1e-9, max_iter=200, anderson=3)
    torch.testing.assert_close(fast, 2 * x, rtol=1e-7, atol=1e-7)
    assert int(accelerated.accelerated.sum()) > 0
    assert int(accelerated.calls.sum()) < 0.2 * int(info.calls.sum())


def test_the_contraction_is_the_norm_of_the_steps_jacobian():
    model = small(nn.Identity(), alpha=0.7, K=2)
    x = random(2, 1, 6)
    h = model(x).detach()
    for i in range(2):
        J = torch.func.jacfwd(lambda v, i=i: model.step(x[i : i + 1], v[None])[0])(h[i]).reshape(6, 6)
        exact = torch.linalg.matrix_norm(J, 2)
        assert float(model.contraction(x, iters=500)[i]) == pytest.approx(float(exact), rel=1e-5)


def test_no_step_returns_the_base_bit_for_bit():
    base = FNO((4,), 1, 1, 6, n_layers=1).eval()
    x = random(2, 1, 12).float()
    model = IRNO(base, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    assert torch.equal(model(x, K=0), base(x))
    assert torch.equal(model.iterates(x, 0)[0], base(x))


def test_without_a_base_the_iteration_starts_from_zero():
    model = small(None, alpha=0.5, K=1)
    x = random(2, 1, 8)
    torch.testing.assert_close(model(x), 0.5 * model.refiner(torch.cat([x, torch.zeros_like(x)], 1)))
    assert float(model(x, K=0).abs().max()) == 0
    h, info = IRNO(None, Pull(), alpha=0.5).solve(x, tol=1e-8, max_iter=60)
    torch.testing.assert_close(h, 2 * x, rtol=1e-6, atol=1e-6)
    assert info.status == "converged"


def test_a_frozen_base_stays_in_eval_mode_without_gradients():
    base = nn.Sequential(nn.Conv1d(1, 1, 1), nn.Dropout(0.5), nn.BatchNorm1d(1)).double().train()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = small(base), small(nn.Sequential(nn.Dropout(0.1)).train())
    assert sum("freeze_base=True" in str(w.message) for w in caught) <= 1  # once a process
    second.train()
    first.train()
    assert first.training
    assert not any(m.training for m in base.modules())
    before = base[2].running_mean.clone()
    first(random(2, 1, 8)).sum().backward()
    assert torch.equal(base[2].running_mean, before)
    assert all(p.grad is None and not p.requires_grad for p in base.parameters())
    assert all(p.grad is not None for p in first.refiner.parameters())


def test_an_unfrozen_base_gets_gradients():
    base = nn.Conv1d(1, 1, 1).double()
    small(base, freeze_base=False)(random(2, 1, 8)).sum().backward()
    assert float(base.weight.grad.abs()) > 0


def test_the_state_holds_the_corrector_and_the_iteration_and_not_the_base():
    model = small(nn.Conv1d(1, 1, 1).double().eval().requires_grad_(False), alpha=0.7, K=5, scale=[2.0])
    model.lam = (0.5, 1.5)
    state = model.state_dict()
    assert not [k for k in state if k.startswith("base")]
    assert {k.split(".")[0] for k in state} == {"refiner", "scale", "_extra_state"}
    other = small(nn.Conv1d(1, 1, 1).double().eval().requires_grad_(False), scale=[1.0])
    other.load_state_dict(state)
    assert (other.alpha, other.K, other.lam) == (0.7, 5, (0.5, 1.5))
    other = other.rebase(model.base)
    assert torch.equal(other(random(2, 1, 8)), model(random(2, 1, 8)))


def test_a_larger_model_loads_strictly_around_it():
    def whole(seed: int) -> nn.Module:
        base = FNO((4,), 1, 1, 4, n_layers=1, seed=3).eval().requires_grad_(False)
        return nn.ModuleDict(
            {"inner": IRNO(base, Refiner(1, 1, base_channels=4, depth=1, dims=1, seed=seed))}
        )

    first, second = whole(0), whole(1)
    second.load_state_dict(first.state_dict())
    x = random(1, 1, 8).float()
    assert torch.equal(first["inner"](x), second["inner"](x))
    with pytest.raises(RuntimeError, match="Missing key"):
        second.load_state_dict({k: v for k, v in first.state_dict().items() if "output" not in k})


def test_another_base_keeps_the_very_corrector():
    model = small(lambda x: 0.5 * x, alpha=0.3, K=2)
    other = model.rebase(lambda x: -x)
    assert other.refiner is model.refiner
    x = random(2, 1, 8)
    assert torch.equal(other(x, K=0), -x)
    h = -x + 0.3 * model.refiner(torch.cat([x, -x], 1))
    torch.testing.assert_close(other(x, K=1), h)


@pytest.mark.parametrize("kind", ["unet", "resnet", "convnext", "fno"])
def test_wrap_finds_shapes_also_of_a_nested_base(kind):
    base = (
        nn.Sequential(nn.Sequential(FNO((4, 4), 2, 3, 4, n_layers=1)), nn.Identity())
        .eval()
        .requires_grad_(False)
    )
    options = {"modes": 4} if kind == "fno" else {}
    model = IRNO.wrap(base, 2, 3, refiner=kind, base_channels=4, depth=1, alpha=0.5, K=2, **options)
    assert model(random(2, 2, 8, 6).float()).shape == (2, 3, 8, 6)
    assert (model.alpha, model.K) == (0.5, 2)
    line = IRNO.wrap(lambda x: x[:, :1], 2, 1, grid=(16,), base_channels=4, depth=1)
    assert line(random(1, 2, 16).float()).shape == (1, 1, 16)


def test_wrap_says_what_is_wrong():
    with pytest.raises(ValueError, match=r"set out_channels=2"):
        IRNO.wrap(nn.Identity(), 2, 1, grid=(8,))
    with pytest.raises(ValueError, match=r"the base took no field of 3 channels.*give grid="):
        IRNO.wrap(nn.Conv2d(2, 1, 1), 3, 1)
    with pytest.raises(ValueError, match="give resize='bilinear'"):
        IRNO.wrap(BicubicBase(4), 1, 1, grid=(8, 8))
    with pytest.raises(ValueError, match="given as a module"):
        IRNO.wrap(nn.Identity(), 1, 1, grid=(8,), refiner=Pull(), depth=2)


def test_super_resolution_brings_the_input_to_the_finer_grid():
    coarse, fine = super_resolution(random(4, 1, 16, 16).float(), 4)
    assert coarse.shape == (4, 1, 4, 4)
    torch.testing.assert_close(coarse[0, 0, 0, 0], fine[0, 0, :4, :4].mean())
    model = IRNO.wrap(BicubicBase(4), 1, 1, grid=(4, 4), resize="bilinear", base_channels=4, depth=1)
    assert model(coarse).shape == fine.shape
    with pytest.raises(ValueError, match="resize='bilinear'"):
        IRNO(BicubicBase(4), Refiner(1, 1, base_channels=4, depth=1))(coarse)
    with pytest.raises(ValueError, match="factor=3"):
        super_resolution(fine, 3)


def test_points_under_the_mask_are_filled_for_the_network_and_missing_in_the_result():
    mask = torch.ones(1, 1, 8, dtype=torch.bool)
    mask[..., 2:4] = False
    model = small(lambda x: 0.5 * x, K=2, mask=mask)
    results = []
    for rubbish in (0.0, 1e9, math.nan):
        x = random(2, 1, 8)
        x[..., 2:4] = rubbish
        results.append(model(x))
    assert bool(torch.isnan(results[0][..., 2:4]).all())
    assert bool(torch.isfinite(results[0][mask.expand_as(results[0])]).all())
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], equal_nan=True, rtol=0, atol=0)
    own = small(lambda x: 0.5 * x, K=2)
    own.refiner = model.refiner
    x = random(2, 1, 8)
    torch.testing.assert_close(own(x, mask=mask.expand(2, 1, 8)), model(x), equal_nan=True)
    filled = fill_masked(x, mask)
    kept = [float(v) for v, m in zip(x[0, 0], mask[0, 0], strict=True) if m]
    assert filled[0, 0, 2:4].tolist() == pytest.approx([sum(kept) / 6] * 2)


def trained_at_16(resample: str | None = "spectral") -> IRNO:
    model = IRNO(
        nn.Identity(), FNORefiner(1, 1, 6, depth=1, modes=6, dims=2), alpha=1.0, K=2, resample=resample
    )
    x = random(24, 1, 16, 16).float()
    low = torch.fft.irfft2(torch.fft.rfft2(x) * (torch.fft.fftfreq(16)[:, None].abs() < 0.15), s=(16, 16))
    fit(model, (x, x + low), epochs=6, batch=8, lr=1e-2, spacing=(1 / 16, 1 / 16), residual_scale=True)
    return model


def test_another_grid_of_the_same_domain_is_refined_at_the_trained_resolution():
    model = trained_at_16()
    assert (model.shape, model.spacing) == ((16, 16), (1 / 16, 1 / 16))
    x = random(4, 1, 32, 32, seed=5).float()
    low = torch.fft.irfft2(
        torch.fft.rfft2(x)
        * (torch.fft.fftfreq(32)[:, None].abs() < 0.075)
        * (torch.fft.rfftfreq(32)[None] < 0.25),
        s=(32, 32),
    )
    y = x + low
    refined = model(x, spacing=(1 / 32, 1 / 32))
    before, after = (x - y).square().mean(), (refined.detach() - y).square().mean()
    assert float(after) < 0.8 * float(before)
    # What the trained grid cannot hold is the base's, untouched.
    change = torch.fft.rfft2(refined - x)
    beyond = (torch.fft.fftfreq(32)[:, None].abs() > 0.26) | (torch.fft.rfftfreq(32)[None] > 0.26)
    assert float(change[..., beyond].abs().max()) < 1e-4 * float(change.abs().max())
    with pytest.raises(ValueError, match="covers a domain of"):
        model(x[..., :16, :16], spacing=(1 / 32, 1 / 32))
    model.resample = None
    with pytest.raises(ValueError, match="model.resample = 'spectral'"):
        model(x)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": -1.0}, {"alpha": math.inf}], ids=str)
def test_a_step_must_move(options):
    with pytest.raises(ValueError, match="expected a positive step"):
        small(**options)


@pytest.mark.parametrize("K", [0, -2, 1.5])
def test_k_starts_at_one(K):
    with pytest.raises(ValueError, match=f"K={K}"):
        small(K=K)


def test_bad_fields():
    model = small(nn.Identity())
    with pytest.raises(TypeError, match=r"x is torch.complex128.*two channels"):
        model(random(1, 1, 8).to(torch.complex128))
    with pytest.raises(TypeError, match=r"x is torch.int64"):
        model(torch.zeros(1, 1, 8, dtype=torch.int64))
    with pytest.raises(TypeError, match="x is list"):
        model([1.0])
    with pytest.raises(ValueError, match=r"x has shape \[8, 8\]"):
        model(random(8, 8))
    with pytest.raises(ValueError, match=r"expected \[batch, 1, \*space\]"):
        small(lambda x: x.expand(-1, 2, -1))(random(1, 1, 8))
    with pytest.raises(ValueError, match="K=-1"):
        model(random(1, 1, 8), K=-1)
    with pytest.raises(ValueError, match="resize='cubic'"):
        small(resize="cubic")
    with pytest.raises(ValueError, match="needs out_channels="):
        IRNO(None, nn.Sequential(nn.Conv1d(2, 1, 1)))(random(1, 1, 8))
    with pytest.raises(ValueError, match="smaller than 2\\^depth"):
        IRNO(nn.Identity(), Refiner(1, 1, base_channels=2, depth=4, dims=1).double())(random(1, 1, 8))


def test_divergence_is_reported_and_only_strict_calls_raise():
    model = IRNO(nn.Identity(), Pull(40.0), alpha=1.0, K=8)
    x = random(2, 1, 8)
    with pytest.warns(UserWarning, match=r"diverged on samples \[0, 1\]"):
        h, info = model.solve(x, max_iter=50)
    assert info.status == "diverged"
    assert bool(torch.isfinite(h).all())
    assert float(model(x).abs().max()) > 1e9
    model.strict = True
    with pytest.raises(FloatingPointError, match="diverged within 8 steps"):
        model(x)
    assert bool(torch.isfinite(model(x, K=0)).all())


def pulled_at_8(**options: object) -> IRNO:
    return IRNO(lambda x: 0.5 * x, Pull(0.5), alpha=0.6, K=3, shape=(8,), spacing=(1 / 8,), **options)


def test_every_way_of_running_takes_the_same_grid():
    model = pulled_at_8(resample="spectral")
    x, spacing = random(2, 1, 16), (1 / 16,)
    whole = [model(x, k, spacing=spacing) for k in range(4)]
    for found, expected in zip(model.iterates(x, spacing=spacing), whole, strict=True):
        torch.testing.assert_close(found, expected)
    solved, info = model.solve(x, tol=0.0, max_iter=3, spacing=spacing)
    torch.testing.assert_close(solved, whole[3])
    assert info.calls.tolist() == [3, 3]
    # Below the trained grid's Nyquist frequency errors fall by 0.7 a step; above it the base stays.
    spectrum, base, truth = (torch.fft.rfft(t) for t in (solved, 0.5 * x, 2 * x))
    torch.testing.assert_close(spectrum[..., :4], (truth + 0.7**3 * (base - truth))[..., :4])
    torch.testing.assert_close(spectrum[..., 5:], base[..., 5:])
    torch.testing.assert_close(model.contraction(x, spacing=spacing), torch.full((2,), 0.7).double())


def test_every_way_of_running_refuses_another_domain_and_an_unset_resample():
    calls = [
        lambda m, x, **o: m(x, **o),
        lambda m, x, **o: m.iterates(x, **o),
        lambda m, x, **o: m.solve(x, **o),
        lambda m, x, **o: m.contraction(x, **o),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="covers a domain of"):
            call(pulled_at_8(resample="spectral"), random(1, 1, 8), spacing=(1 / 16,))
        with pytest.raises(ValueError, match="model.resample = 'spectral'"):
            call(pulled_at_8(), random(1, 1, 16))
    x = random(1, 1, 16)
    assert torch.equal(pulled_at_8()(x, K=0), 0.5 * x)  # the base alone takes any grid


class Restless(nn.Module):
    """Phi([x, h]) = A (2 x - h) at most points, and a step that never ends at the others."""

    out_channels = 1

    def __init__(self, mask: torch.Tensor, step: float) -> None:
        super().__init__()
        self.mask, self.step = mask, step

    def forward(self, xh: torch.Tensor) -> torch.Tensor:
        return torch.where(self.mask, 0.5 * (2 * xh[:, :1] - xh[:, 1:]), self.step * xh[:, 1:] + self.step)


@pytest.mark.parametrize("anderson", [0, 3])
def test_points_under_the_mask_neither_keep_a_solve_going_nor_end_it(anderson):
    mask = torch.ones(1, 1, 8, dtype=torch.bool)
    mask[..., 2:4] = False
    x = random(2, 1, 8)
    plain = IRNO(lambda x: 0.5 * x, Pull(0.5), alpha=0.6, K=3, mask=mask)
    rough = IRNO(lambda x: 0.5 * x, Restless(mask, 3.0), alpha=0.6, K=3, mask=mask)
    (h, info), (expected, own) = (
        m.solve(x, tol=1e-6, max_iter=60, anderson=anderson) for m in (rough, plain)
    )
    assert info.statuses == own.statuses == ("converged", "converged")
    assert info.calls.tolist() == own.calls.tolist()
    torch.testing.assert_close(h, expected, equal_nan=True)
    torch.testing.assert_close(rough.contraction(x), torch.full((2,), 0.7).double())
    # A mask of each sample does the same.
    again, _ = IRNO(lambda x: 0.5 * x, Restless(mask, 3.0), alpha=0.6, K=3).solve(
        x, tol=1e-6, max_iter=60, anderson=anderson, mask=mask.expand(2, 1, 8)
    )
    torch.testing.assert_close(again, h, equal_nan=True)


def test_strict_looks_at_each_sample_and_at_points_that_exist():
    mask = torch.ones(1, 1, 8, dtype=torch.bool)
    mask[..., 2:4] = False
    x = random(2, 1, 8)
    calm = IRNO(lambda x: 0.5 * x, Restless(mask, 1e6), alpha=0.6, K=3, mask=mask, strict=True)
    assert bool(torch.isfinite(calm(x)[mask.expand(2, 1, 8)]).all())
    model = IRNO(nn.Identity(), Pull(40.0), alpha=1.0, K=4, strict=True)
    # The first sample rests at 0. The second is so small that a norm over the batch would hide it.
    one = torch.cat([torch.full((1, 1, 8), 1e12, dtype=torch.float64), random(1, 1, 8)])
    with torch.no_grad():
        model.refiner.strength.fill_(1.0)
    model(one)

    class Second(nn.Module):
        out_channels = 1

        def forward(self, xh: torch.Tensor) -> torch.Tensor:
            return torch.where(
                xh[:, 1:].abs().amax((1, 2), keepdim=True) < 1e11, 40 * xh[:, 1:], 0 * xh[:, 1:]
            )

    with pytest.raises(FloatingPointError, match=r"within 4 steps on samples \[1\]"):
        IRNO(nn.Identity(), Second(), alpha=1.0, K=4, strict=True)(one)


@pytest.mark.parametrize("mode", ["reflect", "zeros"])
def test_the_nyquist_wave_of_a_walled_axis_is_seen_from_the_new_centres(mode):
    # On an axis mirrored at its walls the new centres (j + 1/2) / 8 are the zeros of this wave.
    i = torch.arange(16, dtype=torch.float64) + 0.5
    wave = torch.cos(math.pi * 8 * i / 16)[None, None]
    assert float(wave.abs().max()) > 0.5
    assert float(spectral_resample(wave, (8,), (mode,)).abs().max()) < 1e-12
    lower = torch.cos(math.pi * 5 * i / 16)[None, None]
    j = torch.arange(8, dtype=torch.float64) + 0.5
    torch.testing.assert_close(
        spectral_resample(lower, (8,), (mode,)), torch.cos(math.pi * 5 * j / 8)[None, None]
    )
    torch.testing.assert_close(
        spectral_resample(spectral_resample(wave, (24,), (mode,)), (16,), (mode,)), wave
    )


def test_weights_and_transforms_made_in_inference_mode_serve_a_backward_pass():
    # Sizes that no other test has, so that the kept tables are made here.
    model = IRNO(nn.Identity(), FNORefiner(1, 1, 4, depth=1, modes=4, dims=2), alpha=1.0, K=1)
    x = random(2, 1, 22, 18).float()
    with torch.inference_mode():
        before = spectral_loss(model(x), x, lam=1.3125)
        band_energy(x)
    loss = spectral_loss(model(x), x, lam=1.3125) + band_energy(model(x)).sum()
    loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.refiner.parameters())
    torch.testing.assert_close(spectral_loss(model(x), x, lam=1.3125).detach(), before)
