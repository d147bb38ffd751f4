"""What is injected: pulses through electrodes, and current clamps.

Currents at electrodes are in µA, inside the cell in nA, times in ms. Negative is cathodic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

LARGEST_UA = 1e3


@dataclass(frozen=True)
class Waveform:
    """Steps of current: each phase has a height, for an amplitude of 1, and a duration.

    The sign of an amplitude is that of the phase with the largest height.
    """

    phases: tuple[tuple[float, float], ...]
    delay: float = 0.0

    def __post_init__(self) -> None:
        numbers = [x for phase in self.phases for x in phase]
        if (
            not self.phases
            or not all(math.isfinite(x) for x in numbers)
            or min(d for _, d in self.phases) <= 0
        ):
            raise ValueError(f"phases {self.phases} need finite heights and positive durations")
        if self.delay < 0:
            raise ValueError(f"delay={self.delay} ms must be at least 0")

    @classmethod
    def triphasic(
        cls, first: Literal["cathodic", "anodic"] = "cathodic", phase: float = 0.05, delay: float = 0.0
    ) -> Waveform:
        """Charge-balanced 2 : -3 : 1 with the middle phase of height 1, for a positive amplitude.

        Args:
            first: the first phase of a positive amplitude; a negative amplitude turns all phases round.
            phase: duration of each, ms.
        """
        sign = _sign(first)
        return cls(((sign * 2 / 3, phase), (-sign, phase), (sign / 3, phase)), delay)

    @classmethod
    def biphasic(
        cls, first: Literal["cathodic", "anodic"] = "cathodic", phase: float = 0.05, delay: float = 0.0
    ) -> Waveform:
        """Two equal phases; a positive amplitude has the named one first."""
        sign = _sign(first)
        return cls(((sign, phase), (-sign, phase)), delay)

    @classmethod
    def step(cls, duration: float, delay: float = 0.0) -> Waveform:
        """One phase of height 1."""
        return cls(((1.0, duration),), delay)

    @property
    def duration(self) -> float:
        """From time 0 to the end of the last phase, ms."""
        return self.delay + sum(d for _, d in self.phases)

    @property
    def balanced(self) -> bool:
        """Whether the phases carry no charge in sum."""
        charges = [h * d for h, d in self.phases]
        return abs(sum(charges)) <= 1e-9 * max(abs(c) for c in charges)

    @property
    def charge(self) -> float:
        """The largest charge of one phase, for an amplitude of 1: nC a µA."""
        return max(abs(h) * d for h, d in self.phases)

    def samples(self, steps: int, dt: float) -> Float[Tensor, " steps"]:
        """Mean over each step, so that the charge does not depend on dt."""
        edges = torch.arange(steps + 1, dtype=torch.float64) * dt
        total = torch.zeros(steps + 1, dtype=torch.float64)
        begin = self.delay
        for height, duration in self.phases:
            total = total + height * (edges - begin).clamp(0, duration)
            begin += duration
        return total.diff() / dt


@dataclass(frozen=True)
class ExtracellularPattern:
    """Currents at electrodes that share a waveform.

    Attributes:
        amplitudes: [electrodes] or [batch, electrodes].
        waveform: charge-balanced triphasic by default.
        unit: ``"uA"``, or ``"xth"`` for multiples of each electrode's threshold.
        thresholds: µA of each electrode, where the unit is ``"xth"``.
    """

    amplitudes: Tensor
    waveform: Waveform = field(default_factory=Waveform.triphasic)
    unit: Literal["uA", "xth"] = "uA"
    thresholds: Tensor | None = None

    def microamperes(self, like: Tensor) -> Float[Tensor, "batch electrodes"]:
        """The amplitudes in µA.

        Raises:
            ValueError: another unit, ``"xth"`` without thresholds, amplitudes that are not finite or beyond
                1e3 µA.
        """
        if self.unit not in ("uA", "xth"):
            raise ValueError(f"unit {self.unit!r} is neither 'uA' nor 'xth'")
        amplitudes = torch.as_tensor(self.amplitudes, dtype=like.dtype, device=like.device)
        if self.unit == "xth":
            if self.thresholds is None:
                raise ValueError("amplitudes in multiples of thresholds (unit 'xth') need thresholds=")
            amplitudes = amplitudes * torch.as_tensor(self.thresholds, dtype=like.dtype, device=like.device)
        require_microamperes(amplitudes)
        return amplitudes if amplitudes.dim() == 2 else amplitudes[None]


@dataclass(frozen=True)
class IClamp:
    """A current clamp inside one compartment.

    Attributes:
        site: a node's number, or a place such as ``"soma"`` or ``"axon[-1]"``.
        amplitude: nA, a number or [batch].
        delay, duration: ms.
    """

    site: int | str = "soma"
    amplitude: float | Tensor = 1.0
    delay: float = 0.0
    duration: float = 1e9

    @property
    def waveform(self) -> Waveform:
        """Its time course."""
        return Waveform.step(self.duration, self.delay)


@dataclass(frozen=True)
class ChargeLimit:
    """How much charge a phase may carry.

    Attributes:
        uc_per_cm2: µC/cm2 at each electrode (the unit's usual spelling is µC_per_cm2).
        area_um2: of each electrode.
        total_ua: sum of absolute currents, µA.
    """

    uc_per_cm2: float = 100.0
    area_um2: float = math.pi * 5.0**2
    total_ua: float = math.inf

    def __post_init__(self) -> None:
        if not (self.uc_per_cm2 > 0 and self.area_um2 > 0 and self.total_ua > 0):
            raise ValueError(f"{self}: all limits must be positive")

    def largest_ua(self, waveform: Waveform) -> float:
        """The largest amplitude at one electrode: 1 µC/cm2 on 1 µm2 is 1e-5 nC."""
        return self.uc_per_cm2 * self.area_um2 * 1e-5 / waveform.charge

    def require(self, amplitudes: Tensor, waveform: Waveform) -> None:
        """The pattern keeps to the limit.

        Raises:
            ValueError: at which electrodes, or in sum, it does not.
        """
        limit = self.largest_ua(waveform)
        over = (
            (amplitudes.abs() > limit * (1 + 1e-9)).reshape(-1, amplitudes.shape[-1]).any(0).nonzero()[:, 0]
        )
        if len(over):
            raise ValueError(f"electrodes {over.tolist()} exceed the charge limit of {limit:.4g} µA a phase")
        if bool((amplitudes.abs().sum(-1) > self.total_ua * (1 + 1e-9)).any()):
            raise ValueError(f"the currents' sum exceeds {self.total_ua:g} µA")


def require_microamperes(amplitudes: Tensor) -> None:
    """Currents are finite and at most 1e3 µA.

    Raises:
        ValueError: they are not.
    """
    if not bool(torch.isfinite(amplitudes).all()):
        raise ValueError("amplitudes must be finite")
    if amplitudes.numel() and float(amplitudes.abs().max()) > LARGEST_UA:
        raise ValueError(
            f"an amplitude of {float(amplitudes.abs().max()):g} is above 1e3 µA; amplitudes are in µA, not nA"
        )


def require_pattern(patterns: object, electrodes: int) -> Float[Tensor, "patterns electrodes"]:
    """Amplitudes [patterns, electrodes] in µA as a float64 tensor.

    Raises:
        ValueError: another shape, or what :func:`require_microamperes` refuses.
    """
    found = torch.as_tensor(patterns, dtype=torch.float64)
    found = found[None] if found.dim() == 1 else found
    if found.dim() != 2 or found.shape[1] != electrodes:
        raise ValueError(f"patterns have shape {list(found.shape)}; expected [patterns, {electrodes}] in µA")
    require_microamperes(found)
    return found


def dense(
    pairs: Mapping[int, float] | Sequence[tuple[int, float]], electrodes: int
) -> Float[Tensor, " electrodes"]:
    """[electrodes] from electrode numbers and amplitudes."""
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    out = torch.zeros(electrodes, dtype=torch.float64)
    for e, amplitude in items:
        out[e] = amplitude
    return out


def _sign(first: str) -> float:
    if first not in ("cathodic", "anodic"):
        raise ValueError(f"first phase {first!r} is neither 'cathodic' nor 'anodic'")
    return -1.0 if first == "cathodic" else 1.0
