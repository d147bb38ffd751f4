"""Cells in time: voltages, potentials at electrodes, spikes; differentiable by the cells' parameters.

The scheme is NEURON's: implicit Euler in V, gates staggered (``icml_kernels.hh_run``). An electrode's current
acts through differences of the outside potential along the tree (activating function):

    I_i = sum_j g_ij (Ve_j - Ve_i),   Ve_i = sum_e Z_ei I_e

and the potential at an electrode is sum_i Z_ei Im_i with the membrane currents Im_i = sum_j g_ij (V_j - V_i)
+ the current injected into i.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from icml_kernels import hh_run
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.cell import Cable, CellModel
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.stimulus import ExtracellularPattern, IClamp

LARGEST_DT = 0.05
V_START = -65.0
CLAMP_LIMIT = 200.0  # mV: beyond it a clamped cell has left the model
FIELD_LIMIT = 1e4  # mV: a field of a few µA polarises a thin axon by hundreds
BYTES = 2**28  # of the voltages of all nodes that are held at a time where potentials are wanted
Stimulus = ExtracellularPattern | IClamp


class SimulationError(ValueError):
    """A cell's |V| went beyond the limit or became NaN.

    Attributes:
        step, lane: when and in which cell of the batch.
        node: the compartment where |V| was largest when the lane was stopped.
    """

    def __init__(self, step: int, node: int, lane: int, limit: float = CLAMP_LIMIT) -> None:
        super().__init__(
            f"V left -{limit:g} to {limit:g} mV at step {step} near compartment {node} of cell {lane}; use "
            "a smaller dt or other parameters, or on_failure='flag' to go on with the other cells"
        )
        self.step, self.node, self.lane = step, node, lane


@dataclass(frozen=True)
class State:
    """V [nodes, batch] in mV, gates [gates, nodes, batch], calcium [nodes, batch] in mM."""

    v: Tensor
    gates: Tensor
    calcium: Tensor

    def pick(self, lanes: Tensor) -> State:
        """Columns, with repetitions."""
        return State(*(t.index_select(-1, lanes) for t in (self.v, self.gates, self.calcium)))


@dataclass(frozen=True)
class SimResult:
    """What ``simulate`` gives.

    Attributes:
        v: mV at the recorded places, [batch, samples, places].
        phi: µV at the electrodes, [batch, samples, electrodes], or None.
        t: ms, [samples].
        spikes: time of the first upward crossing of 0 mV at each recorded place, ms, NaN for none, [batch,
            places].
        failed: step at which a cell was stopped, or -1, [batch].
        im: membrane currents in nA, [batch, samples, nodes], where asked for.
    """

    v: Tensor
    phi: Tensor | None
    t: Tensor
    spikes: Tensor
    failed: Tensor
    im: Tensor | None = None


def simulate(
    cell: CellModel,
    params: Mapping[str, Tensor | float] | Tensor | None = None,
    stim: Stimulus | Sequence[Stimulus] | None = None,
    T: float = 5.0,
    dt: float = 0.01,
    *,
    record: Sequence[int | str] | str | None = None,
    electrodes: ElectrodeArray | None = None,
    every: int = 1,
    start: State | float | None = None,
    currents: bool = False,
    force: bool = False,
    on_failure: str = "raise",
    limit: float | None = None,
) -> SimResult:
    """Run a batch of cells.

    Args:
        cell: of any kind.
        params: theta [batch, parameters], or named values; the module's own parameters by default.
        stim: what is injected, one or several; their batches and theta's agree, or are 1.
        T: ms.
        dt: ms.
        record: places, as ``cell.node`` takes them; the first node and the spike site by default, ``"all"``
            for every node.
        electrodes: for extracellular stimuli, and for the potentials ``phi``.
        every: steps from one sample to the next.
        start: a state, or V in mV with steady gates; -65 by default.
        currents: also give membrane currents.
        force: allow a dt above 0.05 ms.
        on_failure: ``"raise"``, or ``"flag"`` to freeze the cell, mark it in ``failed``, and go on.
        limit: mV, beyond which |V| is a failure: 200, and 1e4 where a stimulus is extracellular.

    Raises:
        ValueError: a T or dt that is not positive, dt above 0.05 without ``force``, theta outside its bounds,
            an extracellular stimulus without electrodes, amplitudes for another number of electrodes, batches
            that do not fit.
        SimulationError: a cell's |V| went beyond the limit.
    """
    _check(T, dt, every, force, on_failure)
    theta = cell.batch(params)
    stimuli = (
        [] if stim is None else [stim] if isinstance(stim, ExtracellularPattern | IClamp) else list(stim)
    )
    sizes = {len(theta)} | {_batch_of(s) for s in stimuli}
    batch = max(sizes)
    if sizes - {1, batch}:
        raise ValueError(f"batches of {sorted(sizes)} cells and stimuli do not fit; give one size, or 1")
    theta = theta.expand(batch, -1)
    needs_field = any(isinstance(s, ExtracellularPattern) for s in stimuli)
    if needs_field and electrodes is None:
        raise ValueError("an extracellular pattern needs electrodes=")
    bound = (FIELD_LIMIT if needs_field else CLAMP_LIMIT) if limit is None else float(limit)
    steps = round(T / dt)
    cable = cell.cable(theta)
    matrix = None if electrodes is None else electrodes.matrix(cell.segments(theta), cell.sigma(theta))
    drive, waveform = _drives(cell, cable, stimuli, matrix, theta, steps, dt)
    first = (
        start
        if isinstance(start, State)
        else resting(cell, theta, V_START if start is None else float(start))
    )
    sites = ["soma" if "soma" in cell.regions else 0, cell.spike_site] if record is None else record
    nodes = (
        list(range(cell.nodes))
        if sites == "all"
        else [cell.node(s) for s in ([sites] if isinstance(sites, str) else sites)]
    )
    whole = matrix is not None or currents
    group = batch
    if whole:
        each = cell.nodes * (steps // every + 1) * theta.element_size()
        group = max(1, min(batch, BYTES // each))
    parts = []
    for begin in range(0, batch, group):
        lanes = torch.arange(begin, min(begin + group, batch), device=theta.device)
        parts.append(
            _run(
                cell,
                cable.pick(lanes),
                first.pick(lanes),
                drive.index_select(-1, lanes),
                waveform,
                matrix[lanes] if matrix is not None else None,
                nodes,
                dt,
                every,
                whole,
                currents,
                bound,
            )
        )
    v, phi, im, failed = (
        None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)
    )
    if on_failure == "raise" and bool((failed >= 0).any()):
        lane = int((failed >= 0).nonzero()[0])
        place = int(v[lane, -1].detach().abs().argmax()) if v.shape[2] else 0
        raise SimulationError(int(failed[lane]), nodes[place] if nodes else 0, lane, bound)
    t = torch.arange(v.shape[1], dtype=torch.float64) * dt * every
    return SimResult(v, phi, t, crossing_times(v, dt * every), failed, im)


def resting(cell: CellModel, theta: Tensor, v: float = V_START) -> State:
    """V everywhere with steady gates and resting calcium."""
    voltage = theta.new_full((cell.nodes, len(theta)), v)
    gates = cell.membrane(theta).steady_gates(voltage)
    return State(voltage, gates, torch.full_like(voltage, cell.pool.rest))


def settle(cell: CellModel, theta: Tensor, cable: Cable, *, duration: float = 4.0, dt: float = 0.02) -> State:
    """The state after some time without a stimulus; differentiable."""
    begin = resting(cell, theta)
    steps = round(duration / dt)
    nothing = theta.new_zeros(0, cell.nodes, len(theta))
    found = hh_run(
        cell.parent,
        cable.capacitance,
        cable.axial,
        cable.gmax,
        cable.calcium_rate,
        nothing,
        theta.new_zeros(0, steps),
        begin.v,
        begin.gates,
        begin.calcium,
        cell.membrane(theta),
        torch.zeros(0, dtype=torch.int32, device=theta.device),
        dt=dt,
        every=steps,
    )
    return State(found.v, found.gates, found.calcium)


def activating(parent: Tensor, axial: Tensor, outside: Tensor) -> Float[Tensor, "*samples nodes batch"]:
    """nA into each node: sum_j g_ij (Ve_j - Ve_i), for Ve [..., nodes, batch] in mV."""
    above, has = parent.clamp(min=0).long(), (parent >= 0)[:, None]
    flow = torch.where(has, axial * (outside.index_select(-2, above) - outside), 0)
    return flow.index_add(-2, above, flow, alpha=-1)


def crossing_times(v: Tensor, dt: float, level: float = 0.0) -> Float[Tensor, "batch places"]:
    """First upward crossing of a level along samples [batch, samples, places], ms, interpolated; NaN for
    none."""
    low, high = v[:, :-1].detach(), v[:, 1:].detach()
    up = (low <= level) & (high > level)
    first = up.double().argmax(1, keepdim=True)
    a, b = low.gather(1, first)[:, 0], high.gather(1, first)[:, 0]
    time = (first[:, 0] + ((level - a) / (b - a)).nan_to_num()) * dt
    return torch.where(up.any(1), time, torch.nan)


def _run(
    cell: CellModel,
    cable: Cable,
    first: State,
    drive: Tensor,
    waveform: Tensor,
    matrix: Tensor | None,
    nodes: list[int],
    dt: float,
    every: int,
    whole: bool,
    currents: bool,
    limit: float,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor]:
    kept = list(range(cell.nodes)) if whole else nodes
    found = hh_run(
        cell.parent,
        cable.capacitance,
        cable.axial,
        cable.gmax,
        cable.calcium_rate,
        drive,
        waveform,
        first.v,
        first.gates,
        first.calcium,
        cell.membrane(cable.capacitance),
        torch.tensor(kept, dtype=torch.int32, device=drive.device),
        dt=dt,
        every=every,
        limit=limit,
    )
    failed = found.failed.long()
    if not whole:
        return found.trace.permute(2, 0, 1), None, None, failed
    samples = len(found.trace)
    im = activating(cell.parent, cable.axial, found.trace)
    if waveform.shape[0]:
        # A sample belongs to the step that ends with it.
        last = torch.arange(1, samples, device=drive.device) * every - 1
        now = torch.cat([waveform.new_zeros(len(waveform), 1), waveform[:, last]], 1)
        im = im + torch.einsum("knb,ks->snb", drive, now)
    phi = None if matrix is None else 1e3 * torch.einsum("ben,snb->bse", matrix, im)
    v = found.trace[:, nodes].permute(2, 0, 1)
    return v, phi, im.permute(2, 0, 1) if currents else None, failed


def _drives(
    cell: CellModel,
    cable: Cable,
    stimuli: Sequence[Stimulus],
    matrix: Tensor | None,
    theta: Tensor,
    steps: int,
    dt: float,
) -> tuple[Tensor, Tensor]:
    """Current into each node by a waveform of 1, [sources, nodes, batch], and the waveforms."""
    batch = len(theta)
    drives, waves = [], []
    for stimulus in stimuli:
        if isinstance(stimulus, IClamp):
            amplitude = (
                torch.as_tensor(stimulus.amplitude, dtype=theta.dtype, device=theta.device)
                .reshape(-1)
                .expand(batch)
            )
            row = torch.zeros(cell.nodes, 1, dtype=theta.dtype, device=theta.device)
            row[cell.node(stimulus.site)] = 1
            drives.append(row * amplitude)
        elif matrix is not None:
            amplitudes = stimulus.microamperes(theta)
            if amplitudes.shape[1] != matrix.shape[1]:
                raise ValueError(f"{amplitudes.shape[1]} amplitudes for {matrix.shape[1]} electrodes")
            outside = 1e3 * torch.einsum("ben,be->nb", matrix, amplitudes.expand(batch, -1))
            drives.append(activating(cell.parent, cable.axial, outside))
        waves.append(stimulus.waveform.samples(steps, dt).to(theta))
    if not drives:
        return theta.new_zeros(0, cell.nodes, batch), theta.new_zeros(0, steps)
    return torch.stack(drives), torch.stack(waves)


def _batch_of(stimulus: Stimulus) -> int:
    value = torch.as_tensor(stimulus.amplitude if isinstance(stimulus, IClamp) else stimulus.amplitudes)
    if isinstance(stimulus, IClamp):
        return max(1, int(value.numel()))
    return len(value) if value.dim() == 2 else 1


def _check(T: float, dt: float, every: int, force: bool, on_failure: str) -> None:
    if not (T > 0 and dt > 0 and math.isfinite(T / dt)) or every < 1:
        raise ValueError(f"T={T} ms, dt={dt} ms and every={every} must be positive")
    if dt > LARGEST_DT and not force:
        raise ValueError(f"dt={dt} ms is above {LARGEST_DT}; gates need smaller steps (force=True insists)")
    if on_failure not in ("raise", "flag"):
        raise ValueError(f"on_failure={on_failure!r} is neither 'raise' nor 'flag'")
