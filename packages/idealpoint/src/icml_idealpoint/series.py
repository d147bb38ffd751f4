"""Series in the forms in which people have them: arrays, lists of unequal length, with gaps, in either
layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Layout = Literal["ntc", "nct"]
Gaps = Literal["raise", "drop", "mask"]


@dataclass(frozen=True)
class SeriesSet:
    """Series padded to one length.

    Attributes:
        values: zeros in the padding; NaN marks missing channels where ``masked``.
        lengths: points of each series.
        times: when each point was taken, or None for 1, 2, …
        masked: whether single channels may be missing.
    """

    values: Float[Tensor, "series points channels"]
    lengths: Int[Tensor, " series"]
    times: Float[Tensor, "series points"] | None = None
    masked: bool = False

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def channels(self) -> int:
        """How many numbers a point has."""
        return self.values.shape[2]

    def __getitem__(self, which: Any) -> SeriesSet:
        chosen = which if isinstance(which, slice) else torch.as_tensor(which)
        times = None if self.times is None else self.times[chosen]
        return SeriesSet(self.values[chosen], self.lengths[chosen], times, self.masked)

    def inside(self) -> Tensor:
        """Which places are points and not padding, [series, points]."""
        places = torch.arange(self.values.shape[1], device=self.values.device)
        return places < self.lengths.to(places.device)[:, None]

    def points(self, series: int) -> Float[Tensor, "length channels"]:
        """One series without its padding."""
        return self.values[series, : int(self.lengths[series])]

    def to(self, device: str | torch.device | None = None, dtype: torch.dtype | None = None) -> SeriesSet:
        """The same on another device, or in another precision."""
        times = None if self.times is None else self.times.to(device=device, dtype=dtype)
        return SeriesSet(self.values.to(device=device, dtype=dtype), self.lengths, times, self.masked)


def as_series(
    X: Any,
    *,
    layout: Layout = "ntc",
    times: Any = None,
    nan: Gaps = "raise",
    dtype: torch.dtype = torch.float64,
    name: str = "X",
) -> SeriesSet:
    """Bring series into one padded tensor.

    Args:
        X: [series, points], [series, points, channels] (``layout="nct"``: [series, channels, points], as aeon
            has them), or a list of arrays [points] or [points, channels] of unequal length.
        layout: order of the last two dimensions.
        times: of the same form without channels; increasing and above 0.
        nan: ``"raise"``, ``"drop"`` (points with NaN are left out, the others keep their times), or
            ``"mask"`` (missing channels are left out of norms).
        dtype: torch.float32 or torch.float64.
        name: how messages call it.

    Raises:
        TypeError: not numbers.
        ValueError: NaN (naming series and position), infinity, empty series, channels that differ, times that
            do not fit or do not increase, an unknown layout or treatment of NaN.

    Example:
        >>> as_series([[1.0, 2.0, 3.0], [4.0, 5.0]]).lengths
        tensor([3, 2])
    """
    if isinstance(X, SeriesSet):
        return X.to(dtype=dtype)
    if layout not in ("ntc", "nct"):
        raise ValueError(f"layout={layout!r} is neither 'ntc' nor 'nct'")
    if nan not in ("raise", "drop", "mask"):
        raise ValueError(f"nan={nan!r} is none of 'raise', 'drop', 'mask'")
    rows = [_one(row, layout, f"{name}, series {k}") for k, row in enumerate(_rows(X, name))]
    if not rows:
        raise ValueError(f"{name} holds no series")
    channels = {row.shape[1] for row in rows}
    if len(channels) > 1:
        raise ValueError(f"the series of {name} have different numbers of channels: {sorted(channels)}")
    moments = _moments(times, rows, name)
    masked = False
    for k, row in enumerate(rows):
        missing = np.isnan(row)
        if np.isinf(row).any():
            place = int(np.isinf(row).any(1).argmax())
            raise ValueError(f"{name} has infinity in series {k} at position {place}")
        if not missing.any():
            continue
        if nan == "raise":
            place = int(missing.any(1).argmax())
            raise ValueError(
                f"{name} has NaN in series {k} at position {place}; nan='drop' leaves such points out, "
                "nan='mask' "
                "leaves missing channels out of distances"
            )
        gone = missing.any(1) if nan == "drop" else missing.all(1)
        if gone.all():
            raise ValueError(f"nothing is left of series {k} of {name}: every point has NaN")
        if moments is None:
            moments = [np.arange(1, len(r) + 1, dtype=np.float64) for r in rows]
        rows[k], moments[k] = row[~gone], moments[k][~gone]
        masked |= bool(np.isnan(rows[k]).any())
    return _padded(rows, moments, masked, dtype)


def _rows(X: Any, name: str) -> Sequence[Any]:
    if isinstance(X, Tensor):
        X = X.detach().cpu().numpy()
    if isinstance(X, np.ndarray) and X.dtype != object:
        if X.ndim not in (2, 3):
            raise ValueError(
                f"{name} has shape {list(X.shape)}; expected [series, points] or [series, points, channels], "
                "or a "
                "list of series"
            )
        return list(X)
    if not isinstance(X, (Sequence, np.ndarray)) or isinstance(X, (str, bytes)):
        raise TypeError(f"{name} is a {type(X).__name__}; expected an array or a list of series")
    return list(X)


def _one(row: Any, layout: Layout, where: str) -> np.ndarray:
    if isinstance(row, Tensor):
        row = row.detach().cpu().numpy()
    try:
        values = np.asarray(row, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{where} does not hold numbers only: {error}") from error
    if values.ndim == 1:
        values = values[:, None]
    elif values.ndim == 2 and layout == "nct":
        values = values.T
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{where} has shape {list(np.shape(row))}; every series needs at least one point")
    return values


def _moments(times: Any, rows: list[np.ndarray], name: str) -> list[np.ndarray] | None:
    if times is None:
        return None
    given = list(times.detach().cpu().numpy() if isinstance(times, Tensor) else times)
    if len(given) != len(rows):
        raise ValueError(f"times are given for {len(given)} series, but {name} has {len(rows)}")
    found = []
    for k, (row, moment) in enumerate(zip(rows, given, strict=True)):
        moment = np.asarray(moment, dtype=np.float64)
        if moment.shape != (len(row),):
            raise ValueError(
                f"times of series {k} of {name} have shape {list(moment.shape)}; expected [{len(row)}]"
            )
        if not (np.isfinite(moment).all() and moment[0] > 0 and (np.diff(moment) > 0).all()):
            raise ValueError(f"times of series {k} of {name} must increase, begin above 0 and be finite")
        found.append(moment)
    return found


def _padded(
    rows: list[np.ndarray], moments: list[np.ndarray] | None, masked: bool, dtype: torch.dtype
) -> SeriesSet:
    longest = max(map(len, rows))
    values = torch.zeros(len(rows), longest, rows[0].shape[1], dtype=dtype)
    times = None if moments is None else torch.zeros(len(rows), longest, dtype=dtype)
    for k, row in enumerate(rows):
        values[k, : len(row)] = torch.from_numpy(row)
        if times is not None and moments is not None:
            times[k, : len(row)] = torch.from_numpy(moments[k])
    return SeriesSet(values, torch.tensor([len(row) for row in rows]), times, masked)
