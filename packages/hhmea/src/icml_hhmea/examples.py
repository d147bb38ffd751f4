"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core import Example

if TYPE_CHECKING:
    from icml_hhmea.descent import DescentOptions
    from icml_hhmea.fitting import FitProblem
    from icml_hhmea.posterior import NeuronPosterior


def cell(seed: int) -> Example:
    """A short cell under seven electrodes, too weakly stimulated to fire."""
    import torch

    from icml_hhmea.electrodes import ElectrodeArray
    from icml_hhmea.rgc import RGC
    from icml_hhmea.stimulus import ExtracellularPattern

    array = ElectrodeArray.hexagon(1)

    def inputs() -> Any:
        return 0.2 * torch.randn(7, generator=torch.Generator().manual_seed(seed))

    def call(module: Any, amplitudes: Any) -> Any:
        stim = ExtracellularPattern(amplitudes)
        return module(stim, T=0.4, dt=0.02, electrodes=array, record=["soma", "axon[0]"])

    def check(v: Any) -> None:
        assert v.shape == (1, 21, 2)
        assert bool(((v > -80) & (v < 0)).all())

    return Example(
        build=lambda: RGC(axon_length=60.0),
        inputs=inputs,
        call=call,
        check=check,
        bad=lambda: torch.full((7,), 1e4),
    )


def features(seed: int) -> Example:
    """Waveforms with known extrema."""
    import torch

    from icml_hhmea.features import EIFeatures

    def inputs() -> Any:
        t = torch.arange(40.0)
        wave = -50 * torch.exp(-(((t - 15) / 3) ** 2)) + 12 * torch.exp(-(((t - 25) / 4) ** 2))
        return wave[None, :, None] * torch.rand(1, 1, 3, generator=torch.Generator().manual_seed(seed)).add(
            0.5
        )

    def check(found: Any) -> None:
        assert bool(((found.time - 0.75).abs() < 0.02).all())
        assert bool(((found.duration - 0.5).abs() < 0.05).all())

    return Example(
        build=lambda: EIFeatures(0.05, "hard"),
        inputs=inputs,
        call=lambda module, phi: module(phi),
        check=check,
        bad=lambda: inputs()[0],
    )


def npe(seed: int) -> Example:
    """A parameter that the feature shows with noise."""
    import torch

    from icml_hhmea.npe import AmortisedPosterior, NPEOptions
    from icml_hhmea.parameters import Bounds

    bounds = Bounds(("a", "b"), (0.0, 1.0), (1.0, 10.0), (False, True))

    def build() -> Any:
        g = torch.Generator().manual_seed(seed)
        theta = bounds.sample(400, g)
        x = (
            torch.stack([theta[:, 0], theta[:, 1].log()], 1)
            + 0.05 * torch.randn(400, 2, generator=g).double()
        )
        model = AmortisedPosterior(
            bounds, 2, NPEOptions(transforms=2, hidden=16, epochs=12, lr=1e-2, seed=seed)
        )
        return model.train(theta, x).condition(torch.tensor([0.5, 1.0]))

    def check(drawn: Any) -> None:
        assert drawn.shape == (200, 2)
        assert abs(float(drawn[:, 0].mean()) - 0.5) < 0.15

    return Example(
        build=build,
        inputs=lambda: 200,
        call=lambda model, n: model.sample(n, seed=seed),
        check=check,
        bad=lambda: -1,
    )


def gd(seed: int) -> Example:
    """Two restarts of a short cell; stopped half-way and resumed it is the same descent."""
    from icml_hhmea.descent import GradientDescent

    def build() -> Any:
        return GradientDescent(*_problem(seed).prepared(), _options(4))

    def check(rows: list[dict[str, float]]) -> None:
        assert len(rows) == 5
        assert rows[-1]["loss"] <= rows[0]["loss"]

    def call(descent: Any, inputs: None) -> list[dict[str, float]]:
        descent.fit()
        return descent.rows

    def resumed(descent: Any, inputs: None, directory: Path) -> list[dict[str, float]]:
        file = directory / "half.safetensors"
        descent.fit(until=2, checkpoint=file)
        again = build()
        again.fit(checkpoint=file, resume=True)
        return again.rows

    return Example(build=build, inputs=lambda: None, call=call, check=check, resumed=resumed)


def refine(seed: int) -> Example:
    """Three draws of the prior, refined."""
    import torch

    from icml_hhmea.refinement import Refinement

    def build() -> Any:
        model, observation = _problem(seed).prepared()
        samples = model.bounds.sample(3, torch.Generator().manual_seed(seed))
        return Refinement(model, observation, samples, _options(2))

    def check(found: Any) -> None:
        rows, weights = found
        assert len(rows) == 3
        assert abs(sum(weights) - 1) < 1e-6

    def call(refinement: Any, inputs: None) -> Any:
        found = refinement.fit()
        return refinement.rows, found.weights.tolist()

    def resumed(refinement: Any, inputs: None, directory: Path) -> Any:
        file = directory / "half.safetensors"
        refinement.fit(until=1, checkpoint=file)
        again = build()
        found = again.fit(checkpoint=file, resume=True)
        return again.rows, found.weights.tolist()

    return Example(build=build, inputs=lambda: None, call=call, check=check, resumed=resumed)


