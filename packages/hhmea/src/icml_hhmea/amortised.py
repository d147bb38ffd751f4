"""Features of a neuron in its own frame, the same for every neuron, and simulations that train the flow on
them.

Log amplitudes are interpolated to 5 x 13 places along the axon; velocity, decay length, place and size of the
largest trough follow, then the cathodic thresholds of the electrodes with the largest troughs with their
places in that frame, and the width of the activation curves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.features import EIFeatures, canonical, electrical_image, summaries
from icml_hhmea.npe import AmortisedPosterior, NPEOptions
from icml_hhmea.parameters import Bounds
from icml_hhmea.pose import estimate_pose
from icml_hhmea.recordings import Observation, choose_electrodes
from icml_hhmea.rgc import RGC
from icml_hhmea.simulation import settle
from icml_hhmea.thresholds import Protocol, log_thresholds

RHO = (0.02, 0.12)
LOCATION = ("along", "across", "turn")


@dataclass(frozen=True)
class Simulator:
    """What draws simulated neurons for training.

    Attributes:
        cell: the model; its pose does not matter.
        noise: standard deviation of images, µV.
        count: electrodes with a threshold.
        spot: half the width of the square around the array's middle in which somata lie, µm; the array's own
            by default.
        threshold_noise: relative standard deviation of measured thresholds.
        dt, every: of simulations.
    """

    cell: RGC
    electrodes: ElectrodeArray
    noise: float = 2.0
    count: int = 5
    spot: float | None = None
    threshold_noise: float = 0.02
    dt: float = 0.025
    every: int = 2
    window: float = 3.0

    @property
    def bounds(self) -> Bounds:
        """The cell's, and the relative noise of thresholds, which is inferred too."""
        b = self.cell.bounds
        return Bounds((*b.names, "rho"), (*b.low, RHO[0]), (*b.high, RHO[1]), (*b.log, True))

    @property
    def square(self) -> tuple[Float[Tensor, " 2"], float]:
        """Middle and half width of the square in which somata lie, µm."""
        xy = self.electrodes.xyz[:, :2]
        low, high = xy.min(0).values, xy.max(0).values
        own = max(float((high - low).max()) / 2, self.electrodes.pitch)
        return (low + high) / 2, own if self.spot is None else self.spot

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        grid = [f"log amplitude at {a}, {c}" for a in range(-3, 10) for c in range(-2, 3)]
        rest = ["log velocity", "log decay length", "place of the largest trough", "log largest trough"]
        per = [f"{what} {k}" for k in range(self.count) for what in ("log threshold", "along", "across")]
        return (*grid, *rest, *per, "log width of curves")

    def draw(
        self, n: int, seed: int, *, group: int = 64, report: Callable[[int, int], None] | None = None
    ) -> tuple[Float[Tensor, "n parameters"], Float[Tensor, "n features"]]:
        """theta, in the frame of each neuron's estimated pose, and features; NaN features where a neuron does
        not fire, its pose cannot be found, or lies beyond the bounds."""
        generator = torch.Generator().manual_seed(seed)
        thetas, rows = [], []
        for begin in range(0, n, group):
            size = min(group, n - begin)
            found = self._group(size, generator)
            thetas.append(found[0])
            rows.append(found[1])
            if report is not None:
                report(begin + size, n)
        return torch.cat(thetas), torch.cat(rows)

    def _group(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        bounds = self.bounds
        theta = bounds.sample(size, generator)
        place = torch.rand(size, 3, generator=generator, dtype=torch.float64)
        middle, half = self.square
        spread = half * (2 * place[:, :2] - 1)
        pose = torch.cat([middle + spread, 2 * math.pi * place[:, 2:]], 1)
        where = [bounds.index(name) for name in LOCATION]
        theta[:, where] = 0.0
        cell = self.cell.at(pose)
        inner = theta[:, :-1]
        features = torch.full((size, len(self.names)), torch.nan, dtype=torch.float64)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            state = settle(cell, inner, cell.cable(inner), dt=self.dt)
            phi, fired = electrical_image(
                cell, inner, self.electrodes, dt=self.dt, every=self.every, duration=3.0, state=state
            )
            phi = phi + self.noise * torch.randn(phi.shape, generator=generator, dtype=phi.dtype)
            xy = self.electrodes.xyz.numpy()
            estimates = pose.clone()
            chosen = np.zeros((size, self.count), dtype=np.int64)
            good = fired.clone()
            for k in range(size):
                if not bool(fired[k]):
                    continue
                ei = phi[k].T.numpy()
                try:
                    found = estimate_pose(ei, xy, noise=self.noise, pitch=self.electrodes.pitch).pose
                except ValueError:
                    good[k] = False
                    continue
                estimates[k] = torch.tensor([found.x, found.y, found.angle])
                picked = choose_electrodes(ei, self.count, xy=xy)
                good[k] = len(picked) == self.count
                chosen[k, : len(picked)] = picked
            offset = relative(pose, estimates)
            low, high = (torch.tensor(v, dtype=torch.float64)[where] for v in (bounds.low, bounds.high))
            good &= ((offset > low) & (offset < high)).all(1)
            theta[:, where] = torch.where(good[:, None], offset, 0.0)
            index = torch.from_numpy(chosen)
            patterns = torch.zeros(size, self.count, len(self.electrodes), dtype=torch.float64)
            patterns.scatter_(2, index[..., None], -1.0)
            protocol = Protocol(window=self.window, dt=self.dt, tolerance=0.03, high=60.0)
            levels = log_thresholds(cell, inner, self.electrodes, patterns, protocol, state=state)
            levels = levels.clamp(max=math.log(60.0))
            rho = theta[:, -1:]
            noise = torch.randn(levels.shape, generator=generator, dtype=levels.dtype)
            levels = levels + self.threshold_noise * noise
            width = rho.log() + 0.2 * torch.randn(size, 1, generator=generator, dtype=rho.dtype)
            features[good] = self._vector(phi, estimates, index, levels, width)[good]
        return theta, features

    def observed(self, observation: Observation, pose: Float[Tensor, " 3"]) -> Float[Tensor, " features"]:
        """The features of a measured neuron in the frame of a pose.

        Raises:
            ValueError: fewer cathodic thresholds than the flow was trained with.
        """
        recording = observation.recording
        cathodic = {
            int(c): float(level)
            for c, level, row in zip(
                observation.channel, observation.log_threshold, observation.patterns, strict=True
            )
            if float(row.sum()) < 0
        }
        order = [e for e in np.argsort(recording.ei.min(1), kind="stable").tolist() if e in cathodic][
            : self.count
        ]
        if len(order) < self.count:
            raise ValueError(f"{len(order)} cathodic thresholds; the flow was trained with {self.count}")
        phi = torch.as_tensor(recording.ei.T.copy())[None]
        where = pose.reshape(1, 3).double()
        levels = torch.tensor([[cathodic[e] for e in order]], dtype=torch.float64)
        width = torch.tensor([[math.log(recording.rho)]], dtype=torch.float64)
        model = replace(self, noise=observation.noise)
        return model._vector(phi, where, torch.tensor([order]), levels, width, 1e3 / recording.fs)[0]

    def _vector(
        self,
        phi: Tensor,
        poses: Tensor,
        chosen: Tensor,
        levels: Tensor,
        width: Tensor,
        dt: float | None = None,
    ) -> Tensor:
        found = EIFeatures(dt or self.dt * self.every, "hard")(phi)
        floor = math.log(3 * self.noise)
        grid = canonical(found.log(3 * self.noise)[:, 0], self.electrodes, poses, floor)
        away = self.electrodes.xyz[:, :2][chosen] - poses[:, None, :2]
        c, s = poses[:, None, 2].cos(), poses[:, None, 2].sin()
        along, across = c * away[..., 0] + s * away[..., 1], c * away[..., 1] - s * away[..., 0]
        single = torch.stack([levels, along, across], 2).flatten(1)
        return torch.cat([grid, summaries(found, self.electrodes, poses, self.noise), single, width], 1)


def relative(pose: Float[Tensor, "n 3"], estimate: Float[Tensor, "n 3"]) -> Float[Tensor, "n 3"]:
    """A pose in the frame of an estimated one: along, across (µm) and turn (rad)."""
    d = pose[:, :2] - estimate[:, :2]
    c, s = estimate[:, 2].cos(), estimate[:, 2].sin()
    turn = torch.remainder(pose[:, 2] - estimate[:, 2] + math.pi, 2 * math.pi) - math.pi
    return torch.stack([c * d[:, 0] + s * d[:, 1], c * d[:, 1] - s * d[:, 0], turn], 1)


def train_amortised(
    simulator: Simulator,
    n: int,
    *,
    seed: int = 0,
    options: NPEOptions | None = None,
    report: Callable[[str, int, int], None] | None = None,
) -> AmortisedPosterior:
    """Draw n simulations and train the flow on them."""
    theta, features = simulator.draw(
        n, seed, report=None if report is None else lambda k, m: report("simulations", k, m)
    )
    model = AmortisedPosterior(simulator.bounds, features.shape[1], options, simulator.names)
    epochs = model.options.epochs
    told = None if report is None else lambda epoch, value: report("epochs", epoch + 1, epochs)
    return model.train(theta, features, report=told)
