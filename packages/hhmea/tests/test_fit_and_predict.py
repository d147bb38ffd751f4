"""Fits of known cells, what they predict, and what uses the predictions."""

from __future__ import annotations

import math
import types
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from icml_hhmea import (
    RGC,
    ActivationCurve,
    ChargeLimit,
    DescentOptions,
    ElectrodeArray,
    FitProblem,
    GradientDescent,
    NeuronFit,
    NeuronPosterior,
    Pose,
    Recording,
    Simulator,
    StimulusProblem,
    StimulusSearch,
    Waveform,
    distil,
    electrical_image,
    fit,
    log_thresholds,
    potassium_a,
    rivals,
)
from icml_hhmea.fitting import warn_of_a_short_axon
from icml_hhmea.recordings import choose_electrodes, observe, time_grid
from icml_hhmea.refinement import Refinement, pareto_k
from icml_hhmea.retina import HiddenNeuron, RetinaOptions, hidden_neuron, triplets

ARRAY = ElectrodeArray.hexagon(2)
FAST = DescentOptions(restarts=2, steps=3, lr=0.05, screen=1, window=1.2, tolerance=0.03, duration=1.5)


@pytest.fixture(scope="module", autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def cell() -> RGC:
    return RGC(axon_length=150.0)


@pytest.fixture(scope="module")
def recording(cell) -> Recording:
    """The middle of the bounds, without noise in its thresholds."""
    theta = cell.bounds.center()[None]
    with torch.no_grad():
        phi, _ = electrical_image(cell, theta, ARRAY, dt=0.025, duration=1.5)
        rows = torch.zeros(3, len(ARRAY), dtype=torch.float64)
        for k, e in enumerate((9, 10, 13)):
            rows[k, e] = -1.0
        levels = log_thresholds(cell, theta, ARRAY, rows)[0].exp().tolist()
    noise = np.random.default_rng(0).normal(size=phi.shape[:0:-1]) * 0.5
    thresholds = {e: (math.nan, -v) for e, v in zip((9, 10, 13), levels, strict=True)}
    return Recording(phi[0].T.numpy() + noise, 20_000.0, ARRAY, thresholds, noise=0.5)


def known(cell: RGC, pose: Pose | None = None) -> NeuronPosterior:
    one = torch.ones(1, dtype=torch.float64)
    owner = cell if pose is None else cell.at(pose)
    return NeuronPosterior(
        owner,
        ARRAY,
        cell.bounds.center()[None],
        one,
        torch.zeros(1, len(ARRAY)).double(),
        0.05 * one,
        one,
        "known",
    )


def test_the_truth_has_a_small_loss_and_its_neighbours_a_larger(cell, recording):
    observation = observe(recording)
    descent = GradientDescent(cell.at(Pose()), observation, FAST)
    truth = cell.bounds.center()[None]
    other = truth.repeat(3, 1)
    for row, name in enumerate(("z", "gna_band", "sigma")):
        other[row, cell.bounds.index(name)] *= 1.3
    nothing = torch.zeros(3, len(ARRAY)).double()
    best, _ = descent.losses(truth, nothing[:1])
    worse, _ = descent.losses(other, nothing)
    assert float(best[0]) < 0.6
    assert bool((worse > 2 * best).all())


def test_descent_lowers_the_loss_and_its_gradient_is_that_of_the_loss(cell, recording):
    observation = observe(recording)
    start = cell.bounds.center()[None].repeat(2, 1)
    start[0, cell.bounds.index("z")] *= 1.5
    start[1, cell.bounds.index("sigma")] *= 1.3
    found = GradientDescent(cell.at(Pose()), observation, replace(FAST, steps=8), start=start)
    posterior = found.fit()
    assert found.rows[-1]["loss"] < 0.7 * found.rows[0]["loss"]
    assert posterior.effective >= 1
    # One direction of the image's part, which is smooth, by central differences.
    image = replace(
        observation, patterns=observation.patterns[:0], log_threshold=observation.log_threshold[:0]
    )
    descent = GradientDescent(cell.at(Pose()), image, FAST)
    u = cell.bounds.real(start).requires_grad_()
    nothing = torch.zeros(2, len(ARRAY)).double()
    loss, _ = descent.losses(cell.bounds.values(u), nothing)
    (slope,) = torch.autograd.grad(loss.sum(), u)
    k = cell.bounds.index("z")
    step = torch.zeros_like(u)
    step[:, k] = 1e-4
    with torch.no_grad():
        high, low = (descent.losses(cell.bounds.values(u + s), nothing)[0] for s in (step, -step))
    # Widths of soft extrema follow the extrema and are held fixed in the gradient.
    torch.testing.assert_close(slope[:, k], (high - low) / 2e-4, rtol=0.1, atol=0.05)


def test_raw_counts_and_microvolts_give_the_same_fit(cell, recording):
    options = {"thresholds": recording.thresholds, "noise": 0.5, "cell": cell, "options": FAST}
    whole = np.round(recording.ei / 0.195)
    a = fit(whole * 0.195, 20_000.0, ARRAY, units="uV", **options)
    b = fit(whole, 20_000.0, ARRAY, units="raw", gain=0.195, **options)
    assert torch.equal(a.theta, b.theta)
    template = types.SimpleNamespace(
        templates_array=(whole * 0.195).T[None], sampling_frequency=20_000.0, is_in_uV=True
    )
    template.get_channel_locations = lambda: ARRAY.xyz[:, :2].numpy()
    c = Recording.build(template, None, None)
    assert np.array_equal(c.ei, whole * 0.195)
    template.is_in_uV = False
    with pytest.raises(ValueError, match="are not scaled to µV"):
        Recording.build(template, None, None)
    with pytest.raises(ValueError, match="say units="):
        Recording.build(whole, 20_000.0, ARRAY)
    with pytest.raises(ValueError, match="need gain="):
        Recording.build(whole, 20_000.0, ARRAY, units="raw")
    with pytest.warns(UserWarning, match="are these microvolts"):
        Recording.build(whole * 1e-6, 20_000.0, ARRAY, units="uV")


def test_bad_recordings_are_named(recording):
    for change, match in (
        ({"ei": recording.ei[:5]}, "expected \\[19 electrodes"),
        ({"ei": recording.ei * math.nan}, "not finite"),
        ({"fs": 20.0}, "above 1000 samples"),
        ({"thresholds": {99: (1.0, -1.0)}}, "electrode 99 of 19"),
        ({"thresholds": {3: (1.0, 1.0)}}, "cathodic below 0"),
        ({"thresholds": {3: (2e3, -1.0)}}, "above 1e3"),
    ):
        with pytest.raises(ValueError, match=match):
            replace(recording, **change)
    silent = replace(recording, ei=np.random.default_rng(0).normal(size=(19, 60)), noise=1.0)
    with pytest.raises(ValueError, match="no spike"):
        observe(silent)
    assert time_grid(20_000.0) == (2, 0.025)
    assert time_grid(25_000.0) == (2, 0.02)


def test_curves_become_thresholds_of_both_signs():
    amplitudes = np.linspace(0.8, 1.25, 9)
    p = 1 / (1 + np.exp(-(amplitudes - 1) / 0.03))
    curves = [ActivationCurve(4, tuple(s * amplitudes), tuple(p), (200,) * 9) for s in (1, -1)]
    found = Recording.build(np.full((19, 20), -50.0), 20_000.0, ARRAY, curves=curves, units="uV")
    assert found.thresholds[4] == pytest.approx((1.0, -1.0), rel=0.02)


def test_predictions_follow_thresholds(cell):
    neuron = known(cell)
    one = torch.zeros(3, len(ARRAY)).double()
    one[:, 9] = -1.0
    level = float(neuron.predict(one[:1]).log_scale[0, 0].exp())
    found = neuron.predict(one * torch.tensor([[0.8], [1.0], [1.25]]).double() * level, timing=True)
    expected = torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor([-4.0, 0.0, 5.0]).double())
    torch.testing.assert_close(found.p, expected, rtol=0, atol=0.12)
    assert found.spike.tolist()[::2] == [False, True]
    assert math.isnan(found.latency[0])
    assert 0 < float(found.latency[2]) < 2
    assert int(found.site[0]) == -1
    assert int(found.site[2]) >= 0
    nothing = neuron.predict(torch.zeros(len(ARRAY)))
    assert float(nothing.p[0]) < 1e-6
    with pytest.raises(ValueError, match="expected \\[patterns, 19\\]"):
        neuron.predict(torch.zeros(2, 7))
    with pytest.raises(ValueError, match="amplitudes are in µA, not nA"):
        neuron.predict(torch.full((len(ARRAY),), 5e3))


