"""The dynamic programme of elastic distances, cell by cell in plain torch: the definition.

    DTW    R[i,j] = c[i,j] + min( R[i-1,j-1], R[i-1,j], R[i,j-1] )
    TWED   R[i,j] = min( R[i-1,j-1] + c[i,j] + c[i-1,j-1],  R[i-1,j] + p[i],  R[i,j-1] + q[j] )

with R[0,0] = 0 and an infinite border. c[i,j] = ||x_i - y_j|| + nu |t_i - s_j| (DTW: no term of times),
c[0,0] = 0, p[i] = ||x_i - x_{i-1}|| + nu (t_i - t_{i-1}) + lam, and q alike (P.-F. Marteau, IEEE TPAMI 31
(2009) 306-318). Because of the border the first points are always matched, so that the points of index 0
never matter but for their time 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

METRICS = ("dtw", "twed")
COSTS = ("norm", "squared")
BIG = 1e15  # stands for infinity: differences of it stay finite

Softmin = Callable[[Tensor], Tensor]


def pointwise(a: Tensor, b: Tensor, cost: str, masked: bool, smoothing: float) -> Tensor:
    """sqrt(||a - b||^2 + smoothing^2), or ||a - b||^2, over the last dimension.

    Where ``masked``, channels that are NaN on either side are left out and the sum of squares is scaled by
    channels / channels present; without a channel in common it is 0.
    """
    difference = a - b
    if masked:
        present = ~torch.isnan(difference)
        difference = torch.where(present, difference, torch.zeros_like(difference))
        count = present.sum(-1)
        squares = (difference**2).sum(-1) * (difference.shape[-1] / count.clamp(min=1).to(a.dtype))
    else:
        squares = (difference**2).sum(-1)
    if cost == "squared":
        return squares
    return (squares + smoothing**2).sqrt()


def deletions(x: Tensor, times: Tensor, nu: Tensor, lam: Tensor, masked: bool, smoothing: float) -> Tensor:
    """p[i] = ||x_i - x_{i-1}|| + nu (t_i - t_{i-1}) + lam of every point, [..., n]; p[1] only fills its
    place."""
    norms = pointwise(x[..., 1:, :], x[..., :-1, :], "norm", masked, smoothing)
    steps = times[..., 1:] - times[..., :-1]
    rest = norms + nu * steps + lam
    return torch.cat([torch.zeros_like(times[..., :1]) + lam, rest], dim=-1)


def radius(n: Tensor | int, m: Tensor | int, band: float, relative: bool) -> Tensor:
    """Half width of the band |i - j| <= r of allowed cells; negative ``band`` allows all."""
    longest = torch.maximum(torch.as_tensor(n), torch.as_tensor(m))
    if band < 0:
        return longest
    if relative:
        return torch.ceil(band * longest.double() - 1e-9).long()
    return torch.full_like(longest, int(band))


def hard_minimum(candidates: Tensor) -> Tensor:
    """The least of the candidates in the last dimension."""
    return candidates.amin(-1)


def soft_minimum(gamma: Tensor) -> Softmin:
    """-gamma log sum exp(-a / gamma) of the candidates in the last dimension; the least first, so that none
    overflows."""

    def smooth(candidates: Tensor) -> Tensor:
        return -gamma * torch.logsumexp(-candidates / gamma[..., None], dim=-1)

    return smooth


def candidates(
    table: list[list[Tensor]], i: int, j: int, c: Tensor, p: Tensor, q: Tensor, metric: str
) -> Tensor:
    """What the minimum at cell (i, j) chooses from: match, deletion in x, deletion in y, [..., 3]."""
    match, up, left = table[i - 1][j - 1], table[i - 1][j], table[i][j - 1]
    if metric == "twed":
        before = c[..., i - 2, j - 2] if i > 1 and j > 1 else torch.zeros_like(match)
        match, up, left = match + c[..., i - 1, j - 1] + before, up + p[..., i - 1], left + q[..., j - 1]
    return torch.stack([match, up, left], dim=-1)


def fill(c: Tensor, p: Tensor, q: Tensor, reach: Tensor, metric: str, minimum: Softmin) -> list[list[Tensor]]:
    """R of every pair, as rows 0 to n of columns 0 to m.

    Args:
        c: [..., rows, columns], where the leading dimensions are the pairs
        p, q: [..., rows] and [..., columns]
        reach: half width of the pair's band
        metric: of ``METRICS``
        minimum: over the last dimension
    """
    rows, columns = c.shape[-2:]
    zero, big = c.new_zeros(c.shape[:-2]), c.new_full(c.shape[:-2], BIG)
    table = [[zero] + [big] * columns]
    for i in range(1, rows + 1):
        table.append([big])
        for j in range(1, columns + 1):
            value = minimum(candidates(table, i, j, c, p, q, metric))
            if metric == "dtw":
                value = value + c[..., i - 1, j - 1]
            table[i].append(torch.where(reach < abs(i - j), big, value))
    return table


def corner(table: list[list[Tensor]], n: Tensor, m: Tensor) -> Tensor:
    """R[n, m] of every pair."""
    found = table[-1][-1]
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            found = torch.where((n == i) & (m == j), value, found)
    return found


def delannoy(k: int, j: int) -> int:
    """The number of paths from (0, 0) to (k, j) by steps (1, 1), (1, 0) and (0, 1).

    Example:
        >>> delannoy(2, 2)
        13
    """
    return sum(math.comb(k, a) * math.comb(j, a) * 2**a for a in range(min(k, j) + 1))
