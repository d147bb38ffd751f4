"""log-sum-exp over the rows of a ragged list: the inflow of a state from the log flows of its parents."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.flows.segment_logsumexp import reference
from icml_kernels.molecules.checks import require_float, require_shape
from icml_kernels.molecules.segment_sum_csr import segment_sum_csr

_HERE = "icml_kernels.flows.segment_logsumexp"


def segment_logsumexp(
    values: Float[Tensor, " places"], ptr: Int32[Tensor, " rows_1"]
) -> Float[Tensor, " rows"]:
    """out_i = log sum exp of the values from place ptr[i] up to ptr[i + 1], without overflow.

    A row without places, or with nothing but -inf, gives -inf and passes no gradient on. NaN stays NaN, and
    +inf gives +inf. Each row is summed in order, so that bits do not depend on the number of threads.

    Args:
        values: one number a place. Places from ``ptr[-1]`` on are spare: they count for nothing.
        ptr: bounds of the rows, rising from 0.

    Raises:
        TypeError: for values neither float32 nor float64, or a ptr that is not int32.
        ValueError: for other numbers of dimensions, an empty ptr, or tensors on two devices.

    Example:
        >>> segment_logsumexp(torch.tensor([0.0, 0.0, 7.0]), torch.tensor([0, 2, 2, 3], dtype=torch.int32))
        tensor([0.6931,   -inf, 7.0000])
    """
    require_float(values=values)
    require_shape("values", values, (None,))
    if ptr.dtype != torch.int32:
        raise TypeError(f"ptr has dtype {ptr.dtype}; expected torch.int32")
    require_shape("ptr", ptr, (None,))
    if ptr.device != values.device:
        raise ValueError(f"ptr lies on {ptr.device} but values on {values.device}; move one")
    if ptr.shape[0] == 0:
        raise ValueError("ptr is empty; it has one entry more than there are rows")
    return _segment_logsumexp(values, ptr)


def _fake_forward(values: Tensor, ptr: Tensor) -> Tensor:
    return values.new_empty(ptr.shape[0] - 1)


def _fake_backward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
    return torch.empty_like(values)


_forward = raw_op(
    "segment_logsumexp",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "segment_logsumexp_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)


class _SegmentShares(torch.autograd.Function):
    """grad_i p_e with p_e = exp(values_e - out_i): linear in grad, and dp_e = p_e (dv_e - sum_i p dv)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(grad: Tensor, values: Tensor, out: Tensor, ptr: Tensor) -> Tensor:
        return _backward(grad, values, out, ptr)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        grad, values, out, ptr = ctx.saved_tensors
        weighted = reference.backward(torch.ones_like(grad), values, out, ptr) * g
        sums = segment_sum_csr(weighted, ptr)
        by_values = reference.backward(grad, values, out, ptr) * g - _segment_shares(
            grad * sums, values, out, ptr
        )
        return sums, by_values, None, None

    @staticmethod
    def jvp(ctx: Any, grad_t: Any, values_t: Any, out_t: Any, ptr_t: Any) -> Any:
        grad, values, out, ptr = ctx.saved_tensors
        grad_t, values_t = zeros_for_none((grad_t, values_t), (grad, values))
        mean = segment_sum_csr(_segment_shares(torch.ones_like(grad), values, out, ptr) * values_t, ptr)
        moved = _segment_shares(grad, values, out, ptr) * values_t
        return moved + _segment_shares(grad_t - grad * mean, values, out, ptr)


_segment_shares = differentiable(_SegmentShares)


class _SegmentLogSumExp(torch.autograd.Function):
    """The logarithm of the sum over each row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, ptr: Tensor) -> Tensor:
        return _forward(values, ptr)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        values, ptr, out = ctx.saved_tensors
        return _segment_shares(g, values, out, ptr), None

    @staticmethod
    def jvp(ctx: Any, values_t: Any, *rest: Any) -> Any:
        values, ptr, out = ctx.saved_tensors
        return segment_sum_csr(_segment_shares(torch.ones_like(out), values, out, ptr) * values_t, ptr)


_segment_logsumexp = differentiable(_SegmentLogSumExp)