def simulate(seed: int) -> Example:
    """A short cable with a current clamp."""
    from dataclasses import replace

    from icml_hhmea.evaluation import CableSolver, SimulationProblem
    from icml_hhmea.rgc import RGC
    from icml_hhmea.stimulus import IClamp

    def problem() -> SimulationProblem:
        model = RGC(axon_length=60.0).double()
        return SimulationProblem(model, IClamp("soma", 0.5 + 0.1 * (seed % 3), 0.0, 0.2), T=0.5, dt=0.02)

    def check(found: Any) -> None:
        assert bool((found.result.failed < 0).all())
        assert found.result.v.shape[1] == 26

    def corrupt(found: Any) -> Any:
        assert found.result.im is not None
        return replace(found, result=replace(found.result, im=found.result.im * 1.001))

    return Example(
        build=CableSolver,
        inputs=problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=corrupt,
        bad=lambda: replace(problem(), dt=0.2),
    )


def fit(seed: int) -> Example:
    """Two restarts, two steps."""
    from dataclasses import replace

    from icml_hhmea.fitting import NeuronFit

    def check(found: Any) -> None:
        assert found.theta.shape[0] == 2
        assert abs(float(found.weights.sum()) - 1) < 1e-6

    def bad() -> FitProblem:
        whole = _problem(seed)
        silent = replace(whole.recording, ei=whole.recording.ei * 1e-3 + 2.0, noise=1.0)
        return replace(whole, recording=silent)

    return Example(
        build=lambda: NeuronFit("gd"),
        inputs=lambda: _problem(seed),
        call=lambda solver, problem: solver.solve(problem),
        check=check,
        corrupt=lambda found: replace(found, losses=found.losses * 0.5),
        bad=bad,
    )


def predict(seed: int) -> Example:
    """A weak pattern and a strong one."""
    import torch

    from icml_hhmea.evaluation import PatternEvaluator

    def patterns() -> Any:
        out = torch.zeros(2, 7, dtype=torch.float64)
        out[0, 3], out[1, 3] = -1e-3, -3.0
        return out, torch.tensor([0.0, 1.0])

    def check(figures: Any) -> None:
        assert figures["accuracy"] == 1.0

    return Example(
        build=PatternEvaluator,
        inputs=patterns,
        call=lambda evaluator, given: evaluator.evaluate(_posterior(), *given),
        check=check,
        bad=lambda: (patterns()[0], torch.tensor([0.0, 2.0])),
    )


def optimize_stimulus(seed: int) -> Example:
    """One neuron to fire, one beside it to spare."""
    from dataclasses import replace

    from icml_hhmea.rgc import Pose
    from icml_hhmea.selective import StimulusProblem, StimulusSearch

    def check(found: Any) -> None:
        assert float(found.p_targets[0]) > 0.5

    return Example(
        build=lambda: StimulusSearch(steps=2, starts=3, seed=seed),
        inputs=lambda: StimulusProblem([_posterior()], [_posterior(Pose(0.0, 60.0, 0.0))]),
        call=lambda solver, problem: solver.solve(problem),
        check=check,
        corrupt=lambda found: replace(found, p_targets=1 - found.p_targets),
        bad=lambda: StimulusProblem([]),
    )


def _options(steps: int) -> DescentOptions:
    from icml_hhmea.descent import DescentOptions

    return DescentOptions(
        restarts=2, steps=steps, lr=0.02, screen=1, window=1.2, tolerance=0.05, duration=1.2
    )


def _problem(seed: int) -> FitProblem:
    """The image of a short cell under seven electrodes, and one threshold."""
    import math
    import warnings

    import torch

    from icml_hhmea.electrodes import ElectrodeArray
    from icml_hhmea.features import electrical_image
    from icml_hhmea.fitting import FitProblem
    from icml_hhmea.recordings import Recording
    from icml_hhmea.rgc import RGC

    model, array = RGC(axon_length=100.0), ElectrodeArray.hexagon(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta = model.bounds.center()[None]
        phi, _ = electrical_image(model, theta, array, dt=0.025, duration=1.2)
    noise = torch.randn(phi.shape, generator=torch.Generator().manual_seed(seed), dtype=phi.dtype)
    ei = (phi + 0.5 * noise)[0].T.numpy()
    recording = Recording(ei, 20_000.0, array, {3: (math.nan, -2.0)}, noise=0.5)
    return FitProblem(recording, model, _options(2))


def _posterior(pose: Any = None) -> NeuronPosterior:
    """A known cell under seven electrodes."""
    import torch

    from icml_hhmea.electrodes import ElectrodeArray
    from icml_hhmea.posterior import NeuronPosterior
    from icml_hhmea.rgc import RGC

    model, array = RGC(pose, axon_length=100.0), ElectrodeArray.hexagon(1)
    one = torch.ones(1, dtype=torch.float64)
    theta = model.bounds.center()[None]
    return NeuronPosterior(model, array, theta, one, torch.zeros(1, 7).double(), 0.05 * one, one, "known")
