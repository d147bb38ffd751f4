"""Sums over the rows of a ragged list in compressed form, without atomic additions."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import require_float, require_shape
from icml_kernels.molecules.segment_sum_csr import reference

_HERE = "icml_kernels.molecules.segment_sum_csr"


def segment_sum_csr(
    values: Float[Tensor, " places *features"], ptr: Int32[Tensor, " rows_1"]
) -> Float[Tensor, " rows *features"]:
    """out_i = sum of the values from place ptr[i] up to ptr[i + 1], each row in order.

    Linear, hence differentiable at will; deterministic for any number of threads.

    Args:
        values: one row of features a place, or one number a place. Places from ``ptr[-1]`` on are
            spare: they count for nothing.
        ptr: bounds of the rows, rising from 0.

    Raises:
        TypeError: for values neither float32 nor float64, or a ptr that is not int32.
        ValueError: for more than two dimensions, or tensors on two devices.

    Example:
        >>> segment_sum_csr(torch.tensor([1.0, 2, 3]), torch.tensor([0, 2, 2, 3], dtype=torch.int32))
        tensor([3., 0., 3.])
    """
    require_float(values=values)
    if ptr.dtype != torch.int32:
        raise TypeError(f"ptr has dtype {ptr.dtype}; expected torch.int32")
    require_shape("ptr", ptr, (None,))
    if ptr.device != values.device:
        raise ValueError(f"ptr lies on {ptr.device} but values on {values.device}; move one")
    if ptr.shape[0] == 0:
        raise ValueError("ptr is empty; it has one entry more than there are rows")
    if values.dim() == 1:
        return _segment_sum(values[:, None], ptr)[:, 0]
    if values.dim() != 2:
        raise ValueError(f"values has shape {list(values.shape)}; expected [places] or [places, features]")
    return _segment_sum(values, ptr)


def _fake_forward(values: Tensor, ptr: Tensor) -> Tensor:
    return values.new_empty(ptr.shape[0] - 1, values.shape[1])


def _fake_gather(sums: Tensor, ptr: Tensor, places: int) -> Tensor:
    return sums.new_empty(places, sums.shape[1])


_forward = raw_op(
    "segment_sum_csr",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_gather = raw_op(
    "segment_gather_csr",
    reference.gather,
    fake=_fake_gather,
    cpu=f"{_HERE}.cpu:gather",
    cuda=f"{_HERE}.triton:gather",
)


class _SegmentGather(torch.autograd.Function):
    """The adjoint: each place receives its row's value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(sums: Tensor, ptr: Tensor, places: int) -> Tensor:
        return _gather(sums, ptr, places)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.places = inputs[2]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _segment_sum(g, *ctx.saved_tensors), None, None

    @staticmethod
    def jvp(ctx: Any, sums_t: Any, *rest: Any) -> Any:
        return _segment_gather(sums_t, *ctx.saved_tensors, ctx.places)


_segment_gather = differentiable(_SegmentGather)


class _SegmentSum(torch.autograd.Function):
    """The sum over each row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, ptr: Tensor) -> Tensor:
        return _forward(values, ptr)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])
        ctx.places = inputs[0].shape[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _segment_gather(g, *ctx.saved_tensors, ctx.places), None

    @staticmethod
    def jvp(ctx: Any, values_t: Any, *rest: Any) -> Any:
        return _segment_sum(values_t, *ctx.saved_tensors)


_segment_sum = differentiable(_SegmentSum)
