"""What the claims measure: oracles of the simulator, fits of hidden neurons, and their rivals."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from icml_core import Run
from torch import Tensor

from icml_hhmea import rivals
from icml_hhmea.amortised import Simulator
from icml_hhmea.balance import ionic_currents
from icml_hhmea.calibration import calibrate
from icml_hhmea.cell import Cell
from icml_hhmea.descent import DescentOptions, GradientDescent
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.evaluation import NEAR, accuracy, scores
from icml_hhmea.features import EIFeatures, electrical_image
from icml_hhmea.fitting import FitProblem, NeuronFit
from icml_hhmea.morphology import Section, discretise
from icml_hhmea.npe import AmortisedPosterior, NPEOptions
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.recordings import Recording
from icml_hhmea.retina import HiddenNeuron, RetinaOptions, Triplets, hidden_neuron, triplets
from icml_hhmea.rgc import RGC
from icml_hhmea.simulation import activating, resting, settle, simulate
from icml_hhmea.stimulus import IClamp

DT = 0.025
SPEED = 1.2  # of the channels that the model does not know


@dataclass(frozen=True)
class Size:
    """How large a run is."""

    restarts: int
    steps: int
    lr: float
    patterns: int
    others: int
    simulations: int
    cases: int
    epochs: int
    neurons: int
    retina: RetinaOptions
    cheap: RetinaOptions


def size_of(run: Run) -> Size:
    """Of a measure, by its scale."""
    if run.scale == "smoke":
        tiny = RetinaOptions(rings=2, dt=0.025, refine=1, curves=3, levels=5)
        return Size(1, 1, 0.05, 8, 2, 60, 80, 2, 1, tiny, tiny)
    cheap = RetinaOptions(dt=0.025, refine=1)
    if run.scale == "small":
        return Size(4, 60, 0.05, 60, 20, 3000, 450, 120, 2, RetinaOptions(), cheap)
    return Size(8, 200, 0.03, 60, 20, 20_000, 2200, 200, 2, RetinaOptions(), cheap)


def branched(seed: int) -> list[Section]:
    """A soma, a trunk that divides in two, and a branch on the soma's middle; lengths from the seed."""
    rng = np.random.default_rng(seed)
    soma, trunk, left, right, side = rng.uniform(0.7, 1.3, 5) * [30, 120, 90, 150, 60]

    def line(length: float, radius: float) -> np.ndarray:
        return np.array([[0, 0, 0, radius], [length, 0, 0, radius]], dtype=float)

    return [
        Section(line(soma, 12.5), region="soma"),
        Section(line(trunk, 1.5), 0, 1.0, "trunk"),
        Section(line(left, 0.75), 1, 1.0, "left"),
        Section(line(right, 0.5), 1, 1.0, "right"),
        Section(line(side, 1.0), 0, 0.5, "side"),
    ]


COUNTS = (3, 7, 5, 5, 3)


def neuron_gap(seed: int, *, joints: bool = True) -> float:
    """mV between NEURON and us, at all compartments; without ``joints`` branches hang on each other
    directly."""
    from importlib import import_module

    h: Any = import_module("neuron").h
    h.load_file("stdrun.hoc")
    sections = branched(seed)
    made: list[Any] = []
    for section, count in zip(sections, COUNTS, strict=True):
        s = h.Section(name=f"{section.region}_{seed}")
        s.L, s.diam, s.nseg, s.Ra, s.cm = section.length, 2 * section.points[0, 3], count, 80.0, 1.0
        s.insert("hh")
        if section.parent >= 0:
            s.connect(made[section.parent](section.at))
        made.append(s)
    h.usetable_hh, h.celsius, h.dt, h.steps_per_ms, h.secondorder = 0, 6.3, DT, 1 / DT, 0
    clamp = h.IClamp(made[0](0.5))
    clamp.delay, clamp.dur, clamp.amp = 1.0, 2.0, 1.2
    vectors = [h.Vector().record(segment._ref_v) for s in made for segment in s]
    h.finitialize(-65)
    while h.t < 10 - DT / 2:
        h.fadvance()
    expected = np.stack([np.asarray(v.to_python()) for v in vectors], 1)
    for s in made:
        h.delete_section(sec=s)
    morphology = discretise(sections, counts=COUNTS)
    nodes = [k for s in range(5) for k in np.flatnonzero((morphology.section == s) & (morphology.area > 0))]
    if not joints:
        parent, half = morphology.parent.copy(), morphology.half_parent.copy()
        for node in np.flatnonzero(morphology.area == 0):
            children = morphology.parent == node
            parent[children], half[children] = morphology.parent[node], morphology.half_parent[node]
        morphology = replace(morphology, parent=parent, half_parent=half)
    cell = Cell(morphology, ra=80.0).double()
    with torch.no_grad():
        found = simulate(
            cell, None, IClamp(int(nodes[1]), 1.2, 1.0, 2.0), 10.0, DT, record=[int(k) for k in nodes]
        )
    return float(np.abs(found.v[0].numpy() - expected).max())


