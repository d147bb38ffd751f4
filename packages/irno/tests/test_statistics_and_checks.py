"""Moments that survive float32, splits that were normalised differently, bases that miss their score."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_irno import FNO, IRNO, Refiner, Statistics, check_base, fit, vrmse
from icml_irno.statistics import check_alike
from torch import nn


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_a_channel_of_mean_1e4_and_std_01_in_float32():
    x = (1e4 + 0.1 * random(64, 1, 100).double()).float()
    exact = x.double().std(correction=0)
    naive = (x.square().mean() - x.mean() ** 2).item()
    assert not math.isclose(
        naive, float(exact) ** 2, rel_tol=0.1
    )  # what sums of squares in float32 make of it
    found = Statistics.of(x.split(7))
    assert float(found.std[0]) == pytest.approx(float(exact), rel=1e-10)
    assert float(found.mean[0]) == pytest.approx(float(x.double().mean()), rel=1e-13)
    z = found.normalize(x)
    assert z.dtype == torch.float32
    assert float(z.std()) == pytest.approx(1, rel=1e-3)
    torch.testing.assert_close(found.denormalize(z), x, rtol=1e-6, atol=0)


@settings(max_examples=25, deadline=None)
@given(size=st.integers(1, 9), parts=st.integers(1, 5), shift=st.floats(-1e6, 1e6), seed=st.integers(0, 99))
def test_parts_merge_to_the_whole(size, parts, shift, seed):
    x = random(size * parts, 2, 3, seed=seed).double() + shift
    whole, merged = Statistics.of(x), Statistics.of(x.split(size))
    flat = x.transpose(0, 1).flatten(1).numpy()
    np.testing.assert_allclose(merged.mean, flat.mean(1), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(merged.std, flat.std(1), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(whole.std, merged.std, rtol=1e-6, atol=1e-9)


def test_statistics_leave_masked_points_out():
    x = random(4, 2, 8)
    mask = torch.ones(1, 1, 8, dtype=torch.bool)
    mask[..., 5:] = False
    spoilt = x.clone()
    spoilt[..., 5:] = math.nan
    found, exact = Statistics.of(spoilt, mask), Statistics.of(x[..., :5])
    torch.testing.assert_close(found.mean, exact.mean)
    torch.testing.assert_close(found.std, exact.std)
    with pytest.raises(ValueError, match=r"channels \[0, 1\] have NaN"):
        Statistics.of(spoilt)
    with pytest.raises(ValueError, match="is the mask False everywhere"):
        Statistics.of(x, torch.zeros(1, 1, 8, dtype=torch.bool))


def test_missing_and_broken_statistics_are_named():
    with pytest.raises(ValueError, match="statistics lack std; they have mean"):
        Statistics.read({"mean": [0.0]})
    with pytest.raises(ValueError, match="2 means but 1 standard"):
        Statistics.read({"mean": [0.0, 1.0], "std": [1.0]})
    with pytest.raises(ValueError, match="not finite, or negative"):
        Statistics.read({"mean": [0.0], "std": [math.nan]})
    with pytest.raises(ValueError, match="3 channels were given to statistics of 1"):
        Statistics.read({"mean": [0.0], "std": [1.0]}).normalize(random(1, 3, 4))


def model() -> IRNO:
    return IRNO(lambda x: 0.5 * x, Refiner(2, 2, base_channels=4, depth=1, dims=1))


def test_splits_that_were_normalised_differently_are_refused_by_name():
    x = random(32, 2, 16)
    scaled = x.clone()
    scaled[:, 1] *= 3
    with pytest.raises(ValueError, match=r"channel 1: train x has mean .* valid x has"):
        fit(model(), (x, x), (scaled, x), epochs=1)
    with pytest.raises(ValueError, match=r"channel 0: train y has"):
        fit(model(), (x, x), (x, x + torch.tensor([[[0.7], [0.0]]])), epochs=1)
    with pytest.raises(ValueError, match=r"channel 0: train x has .* the base's input has mean 12"):
        fit(model(), (x, x), (x, x), epochs=1, base_input={"mean": [12.0, 0.0], "std": [3.0, 1.0]})
    with pytest.raises(ValueError, match="statistics lack std"):
        fit(model(), (x, x), epochs=1, base_input={"mean": [0.0, 0.0]})
    with pytest.raises(ValueError, match="valid x has 1 channels but train x has 2"):
        fit(model(), (x, x), (x[:, :1], x), epochs=1)
    fit(model(), (x, x), (x, x), epochs=1, base_input={"mean": [0.0, 0.0], "std": [1.0, 1.0]})


def test_names_of_channels_stand_in_the_message():
    sets = {"train": Statistics.of(random(9, 2, 9)), "valid": Statistics.of(9 * random(9, 2, 9))}
    with pytest.raises(ValueError, match="channel pressure"):
        check_alike(sets, ["pressure", "density"])


def test_two_constants_belong_together_only_where_they_are_one():
    flat, same, other = (Statistics.of(torch.full((4, 1, 8), v)) for v in (3.0, 3.0, 5.0))
    check_alike({"train": flat, "valid": same})
    with pytest.raises(ValueError, match="channel 0: train has mean 3 and std 0, valid has mean 5"):
        check_alike({"train": flat, "valid": other})


def test_a_base_that_misses_its_published_score_stops_the_training():
    x = random(32, 1, 16)
    y = x + 0.3 * random(32, 1, 16, seed=1)
    exact = float(vrmse(x, y, reduction="mean"))
    assert check_base(nn.Identity(), (x, y)).normalized == pytest.approx(exact, rel=1e-6)
    check_base(nn.Identity(), (x, y), expected=1.05 * exact)
    with pytest.raises(ValueError, match=rf"VRMSE of {exact:.4g} on this data, not the expected 0.1"):
        check_base(nn.Identity(), (x, y), expected=0.1)
    operator = IRNO(nn.Identity(), Refiner(1, 1, base_channels=4, depth=1, dims=1))
    before = [p.clone() for p in operator.refiner.parameters()]
    with pytest.raises(ValueError, match="not the expected 0.1"):
        fit(operator, (x, y), epochs=1, expected_base=0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, operator.refiner.parameters(), strict=True))
    fit(operator, (x, y), epochs=1, expected_base=exact)
    with pytest.raises(ValueError, match="no base to score"):
        fit(IRNO(None, Refiner(1, 1, base_channels=4, depth=1, dims=1)), (x, y), epochs=1, expected_base=0.1)


def test_both_units_of_a_score():
    x = random(16, 1, 16)
    y = 50 + 4 * x
    statistics = ({"mean": [0.0], "std": [1.0]}, {"mean": [50.0], "std": [4.0]})
    score = check_base(nn.Identity(), (x, y), expected=None, statistics=statistics)
    assert score.normalized < 1e-5
    assert score.physical > 10  # its output is no temperature
    with pytest.raises(ValueError, match="taken for physical units"):
        check_base(lambda given: 50 + 4 * given, (x, y), expected=1e-3, statistics=statistics)


def test_a_constant_target_channel_is_said():
    x = random(16, 2, 16)
    y = x.clone()
    y[:, 1] = 3.0
    with pytest.warns(UserWarning, match=r"channels \[1\] of the target are constant"):
        fit(model(), (x, y), epochs=1)


def test_an_fno_is_scored_too():
    x = random(8, 1, 16)
    score = check_base(FNO((4,), 1, 1, 4, n_layers=1), (x, x))
    assert 0.5 < score.normalized < 3