def test_posteriors_are_saved_with_the_cells_fingerprint(cell, tmp_path):
    neuron = known(cell, Pose(10.0, -5.0, 0.7))
    neuron.save(tmp_path / "p.safetensors")
    again = NeuronPosterior.load(tmp_path / "p.safetensors", cell)
    assert torch.equal(again.theta, neuron.theta)
    assert torch.equal(again.cell.pose, neuron.cell.pose)
    one = torch.zeros(1, len(ARRAY)).double()
    one[0, 9] = -1.0
    assert torch.equal(again.predict(one).log_scale, neuron.predict(one).log_scale)
    with pytest.raises(ValueError, match="fingerprint was"):
        NeuronPosterior.load(tmp_path / "p.safetensors", RGC(axon_length=160.0))
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 30)
    with pytest.raises(ValueError, match="no safetensors file"):
        NeuronPosterior.load(tmp_path / "bad.safetensors", cell)


def test_the_array_is_saved_with_all_that_its_field_depends_on(cell, tmp_path):
    """Without image currents the field is half as strong; a disc of other radius is another source."""
    array = ElectrodeArray(ARRAY.xyz, "disc", 7.0, images=False, anisotropy=(1.0, 1.3, 0.8), pitch=31.0)
    neuron = replace(known(cell), electrodes=array)
    neuron.save(tmp_path / "p.safetensors")
    again = NeuronPosterior.load(tmp_path / "p.safetensors", cell)
    for name in ("source", "disc_radius", "images", "anisotropy", "transfer", "pitch"):
        assert getattr(again.electrodes, name) == getattr(array, name)
    one = torch.zeros(1, len(ARRAY)).double()
    one[0, 9] = -1.0
    assert torch.equal(again.predict(one).log_scale, neuron.predict(one).log_scale)
    assert abs(float(known(cell).predict(one).log_scale - again.predict(one).log_scale)) > 0.3
    wrong = replace(neuron, rho=neuron.rho.repeat(2))
    wrong.save(tmp_path / "wrong.safetensors")
    with pytest.raises(ValueError, match=r"rho has another shape than \[1\]"):
        NeuronPosterior.load(tmp_path / "wrong.safetensors", cell)


