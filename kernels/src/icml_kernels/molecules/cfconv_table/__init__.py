"""Continuous-filter convolution (SchNet) whose filter is a table of cubic Hermite splines.

The convolution is that of Schütt et al., arXiv 1706.08566, eq. 2; the fused aggregation by rows follows
FlashSchNet, arXiv 2602.13140; the tabulated filter replaces its filter network at inference.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.cfconv_table import reference
from icml_kernels.molecules.checks import require_float, require_list, require_shape
from icml_kernels.molecules.neighbors import HalfList

_HERE = "icml_kernels.molecules.cfconv_table"


def cfconv_table(
    x: Float[Tensor, "atoms filters"],
    distances: Float[Tensor, " pairs"],
    pairs: HalfList,
    table: Float[Tensor, "nodes 2 filters"],
    cutoff: float,
    r_min: float = 0.0,
) -> Float[Tensor, "atoms filters"]:
    """out_i = sum over the partners j of i of x_j * W(r_ij), with W interpolated in a table.

    The table has G + 1 nodes r_g = r_min + g h, h = (cutoff - r_min) / G; ``table[g, 0]`` is W(r_g) and
    ``table[g, 1]`` is h W'(r_g). With t = (r - r_g) / h, y0, d0, y1, d1 the entries of the two nodes and
    D = y1 - y0, W = y0 + t (d0 + t (3 D - 2 d0 - d1 + t (d0 + d1 - 2 D))). W is exactly 0 for
    r >= cutoff; below r_min the cubic of the first interval goes on. Derivatives are those of the
    interpolant, so that energies and forces are consistent to round-off.

    The result does not depend on the number of threads: every row is summed in the order of the list.
    First and second derivatives by x and r are as fast as the value; those by the table, and third
    ones, run in plain torch.

    Args:
        x: features of the atoms.
        distances: r of every pair in the order of ``pairs.idx``, in the unit of ``cutoff``.
        pairs: the neighbour list; each pair serves both of its atoms.
        table: values and scaled slopes at the nodes.
        cutoff: end of the table.
        r_min: its beginning.

    Raises:
        TypeError: where dtypes differ or are neither float32 nor float64.
        ValueError: where shapes or devices do not fit together, the table has fewer than two nodes, or
            the cutoff does not lie beyond r_min.
    """
    require_list(pairs, x.device)
    require_float(x=x, distances=distances, table=table)
    require_shape("x", x, (pairs.n_atoms, None))
    require_shape("distances", distances, (pairs.capacity,))
    require_shape("table", table, (None, 2, x.shape[1]))
    if table.shape[0] < 2:
        raise ValueError(f"table has {table.shape[0]} nodes; a spline needs at least 2")
    if not cutoff > r_min:
        raise ValueError(f"cutoff={cutoff} does not lie beyond r_min={r_min}")
    return _cfconv_table(x, distances, *pairs.tensors(), table, float(cutoff), float(r_min))


def _fake_backward(g: Tensor, x: Tensor, r: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(r)


def _fake_second(hx: Tensor, hr: Tensor, g: Tensor, x: Tensor, r: Tensor, *rest: Any) -> Any:
    return torch.empty_like(x), torch.empty_like(x), torch.empty_like(r)


_forward = raw_op(
    "cfconv_table",
    reference.forward,
    fake=lambda x, *rest: torch.empty_like(x),
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "cfconv_table_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)
_second_backward = raw_op(
    "cfconv_table_second_backward",
    reference.second_backward,
    fake=_fake_second,
    cpu=f"{_HERE}.cpu:second_backward",
    cuda=f"{_HERE}.triton:second_backward",
)


def _save(ctx: Any, inputs: Any) -> None:
    ctx.save_for_backward(*inputs[:-2])
    ctx.save_for_forward(*inputs[:-2])
    ctx.bounds = inputs[-2:]


def _by_table(definition: Any, ctx: Any, values: Any, lists: Any, table: Tensor, grads: Any) -> Tensor | None:
    """Gradient by the table through the definition, where it is asked for."""
    if not ctx.needs_input_grad[-3]:
        return None
    _, vjp = torch.func.vjp(lambda t: definition(*values, *lists, t, *ctx.bounds), table)
    return vjp(grads)[0]


_NO_GRADIENT_BY_LISTS = (None,) * 5


class _CFConvTableSecondBackward(torch.autograd.Function):
    """(hx, hr, g, x, r) -> (gg, gx, gr); its own derivative goes through the reference."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _second_backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *values, ptr, idx, ptr_t, idx_t, pair_t, table = ctx.saved_tensors
        lists = (ptr, idx, ptr_t, idx_t, pair_t)
        _, vjp = torch.func.vjp(lambda *v: reference.second_backward(*v, *lists, table, *ctx.bounds), *values)
        by_table = _by_table(reference.second_backward, ctx, values, lists, table, grads)
        return *vjp(grads), *_NO_GRADIENT_BY_LISTS, by_table, None, None


_cfconv_table_second_backward = differentiable(_CFConvTableSecondBackward)


class _CFConvTableBackward(torch.autograd.Function):
    """(g, x, r) -> (gx, gr)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        g, x, r, *lists, table = ctx.saved_tensors
        by_values = _cfconv_table_second_backward(*grads, g, x, r, *lists, table, *ctx.bounds)
        by_table = _by_table(reference.backward, ctx, (g, x, r), lists, table, grads)
        return *by_values, *_NO_GRADIENT_BY_LISTS, by_table, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        g, x, r, *lists, table = ctx.saved_tensors
        g_t, x_t, r_t = zeros_for_none(tangents[:3], (g, x, r))
        # gx and gr are linear in g; what is left is the derivative by x and r, which the second
        # backward holds because <hr, gr> is symmetric in g and x.
        gx_t, gr_t = _cfconv_table_backward(g_t, x, r, *lists, table, *ctx.bounds)
        _, gx_r, gr_xr = _cfconv_table_second_backward(x_t, r_t, g, x, r, *lists, table, *ctx.bounds)
        gx_t, gr_t = gx_t + gx_r, gr_t + gr_xr
        if tangents[8] is not None:
            by_table = reference.backward(g, x, r, *lists, tangents[8], *ctx.bounds)
            gx_t, gr_t = gx_t + by_table[0], gr_t + by_table[1]
        return gx_t, gr_t


_cfconv_table_backward = differentiable(_CFConvTableBackward)


class _CFConvTable(torch.autograd.Function):
    """(x, r) -> out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, r, *lists, table = ctx.saved_tensors
        by_values = _cfconv_table_backward(g, x, r, *lists, table, *ctx.bounds)
        by_table = _by_table(reference.forward, ctx, (x, r), lists, table, g)
        return *by_values, *_NO_GRADIENT_BY_LISTS, by_table, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        x, r, *lists, table = ctx.saved_tensors
        x_t, r_t = zeros_for_none(tangents[:2], (x, r))
        # The first result of the second backward is sum_j (hx_j W + hr x_j W').
        out_t = _cfconv_table_second_backward(x_t, r_t, x, x, r, *lists, table, *ctx.bounds)[0]
        if tangents[7] is not None:
            out_t = out_t + reference.forward(x, r, *lists, tangents[7], *ctx.bounds)
        return out_t


_cfconv_table = differentiable(_CFConvTable)