def convergence_order(seed: int) -> float:
    """log2 of the quotient of successive differences, of steps of 0.02 and 0.01 ms over 0.01 and 0.005 ms, at
    the same moments."""
    cell = Cell.from_sections(branched(seed), max_len=30.0).double()

    def run(dt: float) -> Tensor:
        with torch.no_grad():
            return simulate(
                cell, None, IClamp(0, 1.0, 0.2, 1.0), 3.0, dt, record=[0], every=round(0.04 / dt)
            ).v

    coarse, middle, fine = run(0.02), run(0.01), run(0.005)
    return math.log2(float((coarse - middle).abs().max() / (middle - fine).abs().max()))


def current_gap(seed: int, *, perturbed: bool = False) -> float:
    """nA by which currents through capacitance and channels miss axial and injected ones, at any node and
    step; where ``perturbed`` one voltage is off by 1e-6 mV."""
    cell, dt = RGC().double(), 0.02
    theta = cell.bounds.sample(4, torch.Generator().manual_seed(seed))
    clamp = IClamp("soma", 2.0, 0.1, 0.3)
    with torch.no_grad():
        v = simulate(cell, theta, clamp, 1.0, dt, record="all", limit=1e4).v.permute(1, 2, 0).clone()
        if perturbed:
            v[len(v) // 2, cell.nodes // 2] += 1e-6
        cable = cell.cable(theta)
        outward = ionic_currents(cell, cable, v, resting(cell, theta), dt)
        arriving = activating(cell.parent, cable.axial, v[1:])
        arriving[:, cell.node("soma")] += 2.0 * clamp.waveform.samples(len(v) - 1, dt)[:, None]
    return float((outward - arriving).abs().max())


def gradient_error(seed: int) -> float:
    """Relative error of a directional derivative: 20 compartments, 50 steps."""
    cell = RGC(axon_length=20.0).double()
    generator = torch.Generator().manual_seed(seed)
    array = ElectrodeArray.hexagon(1)
    u = torch.randn(1, len(cell.bounds), generator=generator, dtype=torch.float64)
    along = torch.randn(u.shape, generator=generator, dtype=torch.float64)

    def value(u: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = simulate(
                cell, cell.bounds.values(u), IClamp("soma", 1.0, 0, 0.2), 1.0, 0.02, electrodes=array
            )
        assert found.phi is not None
        return found.v.sum() + found.phi.sum()

    leaf = u.clone().requires_grad_()
    value(leaf).backward()
    assert leaf.grad is not None
    slope = float((leaf.grad * along).sum())
    step = 1e-4
    with torch.no_grad():
        ends = [float(value(u + k * step * along)) for k in (-2, -1, 1, 2)]
    expected = (ends[0] - 8 * ends[1] + 8 * ends[2] - ends[3]) / (12 * step)
    return abs(slope - expected) / abs(expected)


def score_responses(run: Run, seed: int) -> dict[str, float]:
    """See ``claims_of_responses.responses``."""
    size = size_of(run)
    neuron = hidden_neuron(seed, size.retina)
    unseen = triplets(neuron, size.patterns, seed + 1)
    fired = unseen.fired.numpy()
    begin = time.perf_counter()
    fitted = _unfitted(neuron, size) if run.ablation == "unfitted" else _descend(neuron, size, seed)
    minutes = (time.perf_counter() - begin) / 60
    found = _scores(fitted, unseen)
    recording = neuron.recording
    xy, known = recording.electrodes.xyz.numpy(), recording.thresholds
    levels = {
        "independent": rivals.independent(unseen.patterns, known),
        "superposition": rivals.superposition(unseen.patterns, known),
        "multi_site": rivals.multi_site(unseen.patterns, known, xy),
        "mlp": _network(size, seed, run).score(
            rivals.PatternMLP.rows(unseen.patterns, known, recording.ei, xy)
        ),
    }
    figures = {name: accuracy(level.numpy(), fired) for name, level in levels.items()}
    prior = _scores(_unfitted(neuron, size), unseen)
    figures |= {
        "gd": found["accuracy"],
        "gd_balanced": found["balanced_accuracy"],
        "gd_near": _near(fitted, unseen),
        "prior_mean": prior["accuracy"],
        "majority": max(float(fired.mean()), 1 - float(fired.mean())),
        "ceiling": unseen.ceiling,
        "fit_minutes": minutes,
        "loss": float(fitted.losses.min()),
    }
    if figures["gd_balanced"] is None:  # all patterns fired, or none: a handful, in a smoke run
        figures["gd_balanced"] = figures["gd"]
    run.log(0, **figures)
    return figures


def score_few_curves(run: Run, seed: int) -> dict[str, float]:
    """See ``claims_of_responses.few_curves``."""
    size = size_of(run)
    most = 3 if run.scale == "smoke" else 10
    neuron = hidden_neuron(seed, replace(size.retina, curves=most))
    within = min(5, most)
    unseen = triplets(neuron, size.patterns, seed + 1, among=within)
    figures = {}
    for count in (0, 2, 5, 10):
        chosen = set(neuron.chosen[: min(count, most)])
        recording = replace(
            neuron.recording,
            thresholds={e: p for e, p in neuron.recording.thresholds.items() if e in chosen},
            errors={e: p for e, p in neuron.recording.errors.items() if e in chosen},
        )
        fitted = _descend(neuron, size, seed, recording=recording)
        figures[f"curves_{count}"] = float(_scores(fitted, unseen)["accuracy"] or 0.0)
    measured = triplets(neuron, 20 if run.scale == "smoke" else 500, seed + 2, among=within)
    level = rivals.logistic(
        measured.patterns,
        measured.fired,
        unseen.patterns,
        neuron.chosen[:within],
        neuron.recording.thresholds,
    )
    figures["logistic_500"] = accuracy(level.numpy(), unseen.fired.numpy())
    return figures


def score_feature_sets(run: Run, seed: int) -> dict[str, float]:
    """See ``claims_of_responses.feature_sets``."""
    size = size_of(run)
    speed = 1.0 if run.ablation == "right-kinetics" else SPEED
    neuron = hidden_neuron(seed, replace(size.retina, axon_speed=speed))
    unseen = triplets(neuron, size.patterns, seed + 1)
    figures = {}
    for name, features in (("few", "amp+thr"), ("all", "full")):
        fitted = _descend(neuron, size, seed, features=features)
        figures[name] = float(_scores(fitted, unseen)["accuracy"] or 0.0)
        if name == "all":
            figures |= _chi2(fitted)
    return figures


def score_amortised(run: Run, seed: int) -> dict[str, float | list[float]]:
    """See ``claims_of_inference.amortised``."""
    size = size_of(run)
    array = ElectrodeArray.hexagon(size.retina.rings)
    simulator = Simulator(RGC(), array, size.retina.noise, size.retina.curves)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta, features = simulator.draw(size.simulations + size.cases, seed)
        train, test = slice(0, size.simulations), slice(size.simulations, None)

        def trained(given: Tensor) -> AmortisedPosterior:
            options = NPEOptions(epochs=size.epochs, seed=seed % 2**31)
            flow = AmortisedPosterior(simulator.bounds, features.shape[1], options, simulator.names)
            return flow.train(theta[train], given[train])

        blind = trained(_shuffled(features, seed))
        model = trained(_shuffled(features, seed + 1)) if run.ablation else trained(features)
        found = calibrate(model, theta[test], features[test], seed=seed)
        good = torch.isfinite(features[test]).all(1)
        gains = []
        for t, x in zip(theta[test][good], features[test][good], strict=True):
            gains.append(float(model.log_prob(t[None], x)[0] - blind.log_prob(t[None], x)[0]))
        hits: dict[str, list[float]] = {"npe": [], "refined": []}
        for k in range(size.neurons if run.ablation is None else 0):
            neuron = hidden_neuron(seed + 17 * k, size.retina)
            unseen = triplets(neuron, size.patterns, seed + 17 * k + 1)
            few = DescentOptions(
                steps=1 if run.scale == "smoke" else 25, lr=0.03, prior=1.0, screen=1, tolerance=0.02
            )
            problem = FitProblem(neuron.recording, options=_options(size, seed))
            for name, method in (("npe", "npe"), ("refined", "npe+refine")):
                solver = NeuronFit(
                    method,
                    npe=model,
                    samples=4 if run.scale == "smoke" else 12,
                    refine=few,
                    seed=seed % 2**31,
                )  # type: ignore[arg-type]
                hits[name].append(float(_scores(solver.solve(problem), unseen)["accuracy"] or 0.0))
    return {
        "p": found.p.tolist(),
        "coverage": found.coverage.tolist(),
        "gain": float(np.mean(gains)),
        **{name: float(np.mean(v)) if v else 0.0 for name, v in hits.items()},
    }


def _shuffled(features: Tensor, seed: int) -> Tensor:
    """Features of valid simulations given to others: what is left is the distribution of valid parameters."""
    good = torch.isfinite(features).all(1).nonzero()[:, 0]
    order = torch.randperm(len(good), generator=torch.Generator().manual_seed(seed % 2**31))
    mixed = features.clone()
    mixed[good] = features[good[order]]
    return mixed


def _options(size: Size, seed: int, features: Any = "amp+thr") -> DescentOptions:
    return DescentOptions(
        restarts=size.restarts,
        steps=size.steps,
        lr=size.lr,
        tolerance=0.02,
        features=features,
        seed=seed % 2**31,
    )


def _descend(
    neuron: HiddenNeuron,
    size: Size,
    seed: int,
    *,
    recording: Recording | None = None,
    features: Any = "amp+thr",
) -> NeuronPosterior:
    problem = FitProblem(recording or neuron.recording, options=_options(size, seed, features))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return NeuronFit("gd").solve(problem)


def _unfitted(neuron: HiddenNeuron, size: Size) -> NeuronPosterior:
    """The model in the middle of its bounds, at the estimated pose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cell, observation = FitProblem(neuron.recording, options=_options(size, 0)).prepared()
        start = cell.bounds.center()[None]
        return GradientDescent(cell, observation, DescentOptions(steps=0, screen=1), start=start).fit()


def _scores(fitted: NeuronPosterior, unseen: Triplets) -> dict[str, float | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = fitted.predict(unseen.patterns)
    return scores(found.p, found.level, unseen.fired.double())


def _near(fitted: NeuronPosterior, unseen: Triplets) -> float:
    """Accuracy on patterns within 20 % of their true threshold; on all where a smoke run has none of them."""
    near = unseen.log_scale.abs() < NEAR
    near = near if bool(near.any()) else torch.ones_like(near)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        call = fitted.predict(unseen.patterns[near]).spike
    return float((call == unseen.fired[near]).double().mean())


def _network(size: Size, seed: int, run: Run) -> rivals.PatternMLP:
    """Trained on other neurons, measured with steps of 0.025 ms and the model's compartments."""
    rows, outcomes = [], []
    for k in range(size.others):
        other = hidden_neuron(seed + 1000 + k, size.cheap)
        seen = triplets(other, size.patterns, seed + 2000 + k)
        recording = other.recording
        rows.append(
            rivals.PatternMLP.rows(
                seen.patterns, recording.thresholds, recording.ei, recording.electrodes.xyz.numpy()
            )
        )
        outcomes.append(seen.fired)
    epochs = 5 if run.scale == "smoke" else 150
    return rivals.PatternMLP(epochs=epochs, seed=seed % 2**31).fit(torch.cat(rows), torch.cat(outcomes))


def _chi2(fitted: NeuronPosterior) -> dict[str, float]:
    """Mean squares of residuals in units of their errors: amplitudes, and durations and delays."""
    o = fitted.observation
    assert o is not None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = settle(fitted.cell, fitted.best, fitted.cell.cable(fitted.best), dt=o.dt)
        phi, _ = electrical_image(
            fitted.cell, fitted.best, fitted.electrodes, dt=o.dt, every=o.every, duration=3.0, state=state
        )
    found = EIFeatures(o.dt * o.every)(phi)
    size = ((found.log()[0] - o.log_amplitude) / o.amplitude_error)[o.amplitude_mask]
    gaps = (
        (found.delays()[0] - o.delay) / o.delay_error,
        (found.duration[0] - o.duration) / o.duration_error,
    )
    times = torch.cat([gap[o.time_mask] for gap in gaps])
    return {
        "chi2_amplitudes": float((size**2).mean()),
        "chi2_times": float((times**2).mean()) if len(times) else math.nan,
    }
