"""DTW and TWED: of two series, of every pair, and smooth with gradients.

    DTW    R[i,j] = c(x_i, y_j) + min( R[i-1,j-1], R[i-1,j], R[i,j-1] )
    TWED   R[i,j] = min( R[i-1,j-1] + |x_i - y_j| + |x_{i-1} - y_{j-1}| + nu (|t_i - s_j| + |t_{i-1} -
    s_{j-1}|),
                         R[i-1,j] + |x_i - x_{i-1}| + nu (t_i - t_{i-1}) + lam,
                         R[i,j-1] + |y_j - y_{j-1}| + nu (s_j - s_{j-1}) + lam )

(P.-F. Marteau, IEEE TPAMI 31 (2009) 306-318, with the infinite border of its reference implementation.) The
smooth ones replace min by -gamma log sum exp(-a / gamma). The loops are those of icml-kernels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import torch
from icml_kernels import elastic_cross, soft_elastic
from jaxtyping import Float, Int
from torch import Tensor

from icml_idealpoint.series import Gaps, Layout, SeriesSet, as_series

Metric = Literal["twed", "dtw"]
Cost = Literal["norm", "squared"]
Window = float | int | None


def pairwise(
    X: Any,
    Y: Any = None,
    metric: Metric = "twed",
    *,
    nu: float = 0.05,
    lam: float = 1.0,
    cost: Cost = "norm",
    root: bool = False,
    window: Window = None,
    times_x: Any = None,
    times_y: Any = None,
    layout: Layout = "ntc",
    nan: Gaps = "raise",
    dtype: str = "float64",
    n_jobs: int = 1,
    out: np.ndarray | None = None,
    block: int = 4096,
) -> Float[np.ndarray, "series_x series_y"]:
    """The distance of every series of X from every series of Y: a true cross product.

    Args:
        X, Y: series in any form of :func:`~icml_idealpoint.series.as_series`; without Y, X with itself.
        metric: ``"twed"`` or ``"dtw"``.
        nu, lam: stiffness and cost of a deletion of TWED.
        cost: pointwise cost of DTW.
        root: the square root of the result.
        window: an int is a number of points, a float a share of the longer series.
        times_x, times_y: times of the points, for TWED; 1, 2, … by default.
        layout, nan: as in ``as_series``.
        dtype: ``"float32"`` or ``"float64"``.
        n_jobs: threads; -1 for as many as torch has.
        out: where to write, such as a ``numpy.memmap``; a new array by default.
        block: series of each side that are worked on at a time.

    Raises:
        TypeError, ValueError: bad input, with what was expected.

    Example:
        >>> pairwise([[0.0, 1.0, 2.0]], [[0.5, 1.5, 2.5], [0.0, 1.0, 2.0]], "dtw")
        array([[1.5, 0. ]])
    """
    kind = _dtype(dtype)
    if n_jobs == 0 or n_jobs < -1:
        raise ValueError(f"n_jobs={n_jobs}; expected a positive number, or -1")
    if block < 1:
        raise ValueError(f"block={block}; expected at least 1")
    left = as_series(X, layout=layout, times=times_x, nan=nan, dtype=kind)
    right = left if Y is None else as_series(Y, layout=layout, times=times_y, nan=nan, dtype=kind, name="Y")
    shape = (len(left), len(right))
    if out is None:
        out = np.empty(shape, dtype)
    elif out.shape != shape:
        raise ValueError(f"out has shape {list(out.shape)}; expected {list(shape)}")
    threads = torch.get_num_threads() if n_jobs == -1 else n_jobs
    for rows, columns in blocks(*shape, block):
        found = cross(
            left[rows], right[columns], metric, nu=nu, lam=lam, cost=cost, window=window, threads=threads
        )
        out[rows, columns] = (found.sqrt() if root else found).numpy()
    return out


def blocks(rows: int, columns: int, block: int) -> Iterator[tuple[slice, slice]]:
    """The blocks of a matrix, as pairs of index ranges in Python's integers, which do not overflow."""
    for first in range(0, rows, block):
        for second in range(0, columns, block):
            yield slice(first, min(first + block, rows)), slice(second, min(second + block, columns))


