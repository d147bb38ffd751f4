"""Smooth elastic distances (soft-DTW, soft-TWED) of pairs of series, with exact gradients by everything.

Soft-DTW is due to Cuturi and Blondel (arXiv 1703.01541); the same smoothing of TWED, with its match of
current and previous pairs, has the backward recursion

    E[i,j] = w_match[i+1,j+1] E[i+1,j+1] + w_x[i+1,j] E[i+1,j] + w_y[i,j+1] E[i,j+1],   E[n,m] = 1

with the weights of the soft minimum at each cell. The cost c[i,j] then has the derivative E w_match at (i,j)
plus E w_match at (i+1,j+1), and a deletion of x_i the sum over j of E w_x at (i,j).
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.autodiff import differentiable
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
from icml_kernels.series.recurrence import deletions
from icml_kernels.series.soft_elastic import reference

_HERE = "icml_kernels.series.soft_elastic"


def soft_elastic(
    x: Float[Tensor, "pairs points_x channels"],
    y: Float[Tensor, "pairs points_y channels"],
    metric: str = "twed",
    *,
    gamma: float | Tensor = 0.1,
    nu: float | Tensor = 0.05,
    lam: float | Tensor = 1.0,
    cost: str = "norm",
    smoothing: float = 1e-2,
    x_lengths: Int[Tensor, " pairs"] | None = None,
    y_lengths: Int[Tensor, " pairs"] | None = None,
    x_times: Float[Tensor, "pairs points_x"] | None = None,
    y_times: Float[Tensor, "pairs points_y"] | None = None,
    window: float | int | None = None,
    masked: bool = False,
    max_bytes: int | None = None,
) -> Float[Tensor, " pairs"]:
    """Soft-DTW or soft-TWED of every pair, with gradients by x, y, times, gamma, nu and lam.

    The value may be negative: it lies below the hard distance (of smoothed norms) by at most gamma times the
    logarithm of the number of paths. A second derivative is refused.

    Args:
        x, y: series that are compared one by one, padded at the end. The padding does not matter, and its
            gradient is 0. A side with one series serves all pairs.
        metric: ``"twed"`` or ``"dtw"``.
        gamma: temperature of the minimum, in units of the values.
        nu: stiffness of TWED, in units of the values per unit of time.
        lam: what TWED pays to delete a point, in units of the values.
        cost: pointwise cost of DTW, ``"norm"`` or ``"squared"``.
        smoothing: of norms, in units of the values.
        x_lengths, y_lengths: points of each series; all by default.
        x_times, y_times: increasing and above 0; 1, 2, … by default. DTW does not use them.
        window: as in ``elastic_cross``.
        masked: NaN marks a missing channel, as in ``elastic_cross``.
        max_bytes: pairs are worked on in groups whose work space stays below this.

    Raises:
        TypeError: dtypes that differ or are neither float32 nor float64.
        ValueError: shapes that do not fit, NaN or infinity, gamma that is not positive, negative nu, lam or
            smoothing, unknown options, times that do not increase, a window without a path, or a
            ``max_bytes`` too small for one pair.
    """
    require_options(metric, cost)
    require_number("gamma", gamma, positive=True)
    for name, number in (("nu", nu), ("lam", lam), ("smoothing", smoothing)):
        require_number(name, number)
    band, relative = band_of(window)
    left = side("x", x, x_lengths, x_times, masked)
    right = side("y", y, y_lengths, y_times, masked)
    if x.dtype != y.dtype or x.device != y.device:
        raise TypeError(f"x is {x.dtype} on {x.device} but y {y.dtype} on {y.device}; convert one")
    if x.shape[2] != y.shape[2]:
        raise ValueError(f"x has {x.shape[2]} channels but y has {y.shape[2]}")
    pairs = y.shape[0] if x.shape[0] == 1 else x.shape[0]
    if y.shape[0] not in (1, pairs):
        raise ValueError(f"x has {x.shape[0]} series but y has {y.shape[0]}; expected as many, or one")
    if pairs == 0:
        return x.new_zeros(0)
    n, m = left.lengths.expand(pairs), right.lengths.expand(pairs)
    require_paths(n, m, band, relative)
    gamma, nu, lam = (torch.as_tensor(v, dtype=x.dtype, device=x.device) for v in (gamma, nu, lam))
    sides = []
    for given, times, lengths in ((x, x_times, left.lengths), (y, y_times, right.lengths)):
        values = clean(given, lengths)
        moments = clean(default_times(values) if times is None else times, lengths)
        if metric == "twed":
            gaps = clean(deletions(values, moments, nu, lam, masked, smoothing), lengths)
        else:
            gaps = torch.zeros_like(moments)
        sides.append((values.expand(pairs, -1, -1), gaps.expand(pairs, -1), moments.expand(pairs, -1)))
    (xs, p, ts), (ys, q, ss) = sides
    tensors = (xs, ys, p, q, ts, ss, gamma, nu)
    options = (metric, cost, float(smoothing), band, relative, masked)
    group = _group(max_bytes, pairs, xs, ys)
    parts = []
    for first in range(0, pairs, group):
        chosen = slice(first, first + group)
        part = (*(t[chosen] for t in tensors[:6]), gamma, nu, n[chosen], m[chosen], *options)
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            parts.append(_soft_elastic(*part)[0])
        else:
            parts.append(_value(*part))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def bytes_per_pair(points_x: int, points_y: int, itemsize: int) -> int:
    """The most work space of one pair: rows of state every sqrt(n), and one block of weights between two of
    them. The CPU keeps that block's state instead, a quarter of it."""
    block = min(points_x, int(points_x**0.5) + 1)
    return (5 * block + 8) * (points_y + 2) * itemsize


