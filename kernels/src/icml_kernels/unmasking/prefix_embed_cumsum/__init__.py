"""First-layer sums of all masked prefixes of a path: what lets a known path be evaluated in one call."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import require_float, require_shape
from icml_kernels.unmasking.prefix_embed_cumsum import reference

_HERE = "icml_kernels.unmasking.prefix_embed_cumsum"


def prefix_embed_cumsum(
    weight: Float[Tensor, "sites symbols_1 hidden"],
    x: Int64[Tensor, "paths sites"],
    order: Int64[Tensor, "paths sites"],
    sizes: Int64[Tensor, " prefixes"],
    *,
    trusted: bool = False,
) -> Float[Tensor, "prefixes paths hidden"]:
    """pre[t, b] = sum_i W[i, s] with s = x[b, i] where site i is among the first sizes[t] of order[b], else
    MASK.

    The mask is the last symbol of the weight. Successive prefixes differ by the sites revealed between them,
    so that all of them cost O(paths sites hidden) together, not O(prefixes paths sites hidden). Linear in
    the weight, with derivatives of any order by it.

    Args:
        weight: the rows of a first layer over one-hot symbols, by site and symbol.
        x: the full sequences, symbols 0 to symbols_1 - 2.
        order: in which order each path reveals its sites: a permutation in every row.
        sizes: how many sites each prefix shows; not falling, from 0 to the number of sites.
        trusted: do not look whether symbols, orders and sizes are in range.

    Raises:
        TypeError: a weight neither float32 nor float64, or indices that are not int64.
        ValueError: shapes that do not match, devices that differ, entries out of range.

    Example:
        >>> w = torch.tensor([[[1.0], [2.0], [10.0]], [[3.0], [4.0], [20.0]]])
        >>> prefix_embed_cumsum(w, torch.tensor([[1, 0]]), torch.tensor([[1, 0]]), torch.arange(3))[:, 0, 0]
        tensor([30., 13.,  5.])
    """
    require_float(weight=weight)
    require_shape("weight", weight, (None, None, None))
    for name, given in (("x", x), ("order", order), ("sizes", sizes)):
        if given.dtype != torch.int64:
            raise TypeError(f"{name} has dtype {given.dtype}; expected torch.int64")
        if given.device != weight.device:
            raise ValueError(f"{name} lies on {given.device} but weight on {weight.device}; move one")
    require_shape("x", x, (None, weight.shape[0]))
    require_shape("order", order, tuple(x.shape))
    require_shape("sizes", sizes, (None,))
    if not trusted:
        _require_ranges(weight, x, order, sizes)
    return _prefix_sums(weight, x, order, sizes)


def _require_ranges(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> None:
    if x.numel() and (int(x.min()) < 0 or int(x.max()) > weight.shape[1] - 2):
        raise ValueError(
            f"x has symbols {int(x.min())} to {int(x.max())}; expected 0 to {weight.shape[1] - 2}"
        )
    if order.numel() and not bool(
        (order.sort(1).values == torch.arange(order.shape[1], device=x.device)).all()
    ):
        raise ValueError("a row of order is no permutation of the sites")
    if sizes.numel() and (
        int(sizes.min()) < 0 or int(sizes.max()) > x.shape[1] or bool((sizes[1:] < sizes[:-1]).any())
    ):
        raise ValueError(f"sizes {sizes.tolist()} must not fall and lie in 0 to {x.shape[1]}")


def _fake_forward(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
    return weight.new_empty(sizes.shape[0], x.shape[0], weight.shape[2])


def _fake_backward(grad: Tensor, x: Tensor, order: Tensor, sizes: Tensor, symbols: int) -> Tensor:
    return grad.new_empty(x.shape[1], symbols, grad.shape[2])


_forward = raw_op(
    "prefix_embed_cumsum",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "prefix_embed_cumsum_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)


class _PrefixSums(torch.autograd.Function):
    """Linear in the weight."""

    generate_vmap_rule = True

    @staticmethod
    def forward(weight: Tensor, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
        return _forward(weight, x, order, sizes)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])
        ctx.save_for_forward(*inputs[1:])
        ctx.symbols = inputs[0].shape[1]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _prefix_spread(g, *ctx.saved_tensors, ctx.symbols), None, None, None

    @staticmethod
    def jvp(ctx: Any, weight_t: Any, *rest: Any) -> Any:
        return _prefix_sums(weight_t, *ctx.saved_tensors)


class _PrefixSpread(torch.autograd.Function):
    """The transpose, linear in the gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, x: Tensor, order: Tensor, sizes: Tensor, symbols: int) -> Tensor:
        return _backward(grad, x, order, sizes, symbols)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[1:4])
        ctx.save_for_forward(*inputs[1:4])
        ctx.symbols = inputs[4]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _prefix_sums(g, *ctx.saved_tensors), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, grad_t: Any, *rest: Any) -> Any:
        return _prefix_spread(grad_t, *ctx.saved_tensors, ctx.symbols)


_prefix_sums = differentiable(_PrefixSums)
_prefix_spread = differentiable(_PrefixSpread)
