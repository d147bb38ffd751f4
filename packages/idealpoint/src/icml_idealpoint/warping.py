"""How one series is warped onto another: the path that attains DTW or TWED."""

from __future__ import annotations

from typing import Any

from icml_kernels import Alignment, elastic_alignment

from icml_idealpoint.distances import Cost, Metric, Window
from icml_idealpoint.series import Gaps, Layout, as_series


def alignment(
    x: Any,
    u: Any,
    metric: Metric = "twed",
    *,
    nu: float = 0.05,
    lam: float = 1.0,
    cost: Cost = "norm",
    window: Window = None,
    times_x: Any = None,
    times_u: Any = None,
    layout: Layout = "ntc",
    nan: Gaps = "raise",
) -> Alignment:
    """Align x [points] or [points, channels] with u.

    The result has the ``path`` as cells (i, j) counted from 0, the ``table`` of the dynamic programme, whose
    last entry is the distance, and ``path_cost()``, the sum of what the path's steps cost.

    Raises:
        TypeError, ValueError: as :func:`~icml_idealpoint.distances.pairwise`.

    Example:
        >>> alignment([0.0, 1.0], [0.0, 1.0, 1.0], "dtw").path.tolist()
        [[0, 0], [1, 1], [1, 2]]
    """
    sets = [
        as_series([series], layout=layout, nan=nan, times=None if times is None else [times], name=name)
        for series, times, name in ((x, times_x, "x"), (u, times_u, "u"))
    ]
    moments = [None if s.times is None else s.times[0] for s in sets]
    return elastic_alignment(
        sets[0].points(0),
        sets[1].points(0),
        metric,
        cost=cost,
        nu=nu,
        lam=lam,
        x_times=moments[0],
        y_times=moments[1],
        window=window,
        masked=any(s.masked for s in sets),
    )