def test_particles_that_cannot_tell_are_counted(cell, monkeypatch):
    monkeypatch.setattr("icml_hhmea.thresholds.FIELD_LIMIT", 66.0)
    one = torch.zeros(1, len(ARRAY)).double()
    one[0, 9] = -2.0
    found = known(cell).predict(one)
    assert found.undecided.tolist() == [1]
    assert math.isnan(found.p[0])
    assert found.level.tolist() == [9.0]


def test_the_pitch_is_that_of_the_places():
    places = ElectrodeArray.hexagon(2, 60.0).xyz
    assert ElectrodeArray(places).pitch == pytest.approx(60.0)
    built = Recording.build(np.full((19, 20), -50.0), 20_000.0, places[:, :2].numpy(), units="uV")
    assert built.electrodes.pitch == pytest.approx(60.0)
    with pytest.raises(ValueError, match="pitch=0"):
        ElectrodeArray(places, pitch=0.0)


def test_data_that_cannot_be_are_refused(recording):
    for noise in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="must be positive, or None"):
            replace(recording, noise=noise)
    for limits in ({"uc_per_cm2": -1.0}, {"total_ua": math.nan}):
        with pytest.raises(ValueError, match="must be positive"):
            ChargeLimit(**limits)
    amplitudes = tuple(np.linspace(0.8, 1.25, 9))
    curve = ActivationCurve(4, amplitudes, tuple(1 / (1 + np.exp(-(np.array(amplitudes) - 1) / 0.03))))
    with pytest.raises(ValueError, match="electrode 4 has two anodic curves"):
        Recording.build(np.full((19, 20), -50.0), 20_000.0, ARRAY, curves=[curve, curve], units="uV")
    template = types.SimpleNamespace(templates_array=np.ones((1, 20, 19)), is_in_uV=True)
    with pytest.raises(ValueError, match="unit=3: the Templates hold neurons 0 to 0"):
        Recording.build(template, 20_000.0, ARRAY, unit=3)


