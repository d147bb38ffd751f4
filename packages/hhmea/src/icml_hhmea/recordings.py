"""What is measured of one neuron: its electrical image, and currents at single electrodes that just fire
it."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from icml_hhmea.curves import ActivationCurve
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.features import EIFeatures
from icml_hhmea.pose import Estimate, estimate_pose, noise_of
from icml_hhmea.stimulus import LARGEST_UA, Waveform

PLAUSIBLE_UV = (1.0, 5000.0)
FEATURE_SETS = ("amp+thr", "full")
# Errors of the model itself: log amplitude of trough, late and early part; log threshold; ms of times.
MODEL_ERROR = (0.1, 0.25, 0.4)
THRESHOLD_ERROR = 0.03
TIME_ERROR = 0.02
BOOTSTRAP = 64  # draws of the noise, from which the errors of times are found
TO_MICROVOLTS = {"uV": 1.0, "mV": 1e3, "V": 1e6}


@dataclass(frozen=True)
class Recording:
    """One neuron's data.

    Attributes:
        ei: spike-triggered average, µV, [electrodes, samples].
        fs: samples a second.
        thresholds: of electrodes: (anodic, cathodic) in µA, NaN where not measured; cathodic ones are
            negative.
        errors: relative standard error of each threshold, in the same form.
        noise: standard deviation of the image, µV.
        rho: relative width of activation curves.
        waveform: of the pulses.
    """

    ei: np.ndarray
    fs: float
    electrodes: ElectrodeArray
    thresholds: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    errors: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    noise: float | None = None
    rho: float = 0.05
    waveform: Waveform = field(default_factory=Waveform.triphasic)

    def __post_init__(self) -> None:
        ei = np.asarray(self.ei, dtype=np.float64)
        if ei.ndim != 2 or len(ei) != len(self.electrodes) or ei.shape[1] < 8:
            raise ValueError(
                f"ei has shape {list(ei.shape)}; expected [{len(self.electrodes)} electrodes, at least 8 "
                f"samples]"
            )
        if not np.isfinite(ei).all():
            raise ValueError("ei is not finite")
        if not (self.fs > 1000 and math.isfinite(self.fs)):
            raise ValueError(f"fs={self.fs} must be above 1000 samples a second")
        if self.noise is not None and not (self.noise > 0 and math.isfinite(self.noise)):
            raise ValueError(f"noise={self.noise} µV must be positive, or None to have it estimated")
        if not 0 < self.rho < 1:
            raise ValueError(f"rho={self.rho} must lie in 0 to 1")
        largest = np.abs(ei).max()
        if not PLAUSIBLE_UV[0] <= largest <= PLAUSIBLE_UV[1]:
            warnings.warn(
                f"the largest value of ei is {largest:.3g} µV, outside 1 µV to 5 mV: are these microvolts?",
                stacklevel=3,
            )
        for e, pair in self.thresholds.items():
            if not 0 <= e < len(self.electrodes):
                raise ValueError(f"thresholds name electrode {e} of {len(self.electrodes)}")
            positive, negative = pair
            if positive <= 0 or negative >= 0:
                raise ValueError(
                    f"electrode {e}: thresholds {pair}; expected (anodic above 0, cathodic below 0) in "
                    "µA, NaN for none"
                )
            if any(abs(x) > LARGEST_UA for x in pair):
                raise ValueError(f"electrode {e}: a threshold above 1e3 µA; thresholds are in µA")
        object.__setattr__(self, "ei", ei)

    @classmethod
    def build(
        cls,
        ei: Any,
        fs: float | None,
        electrodes: Any,
        *,
        curves: Sequence[ActivationCurve] = (),
        thresholds: Mapping[int, tuple[float, float]] | None = None,
        units: Literal["uV", "mV", "V", "raw"] | None = None,
        gain: float | None = None,
        unit: int = 0,
        waveform: Waveform | None = None,
        noise: float | None = None,
    ) -> Recording:
        """From what users have.

        Args:
            ei: array [electrodes, samples], or a ``Templates`` object of spikeinterface, whose neuron number
                ``unit`` is taken, with its sampling frequency and places.
            electrodes: an :class:`ElectrodeArray` or places [electrodes, 2 or 3] in µm.
            curves: activation curves; their amplitudes at one half are the thresholds.
            thresholds: instead of, or besides, curves.
            units: of a bare array; ``"raw"`` goes with ``gain`` in µV a count.

        Raises:
            ValueError: a bare array without units, raw units without gain, templates that are not scaled.
        """
        if hasattr(ei, "templates_array"):
            scaled = getattr(ei, "is_in_uV", getattr(ei, "is_scaled", None))
            if not scaled:
                raise ValueError(
                    "the Templates are not scaled to µV (their scaling flag is off or missing); rebuild them "
                    "with return_in_uV=True"
                )
            every_unit = np.asarray(ei.templates_array, dtype=np.float64)
            if not 0 <= unit < len(every_unit):
                raise ValueError(f"unit={unit}: the Templates hold neurons 0 to {len(every_unit) - 1}")
            array = every_unit[unit].T
            fs = float(ei.sampling_frequency) if fs is None else fs
            electrodes = ei.get_channel_locations() if electrodes is None else electrodes
        else:
            array = np.asarray(ei, dtype=np.float64)
            if units is None:
                raise ValueError("say units='uV', 'mV', 'V' or 'raw' (with gain=µV a count) for a bare array")
            if units == "raw":
                if gain is None:
                    raise ValueError("units='raw' need gain= in µV a count")
                array = array * gain
            elif units in TO_MICROVOLTS:
                array = array * TO_MICROVOLTS[units]
            else:
                raise ValueError(f"units={units!r} are none of uV, mV, V, raw")
        if fs is None:
            raise ValueError("say fs, in samples a second")
        if not isinstance(electrodes, ElectrodeArray):
            electrodes = ElectrodeArray(torch.as_tensor(np.asarray(electrodes, dtype=np.float64)))
        pairs = {int(e): tuple(float(x) for x in p) for e, p in (thresholds or {}).items()}
        errors: dict[int, tuple[float, float]] = {}
        widths = []
        for curve in curves:
            level, error, width = curve.fit()
            side = 0 if curve.sign > 0 else 1
            widths.append(width)
            if curve.electrode in errors and not math.isnan(errors[curve.electrode][side]):
                sign = "anodic" if side == 0 else "cathodic"
                raise ValueError(f"electrode {curve.electrode} has two {sign} curves; join them")
            for table, value in ((pairs, level), (errors, error)):
                both = list(table.get(curve.electrode, (math.nan, math.nan)))
                both[side] = value
                table[curve.electrode] = (both[0], both[1])
        rho = float(np.median(widths)) if widths else 0.05
        given = waveform or Waveform.triphasic()
        return cls(array, float(fs), electrodes, pairs, errors, noise, rho, given)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Observation:
    """A recording as a fit uses it.

    Attributes:
        log_amplitude, amplitude_error, amplitude_mask: [3, electrodes].
        delay, duration: ms, [electrodes], with ``time_mask``.
        delay_error, duration_error: of both: the spread under the image's noise, the sampling's, the model's.
        patterns: one electrode with 1 µA each, with its sign, [thresholds, electrodes].
        log_threshold, threshold_error: of each.
        channel: electrode of each.
        dt, every: of simulations, so that samples fall together.
    """

    recording: Recording
    estimate: Estimate
    noise: float
    dt: float
    every: int
    log_amplitude: Tensor
    amplitude_error: Tensor
    amplitude_mask: Tensor
    delay: Tensor
    duration: Tensor
    delay_error: Tensor
    duration_error: Tensor
    time_mask: Tensor
    patterns: Tensor
    log_threshold: Tensor
    threshold_error: Tensor
    channel: Tensor


def observe(recording: Recording) -> Observation:
    """Features and their errors, pose, and the time grid.

    Raises:
        ValueError: the image holds no spike above five standard deviations of the noise.
    """
    noise = noise_of(recording.ei) if recording.noise is None else float(recording.noise)
    xy = recording.electrodes.xyz.numpy()
    estimate = estimate_pose(recording.ei, xy, noise=noise, pitch=recording.electrodes.pitch)
    every, dt = time_grid(recording.fs)
    phi = torch.as_tensor(recording.ei.T.copy())[None]
    found = EIFeatures(1e3 / recording.fs)(phi)
    size = found.amplitude[0]
    mask = found.visible(noise)[0]
    model = torch.tensor(MODEL_ERROR, dtype=size.dtype)[:, None]
    error = torch.sqrt(model**2 + (noise / size.clamp(min=noise)) ** 2)
    rows, levels, errors, channels = [], [], [], []
    for e, pair in sorted(recording.thresholds.items()):
        spread = recording.errors.get(e, (math.nan, math.nan))
        for sign, level, own in zip((1.0, -1.0), pair, spread, strict=True):
            if math.isnan(level):
                continue
            row = torch.zeros(len(recording.electrodes), dtype=torch.float64)
            row[e] = sign
            rows.append(row)
            levels.append(math.log(abs(level)))
            errors.append(math.hypot(THRESHOLD_ERROR, 0.0 if math.isnan(own) else own))
            channels.append(e)
    empty = torch.zeros(0, len(recording.electrodes), dtype=torch.float64)
    return Observation(
        recording,
        estimate,
        noise,
        dt,
        every,
        found.log()[0],
        error,
        mask,
        found.delays()[0],
        found.duration[0],
        *_time_errors(phi, noise, recording.fs),
        mask[0] & mask[1],
        torch.stack(rows) if rows else empty,
        torch.tensor(levels, dtype=torch.float64),
        torch.tensor(errors, dtype=torch.float64),
        torch.tensor(channels, dtype=torch.int64),
    )


def _time_errors(phi: Tensor, noise: float, fs: float) -> tuple[Tensor, Tensor]:
    """Errors of delays and durations, ms: over draws of the noise, with the spacing of samples and the
    model's own error."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(BOOTSTRAP, *phi.shape[1:], generator=generator, dtype=phi.dtype)
    found = EIFeatures(1e3 / fs)(phi + noise * drawn)
    # Delays count from one electrode, that of the largest trough, whichever it is in a draw.
    first = int((-phi[0]).max(0).values.argmax())
    delay = found.time - found.time[:, first, None]
    own = TIME_ERROR**2 + (1e3 / fs) ** 2 / 12
    return torch.sqrt(delay.var(0) + own), torch.sqrt(found.duration.var(0) + own)


def time_grid(fs: float) -> tuple[int, float]:
    """Steps from one sample to the next, and the step in ms: near 0.02."""
    every = max(1, round(1e3 / fs / 0.02))
    return every, 1e3 / fs / every


def choose_electrodes(ei: np.ndarray, count: int, *, xy: np.ndarray, apart: float = 25.0) -> list[int]:
    """Electrodes to stimulate: those with the largest troughs, no two nearer than ``apart`` µm."""
    amplitude = -np.asarray(ei).min(1)
    chosen: list[int] = []
    for e in np.argsort(-amplitude, kind="stable").tolist():
        if len(chosen) == count:
            break
        if all(np.linalg.norm(xy[e, :2] - xy[k, :2]) >= apart for k in chosen):
            chosen.append(e)
    return chosen
