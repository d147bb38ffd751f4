"""Hodgkin-Huxley cells of many compartments in time, many at once, with the adjoint of the whole trajectory.

The numerical scheme is NEURON's default one: implicit Euler for the voltages of the tree with the gates of
the step before, then the gates at the new voltages, each exactly for a constant voltage (``reference.py`` has
the formulas). The way forward keeps the state every ceil(sqrt(steps)) steps where gradients are wanted; the
way back computes the steps between anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import require_float, require_shape
from icml_kernels.neurons.checks import require_tree
from icml_kernels.neurons.hh_run import reference

_HERE = "icml_kernels.neurons.hh_run"
HIGHEST_POWER = 4


@dataclass(frozen=True)
class Membrane:
    """Which channels there are, as tables that the compiled loops read.

    Attributes:
        channels: a row for each channel: first gate (-1 for none, the number of gates for Ca / (Ca + half)),
            its power, second gate, its power, whether its potential is calcium's Nernst potential, whether
            its current brings calcium. A power is 0 to 4, 0 where there is no gate.
        rates: of each gate alpha and beta, per ms: amplitude, center in mV, slope in 1/mV, c_one, c_x, c_e,
            d_e of A (c_one + c_x x + c_e e) / (1 + d_e e) with x = (V - center) slope and e = exp(-x).
        reversal: potential of each channel, mV; not used where it is calcium's.
        pool: resting calcium (mM), time constant (ms), half saturation (mM), calcium outside (mM), RT / 2F
            (mV).
    """

    channels: Int32[Tensor, "channels 6"]
    rates: Float[Tensor, "gates 2 7"]
    reversal: Float[Tensor, " channels"]
    pool: Float[Tensor, " 5"]

    def to(self, *, dtype: torch.dtype, device: torch.device | str) -> Membrane:
        """The same tables in another precision and place."""
        return Membrane(
            self.channels.to(device),
            *(t.to(device=device, dtype=dtype) for t in (self.rates, self.reversal, self.pool)),
        )

    def steady_gates(self, v: Float[Tensor, "nodes batch"]) -> Float[Tensor, "gates nodes batch"]:
        """alpha / (alpha + beta) of every gate at V in mV."""
        return reference.steady_gates(v, self.rates)


@dataclass(frozen=True)
class HHRun:
    """What ``hh_run`` gives.

    Attributes:
        trace: V in mV at the recorded nodes, [samples, recorded, batch]; the first sample is the start.
        v, gates, calcium: the state after the last step.
        failed: the step at which a lane's |V| went beyond the limit and it was frozen, or -1.
    """

    trace: Tensor
    v: Tensor
    gates: Tensor
    calcium: Tensor
    failed: Tensor


def hh_run(
    parent: Int32[Tensor, " nodes"],
    capacitance: Float[Tensor, "nodes batch"],
    axial: Float[Tensor, "nodes batch"],
    gmax: Float[Tensor, "channels nodes batch"],
    calcium_rate: Float[Tensor, "nodes batch"],
    drive: Float[Tensor, "sources nodes batch"],
    waveform: Float[Tensor, "sources steps"],
    v0: Float[Tensor, "nodes batch"],
    gates0: Float[Tensor, "gates nodes batch"],
    calcium0: Float[Tensor, "nodes batch"],
    membrane: Membrane,
    record: Int32[Tensor, " recorded"],
    *,
    dt: float,
    every: int = 1,
    block: int | None = None,
    limit: float = reference.LARGEST,
) -> HHRun:
    """Run all lanes through all steps.

    Args:
        parent: parents stand before their children; -1 for a root.
        capacitance: nF; 0 for the node of a branch point.
        axial: conductance to the parent, µS; a root's is ignored.
        gmax: largest conductance of each channel, µS.
        calcium_rate: mM/ms that a calcium current of -1 nA brings.
        drive: current into each node, nA, by a waveform of 1.
        waveform: of each source at each step; NEURON reads its clamps in the middle of a step.
        v0, gates0, calcium0: the state at the start (mV, 1, mM; calcium above 0).
        membrane: the channels, in the same precision and place.
        record: nodes whose V is kept.
        dt: step, ms.
        every: steps from one sample to the next.
        block: steps between kept states; ceil(sqrt(steps)) by default.
        limit: mV; a lane whose |V| goes beyond it, or is NaN, fails. Fields at electrodes polarise thin axons
            by volts, which asks for more than the 200 that suit clamps.

    Derivatives go to capacitance, axial, gmax, calcium_rate, drive, v0, gates0 and calcium0; a lane that
    failed has none. Second derivatives are refused.

    Raises:
        TypeError: dtypes that differ or are neither float32 nor float64; tables of other integers than int32.
        ValueError: shapes that do not fit, a parent that does not stand before its child, a dt, ``every``,
            ``block`` or ``limit`` that is not positive, a power above 4, a gate or recorded node that is not
            there.
    """
    require_tree(parent)
    require_float(
        capacitance=capacitance,
        axial=axial,
        gmax=gmax,
        calcium_rate=calcium_rate,
        drive=drive,
        waveform=waveform,
        v0=v0,
        gates0=gates0,
        calcium0=calcium0,
        rates=membrane.rates,
        reversal=membrane.reversal,
        pool=membrane.pool,
    )
    nodes, batch = v0.shape if v0.dim() == 2 else (len(parent), None)
    gates, channels = len(membrane.rates), len(membrane.channels)
    plain = {"v0": v0, "capacitance": capacitance, "axial": axial}
    plain |= {"calcium_rate": calcium_rate, "calcium0": calcium0}
    for name, tensor in plain.items():
        require_shape(name, tensor, (len(parent), batch))
    require_shape("gmax", gmax, (channels, nodes, batch))
    require_shape("gates0", gates0, (gates, nodes, batch))
    require_shape("waveform", waveform, (None, None))
    require_shape("drive", drive, (waveform.shape[0], nodes, batch))
    require_shape("rates", membrane.rates, (gates, 2, 7))
    require_shape("channels", membrane.channels, (channels, 6))
    require_shape("pool", membrane.pool, (5,))
    if membrane.channels.dtype != torch.int32 or record.dtype != torch.int32:
        raise TypeError("the channels' table and the recorded nodes must be torch.int32")
    if not (dt > 0 and math.isfinite(dt)) or every < 1:
        raise ValueError(f"dt={dt} and every={every} must be positive")
    if not limit > 0:
        raise ValueError(f"limit={limit} mV must be positive")
    _require_tables(membrane, record, gates, nodes)
    steps = waveform.shape[1]
    size = max(1, math.isqrt(max(steps - 1, 0)) + 1) if block is None else int(block)
    if size < 1:
        raise ValueError(f"block={block} must be at least 1")
    inputs = (capacitance, axial, gmax, calcium_rate, drive, v0, gates0, calcium0)
    wanted = torch.is_grad_enabled() and any(t.requires_grad for t in inputs)
    tables = (membrane.channels, membrane.rates, membrane.reversal, membrane.pool, record)
    limit = float(limit)
    arguments = (parent, *inputs[:5], waveform, *inputs[5:], *tables, float(dt), int(every))
    found = _hh_run(*arguments, size, limit) if wanted else _forward(*arguments, 0, limit)
    return HHRun(*found[:5])


def hh_step(
    parent: Int32[Tensor, " nodes"],
    capacitance: Float[Tensor, "nodes batch"],
    axial: Float[Tensor, "nodes batch"],
    gmax: Float[Tensor, "channels nodes batch"],
    calcium_rate: Float[Tensor, "nodes batch"],
    current: Float[Tensor, "nodes batch"],
    v: Float[Tensor, "nodes batch"],
    gates: Float[Tensor, "gates nodes batch"],
    calcium: Float[Tensor, "nodes batch"],
    membrane: Membrane,
    *,
    dt: float,
) -> HHRun:
    """One step of ``hh_run`` with the injected current in nA: what a network's loop calls."""
    nothing = torch.zeros(0, dtype=torch.int32, device=v.device)
    once = v.new_ones(1, 1)
    given = (parent, capacitance, axial, gmax, calcium_rate, current[None], once, v, gates, calcium)
    return hh_run(*given, membrane, nothing, dt=dt)