def cross(
    left: SeriesSet,
    right: SeriesSet,
    metric: Metric,
    *,
    nu: float = 0.05,
    lam: float = 1.0,
    cost: Cost = "norm",
    window: Window = None,
    threads: int = 0,
) -> Float[Tensor, "left right"]:
    """:func:`pairwise` of series that are already in tensors."""
    return elastic_cross(
        left.values,
        right.values,
        metric,
        cost=cost,
        nu=nu,
        lam=lam,
        x_lengths=left.lengths,
        y_lengths=right.lengths,
        x_times=left.times,
        y_times=right.times,
        window=window,
        masked=left.masked or right.masked,
        threads=threads,
    )


def twed(
    x: Any,
    y: Any,
    nu: float = 0.05,
    lam: float = 1.0,
    *,
    times_x: Any = None,
    times_y: Any = None,
    window: Window = None,
    nan: Gaps = "raise",
) -> float:
    """The time warp edit distance of two series [points] or [points, channels].

    It depends on differences only: with the infinite border the first points are always matched.

    Raises:
        TypeError, ValueError: as :func:`pairwise`.

    Example:
        >>> twed([0.0, 1.0, 2.0], [0.0, 2.0], nu=0.0, lam=0.5)
        1.5
    """
    times = [None if t is None else [t] for t in (times_x, times_y)]
    options = {"times_x": times[0], "times_y": times[1], "window": window, "nan": nan}
    return float(pairwise([x], [y], "twed", nu=nu, lam=lam, **options)[0, 0])


def dtw(
    x: Any, y: Any, *, cost: Cost = "norm", root: bool = False, window: Window = None, nan: Gaps = "raise"
) -> float:
    """Dynamic time warping of two series [points] or [points, channels].

    Libraries differ by what they sum and whether a root is taken: ``cost="squared"`` is aeon's DTW, and with
    ``root=True`` tslearn's and dtaidistance's.

    Raises:
        TypeError, ValueError: as :func:`pairwise`.

    Example:
        >>> dtw([0.0, 1.0, 2.0], [0.0, 2.0, 2.0], cost="squared")
        1.0
    """
    return float(pairwise([x], [y], "dtw", cost=cost, root=root, window=window, nan=nan)[0, 0])


def soft_twed(
    x: Float[Tensor, "batch points_x channels"],
    y: Float[Tensor, "batch points_y channels"],
    gamma: float | Tensor = 0.1,
    nu: float | Tensor = 0.05,
    lam: float | Tensor = 1.0,
    *,
    lengths_x: Int[Tensor, " batch"] | None = None,
    lengths_y: Int[Tensor, " batch"] | None = None,
    times_x: Float[Tensor, "batch points_x"] | None = None,
    times_y: Float[Tensor, "batch points_y"] | None = None,
    window: Window = None,
    divergence: bool = False,
    smoothing: float = 1e-2,
    masked: bool = False,
    max_bytes: int | None = None,
) -> Float[Tensor, " batch"]:
    """Soft TWED of each pair, differentiable by both series, times, gamma, nu and lam (first order).

    Args:
        x, y: series, padded at the end; a batch of one serves all pairs.
        gamma: temperature. The value lies below TWED by at most gamma log D(n - 1, m - 1), D the Delannoy
            number.
        nu, lam: stiffness and cost of a deletion.
        lengths_x, lengths_y: points of each series.
        times_x, times_y: increasing and above 0.
        window: as in :func:`pairwise`.
        divergence: S(x, y) - (S(x, x) + S(y, y)) / 2, which is 0 for x = y.
        smoothing: norms are sqrt(|v|^2 + smoothing^2), in units of the values.
        masked: NaN marks a missing channel.
        max_bytes: bound of the work space; the batch is then cut.

    Raises:
        TypeError, ValueError: as ``icml_kernels.soft_elastic``.
    """
    options = {"gamma": gamma, "nu": nu, "lam": lam, "window": window, "smoothing": smoothing}
    options |= {"masked": masked, "max_bytes": max_bytes}
    return _soft(x, y, "twed", options, (lengths_x, times_x), (lengths_y, times_y), divergence)


