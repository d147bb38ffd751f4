"""How two series are aligned: the table of the dynamic programme, and the path through it that attains its
corner."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.series.checks import (
    band_of,
    default_times,
    require_number,
    require_options,
    require_paths,
    side,
)
from icml_kernels.series.elastic_table import reference
from icml_kernels.series.recurrence import deletions, pointwise, radius

_HERE = "icml_kernels.series.elastic_table"


@dataclass(frozen=True)
class Alignment:
    """The cheapest way to turn one series into another.

    Attributes:
        path: cells (i, j), counted from 0, from (0, 0) to (n - 1, m - 1). A diagonal step is a match; in TWED
            a step down deletes x_i, and a step to the right y_j.
        table: R[i, j], the distance of the first i + 1 points of x from the first j + 1 of y.
        costs: c[i, j] of ``icml_kernels.series.recurrence``.
        deletions: what it costs to delete each point of x, and of y; TWED only.
    """

    path: Int[Tensor, "steps 2"]
    table: Float[Tensor, "points_x points_y"]
    costs: Float[Tensor, "points_x points_y"]
    deletions: tuple[Float[Tensor, " points_x"], Float[Tensor, " points_y"]] | None

    @property
    def value(self) -> float:
        """The distance."""
        return float(self.table[-1, -1])

    def path_cost(self) -> float:
        """The sum of what each step of the path costs; equals ``value``."""
        total = 0.0
        steps = self.path.tolist()
        for (a, b), (i, j) in zip([[-1, -1], *steps[:-1]], steps, strict=True):
            if self.deletions is None:
                total += float(self.costs[i, j])
            elif (i, j) == (a + 1, b + 1):
                total += float(self.costs[i, j]) + (float(self.costs[a, b]) if a >= 0 else 0.0)
            else:
                total += float(self.deletions[0][i] if j == b else self.deletions[1][j])
        return total


def elastic_alignment(
    x: Float[Tensor, "points_x channels"],
    y: Float[Tensor, "points_y channels"],
    metric: str = "twed",
    *,
    cost: str = "norm",
    nu: float = 0.05,
    lam: float = 1.0,
    x_times: Float[Tensor, " points_x"] | None = None,
    y_times: Float[Tensor, " points_y"] | None = None,
    window: float | int | None = None,
    masked: bool = False,
) -> Alignment:
    """The alignment that attains DTW or TWED of two series. Not differentiable.

    Of equally cheap predecessors a match is preferred to a deletion in x, and that to one in y.

    Args:
        x, y: the series.
        metric, cost, nu, lam, x_times, y_times, window, masked: as in ``elastic_cross``.

    Raises:
        TypeError, ValueError: as ``elastic_cross`` does.

    Example:
        >>> elastic_alignment(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [1.0], [1.0]]),
        "dtw").path.tolist() [[0, 0], [1, 1], [1, 2]]
    """
    require_options(metric, cost)
    require_number("nu", nu)
    require_number("lam", lam)
    band, relative = band_of(window)
    for name, series in (("x", x), ("y", y)):
        if series.dim() != 2:
            raise ValueError(f"{name} has shape {list(series.shape)}; expected [points, channels]")
    left = side("x", x[None], None, None if x_times is None else x_times[None], masked)
    right = side("y", y[None], None, None if y_times is None else y_times[None], masked)
    if x.dtype != y.dtype or x.shape[1] != y.shape[1]:
        raise ValueError(f"x is {x.dtype} with {x.shape[1]} channels but y {y.dtype} with {y.shape[1]}")
    require_paths(left.lengths, right.lengths, band, relative)
    c = pointwise(x.detach()[:, None], y.detach()[None], cost, masked, 0.0)
    gaps = None
    p, q = torch.zeros_like(c[:, 0]), torch.zeros_like(c[0])
    if metric == "twed":
        ts, ss = (default_times(s.values) if s.times is None else s.times.detach() for s in (left, right))
        c = c + nu * (ts[0][:, None] - ss[0][None]).abs()
        edit = c.new_tensor(nu), c.new_tensor(lam)
        p, q = (deletions(s[None].detach(), t, *edit, masked, 0.0)[0] for s, t in ((x, ts), (y, ss)))
        gaps = p, q
    reach = int(radius(x.shape[0], y.shape[0], band, relative))
    table = _table(c, p, q, reach, metric)
    return Alignment(_trace(table, c, p, q, metric), table, c, gaps)


def _trace(table: Tensor, c: Tensor, p: Tensor, q: Tensor, metric: str) -> Tensor:
    i, j = table.shape[0] - 1, table.shape[1] - 1
    path = [(i, j)]
    values, costs, up, left = table.tolist(), c.tolist(), p.tolist(), q.tolist()
    while i or j:
        ways = []
        if i and j:
            extra = costs[i][j] + costs[i - 1][j - 1] if metric == "twed" else 0.0
            ways.append((values[i - 1][j - 1] + extra, (i - 1, j - 1)))
        if i:
            ways.append((values[i - 1][j] + up[i], (i - 1, j)))
        if j:
            ways.append((values[i][j - 1] + left[j], (i, j - 1)))
        i, j = min(ways, key=lambda way: way[0])[1]
        path.append((i, j))
    return torch.tensor(path[::-1])


def _fake(c: Tensor, p: Tensor, q: Tensor, reach: int, metric: str) -> Tensor:
    return torch.empty_like(c)


_table = raw_op("elastic_table", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward")
