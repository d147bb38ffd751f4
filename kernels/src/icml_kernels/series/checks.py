"""What the elastic distances check at their entrance, and the forms in which they take series."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from icml_kernels.series.recurrence import COSTS, METRICS, radius

FLOATS = (torch.float32, torch.float64)


def require_options(metric: str, cost: str) -> None:
    """The metric and the pointwise cost are known and fit together.

    Raises:
        ValueError: naming what is allowed.
    """
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r} is not one of {', '.join(METRICS)}")
    if cost not in COSTS:
        raise ValueError(f"cost={cost!r} is not one of {', '.join(COSTS)}")
    if metric == "twed" and cost != "norm":
        raise ValueError("TWED is defined with norms; take cost='norm', or metric='dtw' for squares")


def require_number(name: str, value: Any, *, positive: bool = False) -> None:
    """A finite number that is not negative, or is positive.

    Raises:
        ValueError: quoting it.
    """
    number = float(value.detach() if isinstance(value, Tensor) else value)
    if not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise ValueError(f"{name}={number:g} must be {'positive' if positive else 'at least 0'} and finite")


def band_of(window: float | int | None) -> tuple[float, bool]:
    """A window as (band, relative): -1 for none; an int is a number of points, a float a share of the longer
    series.

    Raises:
        ValueError: a negative number of points, or a share outside 0 to 1.
        TypeError: neither an int, a float nor None.
    """
    if window is None:
        return -1.0, False
    if isinstance(window, bool) or not isinstance(window, Real):
        raise TypeError(f"window={window!r}; expected None, a number of points (int) or a share (float)")
    if isinstance(window, Integral):
        if window < 0:
            raise ValueError(f"window={window} points is negative")
        return float(window), False
    if not 0 <= window <= 1:
        raise ValueError(
            f"window={window} is a share of the longer series; expected 0 to 1 (an int for points)"
        )
    return float(window), True


@dataclass(frozen=True)
class Side:
    """One side of a comparison: series in one tensor, with their lengths and times.

    Attributes:
        values: [series, points, channels], contiguous.
        lengths: [series] int64 on the CPU.
        times: [series, points], or None where they are 1, 2, ….
    """

    values: Tensor
    lengths: Tensor
    times: Tensor | None


def side(name: str, values: Tensor, lengths: Any, times: Tensor | None, masked: bool) -> Side:
    """Check the series of one side.

    What stands in the padding does not matter, and may be NaN.

    Raises:
        TypeError: a dtype that is neither float32 nor float64.
        ValueError: wrong shapes, lengths outside 1 to the number of points, times that do not increase from
            above 0, NaN (unless ``masked``) or infinity.
    """
    if not isinstance(values, Tensor) or values.dtype not in FLOATS:
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise TypeError(f"{name} has dtype {kind}; expected torch.float32 or torch.float64")
    if values.dim() != 3 or values.shape[2] == 0:
        raise ValueError(f"{name} has shape {list(values.shape)}; expected [series, points, channels]")
    series, points, _ = values.shape
    if points == 0:
        raise ValueError(f"{name} has series without points; every series needs at least one")
    if lengths is None:
        known = torch.full((series,), points, dtype=torch.int64)
    else:
        known = torch.as_tensor(lengths).detach().to("cpu", torch.int64)
        if known.shape != (series,):
            raise ValueError(f"{name} has {series} series but lengths of shape {list(known.shape)}")
        if series and (int(known.min()) < 1 or int(known.max()) > points):
            raise ValueError(f"lengths of {name} must lie in 1 to {points}; got {known.tolist()}")
    inside = torch.arange(points, device=values.device) < known.to(values.device)[:, None]
    _require_finite(name, values.detach(), inside, masked)
    if times is not None:
        if times.shape != (series, points) or times.dtype != values.dtype:
            raise ValueError(
                f"times of {name} have shape {list(times.shape)} and dtype {times.dtype}; "
                f"expected {[series, points]} and {values.dtype}"
            )
        before = torch.nn.functional.pad(times.detach()[:, :-1], (1, 0))
        wrong = inside & ~((times.detach() > before) & torch.isfinite(times.detach()))
        if bool(wrong.any()):
            row, place = (int(v) for v in wrong.nonzero()[0])
            raise ValueError(
                f"times of {name} must increase and begin above 0 (TWED puts the start at time 0); series "
                f"{row} has "
                f"{float(times[row, place]):g} at position {place}"
            )
    return Side(values, known, times)


def _require_finite(name: str, values: Tensor, inside: Tensor, masked: bool) -> None:
    if bool(torch.isfinite(values.sum())):
        return
    wrong = torch.isinf(values) if masked else ~torch.isfinite(values)
    wrong &= inside[:, :, None]
    if bool(wrong.any()):
        row, place, channel = (int(v) for v in wrong.nonzero()[0])
        value = float(values[row, place, channel])
        raise ValueError(
            f"{name} has {value:g} in series {row} at position {place}, channel {channel}; drop such points "
            "or mask "
            "their channels"
        )


def require_paths(n: Tensor, m: Tensor, band: float, relative: bool) -> None:
    """Every pair of lengths (broadcast) has a path inside its band.

    Raises:
        ValueError: naming the first pair that has none.
    """
    if band < 0 or n.numel() == 0 or m.numel() == 0:
        return
    n, m = torch.broadcast_tensors(n, m)
    blocked = (n - m).abs() > radius(n, m, band, relative)
    if bool(blocked.any()):
        place = tuple(blocked.nonzero()[0].tolist())
        a, b = int(n[place]), int(m[place])
        given = f"{band:g} of the longer series" if relative else f"{band:g} points"
        raise ValueError(
            f"a window of {given} leaves no path between lengths {a} and {b}; it needs at least {abs(a - b)} "
            "points"
        )


def clean(values: Tensor, lengths: Tensor) -> Tensor:
    """The values with zeros in the padding; gradients of the padding are exactly 0."""
    if bool((lengths == values.shape[1]).all()):
        return values
    inside = torch.arange(values.shape[1], device=values.device) < lengths.to(values.device)[:, None]
    return torch.where(
        inside.reshape(*inside.shape, *[1] * (values.dim() - 2)), values, torch.zeros_like(values)
    )


def default_times(values: Tensor) -> Tensor:
    """1, 2, …, n for every series."""
    steps = torch.arange(1, values.shape[1] + 1, device=values.device, dtype=values.dtype)
    return steps.expand(values.shape[0], -1)
