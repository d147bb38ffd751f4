"""Designed features of an electrical image: amplitudes, durations and delays, soft for gradients, hard for
scoring.

On each electrode the waveform of a spike has a small early positive part (capacitive current), a trough
(sodium) and a late positive part (potassium). Soft extrema are averages with weights softmax(+-phi / T), T
being 5 % of the extremum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from icml_hhmea.cell import CellModel
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.simulation import State, simulate
from icml_hhmea.stimulus import IClamp

FLOOR_UV = 1e-3  # below it a logarithm stays finite
PARTS = ("trough", "late", "early")
CLAMP_NA, CLAMP_MS = 1.5, 0.3  # fires all but a few of the cells that any current fires


@dataclass(frozen=True)
class Features:
    """Of a batch of electrical images.

    Attributes:
        amplitude: µV, positive: trough, late positive, early positive, [batch, 3, electrodes].
        time: of the trough, ms, [batch, electrodes].
        duration: from the trough to the late positive peak, ms, [batch, electrodes].
    """

    amplitude: Tensor
    time: Tensor
    duration: Tensor

    def log(self, floor: float = FLOOR_UV) -> Float[Tensor, "batch 3 electrodes"]:
        """log of the amplitudes, those below the floor counting as the floor."""
        return self.amplitude.clamp(min=floor).log()

    def visible(self, noise: Float[Tensor, " electrodes"] | float) -> Bool[Tensor, "batch 3 electrodes"]:
        """Which amplitudes stand above three standard deviations of the noise, where the trough does too."""
        level = 3 * torch.as_tensor(noise, dtype=self.amplitude.dtype, device=self.amplitude.device)
        return (self.amplitude > level) & (self.amplitude[:, :1] > level)

    def delays(self) -> Float[Tensor, "batch electrodes"]:
        """Trough times after that of the electrode with the largest trough, ms."""
        first = self.amplitude[:, 0].argmax(1, keepdim=True)
        return self.time - self.time.gather(1, first)


class EIFeatures(nn.Module):
    """The features as a module.

    Args:
        dt: time between samples, ms.
        mode: ``"soft"`` with gradients, or ``"hard"``.
        temperature: of soft extrema, as a share of the extremum.

    Raises:
        ValueError: another mode, a dt or temperature that is not positive.
    """

    def __init__(self, dt: float, mode: Literal["soft", "hard"] = "soft", temperature: float = 0.05) -> None:
        super().__init__()
        if mode not in ("soft", "hard") or not dt > 0 or not temperature > 0:
            raise ValueError(f"mode={mode!r}, dt={dt}, temperature={temperature}: soft or hard, and positive")
        self.dt, self.mode, self.temperature = float(dt), mode, float(temperature)

    def forward(self, phi: Float[Tensor, "batch samples electrodes"]) -> Features:
        """Features of potentials in µV.

        Raises:
            ValueError: another shape, fewer than three samples, or values that are not finite.
        """
        if phi.dim() != 3 or phi.shape[1] < 3:
            raise ValueError(
                f"phi has shape {list(phi.shape)}; expected [batch, at least 3 samples, electrodes]"
            )
        if not bool(torch.isfinite(phi).all()):
            raise ValueError("phi is not finite")
        place = torch.arange(phi.shape[1], dtype=phi.dtype, device=phi.device)[None, :, None]
        everything = torch.ones_like(phi, dtype=torch.bool)
        trough, at = self._extreme(-phi, place, everything)
        low = phi.detach().argmin(1, keepdim=True)
        late, late_at = self._extreme(phi, place, place > low)
        early, _ = self._extreme(phi, place, place < low)
        amplitude = torch.stack([trough, late, early], 1).clamp(min=0)
        return Features(amplitude, at * self.dt, (late_at - at) * self.dt)

    def _extreme(self, values: Tensor, place: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Largest value over the samples of the mask and its place; 0 where there is none."""
        floor = torch.finfo(values.dtype).min / 4
        inside = torch.where(mask, values, floor)
        top, at = inside.max(1)
        some = mask.any(1)
        if self.mode == "hard":
            return torch.where(some, top, 0), torch.where(some, at.to(values.dtype), 0)
        width = (self.temperature * top.detach().abs()).clamp(min=FLOOR_UV)[:, None]
        weights = torch.softmax(torch.where(mask, (values - top.detach()[:, None]) / width, floor), 1)
        weights = torch.where(some[:, None], weights, 0)
        return (weights * values).sum(1), (weights * place).sum(1)


