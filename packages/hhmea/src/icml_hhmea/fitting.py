"""From an electrical image and thresholds of single electrodes to a fitted neuron: the whole pipeline."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from icml_hhmea.amortised import Simulator, train_amortised
from icml_hhmea.curves import ActivationCurve
from icml_hhmea.descent import DescentOptions, GradientDescent, Report
from icml_hhmea.features import EIFeatures, electrical_image
from icml_hhmea.npe import AmortisedPosterior
from icml_hhmea.pose import BAND_AHEAD
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.recordings import Observation, Recording, observe
from icml_hhmea.refinement import REFINE, Refinement
from icml_hhmea.rgc import RGC
from icml_hhmea.simulation import settle
from icml_hhmea.stimulus import Waveform

METHODS = ("gd", "npe", "npe+refine")
DIRECTIONS = 12
SAMPLES, REFINED = 64, 32
NEAR_SITE = 100.0  # µm


@dataclass(frozen=True)
class FitProblem:
    """What a fit is asked.

    Attributes:
        recording: the data.
        cell: the model, whose pose is replaced by the image's.
    """

    recording: Recording
    cell: RGC = field(default_factory=RGC)
    options: DescentOptions = field(default_factory=DescentOptions)

    def prepared(self) -> tuple[RGC, Observation]:
        """The cell at its estimated pose, and the features."""
        observation = observe(self.recording)
        cell = self.cell.at(likeliest_pose(self.cell, observation))
        warn_of_a_short_axon(cell, observation)
        return cell, observation

    def losses(self, posterior: NeuronPosterior) -> Tensor:
        """The loss of each particle of a posterior, found anew."""
        observation = observe(self.recording)
        cell = self.cell.at(posterior.cell.pose) if isinstance(posterior.cell, RGC) else self.prepared()[0]
        options = replace(self.options, screen=1)
        with torch.no_grad():
            return GradientDescent(cell, observation, options).losses(posterior.theta, posterior.log_current)[
                0
            ]


def warn_of_a_short_axon(cell: RGC, observation: Observation) -> None:
    """Warn where an electrode with a threshold lies near the place at which spikes are looked for: a current
    there depolarises it without a spike that travels, and the model's axon ends not far beyond."""
    if not len(observation.channel):
        return
    segments = cell.segments(cell.bounds.center()[None])
    site = segments.end[0, cell.spike_site, :2]
    used = observation.recording.electrodes.xyz[observation.channel, :2]
    nearest = float((used - site).norm(dim=1).min())
    if nearest < NEAR_SITE:
        warnings.warn(
            f"an electrode with a threshold lies {nearest:.0f} µm from the place on the axon where spikes "
            f"are looked for; take a longer axon: cell=RGC(axon_length=...), now {cell.axon_length:g} µm",
            stacklevel=3,
        )