def _group(max_bytes: int | None, pairs: int, x: Tensor, y: Tensor) -> int:
    if max_bytes is None:
        return pairs
    each = bytes_per_pair(x.shape[1], y.shape[1], x.element_size())
    if max_bytes < each:
        raise ValueError(f"max_bytes={max_bytes} is less than the {each} bytes that one pair needs")
    return int(min(pairs, max_bytes // each))


def _fake_value(
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
    return x.new_empty(x.shape[0])


def _fake_gradients(x: Tensor, y: Tensor, p: Tensor, q: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    shapes = (x.shape[:1], x.shape, y.shape, p.shape, q.shape, p.shape, q.shape, x.shape[:1], x.shape[:1])
    return tuple(x.new_empty(shape) for shape in shapes)


_value = raw_op(
    "soft_elastic",
    reference.value,
    fake=_fake_value,
    cpu=f"{_HERE}.cpu:value",
    cuda=f"{_HERE}.triton:value",
)
_value_and_gradients = raw_op(
    "soft_elastic_gradients",
    reference.value_and_gradients,
    fake=_fake_gradients,
    cpu=f"{_HERE}.cpu:value_and_gradients",
    cuda=f"{_HERE}.triton:value_and_gradients",
)


class _SoftElastic(torch.autograd.Function):
    """Value and derivatives come from one pass, so that backward only scales; the derivatives are results
    too."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
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
    ) -> Any:
        rest = (x_lengths, y_lengths, metric, cost, smoothing, band, relative, masked)
        return _value_and_gradients(x, y, p, q, x_times, y_times, gamma, nu, *rest)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*output[1:])
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, g: Any, *unused: Any) -> Any:
        scaled = _once(g, *ctx.saved_tensors)
        return (*scaled[:6], scaled[6].sum(), scaled[7].sum(), *[None] * 8)


_soft_elastic = differentiable(_SoftElastic)


class _Once(torch.autograd.Function):
    """The product of the incoming gradient and the derivatives; its own derivative is refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, *derivatives: Tensor) -> Any:
        return tuple(d * g.reshape(-1, *[1] * (d.dim() - 1)) for d in derivatives)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.positions = len(inputs)

    @staticmethod
    def backward(ctx: Any, *unused: Any) -> Any:
        raise RuntimeError("soft_elastic has no second derivative; take finite differences of its gradient")


_once = differentiable(_Once)
