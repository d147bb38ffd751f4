"""The whole table of one pair's dynamic programme on the CPU."""

from __future__ import annotations

from torch import Tensor

from icml_kernels.njit import njit
from icml_kernels.series.recurrence import BIG


def forward(c: Tensor, p: Tensor, q: Tensor, reach: int, metric: str) -> Tensor:
    """See ``reference.forward``."""
    out = c.new_full(c.shape, BIG)
    _fill(
        c.contiguous().numpy(),
        p.contiguous().numpy(),
        q.contiguous().numpy(),
        reach,
        metric == "twed",
        out.numpy(),
    )
    return out


@njit
def _fill(c, p, q, reach, twed, out):
    far = c.dtype.type(BIG)
    for i in range(c.shape[0]):
        for j in range(max(0, i - reach), min(c.shape[1], i + reach + 1)):
            match = out[i - 1, j - 1] if i > 0 and j > 0 else far
            if i == 0 and j == 0:
                match = c.dtype.type(0)
            up = out[i - 1, j] if i > 0 else far
            left = out[i, j - 1] if j > 0 else far
            if twed:
                before = c[i - 1, j - 1] if i > 0 and j > 0 else c.dtype.type(0)
                out[i, j] = min(match + c[i, j] + before, min(up + p[i], left + q[j]))
            else:
                out[i, j] = c[i, j] + min(match, min(up, left))
