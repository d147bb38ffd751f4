"""Elastic distances of every pair across two sets of series, in plain torch: the definition."""

from __future__ import annotations

from torch import Tensor

from icml_kernels.series.recurrence import corner, deletions, fill, hard_minimum, pointwise, radius


def forward(
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
    """R[n, m] of ``recurrence.fill`` for every pair, [series of x, series of y]."""
    c = pointwise(x[:, None, :, None], y[None, :, None], cost, masked, 0.0)
    if metric == "twed":
        c = c + nu * (x_times[:, None, :, None] - y_times[None, :, None]).abs()
    steps = x.new_tensor(nu), x.new_tensor(lam)
    p = deletions(x, x_times, *steps, masked, 0.0)[:, None]
    q = deletions(y, y_times, *steps, masked, 0.0)[None]
    n, m = x_lengths.to(x.device)[:, None], y_lengths.to(x.device)[None]
    reach = radius(n, m, band, relative).to(x.device)
    pairs = c.shape[:2]
    table = fill(c, p.expand(*pairs, -1), q.expand(*pairs, -1), reach, metric, hard_minimum)
    return corner(table, n, m)
