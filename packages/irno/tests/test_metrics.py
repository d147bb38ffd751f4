"""VRMSE and band errors against loops, closed forms, and the Well where it is installed."""

from __future__ import annotations

import cmath
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_irno import band_energy, band_mse, lead_time_report, rollout, spectrum_report, vrmse
from icml_irno.metrics import band_edges, constant_channels, mean_vrmse
from icml_irno.spectrum import SpectrumEvaluator


def fields(*shape: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=g, dtype=torch.float64) for _ in range(2))


def test_vrmse_by_hand():
    pred, target = fields(2, 3, 4, 5)
    found = vrmse(pred, target)
    for b in range(2):
        for c in range(3):
            p, t = pred[b, c].flatten().tolist(), target[b, c].flatten().tolist()
            mean = sum(t) / 20
            variance = sum((v - mean) ** 2 for v in t) / 19
            error = sum((v - w) ** 2 for v, w in zip(p, t, strict=True)) / 20
            assert float(found[b, c]) == pytest.approx(math.sqrt(error / (variance + 1e-7)), rel=1e-12)


def test_the_root_is_taken_before_the_mean():
    target = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64).expand(1, 2, 3)
    pred = target + torch.tensor([[[1.0], [3.0]]], dtype=torch.float64)
    assert float(vrmse(pred, target, reduction="mean")) == pytest.approx(2.0, rel=1e-6)  # not sqrt(5)


@settings(max_examples=20, deadline=None)
@given(times=st.integers(1, 4), seed=st.integers(0, 99))
def test_repeating_a_batch_changes_no_mean_and_parts_average_to_it(times, seed):
    pred, target = fields(4, 2, 6, seed=seed)
    whole = vrmse(pred, target, reduction="mean")
    again = vrmse(pred.repeat(times, 1, 1), target.repeat(times, 1, 1), reduction="mean")
    torch.testing.assert_close(again, whole)
    halves = [vrmse(p, t, reduction="mean") for p, t in zip(pred.split(2), target.split(2), strict=True)]
    torch.testing.assert_close(torch.stack(halves).mean(), whole)


def test_constant_channels_are_flagged_and_left_out():
    pred, target = fields(3, 2, 8)
    target[1, 1] = 4.0
    assert constant_channels(target) == [1]
    assert float(vrmse(pred, target)[1, 1]) > 1e3
    assert mean_vrmse(pred, target) == pytest.approx(float(vrmse(pred[:, :1], target[:, :1]).mean()))
    report = spectrum_report([pred], target)
    assert report.constant == [1]
    assert report.vrmse[0] < 10


@pytest.mark.parametrize("n", [8, 9, 12])
def test_bands_of_a_line_by_a_loop_over_frequencies(n):
    pred, target = fields(1, 1, n)
    difference = (pred - target)[0, 0].tolist()
    edges = band_edges((n,)).tolist()
    expected = [0.0, 0.0, 0.0]
    for k in range(n):
        wave = 2 * math.pi * min(k, n - k) / n
        amplitude = abs(sum(v * cmath.exp(-2j * math.pi * k * i / n) for i, v in enumerate(difference)))
        for band in range(3):
            if edges[band] <= wave < edges[band + 1]:
                expected[band] += amplitude**2 / n**2
    assert band_mse(pred, target)[0, 0].tolist() == pytest.approx(expected)


def test_all_bands_together_are_the_squared_error():
    pred, target = fields(2, 3, 8, 8)
    edges = torch.tensor([0.0, 1.0, 2.0, 10.0])
    whole = (pred - target).square().flatten(2).mean(2)
    torch.testing.assert_close(band_mse(pred, target, edges).sum(2), whole)


def test_a_wave_lies_in_its_band():
    x = 2 * math.pi * torch.arange(128, dtype=torch.float64) / 128
    for wave, band in ((2, 0), (8, 1), (40, 2)):
        energy = band_energy(torch.cos(wave * x)[None, None])[0, 0]
        assert float(energy[band]) == pytest.approx(0.5)
        assert float(energy.sum()) == pytest.approx(0.5)


