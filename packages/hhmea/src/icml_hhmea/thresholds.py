"""How strong a pattern of currents must be to fire a cell, and how that depends on the cell.

The scale lambda* at which a pattern just fires is found by bisection, all patterns and cells at once. Its
derivative follows from the implicit function theorem: with M(theta, lambda) the voltage at the spike site at
the moment of its crossing, just above threshold,

    d log lambda* / d theta = - (dM / d theta) / (dM / d log lambda)

Near threshold a spike's moment depends on every quantity through the distance from threshold alone, so that
the quotient is the slope of the threshold's surface.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from icml_kernels import hh_run
from jaxtyping import Bool, Float
from torch import Tensor

from icml_hhmea.cell import Cable, CellModel
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.simulation import FIELD_LIMIT, State, activating, crossing_times, settle
from icml_hhmea.stimulus import Waveform

MOST_RUNS = 60
LARGEST_STEP = 2.0  # factor by which a search leaves its guess: narrower windows of firing may be missed


@dataclass(frozen=True)
class Protocol:
    """How a pattern is tried.

    Attributes:
        waveform: of all electrodes.
        window: a spike is an upward crossing of 0 mV at the spike site within this time, ms.
        dt: ms.
        tolerance: relative width at which bisection ends.
        low, high: scales beyond which is not looked.
    """

    waveform: Waveform = field(default_factory=Waveform.triphasic)
    window: float = 3.0
    dt: float = 0.02
    tolerance: float = 0.01
    low: float = 0.01
    high: float = 100.0

    def __post_init__(self) -> None:
        if not (
            self.window > 0 and 0 < self.dt <= 0.05 and 0 < self.tolerance < 1 and 0 < self.low < self.high
        ):
            raise ValueError(f"{self}: times, tolerance and scales must be positive, dt at most 0.05 ms")


@dataclass(frozen=True)
class Lanes:
    """Cells, each with a pattern: what one bisection needs.

    Attributes:
        drive: nA into each node by the waveform's 1 at a scale of 1, [nodes, lanes].
    """

    cable: Cable
    state: State
    drive: Tensor

    def tensors(self) -> tuple[Tensor, ...]:
        """All that a threshold depends on."""
        c, s = self.cable, self.state
        return (c.capacitance, c.axial, c.gmax, c.calcium_rate, self.drive, s.v, s.gates, s.calcium)

    @classmethod
    def of(cls, tensors: tuple[Tensor, ...]) -> Lanes:
        """The inverse of ``tensors``."""
        return cls(Cable(*tensors[:4]), State(*tensors[5:]), tensors[4])


def log_thresholds(
    cell: CellModel,
    theta: Float[Tensor, "batch parameters"],
    electrodes: ElectrodeArray,
    patterns: Float[Tensor, "patterns electrodes"],
    protocol: Protocol | None = None,
    *,
    guess: Float[Tensor, "batch patterns"] | None = None,
    spread: float = 2.0,
    state: State | None = None,
) -> Float[Tensor, "batch patterns"]:
    """log of the scale at which each pattern fires each cell; differentiable by theta.

    inf where none up to ``protocol.high`` does; NaN where that is undecided: the cell fires without any
    current, or |V| goes beyond 10 V before a scale that fires is found.

    Args:
        patterns: µA, [patterns, electrodes], or one set for each cell, [batch, patterns, electrodes].
        guess: where to begin, as log scales.
        spread: factor by which the first steps leave the guess.
        state: of the cells at the start; settled for 4 ms by default.
    """
    protocol = protocol or Protocol()
    state = settle(cell, theta, cell.cable(theta)) if state is None else state
    lanes = lanes_of(cell, theta, electrodes, patterns, state)
    count = patterns.shape[-2]
    begin = theta.new_zeros(len(theta), count) if guess is None else guess.detach().to(theta)
    found = _LogThreshold.apply(cell, protocol, begin.reshape(-1), spread, *lanes.tensors()).reshape(
        begin.shape
    )
    return torch.where(spontaneous(cell, theta, protocol, state)[:, None], torch.nan, found)


def lanes_of(
    cell: CellModel,
    theta: Float[Tensor, "batch parameters"],
    electrodes: ElectrodeArray,
    patterns: Float[Tensor, "patterns electrodes"],
    state: State | None = None,
) -> Lanes:
    """Every pattern at every cell, patterns varying fastest."""
    cable = cell.cable(theta)
    state = settle(cell, theta, cable) if state is None else state
    matrix = electrodes.matrix(cell.segments(theta), cell.sigma(theta))
    given = patterns.to(theta)
    given = given.expand(len(theta), -1, -1) if given.dim() == 2 else given
    outside = 1e3 * torch.einsum("ben,bme->nbm", matrix, given).reshape(cell.nodes, -1)
    index = torch.arange(len(theta), device=theta.device).repeat_interleave(given.shape[1])
    picked = cable.pick(index)
    return Lanes(picked, state.pick(index), activating(cell.parent, picked.axial, outside))


def spontaneous(
    cell: CellModel, theta: Float[Tensor, "batch parameters"], protocol: Protocol, state: State
) -> Bool[Tensor, " batch"]:
    """Which cells fire, or fail, without any current: they have no threshold."""
    with torch.no_grad():
        cable = cell.cable(theta)
        nothing = Lanes(cable, state, torch.zeros_like(cable.capacitance))
        fired, _, failed = fire(cell, nothing, theta.new_zeros(len(theta)), protocol)
    return fired | failed


def fire(
    cell: CellModel, lanes: Lanes, scale: Float[Tensor, " lanes"], protocol: Protocol
) -> tuple[Bool[Tensor, " lanes"], Float[Tensor, " lanes"], Bool[Tensor, " lanes"]]:
    """Whether each lane fires at a scale of its pattern, when (ms, NaN for never), and whether it failed. No
    gradient."""
    with torch.no_grad():
        trace, failed = _trace(cell, lanes, scale, protocol)
        times = crossing_times(trace[:, 0].T[..., None], protocol.dt)[:, 0]
    return ~torch.isnan(times), times, failed & torch.isnan(times)


def find_scales(
    cell: CellModel, lanes: Lanes, protocol: Protocol, guess: Float[Tensor, " lanes"], spread: float = 2.0
) -> tuple[Float[Tensor, " lanes"], Float[Tensor, " lanes"]]:
    """Largest scale that did not fire, smallest that did, by bisection in the logarithm.

    The second is inf where nothing fires up to the protocol's limit, and NaN where that is undecided. The
    first is 0 where the protocol's lowest scale fires already. Lanes that are decided leave; the others go
    on. A strong current may block the spike that a weaker one sets off: where nothing fires from the guess on
    upwards, the search goes on from the lowest scale to the guess.
    """
    begin = guess.exp().clamp(protocol.low, protocol.high)
    ceiling = torch.full_like(begin, protocol.high)
    low, high = _search(cell, lanes, protocol, begin, ceiling, spread)
    silent = (~(high < torch.inf) & (begin > protocol.low)).nonzero()[:, 0]
    if len(silent):
        part = Lanes.of(tuple(t.detach().index_select(-1, silent) for t in lanes.tensors()))
        below = torch.full_like(begin[silent], protocol.low)
        lower, upper = _search(cell, part, protocol, below, begin[silent], LARGEST_STEP)
        some = upper < torch.inf
        low[silent] = torch.where(some, lower, low[silent])
        high[silent] = torch.where(some, upper, high[silent])
    return low, high


def _search(
    cell: CellModel, lanes: Lanes, protocol: Protocol, begin: Tensor, ceiling: Tensor, spread: float
) -> tuple[Tensor, Tensor]:
    """Outward from ``begin`` until a scale that fires and one that does not are known, then bisection; both
    ends of the range are tried themselves."""
    low = torch.zeros_like(begin)
    high = torch.full_like(begin, torch.inf)
    x = begin.clone()
    step = torch.full_like(begin, spread)
    active = torch.arange(len(begin), device=begin.device)
    whole = lanes
    for _ in range(MOST_RUNS):
        if not len(active):
            break
        tried = x[active]
        fired, _, failed = fire(cell, lanes, tried, protocol)
        high[active] = torch.where(fired, tried, high[active])
        low[active] = torch.where(fired | failed, low[active], tried)
        lo, hi, top = low[active], high[active], ceiling[active]
        upward, downward = hi == torch.inf, lo == 0
        outward = torch.where(upward, lo * step[active], hi / step[active])
        outward = torch.minimum(outward.clamp(min=protocol.low), top)
        open_ended = upward | downward
        x[active] = torch.where(open_ended, outward, torch.sqrt(lo.clamp(min=1e-30) * hi))
        step[active] = torch.where(open_ended, (step[active] ** 1.5).clamp(max=LARGEST_STEP), step[active])
        ended = torch.where(upward, tried >= top, tried <= protocol.low)
        done = torch.where(open_ended, ended, hi <= lo * (1 + protocol.tolerance)) | failed
        high[active] = torch.where(failed, torch.nan, high[active])
        keep = (~done).nonzero()[:, 0]
        if len(keep) < len(active):
            active = active[keep]
            lanes = Lanes.of(tuple(t.detach().index_select(-1, active) for t in whole.tensors()))
    return low, high


def log_middle(
    low: Float[Tensor, "*lanes"], high: Float[Tensor, "*lanes"], protocol: Protocol
) -> Float[Tensor, "*lanes"]:
    """log of what ``find_scales`` gives: of the bracket's middle, of the lowest scale where that fires
    already, inf and NaN as they are."""
    floor = torch.where(low > 0, low, high).clamp(min=1e-30)
    return torch.where(high < torch.inf, 0.5 * (floor.log() + high.log()), high)


class _LogThreshold(torch.autograd.Function):
    """log lambda*; its derivative by the implicit function theorem, from one reverse sweep."""

    @staticmethod
    def forward(
        ctx: Any, cell: CellModel, protocol: Protocol, guess: Tensor, spread: float, *tensors: Tensor
    ) -> Tensor:
        lanes = Lanes.of(tuple(t.detach() for t in tensors))
        low, high = find_scales(cell, lanes, protocol, guess, spread)
        found = log_middle(low, high, protocol)
        ctx.slopes = _slopes(cell, lanes, high, protocol) if any(ctx.needs_input_grad[4:]) else ()
        return found

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        finite = torch.nan_to_num(g)
        return (None, None, None, None, *(finite * s for s in ctx.slopes))


def _slopes(cell: CellModel, lanes: Lanes, high: Tensor, protocol: Protocol) -> tuple[Tensor, ...]:
    """Derivatives of log lambda* by every tensor of the lanes; 0 where nothing fires."""
    fires = high < torch.inf
    scale = torch.where(fires, high, 0)
    with torch.enable_grad():
        leaves = tuple(t.detach().requires_grad_() for t in lanes.tensors())
        trace = _trace(cell, Lanes.of(leaves), scale, protocol)[0][:, 0]
        up = (trace[:-1] <= 0) & (trace[1:] > 0)
        first = up.double().argmax(0)
        rows = torch.stack([first, first + 1])
        pair = trace.gather(0, rows)
        share = (-pair[0] / (pair[1] - pair[0])).detach().nan_to_num().clamp(0, 1)
        level = (pair[0] * (1 - share) + pair[1] * share)[up.any(0)].sum()
        slopes = torch.autograd.grad(level, leaves)
    by_scale = (leaves[4] * slopes[4]).detach().sum(0)
    usable = fires & up.any(0) & (by_scale > 1e-9)
    factor = torch.where(usable, -1 / torch.where(usable, by_scale, 1), 0)
    return tuple(torch.nan_to_num(s) * factor for s in slopes)


def _trace(cell: CellModel, lanes: Lanes, scale: Tensor, protocol: Protocol) -> tuple[Tensor, Tensor]:
    """V at the spike site, [samples, 1, lanes], and which lanes failed."""
    steps = round(protocol.window / protocol.dt)
    like = lanes.drive
    site = torch.tensor([cell.spike_site], dtype=torch.int32, device=like.device)
    wave = protocol.waveform.samples(steps, protocol.dt).to(like)[None]
    c, s = lanes.cable, lanes.state
    given = (
        c.capacitance,
        c.axial,
        c.gmax,
        c.calcium_rate,
        (like * scale)[None],
        wave,
        s.v,
        s.gates,
        s.calcium,
    )
    found = hh_run(cell.parent, *given, cell.membrane(like), site, dt=protocol.dt, limit=FIELD_LIMIT)
    return found.trace, found.failed >= 0
