"""Elastic distances (DTW, TWED) of every pair across two sets of series.

Their dynamic programme stands in ``icml_kernels.series.recurrence``.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.series.checks import (
    band_of,
    clean,
    default_times,
    require_number,
    require_options,
    require_paths,
    side,
)
from icml_kernels.series.elastic_cross import reference

_HERE = "icml_kernels.series.elastic_cross"


def elastic_cross(
    x: Float[Tensor, "series_x points_x channels"],
    y: Float[Tensor, "series_y points_y channels"],
    metric: str = "twed",
    *,
    cost: str = "norm",
    nu: float = 0.05,
    lam: float = 1.0,
    x_lengths: Int[Tensor, " series_x"] | None = None,
    y_lengths: Int[Tensor, " series_y"] | None = None,
    x_times: Float[Tensor, "series_x points_x"] | None = None,
    y_times: Float[Tensor, "series_y points_y"] | None = None,
    window: float | int | None = None,
    masked: bool = False,
    threads: int = 0,
) -> Float[Tensor, "series_x series_y"]:
    """Dynamic time warping, or the time warp edit distance, of every series of x from every series of y.

    See ``icml_kernels.series.recurrence`` for the recurrences. Not differentiable; ``soft_elastic`` is.

    Args:
        x, y: the series, padded at the end; what stands in the padding does not matter.
        metric: ``"twed"`` or ``"dtw"``.
        cost: pointwise cost of DTW, ``"norm"`` or ``"squared"``; no square root is taken of the sum.
        nu: stiffness of TWED, in units of the values per unit of time.
        lam: what TWED pays to delete a point, in units of the values.
        x_lengths, y_lengths: points of each series; all by default.
        x_times, y_times: increasing and above 0; 1, 2, … by default. DTW does not use them.
        window: cells with |i - j| above this are not allowed: an int is a number of points, a float a share
            of the longer series of the pair.
        masked: NaN marks a missing channel, which is left out of norms (scaled by channels / channels
            present).
        threads: how many work on it; 0 for torch's number.

    Raises:
        TypeError: dtypes that differ or are neither float32 nor float64.
        ValueError: shapes that do not fit, NaN or infinity, negative nu or lam, unknown options, times that
            do not increase, or a window that leaves a pair without a path.

    Example:
        >>> one = torch.tensor([[[0.0], [1.0], [2.0]]])
        >>> elastic_cross(one, one + 0.5, "dtw")
        tensor([[1.5000]])
    """
    require_options(metric, cost)
    require_number("nu", nu)
    require_number("lam", lam)
    band, relative = band_of(window)
    left = side("x", x, x_lengths, x_times, masked)
    right = side("y", y, y_lengths, y_times, masked)
    if x.dtype != y.dtype or x.device != y.device:
        raise TypeError(f"x is {x.dtype} on {x.device} but y {y.dtype} on {y.device}; convert one")
    if x.shape[2] != y.shape[2]:
        raise ValueError(f"x has {x.shape[2]} channels but y has {y.shape[2]}")
    if threads < 0:
        raise ValueError(f"threads={threads} is negative; 0 stands for torch's number")
    require_paths(left.lengths[:, None], right.lengths[None], band, relative)
    x_times = default_times(x) if x_times is None else x_times
    y_times = default_times(y) if y_times is None else y_times
    return _forward(
        clean(x.detach(), left.lengths),
        clean(y.detach(), right.lengths),
        left.lengths,
        right.lengths,
        clean(x_times.detach(), left.lengths),
        clean(y_times.detach(), right.lengths),
        metric,
        cost,
        float(nu),
        float(lam),
        band,
        relative,
        masked,
        threads,
    )


def _fake(
    x: Tensor,
    y: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    metric: str,
    cost: str,
    nu: float,
    lam: float,
    band: float,
    relative: bool,
    masked: bool,
    threads: int,
) -> Tensor:
    return x.new_empty(x.shape[0], y.shape[0])


_forward = raw_op(
    "elastic_cross",
    reference.forward,
    fake=_fake,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