def test_equals_what_the_well_gave():
    """VRMSE and binned_spectral_mse of the-well 1.2.0 on these fields, in float32."""

    def waves(phase: float) -> torch.Tensor:
        i = torch.arange(96, dtype=torch.float64)
        return torch.sin(0.37 * i * (1 + 0.01 * i) + phase).view(1, 2, 6, 8)

    pred, target = waves(0.0).float(), (waves(1.0) + 0.5).float()
    torch.testing.assert_close(
        vrmse(pred, target), torch.tensor([[1.1684598922729492, 1.1746859550476074]]), rtol=1e-6, atol=1e-6
    )
    bands = [
        [0.3435683846473694, 0.2712506949901581, 0.10409960150718689],
        [0.5787061452865601, 0.08593739569187164, 0.02706712856888771],
    ]
    torch.testing.assert_close(band_mse(pred, target)[0], torch.tensor(bands), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(16,), (12, 12), (6, 6, 6)], ids=str)
def test_equals_the_well(shape):
    spectral = pytest.importorskip("the_well.benchmark.metrics.spectral")
    spatial = pytest.importorskip("the_well.benchmark.metrics.spatial")
    pred, target = (t.float() for t in fields(2, 3, *shape))
    meta = SimpleNamespace(n_spatial_dims=len(shape), spatial_ndims=len(shape))
    last = [t.movedim(1, -1) for t in (pred, target)]
    theirs = spatial.VRMSE.eval(*last, meta)
    torch.testing.assert_close(vrmse(pred, target), theirs, rtol=1e-6, atol=1e-6)
    bands = spectral.binned_spectral_mse.eval(*last, meta)
    bands = next(iter(bands.values())) if isinstance(bands, dict) and len(bands) == 1 else bands
    if isinstance(bands, dict):
        bands = torch.stack([v for k, v in bands.items() if "spectral_error" in k and "nmse" not in k], -2)
    torch.testing.assert_close(band_mse(pred, target), bands.movedim(-1, 1), rtol=1e-5, atol=1e-6)


def test_forecasts_push_the_oldest_frame_out():
    # Fibonacci from 1, 1 in every cell, by two frames of history.
    found = rollout(lambda x: x[:, :1] + x[:, 1:], torch.ones(2, 2, 3), 5)
    assert [int(h[0, 0, 0]) for h in found] == [2, 3, 5, 8, 13]
    with pytest.raises(ValueError, match="must divide"):
        rollout(lambda x: x[:, :2], torch.ones(2, 3, 4), 1)
    with pytest.raises(ValueError, match="steps=0"):
        rollout(lambda x: x, torch.ones(2, 3, 4), 0)


def test_energy_and_error_over_lead_time():
    x = 2 * math.pi * torch.arange(64, dtype=torch.float64) / 64
    truth = (torch.cos(x) + torch.cos(8 * x) + torch.cos(20 * x))[None, None]
    blurred = (torch.cos(x) + 0.5 * torch.cos(8 * x))[None, None]
    report = lead_time_report([truth, blurred], [truth, truth])
    torch.testing.assert_close(torch.tensor(report.energy[0]), torch.ones(3))
    torch.testing.assert_close(torch.tensor(report.energy[1]), torch.tensor([1.0, 0.25, 0.0]))
    torch.testing.assert_close(torch.tensor(report.error[1]), torch.tensor([0.0, 0.25, 1.0]))
    assert report.vrmse[0] == 0


def test_bad_input():
    pred, target = fields(2, 3, 8)
    with pytest.raises(ValueError, match=r"prediction of shape \[2, 3, 8\] and target of shape \[1, 3, 8\]"):
        vrmse(pred, target[:1])
    with pytest.raises(ValueError, match="reduction='sum'"):
        vrmse(pred, target, reduction="sum")
    with pytest.raises(ValueError, match="iterate 1 has NaN"):
        spectrum_report([pred, pred * math.nan], target)
    with pytest.raises(ValueError, match="lacks target"):
        SpectrumEvaluator().evaluate({"iterates": [pred]})
    with pytest.raises(ValueError, match="2 predictions and 1 truths"):
        lead_time_report([pred, pred], [target])