def soft_dtw(
    x: Float[Tensor, "batch points_x channels"],
    y: Float[Tensor, "batch points_y channels"],
    gamma: float | Tensor = 0.1,
    *,
    cost: Cost = "squared",
    lengths_x: Int[Tensor, " batch"] | None = None,
    lengths_y: Int[Tensor, " batch"] | None = None,
    window: Window = None,
    divergence: bool = False,
    smoothing: float = 1e-2,
    masked: bool = False,
    max_bytes: int | None = None,
) -> Float[Tensor, " batch"]:
    """Soft DTW of each pair (Cuturi and Blondel, arXiv 1703.01541), differentiable by both series and gamma.

    The value is signed: it may be negative. Arguments as in :func:`soft_twed`.

    Raises:
        TypeError, ValueError: as ``icml_kernels.soft_elastic``.
    """
    options = {"gamma": gamma, "cost": cost, "window": window, "smoothing": smoothing}
    options |= {"masked": masked, "max_bytes": max_bytes}
    return _soft(x, y, "dtw", options, (lengths_x, None), (lengths_y, None), divergence)


def _soft(
    x: Tensor,
    y: Tensor,
    metric: Metric,
    options: dict[str, Any],
    of_x: tuple[Any, Any],
    of_y: tuple[Any, Any],
    divergence: bool,
) -> Tensor:
    def between(a: Tensor, b: Tensor, of_a: tuple[Any, Any], of_b: tuple[Any, Any]) -> Tensor:
        known = {"x_lengths": of_a[0], "y_lengths": of_b[0], "x_times": of_a[1], "y_times": of_b[1]}
        return soft_elastic(a, b, metric, **known, **options)

    value = between(x, y, of_x, of_y)
    if not divergence:
        return value
    return value - (between(x, x, of_x, of_x) + between(y, y, of_y, of_y)) / 2


class ElasticLoss(torch.nn.Module):
    """The mean soft distance of a batch of series from their targets, as a loss of training.

    Args:
        metric: ``"twed"`` or ``"dtw"``.
        gamma: temperature.
        divergence: subtract the distances of the series from themselves.
        options: further ones of :func:`soft_twed` or :func:`soft_dtw`.

    Raises:
        ValueError: an unknown metric.
    """

    def __init__(
        self, metric: Metric = "twed", gamma: float = 0.1, divergence: bool = False, **options: Any
    ) -> None:
        super().__init__()
        if metric not in ("twed", "dtw"):
            raise ValueError(f"metric={metric!r} is neither 'twed' nor 'dtw'")
        self.metric, self.gamma, self.divergence, self.options = metric, gamma, divergence, options

    def forward(self, x: Tensor, y: Tensor, **lengths: Any) -> Float[Tensor, ""]:
        """The mean over the batch."""
        loss = soft_twed if self.metric == "twed" else soft_dtw
        return loss(x, y, self.gamma, divergence=self.divergence, **self.options, **lengths).mean()


def soft_twed_loss(gamma: float = 0.1, **options: Any) -> ElasticLoss:
    """:class:`ElasticLoss` of TWED."""
    return ElasticLoss("twed", gamma, **options)


def soft_dtw_loss(gamma: float = 0.1, **options: Any) -> ElasticLoss:
    """:class:`ElasticLoss` of DTW."""
    return ElasticLoss("dtw", gamma, **options)


def _dtype(name: str) -> torch.dtype:
    kinds = {"float32": torch.float32, "float64": torch.float64}
    if name not in kinds:
        raise ValueError(f"dtype={name!r} is neither 'float32' nor 'float64'")
    return kinds[name]


def largest_bias(n: int, m: int, gamma: float) -> float:
    """gamma log D(n - 1, m - 1), by which a soft distance lies below the hard one at most; D is Delannoy's
    number."""
    from icml_kernels.series.recurrence import delannoy

    return gamma * math.log(delannoy(n - 1, m - 1))
