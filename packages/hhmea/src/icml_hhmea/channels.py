"""Ion channels as products of gates, and the channels of retinal ganglion cells and of the squid's axon.

Rates of retinal ganglion cells at 37.1 degrees: Fohlmeister, Cohen and Newman, J. Neurophysiology 103 (2010)
1357; the transient potassium channel: Fohlmeister and Miller, J. Neurophysiology 78 (1997) 1935.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from icml_kernels import Membrane

FARADAY = 96485.33212  # C/mol
GAS = 8.31446261815324  # J/(mol K)
# Columns c_one, c_x, c_e, d_e of A (c_one + c_x x + c_e e) / (1 + d_e e), x = (V - center) / width, e =
# exp(-x).
FORMS = {
    "exponential": (0.0, 0.0, 1.0, 0.0),
    "sigmoid": (1.0, 0.0, 0.0, 1.0),
    "linoid": (0.0, 1.0, 0.0, -1.0),
    "constant": (1.0, 0.0, 0.0, 0.0),
}
REGIONS = ("dendrite", "soma", "hillock", "band", "narrow", "axon")
# mS/cm2 in these regions.
RGC_CONDUCTANCES = {
    "na": (60.0, 60.0, 150.0, 420.0, 150.0, 100.0),
    "k": (35.0, 35.0, 90.0, 250.0, 90.0, 50.0),
    "ca": (1.0, 0.75, 0.75, 0.75, 0.75, 0.75),
    "kca": (0.17, 0.17, 0.17, 0.11, 0.2, 0.2),
    "leak": (0.1,) * 6,
}


@dataclass(frozen=True)
class Rate:
    """A rate per ms as a function of V, with x = (V - center) / width.

    ``exponential``: A exp(-x); ``sigmoid``: A / (1 + exp(-x)); ``linoid``: A x / (1 - exp(-x));
    ``constant``: A.

    Attributes:
        amplitude: A, per ms.
        center, width: mV; a negative width turns the curve round.
    """

    form: Literal["exponential", "sigmoid", "linoid", "constant"]
    amplitude: float
    center: float = 0.0
    width: float = 1.0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise ValueError(f"form {self.form!r} is none of {', '.join(FORMS)}")
        if not (self.amplitude >= 0 and math.isfinite(self.amplitude + self.center)) or self.width == 0:
            raise ValueError(f"{self}: the amplitude is at least 0, the width not 0, and all are finite")

    def row(self) -> tuple[float, ...]:
        """The row of the table that the compiled loops read."""
        return (self.amplitude, self.center, 1 / self.width, *FORMS[self.form])

    def __call__(self, v: float) -> float:
        """The rate at V in mV."""
        x = (v - self.center) / self.width
        if self.form == "linoid":
            return self.amplitude * (x / -math.expm1(-x) if abs(x) > 1e-12 else 1.0)
        c_one, c_x, c_e, d_e = FORMS[self.form]
        e = math.exp(-x)
        return self.amplitude * (c_one + c_x * x + c_e * e) / (1 + d_e * e)


@dataclass(frozen=True)
class Gate:
    """A gate x with dx/dt = alpha (1 - x) - beta x, to a power from 1 to 4."""

    alpha: Rate
    beta: Rate
    power: int = 1


@dataclass(frozen=True)
class Channel:
    """A current g x_1^p_1 x_2^p_2 (V - E).

    Attributes:
        gates: none, one or two.
        reversal: E in mV, or ``"calcium"`` for the Nernst potential of the calcium inside.
        carries_calcium: whether the current brings calcium into the cell.
        gated_by_calcium: multiplies by Ca / (Ca + half); takes the place of one gate.
    """

    name: str
    gates: tuple[Gate, ...] = ()
    reversal: float | Literal["calcium"] = -65.0
    carries_calcium: bool = False
    gated_by_calcium: bool = False

    def __post_init__(self) -> None:
        if len(self.gates) + self.gated_by_calcium > 2:
            raise ValueError(
                f"channel {self.name!r} has {len(self.gates)} gates; the compiled loops take two, calcium "
                f"included"
            )
        if isinstance(self.reversal, str) and self.reversal != "calcium":
            raise ValueError(f"channel {self.name!r}: reversal {self.reversal!r} is neither mV nor 'calcium'")


@dataclass(frozen=True)
class CalciumPool:
    """Calcium below the membrane: dCa/dt = max(0, -1e4 i_Ca / (2 F depth)) + (rest - Ca) / tau.

    Attributes:
        rest, outside, half: mM; half saturates the calcium-gated channel.
        tau: ms.
        depth: µm.
        celsius: for the Nernst potential RT / 2F log(outside / Ca).
    """

    rest: float = 1e-4
    tau: float = 1.5
    half: float = 1e-3
    outside: float = 1.8
    depth: float = 0.1
    celsius: float = 37.1

    @property
    def nernst_mv(self) -> float:
        """RT / 2F in mV."""
        return 1e3 * GAS * (self.celsius + 273.15) / (2 * FARADAY)

    @property
    def rate_times_area(self) -> float:
        """mM/ms from -1 nA into 1 µm2: 1e4 / (2 F depth) times 100 mA/cm2 a nA/µm2."""
        return 1e6 / (2 * FARADAY * self.depth)


def retinal_ganglion() -> tuple[Channel, ...]:
    """Sodium, delayed-rectifier potassium, calcium, calcium-gated potassium and leak of mammalian retinal
    ganglion cells at 37.1 degrees."""
    m = Gate(Rate("linoid", 31.36, -35, 10), Rate("exponential", 104.545, -60, 20), 3)
    h = Gate(Rate("exponential", 2.091, -52, 20), Rate("sigmoid", 31.365, -22, 10))
    n = Gate(Rate("linoid", 1.10, -37, 10), Rate("exponential", 2.191, -47, 80), 4)
    c = Gate(Rate("linoid", 15.68, -13, 10), Rate("exponential", 52.267, -38, 18), 3)
    return (
        Channel("na", (m, h), 61.02),
        Channel("k", (n,), -102.03),
        Channel("ca", (c,), "calcium", carries_calcium=True),
        Channel("kca", (), -102.03, gated_by_calcium=True),
        Channel("leak", (), -65.02),
    )


def potassium_a(reversal: float = -102.03, speed: float = 1.0) -> Channel:
    """The transient potassium channel g a^3 h (V - E) at 22 degrees.

    The activation a has an e-fold of 10 mV, as published: alpha(-60 mV) = 0.189 per ms. (A widespread
    translation has 1 mV there, which gives 0.180.)

    Args:
        speed: factor of all rates, for other temperatures.
    """
    a = Gate(Rate("linoid", 0.06 * speed, -90, 10), Rate("exponential", 0.1 * speed, -30, 10), 3)
    h = Gate(Rate("exponential", 0.04 * speed, -70, 20), Rate("sigmoid", 0.6 * speed, -40, 10))
    return Channel("ka", (a, h), reversal)


def squid(celsius: float = 6.3) -> tuple[Channel, ...]:
    """Sodium, potassium and leak of Hodgkin and Huxley (1952), as NEURON's ``hh`` has them: 120, 36 and 0.3
    mS/cm2, rates times 3^((celsius - 6.3) / 10)."""
    q = 3 ** ((celsius - 6.3) / 10)
    m = Gate(Rate("linoid", q, -40, 10), Rate("exponential", 4 * q, -65, 18), 3)
    h = Gate(Rate("exponential", 0.07 * q, -65, 20), Rate("sigmoid", q, -35, 10))
    n = Gate(Rate("linoid", 0.1 * q, -55, 10), Rate("exponential", 0.125 * q, -65, 80), 4)
    return (Channel("na", (m, h), 50.0), Channel("k", (n,), -77.0), Channel("leak", (), -54.3))


def membrane(channels: Sequence[Channel], pool: CalciumPool | None = None) -> Membrane:
    """The tables of ``icml_kernels.hh_run``, in float64.

    Raises:
        ValueError: two channels of one name.
    """
    names = [c.name for c in channels]
    if len(set(names)) != len(names):
        raise ValueError(f"channels {names} must have different names")
    pool = pool or CalciumPool()
    rates: list[tuple[tuple[float, ...], tuple[float, ...]]] = []
    rows, reversal = [], []
    total = sum(len(c.gates) for c in channels)
    for channel in channels:
        gates = []
        for gate in channel.gates:
            gates.append((len(rates), gate.power))
            rates.append((gate.alpha.row(), gate.beta.row()))
        if channel.gated_by_calcium:
            gates.append((total, 1))
        gates += [(-1, 0)] * (2 - len(gates))
        nernst = channel.reversal == "calcium"
        rows.append((*gates[0], *gates[1], int(nernst), int(channel.carries_calcium)))
        reversal.append(0.0 if isinstance(channel.reversal, str) else float(channel.reversal))
    numbers = (pool.rest, pool.tau, pool.half, pool.outside, pool.nernst_mv)
    return Membrane(
        torch.tensor(rows, dtype=torch.int32).reshape(-1, 6),
        torch.tensor(rates, dtype=torch.float64).reshape(-1, 2, 7),
        torch.tensor(reversal, dtype=torch.float64),
        torch.tensor(numbers, dtype=torch.float64),
    )
