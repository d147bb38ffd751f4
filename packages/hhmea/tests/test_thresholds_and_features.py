"""Thresholds against a scan of amplitudes and finite differences; features, poses, curves."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from icml_hhmea import (
    RGC,
    ActivationCurve,
    EIFeatures,
    ElectrodeArray,
    ExtracellularPattern,
    Pose,
    Protocol,
    electrical_image,
    log_thresholds,
    simulate,
)
from icml_hhmea.curves import probability
from icml_hhmea.features import canonical, canonical_places
from icml_hhmea.pose import estimate_pose, noise_of
from icml_hhmea.simulation import settle
from icml_hhmea.thresholds import find_scales, fire, lanes_of, spontaneous

ARRAY = ElectrodeArray.hexagon(2)


@pytest.fixture(scope="module")
def cell():
    return RGC(axon_length=200.0).double()


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def patterns(*pairs) -> torch.Tensor:
    out = torch.zeros(len(pairs), len(ARRAY)).double()
    for row, entries in zip(out, pairs, strict=True):
        for e, a in entries.items():
            row[e] = a
    return out


def test_bisection_finds_the_scale_at_which_a_scan_begins_to_fire(cell):
    given = patterns({9: -1.0}, {9: 1.0}, {10: -1.0, 8: 0.5}, {13: -1.0})
    protocol = Protocol(window=2.0, tolerance=0.005)
    theta = cell.bounds.center()[None]
    found = log_thresholds(cell, theta, ARRAY, given, protocol)[0]
    lanes = lanes_of(cell, theta, ARRAY, given)
    assert bool(torch.isfinite(found).all())
    for factor, expected in ((0.99, False), (1.01, True)):
        fired, _, failed = fire(cell, lanes, found.exp() * factor, protocol)
        assert fired.tolist() == [expected] * 4
        assert not bool(failed.any())


def test_strong_fields_are_followed_not_frozen_into_silence(cell):
    """At 30 times threshold a membrane is beyond 200 mV, and the lane goes on."""
    theta = cell.bounds.center()[None]
    lanes = lanes_of(cell, theta, ARRAY, patterns({9: -1.0}, {9: 1.0}))
    protocol = Protocol(window=2.0, tolerance=0.005)
    level = log_thresholds(cell, theta, ARRAY, patterns({9: -1.0}, {9: 1.0}), protocol)[0].exp()
    stim = ExtracellularPattern(patterns({9: -1.0}) * 30 * level[0])
    strong = simulate(cell, None, stim, 0.3, 0.02, record="all", electrodes=ARRAY, on_failure="flag")
    assert float(strong.v.abs().max()) > 200
    assert strong.failed.tolist() == [-1]
    bound = simulate(cell, None, stim, 0.3, 0.02, electrodes=ARRAY, on_failure="flag", limit=200)
    assert bound.failed.tolist() != [-1]
    for factor in (2.0, 8.0):
        fired, _, failed = fire(cell, lanes, factor * level, protocol)
        assert not bool(failed.any())
        assert bool(fired.all())


def test_a_lane_that_fails_is_undecided_not_silent(cell, monkeypatch):
    """With the limit at 66 mV the first polarisation is a failure: no threshold is stated."""
    monkeypatch.setattr("icml_hhmea.thresholds.FIELD_LIMIT", 66.0)
    theta = cell.bounds.center()[None]
    given = patterns({9: -1.0})
    lanes = lanes_of(cell, theta, ARRAY, given)
    protocol = Protocol(window=2.0, high=4.0)
    fired, _, failed = fire(cell, lanes, torch.full((1,), 2.0).double(), protocol)
    assert (fired.tolist(), failed.tolist()) == ([False], [True])
    _, high = find_scales(cell, lanes, protocol, torch.zeros(1).double())
    assert bool(torch.isnan(high).all())
    assert bool(torch.isnan(log_thresholds(cell, theta, ARRAY, given, protocol)).all())


def test_a_current_that_blocks_the_spike_does_not_hide_the_threshold(cell):
    """Where the pattern as given does not fire although a weaker one does, the threshold is found from below:
    the same as for the pattern at a hundredth."""
    protocol = Protocol(window=2.0, tolerance=0.005, low=1e-3)
    theta = cell.bounds.center()[None]
    lanes = lanes_of(cell, theta, ARRAY, patterns({9: -100.0}))
    assert not bool(fire(cell, lanes, torch.ones(1).double(), protocol)[2])
    found = log_thresholds(cell, theta, ARRAY, patterns({9: -1.0}, {9: -100.0}), protocol)[0]
    assert float(found[0] - found[1]) == pytest.approx(math.log(100), abs=0.02)


def test_thresholds_do_not_depend_on_the_guess_and_the_range_is_used_to_its_ends(cell):
    theta = cell.bounds.center()[None]
    given = patterns({9: -1.0}, {9: 1.0}, {13: -1.0})
    wide = Protocol(window=2.0, tolerance=0.005)
    level = log_thresholds(cell, theta, ARRAY, given, wide)[0]
    assert bool(torch.isfinite(level).all())
    for factor in (0.1, 10.0):
        again = log_thresholds(cell, theta, ARRAY, given, wide, guess=level[None] + math.log(factor))[0]
        torch.testing.assert_close(again, level, rtol=0, atol=0.006)
    for k in range(3):
        own = float(level[k].exp())
        one = given[k : k + 1]
        for high, expected in ((own / 0.9, level[k]), (own * 0.9, torch.tensor(math.inf))):
            narrow = Protocol(window=2.0, tolerance=0.005, low=own / 30, high=high)
            again = log_thresholds(
                cell, theta, ARRAY, one, narrow, guess=torch.full((1, 1), math.log(own / 9))
            )
            torch.testing.assert_close(again[0, 0], expected.to(again), rtol=0, atol=0.006)
        low = Protocol(window=2.0, tolerance=0.005, low=own * 0.9, high=own * 50)
        again = log_thresholds(cell, theta, ARRAY, one, low, guess=torch.full((1, 1), math.log(own * 20)))
        torch.testing.assert_close(again[0, 0], level[k], rtol=0, atol=0.006)


def test_cells_that_fire_by_themselves_have_no_threshold(cell):
    theta = cell.bounds.center()[None].repeat(2, 1)
    protocol = Protocol(window=2.0)
    state = settle(cell, theta, cell.cable(theta))
    state.v[:, 1] = -35.0  # on its way into a spike that nothing has evoked
    assert spontaneous(cell, theta, protocol, state).tolist() == [False, True]
    found = log_thresholds(cell, theta, ARRAY, patterns({9: -1.0}), protocol, state=state)
    assert bool(torch.isfinite(found[0, 0]))
    assert bool(torch.isnan(found[1, 0]))


def test_twice_the_current_is_half_the_scale_and_conductivity_scales_it(cell):
    theta = cell.bounds.center()[None].repeat(2, 1)
    theta[1, cell.bounds.index("sigma")] *= 1.4
    protocol = Protocol(window=2.0, tolerance=0.002)
    found = log_thresholds(cell, theta, ARRAY, patterns({9: -1.0}, {9: -2.0}), protocol)
    torch.testing.assert_close(
        found[:, 0] - found[:, 1], torch.full((2,), math.log(2)).double(), atol=3e-3, rtol=0
    )
    assert float(found[1, 0] - found[0, 0]) == pytest.approx(math.log(1.4), abs=3e-3)


@pytest.mark.parametrize("name", ["z", "sigma", "gna_band", "axon_diameter", "along"])
def test_slopes_of_thresholds_are_finite_differences(cell, name):
    """By the implicit function theorem, within a few percent, against thresholds to 0.02 %."""
    bounds = cell.bounds
    u = bounds.real(bounds.center())[None].requires_grad_()
    given = patterns({9: -1.0}, {13: -1.0})
    slopes = []
    for k in range(2):
        value = log_thresholds(
            cell, bounds.values(u), ARRAY, given, Protocol(window=3.0, tolerance=1e-3, dt=0.01)
        )
        slopes.append(torch.autograd.grad(value[0, k], u)[0][0, bounds.index(name)])
    step = torch.zeros_like(u)
    step[0, bounds.index(name)] = 0.1
    fine = Protocol(window=3.0, tolerance=2e-4, dt=0.01)
    with torch.no_grad():
        high, low = (log_thresholds(cell, bounds.values(u + s), ARRAY, given, fine)[0] for s in (step, -step))
    expected = (high - low) / 0.2
    found = torch.stack(slopes)
    assert bool(((found - expected).abs() <= 0.1 * expected.abs() + 0.01).all()), (found, expected)


def test_patterns_that_never_fire_have_no_threshold_and_no_slope(cell):
    far = ElectrodeArray(torch.tensor([[5000.0, 5000.0, 0.0]]))
    u = cell.bounds.real(cell.bounds.center())[None].requires_grad_()
    value = log_thresholds(
        cell, cell.bounds.values(u), far, -torch.ones(1, 1).double(), Protocol(high=5.0, window=1.0)
    )
    assert value.tolist() == [[math.inf]]
    (slope,) = torch.autograd.grad(torch.where(value < torch.inf, value, 0.0).sum(), u)
    assert bool((slope == 0).all())


def test_soft_features_approach_hard_ones_and_have_gradients(cell):
    theta = cell.bounds.center()[None]
    phi, fired = electrical_image(cell, theta, ARRAY, duration=2.0)
    assert bool(fired.all())
    hard, cold = EIFeatures(0.04, "hard")(phi), EIFeatures(0.04, "soft", 1e-4)(phi)
    large = hard.amplitude > 1.0
    torch.testing.assert_close(cold.amplitude[large], hard.amplitude[large], rtol=1e-3, atol=0)
    soft = EIFeatures(0.04)(phi)
    assert float((soft.log() - hard.log())[large].abs().max()) < 0.5
    leaf = phi.detach()[:, :, :5].clone().requires_grad_()
    (slope,) = torch.autograd.grad(EIFeatures(0.04)(leaf).amplitude[:, 0].sum(), leaf)
    # Weights sum to 1, and what moves between them cancels: adding a constant lowers the trough by it.
    torch.testing.assert_close(slope.sum(1), -torch.ones(1, 5).double(), rtol=1e-9, atol=1e-9)


def test_features_of_bad_images_are_refused():
    module = EIFeatures(0.05)
    with pytest.raises(ValueError, match="expected"):
        module(torch.zeros(3, 4))
    with pytest.raises(ValueError, match="not finite"):
        module(torch.full((1, 5, 2), torch.nan))
    with pytest.raises(ValueError, match="soft or hard"):
        EIFeatures(0.05, "medium")


@pytest.mark.parametrize("angle", [0.3, 2.0, -1.2])
def test_poses_are_found_from_images(angle):
    array = ElectrodeArray.hexagon(4)
    truth = Pose(-50 * math.cos(angle), -50 * math.sin(angle), angle)
    model = RGC(truth).double()
    phi, _ = electrical_image(model, model.bounds.center()[None], array, duration=2.0)
    noise = np.random.default_rng(0).normal(size=(61, phi.shape[1]))
    found = estimate_pose(phi[0].T.detach().numpy() + noise, array.xyz.numpy(), noise=1.0).pose
    assert math.hypot(found.x - truth.x, found.y - truth.y) < 25
    assert abs((found.angle - angle + math.pi) % (2 * math.pi) - math.pi) < 0.4


def test_images_without_a_spike_are_refused():
    noise = np.random.default_rng(0).normal(size=(19, 60))
    assert noise_of(noise) == pytest.approx(1.0, abs=0.15)
    with pytest.raises(ValueError, match="no spike"):
        estimate_pose(noise, ARRAY.xyz.numpy(), noise=1.0)
    with pytest.raises(ValueError, match="for 19 electrodes"):
        estimate_pose(noise[:4], ARRAY.xyz.numpy())


def test_the_canonical_frame_turns_with_the_cell():
    array = ElectrodeArray.hexagon(4)
    amplitude = torch.linspace(0, 3, 61).double()[None]
    c, s = math.cos(math.pi / 3), math.sin(math.pi / 3)
    turned = array.xyz[:, :2] @ torch.tensor([[c, s], [-s, c]], dtype=torch.float64)
    other = ElectrodeArray(turned)
    here = canonical(amplitude, array, torch.zeros(1, 3).double(), -1.0)
    there = canonical(amplitude, other, torch.tensor([[0, 0, math.pi / 3]], dtype=torch.float64), -1.0)
    torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-9)
    assert canonical_places().shape == (65, 2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("level", [0.5, 3.0])
def test_curves_give_back_their_threshold(sign, level):
    amplitudes = level * np.linspace(0.8, 1.25, 12)
    p = probability(level / amplitudes, 0.05)
    curve = ActivationCurve(4, tuple(sign * amplitudes), tuple(p), (1000,) * 12)
    found, error, width = curve.fit()
    assert found == pytest.approx(sign * level, rel=1e-3)
    assert width == pytest.approx(0.05, rel=0.05)
    assert error < 0.02


def test_curves_that_fall_warn_and_flat_ones_are_refused():
    with pytest.warns(UserWarning, match="falls by 0.9"):
        ActivationCurve(0, (1.0, 2.0, 3.0), (0.0, 1.0, 0.1), (50, 50, 50))
    with pytest.raises(ValueError, match="stays on one side of one half"):
        ActivationCurve(0, (1.0, 2.0), (0.0, 0.1)).fit()
    with pytest.raises(ValueError, match="of one sign"):
        ActivationCurve(0, (1.0, -2.0), (0.0, 0.1))
    with pytest.raises(ValueError, match="amplitudes are in µA"):
        ActivationCurve(0, (1.0, 2e3), (0.0, 1.0))


def test_spikes_hidden_by_the_artefact_are_censored_not_failures():
    """A fifth of evoked spikes falls into the blank; the 50 % point moves by less than 2 %."""
    rng = np.random.default_rng(0)
    level, triggers, times = 2.0, {}, []
    known = rng.gamma(6.0, 0.1, 20_000)
    blank = float(np.quantile(known, 0.2))
    clock = 0.0
    for amplitude in np.linspace(1.6, 2.5, 12):
        pulses = clock + np.arange(1500) * 50.0
        clock = pulses[-1] + 50
        fired = rng.random(1500) < probability(np.array([level / amplitude]), 0.06)
        latency = rng.gamma(6.0, 0.1, 1500)
        visible = fired & (latency > blank)
        times += (pulses + latency)[visible].tolist()
        triggers[float(amplitude)] = pulses
    curve = ActivationCurve.from_spikes(3, times, triggers, blank_ms=blank, window_ms=4.0, latencies=known)
    assert curve.visible == pytest.approx(0.8, abs=0.01)
    assert curve.fit()[0] == pytest.approx(level, rel=0.02)
    with pytest.warns(UserWarning, match="cannot be seen and count as failures"):
        blind = ActivationCurve.from_spikes(3, times, triggers, blank_ms=blank, window_ms=4.0)
    assert blind.visible == 1.0
    with pytest.raises(ValueError, match="covers the window"):
        ActivationCurve.from_spikes(3, times, triggers, blank_ms=4.0, window_ms=4.0)
    with pytest.raises(ValueError, match="inside the blank"):
        ActivationCurve.from_spikes(3, times, triggers, blank_ms=3.0, window_ms=4.0, latencies=[0.5])