def likeliest_pose(cell: RGC, observation: Observation, *, draws: int = 12, seed: int = 0) -> Tensor:
    """The pose, [3], under which draws of the prior come nearest to the image's amplitudes.

    Tried are the estimate of ``icml_hhmea.pose`` and twelve directions around the centroid of the largest
    troughs,
    where the sodium band is: from the image alone an axon that ends under the array may look like a soma.
    """
    recording = observation.recording
    first = observation.estimate.pose
    xy = recording.electrodes.xyz[:, :2]
    trough = torch.as_tensor(-recording.ei.min(1)).clamp(min=0)
    weight = torch.where(trough > 0.5 * trough.max(), trough, 0)
    band = (weight[:, None] * xy).sum(0) / weight.sum()
    angles = torch.arange(DIRECTIONS, dtype=torch.float64) * (2 * math.pi / DIRECTIONS) + first.angle
    around = torch.stack(
        [band[0] - BAND_AHEAD * angles.cos(), band[1] - BAND_AHEAD * angles.sin(), angles], 1
    )
    poses = torch.cat([torch.tensor([[first.x, first.y, first.angle]], dtype=torch.float64), around])
    bounds = cell.bounds
    theta = bounds.sample(draws, torch.Generator().manual_seed(seed))
    theta[0] = bounds.center()
    for name in ("along", "across", "turn", "bend"):
        theta[:, bounds.index(name)] = 0.0
    every = theta.repeat(len(poses), 1)
    moved = cell.at(poses.repeat_interleave(draws, 0))
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = settle(moved, every, moved.cable(every), dt=observation.dt)
        phi, fired = electrical_image(
            moved,
            every,
            recording.electrodes,
            dt=observation.dt,
            every=observation.every,
            duration=2.5,
            state=state,
        )
    found = EIFeatures(observation.dt * observation.every)(phi)
    gap = ((found.log() - observation.log_amplitude) / observation.amplitude_error).clamp(-10, 10)
    loss = (gap[:, observation.amplitude_mask] ** 2).mean(1)
    loss = torch.where(fired, loss, torch.inf).reshape(len(poses), draws)
    best = loss.sort(1).values[:, : max(1, draws // 4)].mean(1)
    return poses[int(best.argmin())] if bool(torch.isfinite(best).any()) else poses[0]


class NeuronFit:
    """The pipeline as a solver.

    Args:
        method: ``"gd"``: gradient descent from the prior; ``"npe"``: draws of an amortised posterior;
            ``"npe+refine"``: those, refined by gradient descent.
        npe: a trained posterior, for the last two; trained here on ``simulations`` draws where not given.
        report: called with step and loss.
    """

    def __init__(
        self,
        method: Literal["gd", "npe", "npe+refine"] = "gd",
        *,
        npe: AmortisedPosterior | None = None,
        simulations: int = 20_000,
        samples: int = SAMPLES,
        refine: DescentOptions = REFINE,
        report: Report | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        seed: int = 0,
    ) -> None:
        if method not in METHODS:
            raise ValueError(f"method={method!r} is none of {', '.join(METHODS)}")
        if simulations < 10 or samples < 1:
            raise ValueError(f"simulations={simulations} must be at least 10, samples={samples} at least 1")
        self.method, self.npe, self.simulations, self.samples = method, npe, simulations, samples
        self.refine, self.report, self.seed = refine, report, seed
        self.checkpoint, self.resume = checkpoint, resume

    def solve(self, problem: FitProblem) -> NeuronPosterior:
        """Fit one neuron.

        Raises:
            ValueError: an image without a spike; for the amortised routes, too few cathodic thresholds.
        """
        resume = self.resume and self.checkpoint is not None and self.checkpoint.is_file()
        if self.method == "gd":
            cell, observation = problem.prepared()
            descent = GradientDescent(cell, observation, problem.options)
            return descent.fit(report=self.report, checkpoint=self.checkpoint, resume=resume)
        # The flow was trained in the frame of the image's own pose, so it is asked in that.
        observation = observe(problem.recording)
        cell = problem.cell.at(observation.estimate.pose)
        warn_of_a_short_axon(cell, observation)
        cathodic = int((observation.patterns.sum(1) < 0).sum())
        if not cathodic:
            raise ValueError("the amortised posterior needs cathodic thresholds")
        count = 5 if self.npe is None else sum(n.startswith("log threshold") for n in self.npe.names)
        array = observation.recording.electrodes
        simulator = Simulator(
            problem.cell, array, observation.noise, min(count, cathodic) if self.npe is None else count
        )
        npe = self.npe or train_amortised(simulator, self.simulations, seed=self.seed)
        features = simulator.observed(observation, cell.pose)
        npe.condition(features)
        drawn = npe.sample(self.samples, seed=self.seed)
        theta, rho = drawn[:, :-1], drawn[:, -1]
        if self.method == "npe+refine":
            same = {k: getattr(problem.options, k) for k in ("features", "window", "tolerance", "duration")}
            options = replace(self.refine, **same)
            refinement = Refinement(cell, observation, theta[:REFINED], options)
            found = refinement.fit(report=self.report, checkpoint=self.checkpoint, resume=resume)
            return replace(found, rho=rho[: len(found.theta)])
        nothing = theta.new_zeros(len(theta), len(array))
        with torch.no_grad():
            losses, _ = GradientDescent(cell, observation, replace(problem.options, screen=1)).losses(
                theta, nothing
            )
        return NeuronPosterior(
            cell,
            array,
            theta,
            theta.new_full((len(theta),), 1 / len(theta)),
            nothing,
            rho,
            losses,
            "npe",
            observation.recording.waveform,
            {"log_prob": float(npe.log_prob(drawn).mean())},
            observation,
        )


def fit(
    ei: Any,
    fs: float | None = None,
    electrodes: Any = None,
    *,
    curves: Sequence[ActivationCurve] = (),
    thresholds: Mapping[int, tuple[float, float]] | None = None,
    method: Literal["gd", "npe", "npe+refine"] = "gd",
    features: Literal["amp+thr", "full"] = "amp+thr",
    npe: AmortisedPosterior | None = None,
    cell: RGC | None = None,
    units: Literal["uV", "mV", "V", "raw"] | None = None,
    gain: float | None = None,
    unit: int = 0,
    waveform: Waveform | None = None,
    noise: float | None = None,
    options: DescentOptions | None = None,
    report: Report | None = None,
    seed: int = 0,
) -> NeuronPosterior:
    """Fit a neuron to its electrical image and to thresholds of single electrodes.

    Args:
        ei: [electrodes, samples] with ``units``, or a ``Templates`` object of spikeinterface.
        fs: samples a second.
        electrodes: places [electrodes, 2 or 3] in µm, or an array object.
        curves, thresholds: activation curves, or ``{electrode: (anodic, cathodic)}`` in µA, NaN for none.
        method, npe: see :class:`NeuronFit`.
        features: ``"amp+thr"``: amplitudes and thresholds (the best in the paper); ``"full"``: durations and
            delays too.
        cell: the model; a retinal ganglion cell by default.
        options: of the descent.

    Raises:
        ValueError: what :class:`icml_hhmea.recordings.Recording` and ``observe`` refuse.
    """
    recording = Recording.build(
        ei,
        fs,
        electrodes,
        curves=curves,
        thresholds=thresholds,
        units=units,
        gain=gain,
        unit=unit,
        waveform=waveform,
        noise=noise,
    )
    chosen = replace(options or DescentOptions(seed=seed), features=features)
    problem = FitProblem(recording, cell or RGC(), chosen)
    return NeuronFit(method, npe=npe, report=report, seed=seed).solve(problem)