def test_an_electrode_near_the_end_of_the_axon_is_warned_of(cell, recording):
    """The axon of 150 µm and its site lie under the array; one of 730 µm does not end there."""
    observation = observe(recording)
    site = cell.segments(cell.bounds.center()[None]).end[0, cell.spike_site, :2]
    near = Pose(*(ARRAY.xyz[13, :2] - site).tolist(), 0.0)
    with pytest.warns(UserWarning, match="take a longer axon"):
        warn_of_a_short_axon(cell.at(near), observation)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_a_short_axon(RGC(Pose()), observation)
    with pytest.raises(ValueError, match="channels ka have no densities"):
        RGC(channels=[potassium_a()])


def test_errors_of_times_follow_the_noise(recording):
    """At least a sample's spacing, and more where the image is noisier."""
    quiet, loud = observe(recording), observe(replace(recording, noise=5.0))
    floor = math.hypot(0.02, 0.05 / math.sqrt(12))
    both = quiet.time_mask & loud.time_mask
    assert float(quiet.delay_error.min()) >= floor - 1e-12
    assert bool(both.any())
    assert float(loud.duration_error[both].mean()) > float(quiet.duration_error[both].mean())


def test_checkpoints_of_other_data_or_places_are_refused(cell, recording, tmp_path):
    observation, file = observe(recording), tmp_path / "c.safetensors"
    options = replace(FAST, restarts=1, steps=2)
    GradientDescent(cell.at(Pose()), observation, options).fit(until=1, checkpoint=file)
    mixed = replace(observation, log_amplitude=observation.log_amplitude.flip(1))
    moved = cell.at(Pose(5.0, 0.0, 0.0))
    for model, data in ((cell.at(Pose()), mixed), (moved, observation)):
        with pytest.raises(ValueError, match="belongs to another|data|pose"):
            GradientDescent(model, data, options).fit(checkpoint=file, resume=True)
    found = GradientDescent(cell.at(Pose()), observation, options)
    found.fit(checkpoint=file, resume=True)
    assert [row["step"] for row in found.rows] == [0.0, 1.0, 2.0]


def test_the_flow_is_asked_in_the_frame_it_was_trained_in(cell, recording):
    """The frame of the image's own pose, for features and particles alike."""
    asked = []

    class Flow:
        names = tuple(f"log threshold {k}" for k in range(3))

        def condition(self, features):
            asked.append(features)

        def sample(self, n, *, seed):
            return torch.cat([cell.bounds.center(), torch.tensor([0.05]).double()])[None].repeat(n, 1)

        def log_prob(self, theta):
            return torch.zeros(len(theta))

    problem = FitProblem(recording, cell, FAST)
    found = NeuronFit("npe", npe=Flow(), samples=2).solve(problem)
    pose = observe(recording).estimate.pose
    assert found.cell.pose.tolist() == pytest.approx([pose.x, pose.y, pose.angle])
    simulator = Simulator(cell, ARRAY, 0.5, 3)
    assert torch.equal(asked[0], simulator.observed(observe(recording), found.cell.pose))
    found.verify(problem)