def electrical_image(
    cell: CellModel,
    theta: Float[Tensor, "batch parameters"],
    electrodes: ElectrodeArray,
    *,
    dt: float = 0.02,
    every: int = 2,
    duration: float = 3.0,
    state: State | None = None,
) -> tuple[Float[Tensor, "batch samples electrodes"], Bool[Tensor, " batch"]]:
    """Potentials in µV of a spike that a short current into the soma sets off, and whether each cell fired.

    The current is drawn from outside the soma, so that what is injected leaves no trace of its own.
    """
    clamp = IClamp("soma", CLAMP_NA, 0.0, CLAMP_MS)
    found = simulate(
        cell,
        theta,
        clamp,
        duration,
        dt,
        record=[cell.spike_site],
        electrodes=electrodes,
        every=every,
        start=state,
        on_failure="flag",
    )
    assert found.phi is not None
    steps = round(duration / dt)
    wave = clamp.waveform.samples(steps, dt)[every - 1 :: every][: found.phi.shape[1] - 1].to(theta)
    soma = electrodes.matrix(cell.segments(theta), cell.sigma(theta))[..., cell.node("soma")]
    drawn = 1e3 * CLAMP_NA * wave[:, None] * soma[:, None]
    fired = ~torch.isnan(found.spikes[:, 0]) & (found.failed < 0)
    return found.phi[:, 1:] - drawn, fired


def canonical_places(pitch: float = 30.0) -> Float[Tensor, "65 2"]:
    """A grid of 5 x 13 places in the frame of soma and axon: from three pitches behind the soma to nine
    before it, two to each side, µm."""
    along, across = torch.meshgrid(
        torch.arange(-3.0, 10.0, dtype=torch.float64) * pitch,
        torch.arange(-2.0, 3.0, dtype=torch.float64) * pitch,
        indexing="ij",
    )
    return torch.stack([along.ravel(), across.ravel()], 1)


def canonical(
    log_amplitude: Float[Tensor, "batch electrodes"],
    electrodes: ElectrodeArray,
    poses: Float[Tensor, "batch 3"],
    floor: float,
) -> Float[Tensor, "batch 65"]:
    """Log amplitudes on the canonical grid: averages over electrodes with weights exp(-(distance / 20 µm)^2),
    ``floor`` where no electrode lies within two pitches."""
    away = electrodes.xyz[:, :2].to(log_amplitude) - poses[:, None, :2].to(log_amplitude)
    c, s = poses[:, 2].cos().to(away)[:, None], poses[:, 2].sin().to(away)[:, None]
    x, y = c * away[..., 0] + s * away[..., 1], -s * away[..., 0] + c * away[..., 1]
    grid = canonical_places(electrodes.pitch).to(away)
    square = (x[:, None] - grid[:, 0, None]) ** 2 + (y[:, None] - grid[:, 1, None]) ** 2
    weight = torch.exp(-square / (2 / 3 * electrodes.pitch) ** 2)
    total = weight.sum(-1)
    mean = (weight * log_amplitude[:, None]).sum(-1) / total.clamp(min=1e-30)
    near = square.min(-1).values < (2 * electrodes.pitch) ** 2
    return torch.where(near, mean, floor)


def summaries(
    features: Features, electrodes: ElectrodeArray, poses: Float[Tensor, "batch 3"], noise: float
) -> Float[Tensor, "batch 4"]:
    """Along the axon: logarithms of conduction velocity (µm/ms) and decay length (µm), place (µm) and log
    amplitude (µV) of the largest trough."""
    amplitude, time = features.amplitude[:, 0], features.time
    away = electrodes.xyz[:, :2].to(amplitude) - poses[:, None, :2].to(amplitude)
    x = away[..., 0] * poses[:, None, 2].cos().to(away) + away[..., 1] * poses[:, None, 2].sin().to(away)
    y = away[..., 1] * poses[:, None, 2].cos().to(away) - away[..., 0] * poses[:, None, 2].sin().to(away)
    near = (amplitude > 3 * noise) & (x > electrodes.pitch) & (y.abs() < 1.5 * electrodes.pitch)
    slowness = _slope(x, time, near)
    velocity = torch.log(1 / slowness.clamp(1e-4, 1e-2))
    sides = (amplitude > 3 * noise) & (x > 0)
    decay = -_slope(y.abs(), amplitude.clamp(min=FLOOR_UV).log(), sides)
    peak = amplitude.argmax(1, keepdim=True)
    return torch.stack(
        [
            velocity,
            torch.log(1 / decay.clamp(1e-3, 1.0)),
            x.gather(1, peak)[:, 0],
            amplitude.gather(1, peak)[:, 0].clamp(min=FLOOR_UV).log(),
        ],
        1,
    )


def _slope(x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
    """Least-squares slope of y by x over the mask; 0 where fewer than two points differ."""
    weight = mask.to(y)
    count = weight.sum(1).clamp(min=1)
    dx = (x - (weight * x).sum(1, keepdim=True) / count[:, None]) * weight
    dy = (y - (weight * y).sum(1, keepdim=True) / count[:, None]) * weight
    square = (dx**2).sum(1)
    return torch.where(square > 1, (dx * dy).sum(1) / square.clamp(min=1), 0)
