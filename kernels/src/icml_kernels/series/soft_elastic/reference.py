"""Smooth elastic distances of pairs of series and their gradients, in plain torch: the definition.

The minimum of ``icml_kernels.series.recurrence`` becomes -gamma log sum exp(-a / gamma), and a norm ||v||
becomes sqrt(||v||^2 + smoothing^2), which has a derivative where points meet.
"""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.series.recurrence import candidates, corner, fill, pointwise, radius, soft_minimum


def value(
    x: Tensor,
    y: Tensor,
    p: Tensor,
    q: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    gamma: Tensor,
    nu: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    metric: str,
    cost: str,
    smoothing: float,
    band: float,
    relative: bool,
    masked: bool,
) -> Tensor:
    """R[n, m] of every pair, [pairs], from series [pairs, points, channels] and deletion costs [pairs,
    points]."""
    c = pointwise(x[:, :, None], y[:, None], cost, masked, smoothing)
    if metric == "twed":
        c = c + nu * (x_times[:, :, None] - y_times[:, None]).abs()
    n, m = x_lengths.to(x.device), y_lengths.to(x.device)
    table = fill(c, p, q, radius(n, m, band, relative), metric, soft_minimum(gamma))
    return corner(table, n, m)


def value_and_gradients(
    x: Tensor,
    y: Tensor,
    p: Tensor,
    q: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    gamma: Tensor,
    nu: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    metric: str,
    cost: str,
    smoothing: float,
    band: float,
    relative: bool,
    masked: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The value of every pair, and its derivatives by the eight tensors before ``x_lengths``, each with the
    pairs as its first dimension (gamma and nu: [pairs])."""
    n, m = x_lengths.to(x.device), y_lengths.to(x.device)
    reach = radius(n, m, band, relative)
    apart = (x_times[:, :, None] - y_times[:, None]) if metric == "twed" else None
    norms = pointwise(x[:, :, None], y[:, None], cost, masked, smoothing)
    c = norms if apart is None else norms + nu * apart.abs()
    table = fill(c, p, q, reach, metric, soft_minimum(gamma))
    rows, columns = c.shape[1:]
    zero = torch.zeros_like(gamma + c[:, 0, 0])
    flow = [[zero] * (columns + 1) for _ in range(rows + 1)]
    share = [[zero] * (columns + 1) for _ in range(rows + 1)]
    by_p, by_q = [zero] * rows, [zero] * columns
    by_gamma = zero
    for i in range(rows, 0, -1):
        for j in range(columns, 0, -1):
            ways = candidates(table, i, j, c, p, q, metric)
            weights = torch.softmax(-ways / gamma, dim=-1)
            through = flow[i][j] + torch.where((n == i) & (m == j), zero + 1, zero)
            entropy = -(weights * torch.log_softmax(-ways / gamma, dim=-1)).sum(-1)
            by_gamma = by_gamma - through * entropy
            match, up, left = (through * w for w in weights.unbind(-1))
            flow[i - 1][j - 1] = flow[i - 1][j - 1] + match
            flow[i - 1][j] = flow[i - 1][j] + up
            flow[i][j - 1] = flow[i][j - 1] + left
            by_p[i - 1], by_q[j - 1] = by_p[i - 1] + up, by_q[j - 1] + left
            if metric == "dtw":
                share[i][j] = through
            else:
                share[i][j] = share[i][j] + match
                share[i - 1][j - 1] = match
    a = torch.stack([torch.stack(row[1:], dim=-1) for row in share[1:]], dim=1)
    if apart is None:
        by_p, by_q = [zero] * rows, [zero] * columns
        by_x_times, by_y_times, by_nu = torch.zeros_like(x_times), torch.zeros_like(y_times), zero
    else:
        by_x_times, by_y_times = nu * (a * apart.sign()).sum(2), -nu * (a * apart.sign()).sum(1)
        by_nu = (a * apart.abs()).sum((1, 2))
    by_x, by_y = _by_points(a, x, y, norms, cost, masked)
    by_p, by_q = torch.stack(by_p, dim=-1), torch.stack(by_q, dim=-1)
    return corner(table, n, m), by_x, by_y, by_p, by_q, by_x_times, by_y_times, by_gamma, by_nu


def _by_points(
    a: Tensor, x: Tensor, y: Tensor, norms: Tensor, cost: str, masked: bool
) -> tuple[Tensor, Tensor]:
    """Derivatives by both points of sum_ij a_ij c_ij; 0 where a norm that is not smoothed is 0."""
    difference = x[:, :, None] - y[:, None]
    factor = (
        2 * a
        if cost == "squared"
        else torch.where(norms > 0, a / norms.clamp(min=1e-300), torch.zeros_like(a))
    )
    if masked:
        present = ~torch.isnan(difference)
        factor = factor * x.shape[2] / present.sum(-1).clamp(min=1)
        difference = torch.where(present, difference, torch.zeros_like(difference))
    steps = factor[..., None] * difference
    return steps.sum(2), -steps.sum(1)