def test_searches_keep_to_the_limit_from_their_first_pattern_on(cell):
    """The sum may not reach the single threshold; no step is made."""
    target = known(cell)
    one = torch.zeros(1, len(ARRAY)).double()
    one[0, 9] = -1.0
    level = float(target.predict(one).log_scale[0, 0].exp())
    limit = ChargeLimit(uc_per_cm2=400.0, total_ua=0.5 * level)
    found = StimulusSearch(steps=0, starts=3).solve(StimulusProblem([target], limit=limit))
    assert float(found.amplitudes.abs().sum()) <= 0.5 * level * (1 + 1e-9)
    far = replace(target, electrodes=ElectrodeArray(ARRAY.xyz + 5.0))
    with pytest.raises(ValueError, match="at the same places"):
        StimulusSearch().solve(StimulusProblem([target], [far]))
    other = replace(target, waveform=Waveform.biphasic())
    with pytest.raises(ValueError, match="same waveform"):
        StimulusSearch().solve(StimulusProblem([target], [other]))


def test_selective_patterns_fire_the_target_and_keep_to_the_limit(cell):
    target, other = known(cell), known(cell, Pose(20.0, 45.0, 0.0))
    limit = ChargeLimit(uc_per_cm2=200.0)
    problem = StimulusProblem([target], [other], limit=limit)
    found = StimulusSearch(steps=6, starts=4).solve(problem)
    found.verify(problem)
    assert float(found.p_targets[0]) > 0.9
    assert found.selectivity > 0.5
    assert int((found.amplitudes != 0).sum()) <= 3
    strict = replace(problem, limit=ChargeLimit(uc_per_cm2=1e-3))
    with pytest.raises(ValueError, match="exceed the charge limit"):
        found.verify(strict)
    with pytest.raises(ValueError, match="at least one target"):
        StimulusSearch().solve(StimulusProblem([]))


def test_the_dictionary_predicts_thresholds_of_new_patterns(cell):
    model = distil(known(cell), patterns=80, electrodes=[9, 10, 13, 8], steps=200)
    assert model.error < 0.35
    many = torch.zeros(1000, len(ARRAY)).double()
    many[:, [9, 10]] = torch.randn(1000, 2, generator=torch.Generator().manual_seed(0)).double()
    best = model.screen(many, 3)
    exact = known(cell).predict(many[best]).log_scale[0]
    rest = known(cell).predict(many[:40]).log_scale[0]
    assert float(exact.max()) < float(rest.median())


def test_rivals_are_what_they_say():
    thresholds = {0: (2.0, -1.0), 2: (math.nan, -4.0)}
    patterns = torch.tensor([[1.0, 5.0, -2.0], [-0.5, 0.0, -2.0], [-1.5, 0.0, 1.0]]).double()
    share = rivals.fractions(patterns, thresholds)
    assert share.tolist() == [[0.5, 0.0, -0.5], [-0.5, 0.0, -0.5], [-1.5, 0.0, 0.0]]
    torch.testing.assert_close(
        rivals.independent(patterns, thresholds).exp(), torch.tensor([2, 2, 2 / 3]).double()
    )
    level = rivals.superposition(patterns, thresholds).exp()
    assert level[0] > 1e6
    torch.testing.assert_close(level[1:], torch.tensor([1.0, 2 / 3]).double())
    near = rivals.multi_site(patterns, thresholds, np.zeros((3, 2)))
    torch.testing.assert_close(near[1:], rivals.superposition(patterns, thresholds)[1:])
    far = rivals.multi_site(patterns, thresholds, np.array([[0, 0], [0, 0], [1e4, 0]]))
    torch.testing.assert_close(far, rivals.independent(patterns, thresholds))


def test_logistic_and_network_learn_a_separable_rule():
    g = torch.Generator().manual_seed(0)
    patterns = torch.randn(300, 4, generator=g).double()
    thresholds = dict.fromkeys(range(4), (1.0, -1.0))
    fired = patterns[:, 0] + patterns[:, 1] > 0.3
    level = rivals.logistic(patterns[:200], fired[:200], patterns[200:], range(4), thresholds)
    assert float(((level < 0) == fired[200:]).double().mean()) > 0.9
    x = torch.randn(300, 18, generator=g).double()
    net = rivals.PatternMLP(epochs=20).fit(x[:200], x[:200, 0] > 0)
    assert float(((net.score(x[200:]) < 0) == (x[200:, 0] > 0)).double().mean()) > 0.85