def _require_tables(membrane: Membrane, record: Tensor, gates: int, nodes: int) -> None:
    if membrane.channels.device.type == "meta" or torch.compiler.is_compiling():
        return
    for row in membrane.channels.tolist():
        for gate, power in (row[0:2], row[2:4]):
            if not 0 <= power <= HIGHEST_POWER or not -1 <= gate <= gates or (gate < 0) != (power == 0):
                raise ValueError(
                    f"channel {row}: gate {gate} with power {power}; a gate is -1 (power 0), one of the "
                    f"{gates} gates or {gates} for calcium, with power 1 to {HIGHEST_POWER}"
                )
    if record.numel() and not (int(record.min()) >= 0 and int(record.max()) < nodes):
        raise ValueError(f"record {record.tolist()} names nodes beyond 0 to {nodes - 1}")


def _fake_forward(
    parent: Tensor,
    capacitance: Tensor,
    axial: Tensor,
    gmax: Tensor,
    calcium_rate: Tensor,
    drive: Tensor,
    waveform: Tensor,
    v0: Tensor,
    gates0: Tensor,
    calcium0: Tensor,
    channels: Tensor,
    rates: Tensor,
    reversal: Tensor,
    pool: Tensor,
    record: Tensor,
    dt: float,
    every: int,
    block: int,
    limit: float = reference.LARGEST,
) -> tuple[Tensor, ...]:
    nodes, batch = v0.shape
    steps = waveform.shape[1]
    blocks = (steps + block - 1) // block if block else 0
    return (
        v0.new_empty(steps // every + 1, record.shape[0], batch),
        v0.new_empty(nodes, batch),
        v0.new_empty(gates0.shape),
        v0.new_empty(nodes, batch),
        v0.new_empty(batch, dtype=torch.int32),
        v0.new_empty(blocks, gates0.shape[0] + 2, nodes, batch),
    )


def _fake_backward(
    by_trace: Tensor,
    by_v: Tensor,
    by_gates: Tensor,
    by_calcium: Tensor,
    parent: Tensor,
    capacitance: Tensor,
    axial: Tensor,
    gmax: Tensor,
    calcium_rate: Tensor,
    drive: Tensor,
    *rest: Any,
) -> tuple[Tensor, ...]:
    like = (capacitance, axial, gmax, calcium_rate, drive, by_v, by_gates, by_calcium)
    return tuple(t.new_empty(t.shape) for t in like)


_forward = raw_op(
    "hh_run",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "hh_run_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)


class _HHRun(torch.autograd.Function):
    """The trajectory; its derivative is the reverse sweep."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        parent: Tensor,
        capacitance: Tensor,
        axial: Tensor,
        gmax: Tensor,
        calcium_rate: Tensor,
        drive: Tensor,
        waveform: Tensor,
        v0: Tensor,
        gates0: Tensor,
        calcium0: Tensor,
        channels: Tensor,
        rates: Tensor,
        reversal: Tensor,
        pool: Tensor,
        record: Tensor,
        dt: float,
        every: int,
        block: int,
        limit: float,
    ) -> Any:
        start = (waveform, v0, gates0, calcium0, channels, rates, reversal, pool, record)
        numbers = (dt, every, block, limit)
        return _forward(parent, capacitance, axial, gmax, calcium_rate, drive, *start, *numbers)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        *_, failed, kept = output
        ctx.save_for_backward(*inputs[:7], *inputs[10:15], failed, kept)
        ctx.numbers = inputs[15:18]
        ctx.mark_non_differentiable(failed, kept)

    @staticmethod
    def backward(ctx: Any, by_trace: Any, by_v: Any, by_gates: Any, by_calcium: Any, *unused: Any) -> Any:
        found = _adjoint(by_trace, by_v, by_gates, by_calcium, *ctx.saved_tensors, *ctx.numbers)
        # 0 times what made a lane fail may be NaN.
        whole = ctx.saved_tensors[-2] < 0
        found = tuple(torch.where(whole, g, 0) for g in found)
        return (None, *found[:5], None, *found[5:], *[None] * 9)


_hh_run = differentiable(_HHRun)


class _Adjoint(torch.autograd.Function):
    """The reverse sweep; its own derivative is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        by_trace: Tensor,
        by_v: Tensor,
        by_gates: Tensor,
        by_calcium: Tensor,
        parent: Tensor,
        capacitance: Tensor,
        axial: Tensor,
        gmax: Tensor,
        calcium_rate: Tensor,
        drive: Tensor,
        waveform: Tensor,
        channels: Tensor,
        rates: Tensor,
        reversal: Tensor,
        pool: Tensor,
        record: Tensor,
        failed: Tensor,
        kept: Tensor,
        dt: float,
        every: int,
        block: int,
    ) -> Any:
        tables = (waveform, channels, rates, reversal, pool, record, failed, kept, dt, every, block)
        cell = (parent, capacitance, axial, gmax, calcium_rate, drive)
        return _backward(by_trace, by_v, by_gates, by_calcium, *cell, *tables)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.positions = len(inputs)

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> Any:
        raise RuntimeError("hh_run has no second derivative; take finite differences of its gradient")


_adjoint = differentiable(_Adjoint)
