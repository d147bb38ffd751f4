"""A fitted neuron: weighted parameters, and what they say about patterns of stimulation.

    p(pattern) = sum_s w_s Phi((1 / lambda_s* - 1) / rho)

lambda_s* is the scale of the pattern at the threshold of particle s, rho the relative noise of thresholds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_hhmea.cell import CellModel
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.recordings import Observation
from icml_hhmea.simulation import settle
from icml_hhmea.stimulus import Waveform, require_pattern
from icml_hhmea.thresholds import Protocol, find_scales, fire, lanes_of, log_middle, spontaneous

KIND = "icml-hhmea-posterior"
LEAST_WEIGHT = 1e-3
SILENT = 9.0  # log scale of a pattern that never fires, in means
LANES = 2048
SITE_LANES = 256  # patterns whose voltages at all nodes are held at a time


@dataclass(frozen=True)
class Prediction:
    """Of patterns.

    Attributes:
        p: chance of a spike.
        log_scale: log of the scale of each pattern at threshold, by particle, [particles, patterns], inf for
            none, NaN where that is undecided (see ``log_thresholds``).
        latency: mean over particles of the spike's time at the spike site, ms, NaN where none fires.
        site: the node where the spike of the heaviest particle begins, -1 for none.
        undecided: how many particles have no say about each pattern: ``p`` is the others' (NaN for none).
    """

    p: Float[Tensor, " patterns"]
    log_scale: Float[Tensor, "particles patterns"]
    latency: Float[Tensor, " patterns"]
    site: Int[Tensor, " patterns"]
    undecided: Int[Tensor, " patterns"]

    @property
    def spike(self) -> Bool[Tensor, " patterns"]:
        """Whether a spike is more likely than not."""
        return self.p > 0.5

    @property
    def level(self) -> Float[Tensor, " patterns"]:
        """Mean log scale over the particles that have a say; ``SILENT`` where none fires, or none has one."""
        finite = torch.where(torch.isinf(self.log_scale), SILENT, self.log_scale)
        return finite.nanmean(0).nan_to_num(nan=SILENT)


@dataclass(frozen=True)
class NeuronPosterior:
    """Particles of one neuron.

    Attributes:
        theta: [particles, parameters].
        weights: [particles], sum 1.
        log_current: log of the factor by which each electrode's current counts, [particles, electrodes].
        rho: relative noise of thresholds, by particle.
        losses: of the particles, [particles].
        method: how it was found.
        diagnostics: figures of the fit.
    """

    cell: CellModel
    electrodes: ElectrodeArray
    theta: Tensor
    weights: Tensor
    log_current: Tensor
    rho: Tensor
    losses: Tensor
    method: str
    waveform: Waveform = field(default_factory=Waveform.triphasic)
    diagnostics: Mapping[str, float] = field(default_factory=dict)
    observation: Observation | None = field(default=None, repr=False, compare=False)

    @property
    def best(self) -> Float[Tensor, "1 parameters"]:
        """theta of the heaviest particle."""
        return self.theta[int(self.weights.argmax())][None]

    @property
    def effective(self) -> float:
        """Effective number of particles, 1 / sum w^2."""
        return float(1 / (self.weights**2).sum())

    def verify(self, problem: Any) -> None:
        """theta lies inside the bounds, weights sum to 1, and losses are those of theta on this problem.

        Args:
            problem: a :class:`icml_hhmea.fitting.FitProblem`.

        Raises:
            ValueError: something of that is not so.
        """
        self.cell.bounds.require(self.theta)
        if not bool((self.weights >= 0).all()) or abs(float(self.weights.sum()) - 1) > 1e-6:
            raise ValueError(f"the weights sum to {float(self.weights.sum()):g}, not 1")
        if not bool((self.rho > 0).all()):
            raise ValueError("rho must be positive")
        again = problem.losses(self)
        gap = float((again - self.losses).abs().max())
        if not gap <= 1e-6 * max(1.0, float(self.losses.abs().max())):
            raise ValueError(f"the losses of theta on this recording differ by {gap:.3g} from those stated")

    def predict(self, patterns: Any, *, protocol: Protocol | None = None, timing: bool = False) -> Prediction:
        """What patterns of currents would do.

        Args:
            patterns: µA, [patterns, electrodes] or [electrodes].
            protocol: the fit's waveform by default.
            timing: also find latencies and sites, which needs one more run.

        Raises:
            ValueError: another number of electrodes, currents that are not finite or above 1e3 µA.
        """
        given = require_pattern(patterns, len(self.electrodes))
        used = protocol or Protocol(waveform=self.waveform)
        kept = (self.weights >= LEAST_WEIGHT * float(self.weights.max())).nonzero()[:, 0]
        weights = self.weights[kept] / self.weights[kept].sum()
        theta = self.theta[kept]
        scaled = given * self.log_current[kept].exp()[:, None]
        log_scale = theta.new_full((len(theta), len(given)), torch.inf)
        silent = (given == 0).all(1)
        latency = torch.full_like(log_scale, torch.nan)
        site = torch.full((len(given),), -1, dtype=torch.int64)
        with torch.no_grad():
            state = settle(self.cell, theta, self.cell.cable(theta))
            restless = spontaneous(self.cell, theta, used, state)
            group = max(1, LANES // len(theta))
            for begin in range(0, len(given), group):
                part = slice(begin, min(begin + group, len(given)))
                lanes = lanes_of(self.cell, theta, self.electrodes, scaled[:, part], state)
                low, high = find_scales(
                    self.cell, lanes, used, torch.zeros(lanes.drive.shape[1], dtype=theta.dtype)
                )
                log_scale[:, part] = log_middle(low, high, used).reshape(len(theta), -1)
                if timing:
                    _, times, _ = fire(self.cell, lanes, torch.ones_like(high), used)
                    latency[:, part] = times.reshape(len(theta), -1)
        log_scale[:, silent] = torch.inf
        log_scale[restless] = torch.nan
        known = ~torch.isnan(log_scale)
        inverse = torch.exp(-log_scale)
        chance = torch.special.ndtr((inverse - 1) / self.rho[kept][:, None])
        said = (weights[:, None] * known).sum(0)
        p = (weights[:, None] * chance.nan_to_num()).sum(0) / said  # NaN where nobody has a say
        seen = ~torch.isnan(latency)
        mass = (weights[:, None] * seen).sum(0)
        mean = (weights[:, None] * latency.nan_to_num()).sum(0) / mass
        if timing:
            best = int(weights.argmax())
            parts = [self._sites(theta[best][None], rows, used) for rows in scaled[best].split(SITE_LANES)]
            site = torch.cat([site[:0], *parts])
        return Prediction(p, log_scale, torch.where(mass > 0, mean, torch.nan), site, (~known).sum(0))

    def _sites(self, one: Tensor, patterns: Tensor, protocol: Protocol) -> Tensor:
        """The node that is first above 0 mV after the pulse, of one particle; of several the highest."""
        from icml_hhmea.simulation import simulate
        from icml_hhmea.stimulus import ExtracellularPattern

        with torch.no_grad():
            state = settle(self.cell, one, self.cell.cable(one)).pick(
                torch.zeros(len(patterns), dtype=torch.int64)
            )
            stim = ExtracellularPattern(patterns, protocol.waveform)
            found = simulate(
                self.cell,
                one,
                stim,
                protocol.window,
                protocol.dt,
                record="all",
                electrodes=self.electrodes,
                start=state,
                on_failure="flag",
            )
        first = round(protocol.waveform.duration / protocol.dt) + 1
        above = found.v[:, first:] > 0
        row = above.any(2).double().argmax(1)
        fires = ~torch.isnan(found.spikes[:, self.cell.spike_site])
        place = found.v[:, first:][torch.arange(len(row)), row].argmax(1)
        return torch.where(fires, place, -1)

    def save(self, path: Path) -> None:
        """Write the particles, with the cell's fingerprint."""
        state = {
            "theta": self.theta,
            "weights": self.weights,
            "log_current": self.log_current,
            "rho": self.rho,
            "losses": self.losses,
            "array": self.electrodes.state(),
            "method": self.method,
            "phases": [list(p) for p in self.waveform.phases],
            "delay": self.waveform.delay,
            "diagnostics": {k: float(v) for k, v in self.diagnostics.items()},
            "pose": self.cell.pose if hasattr(self.cell, "pose") else None,
        }
        save_state(path, state, kind=KIND, identity=_identity(self.cell))

    @classmethod
    def load(
        cls, path: Path, cell: CellModel | None = None, electrodes: ElectrodeArray | None = None
    ) -> NeuronPosterior:
        """Read a posterior for this cell.

        Args:
            cell: the default retinal ganglion cell where not given.
            electrodes: the array in the file by default.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: no such file's content, entries that lack or do not fit, or a file of another cell:
                the fingerprints are shown.
        """
        from icml_hhmea.rgc import RGC

        owner = RGC() if cell is None else cell
        state = load_state(Path(path), kind=KIND, identity=_identity(owner))
        names = ("theta", "weights", "log_current", "rho", "losses", "method")
        missing = {*names, "array", "phases", "delay", "diagnostics", "pose"} - set(state)
        if missing:
            raise ValueError(f"{path} lacks {', '.join(sorted(missing))}")
        if isinstance(owner, RGC) and state["pose"] is not None:
            owner = owner.at(state["pose"])
        array = electrodes or ElectrodeArray.of_state(state["array"])
        wave = Waveform(tuple((float(h), float(d)) for h, d in state["phases"]), state["delay"])
        _require_particles(Path(path), state, len(owner.bounds), len(array))
        owner.bounds.require(state["theta"])
        return cls(owner, array, *(state[n] for n in names), wave, state["diagnostics"])


def _require_particles(path: Path, state: Mapping[str, Any], parameters: int, electrodes: int) -> None:
    count = len(state["weights"])
    shapes = {"theta": (count, parameters), "log_current": (count, electrodes)}
    shapes |= dict.fromkeys(("weights", "rho", "losses"), (count,))
    for name, shape in shapes.items():
        value = state[name]
        if not isinstance(value, Tensor) or tuple(value.shape) != shape or not count:
            raise ValueError(f"{path}: {name} has another shape than {list(shape)}")
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{path}: {name} is not finite")


def _identity(cell: CellModel) -> dict[str, Any]:
    return {"cell": type(cell).__name__, "fingerprint": cell.fingerprint()}