def test_one_dominating_weight_is_not_a_good_shape():
    one = np.zeros(32)
    one[3] = 80.0
    assert pareto_k(one) == math.inf
    assert math.isnan(pareto_k(np.array([0.0, -0.1, -0.2])))
    three = np.full(64, -60.0)
    three[:3] = 0.0
    assert pareto_k(three) == math.inf


def test_refined_weights_are_sums_of_squares_and_the_prior(cell, recording):
    observation = observe(recording)
    start = cell.bounds.center()[None].repeat(3, 1)
    start[1, cell.bounds.index("z")] *= 1.1
    start[2, cell.bounds.index("gna_band")] *= 1.02
    refinement = Refinement(cell.at(Pose()), observation, start, replace(FAST, steps=0))
    found = refinement.fit()
    descent = refinement.descent
    image, fired, gaps, _ = descent._residuals(start, found.log_current, None, 2.0, True)
    assert bool(fired.all())
    chi2 = (image**2).sum(1) + (gaps**2).sum(1)
    count = int(observation.amplitude_mask.sum()) + 3
    assert descent.chi2(start, found.log_current)[1] == count == descent._count()
    scale = max(1.0, float(chi2.min()) / count)
    s = cell.bounds.to_unit(start)
    expected = torch.softmax(-chi2 / (2 * scale) + (s * (1 - s)).log().sum(1), 0)
    torch.testing.assert_close(found.weights, expected, rtol=1e-5, atol=1e-9)
    full = GradientDescent(cell.at(Pose()), observation, replace(FAST, features="full"))
    assert full.chi2(start[:1], found.log_current[:1])[1] == full._count()


def test_pareto_shapes():
    assert pareto_k(np.zeros(100)) == 0.0
    light = np.log(np.random.default_rng(0).uniform(0.9, 1.0, 400))
    heavy = 1.5 * np.random.default_rng(0).exponential(size=400)
    assert pareto_k(light) < 0.5 < pareto_k(heavy)


@pytest.fixture(scope="module")
def hidden() -> HiddenNeuron:
    return hidden_neuron(5, RetinaOptions(rings=2, dt=0.025, refine=1, curves=3, levels=6))


def test_the_synthetic_retina_is_what_its_options_say(hidden):
    thresholds = hidden.recording.thresholds
    assert len(hidden.chosen) == 3
    single = torch.zeros(1, 19).double()
    e = hidden.chosen[0]
    single[0, e] = -1.0
    truth = float(hidden.log_scales(single)[0].exp())
    assert -thresholds[e][1] == pytest.approx(truth, rel=0.08)
    unseen = triplets(hidden, 12, 1)
    again = hidden.log_scales(unseen.patterns)
    torch.testing.assert_close(again, unseen.log_scale, rtol=0, atol=0.02)
    assert 0.2 < float(unseen.fired.double().mean()) < 0.8
    assert 0.9 < unseen.ceiling <= 1
    sigma = float(hidden.theta[0, hidden.cell.bounds.index("sigma")])
    inside = RGC().bounds
    k = inside.index("sigma")
    assert not inside.low[k] <= sigma <= inside.high[k]


def test_electrodes_are_chosen_apart():
    ei = -np.arange(19, dtype=float)[:, None] * np.ones((1, 5))
    chosen = choose_electrodes(ei, 4, xy=ARRAY.xyz.numpy(), apart=45.0)
    assert chosen[0] == 18
    places = ARRAY.xyz[chosen]
    distance = torch.cdist(places, places) + 1e9 * torch.eye(4)
    assert float(distance.min()) >= 45.0


def test_options_are_checked():
    with pytest.raises(ValueError, match="features='some'"):
        DescentOptions(features="some")
    with pytest.raises(ValueError, match="method='sgd'"):
        NeuronFit("sgd")
    amplitude = np.zeros((19, 40))
    amplitude[9, 10:13] = -60.0
    problem = FitProblem(Recording(amplitude, 20_000.0, ARRAY, noise=1.0), RGC(axon_length=60.0))
    with pytest.raises(ValueError, match="needs cathodic thresholds"):
        NeuronFit("npe").solve(problem)
