"""A synthetic retina: hidden neurons under an array, what an experiment would measure of them, and the truth.

Hidden neurons differ from the model that is fitted: twice the compartments, half the time step or less,
dendrites that branch out in other numbers and directions, a conductivity outside the model's bounds,
thresholds that vary from trial to trial, images with noise.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.channels import Channel, Gate, Rate, retinal_ganglion
from icml_hhmea.curves import ActivationCurve, probability
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.features import electrical_image
from icml_hhmea.parameters import Bounds
from icml_hhmea.recordings import Recording, choose_electrodes
from icml_hhmea.rgc import RGC, Dendrite, Pose
from icml_hhmea.simulation import settle
from icml_hhmea.thresholds import Protocol, log_thresholds

TRUE_DT = 0.005
MOST_TRIES = 40
REACH_UA = 40.0  # the largest current that an experiment tries


@dataclass(frozen=True)
class RetinaOptions:
    """How experiments on hidden neurons go.

    Attributes:
        rings, pitch: of the hexagonal array.
        noise: of the image, µV.
        rho: relative noise of thresholds from trial to trial.
        curves: electrodes with activation curves, both signs each.
        levels, trials: amplitudes of a curve, and pulses at each.
        dt: ms, of the hidden neuron.
        refine: factor of its compartments.
        axon_speed: factor of all rates (kinetics the model does not know).
        spread: of parameters, as a share of the prior's width around its middle.
    """

    rings: int = 4
    pitch: float = 30.0
    noise: float = 2.0
    rho: float = 0.05
    curves: int = 5
    levels: int = 8
    trials: int = 25
    dt: float = TRUE_DT
    refine: int = 2
    axon_speed: float = 1.0
    spread: float = 0.7
    fs: float = 20_000.0
    wrong_medium: bool = True


@dataclass(frozen=True)
class HiddenNeuron:
    """The truth, and what was measured.

    Attributes:
        recording: for a fit.
        chosen: electrodes with thresholds.
        curves: their activation curves.
    """

    cell: RGC
    theta: Tensor
    recording: Recording
    chosen: tuple[int, ...]
    curves: tuple[ActivationCurve, ...]
    options: RetinaOptions
    protocol: Protocol

    def log_scales(self, patterns: Float[Tensor, "patterns electrodes"]) -> Float[Tensor, " patterns"]:
        """log of the scale at which each pattern fires the neuron."""
        return _scales(self.cell, self.theta, self.recording.electrodes, patterns, self.protocol)

    def respond(self, log_scale: Float[Tensor, " patterns"], generator: torch.Generator) -> Tensor:
        """One trial of each pattern: whether it fired."""
        p = torch.from_numpy(probability(log_scale.exp().numpy(), self.options.rho))
        return torch.rand(p.shape, generator=generator, dtype=p.dtype) < p


@dataclass(frozen=True)
class Triplets:
    """Patterns of three electrodes, and what happened.

    Attributes:
        patterns: µA, [patterns, electrodes].
        log_scale: of the true threshold relative to each pattern.
        fired: in one trial.
        ceiling: share of trials that somebody who knows the truth would predict.
    """

    patterns: Tensor
    log_scale: Tensor
    fired: Tensor
    ceiling: float


def hidden_neuron(seed: int, options: RetinaOptions | None = None) -> HiddenNeuron:
    """Draw a neuron that fires, and measure it.

    Raises:
        ValueError: no draw of many fires and can be stimulated at enough electrodes.
    """
    opt = options or RetinaOptions()
    generator = torch.Generator().manual_seed(seed)
    electrodes = ElectrodeArray.hexagon(opt.rings, opt.pitch)
    for _ in range(MOST_TRIES):
        found = _try(opt, electrodes, generator)
        if found is not None:
            return found
    raise ValueError(f"no neuron of seed {seed} fires and has {opt.curves} electrodes with thresholds")


def triplets(
    neuron: HiddenNeuron, count: int, seed: int, *, half_width: float = 0.5, among: int | None = None
) -> Triplets:
    """Unseen patterns on three of the electrodes with thresholds.

    Signs are random, amplitudes in random proportion to each electrode's own threshold; the whole is scaled
    by exp(uniform in -half_width to half_width) times its true threshold, so that about half of the patterns
    fire.
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = list(neuron.chosen[: among or len(neuron.chosen)])
    size = len(neuron.recording.electrodes)
    patterns, scales = torch.zeros(0, size, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
    for _ in range(6):
        missing = count - len(patterns)
        if missing <= 0:
            break
        drawn = torch.zeros(missing + 8, size, dtype=torch.float64)
        for row in drawn:
            picked = torch.randperm(len(chosen), generator=generator)[:3].tolist()
            for k in picked:
                e = chosen[k]
                pair = neuron.recording.thresholds[e]
                side = int(torch.randint(2, (1,), generator=generator))
                level = pair[side] if not math.isnan(pair[side]) else -pair[1 - side]
                row[e] = level * float(0.2 + 0.8 * torch.rand(1, generator=generator))
        found = neuron.log_scales(drawn)
        fine = torch.isfinite(found)
        patterns, scales = torch.cat([patterns, drawn[fine]]), torch.cat([scales, found[fine]])
    patterns, scales = patterns[:count], scales[:count]
    factor = half_width * (2 * torch.rand(len(patterns), generator=generator, dtype=torch.float64) - 1)
    # At the threshold scale, times exp(factor): the threshold then lies at exp(-factor) of the pattern.
    given = patterns * (scales + factor).exp()[:, None]
    level = -factor
    p = probability(level.exp().numpy(), neuron.options.rho)
    return Triplets(given, level, neuron.respond(level, generator), float(np.maximum(p, 1 - p).mean()))


def accelerated(speed: float) -> tuple[Channel, ...]:
    """The ganglion cell's channels with all rates multiplied."""

    def faster(rate: Rate) -> Rate:
        return replace(rate, amplitude=rate.amplitude * speed)

    return tuple(
        replace(c, gates=tuple(Gate(faster(g.alpha), faster(g.beta), g.power) for g in c.gates))
        for c in retinal_ganglion()
    )


def _try(opt: RetinaOptions, electrodes: ElectrodeArray, generator: torch.Generator) -> HiddenNeuron | None:
    def uniform(low: float, high: float) -> float:
        return low + (high - low) * float(torch.rand(1, generator=generator, dtype=torch.float64))

    angle = uniform(0, 2 * math.pi)
    back = 0.5 * opt.rings * opt.pitch
    pose = Pose(-back * math.cos(angle) + uniform(-15, 15), -back * math.sin(angle) + uniform(-15, 15), angle)
    count = int(uniform(3, 6))
    dendrites = [
        Dendrite((k + 0.5) / count * 3.2 - 1.6 + uniform(-0.2, 0.2), uniform(60, 140), uniform(1.5, 3.0))
        for k in range(count)
    ]
    inside = RGC().bounds
    names = {n: (a, b) for n, a, b in zip(inside.names, inside.low, inside.high, strict=True)}
    if opt.wrong_medium:
        names["sigma"] = (0.04, 0.25)
    wide = Bounds(
        inside.names, tuple(a for a, _ in names.values()), tuple(b for _, b in names.values()), inside.log
    )
    cell = RGC(
        pose,
        refine=opt.refine,
        dendrites=dendrites,
        bounds=wide,
        channels=retinal_ganglion() if opt.axon_speed == 1 else accelerated(opt.axon_speed),
    )
    unit = 0.5 + opt.spread * (torch.rand(len(wide), generator=generator, dtype=torch.float64) - 0.5)
    theta = wide.from_unit(unit)[None].clone()
    for name in ("along", "across", "turn"):
        theta[0, wide.index(name)] = 0.0
    if opt.wrong_medium:  # outside 0.067 to 0.15 S/m, on one side or the other
        low = uniform(0, 1) < 0.5
        theta[0, wide.index("sigma")] = uniform(0.05, 0.062) if low else uniform(0.16, 0.2)
    protocol = Protocol(dt=opt.dt, tolerance=0.003, high=REACH_UA)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = settle(cell, theta, cell.cable(theta))
        every = max(1, round(1e3 / opt.fs / opt.dt))
        phi, fired = electrical_image(
            cell, theta, electrodes, dt=1e3 / opt.fs / every, every=every, duration=3.0, state=state
        )
        if not bool(fired[0]):
            return None
        ei = phi[0].T
        ei = ei + opt.noise * torch.randn(ei.shape, generator=generator, dtype=ei.dtype)
        xy = electrodes.xyz.numpy()
        candidates = choose_electrodes(ei.numpy(), opt.curves + 3, xy=xy)
        rows = torch.zeros(2 * len(candidates), len(electrodes), dtype=torch.float64)
        for k, e in enumerate(candidates):
            rows[2 * k, e], rows[2 * k + 1, e] = 1.0, -1.0
        levels = _scales(cell, theta, electrodes, rows, protocol).reshape(-1, 2)
    if float(-ei.min()) < 10 * opt.noise:
        return None
    usable = [k for k in range(len(candidates)) if bool(torch.isfinite(levels[k, 1]))][: opt.curves]
    if len(usable) < opt.curves:
        return None
    curves = []
    for k in usable:
        for side, sign in enumerate((1, -1)):
            if bool(torch.isfinite(levels[k, side])):
                level = math.exp(float(levels[k, side]))
                curves.append(_curve(candidates[k], sign, level, opt, generator))
    recording = Recording.build(ei.numpy(), opt.fs, electrodes, curves=curves, units="uV", noise=opt.noise)
    chosen = tuple(candidates[k] for k in usable)
    return HiddenNeuron(cell, theta, recording, chosen, tuple(curves), opt, protocol)


def _curve(
    electrode: int, sign: int, level: float, opt: RetinaOptions, generator: torch.Generator
) -> ActivationCurve:
    """Trials at amplitudes around threshold, the grid being off by some percent as an experimenter's is."""
    center = level * math.exp(0.08 * (2 * float(torch.rand(1, generator=generator)) - 1))
    amplitudes = center * np.linspace(0.75, 1.3, opt.levels)
    p = torch.from_numpy(probability(level / amplitudes, opt.rho))
    hits = torch.rand(len(p), opt.trials, generator=generator, dtype=p.dtype) < p[:, None]
    shares = hits.double().mean(1).tolist()
    return ActivationCurve(
        electrode, tuple((sign * amplitudes).tolist()), tuple(shares), (opt.trials,) * len(p)
    )


def _scales(
    cell: RGC, theta: Tensor, electrodes: ElectrodeArray, patterns: Tensor, protocol: Protocol
) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state = settle(cell, theta, cell.cable(theta))
        parts = [
            log_thresholds(cell, theta, electrodes, part, protocol, state=state)[0]
            for part in patterns.split(64)
        ]
    return torch.cat(parts) if parts else patterns.new_zeros(0)
