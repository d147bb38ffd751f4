"""What recent contexts agree on: mixtures of a few stored distributions, their entropy, token and divergence.

    m = sum_k w_k p_k,    H(m) = sum_k w_k H(p_k) + JSD_w(p_1, ..., p_d)

The divergence is the mutual information of token and context under the weights (arXiv 2512.02044, section 3).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.language.buffer_mix import reference
from icml_kernels.language.checks import require_shape
from icml_kernels.language.masked_entropy_argmax import without_derivatives

_HERE = "icml_kernels.language.buffer_mix"


class Mixture(NamedTuple):
    """Of every group: entropy of the mixture in nats, its most probable token, the divergence, max m."""

    entropy: Float[Tensor, " groups"]
    argmax: Int64[Tensor, " groups"]
    jsd: Float[Tensor, " groups"]
    maxprob: Float[Tensor, " groups"]


def buffer_mix(
    rows_logp: Float[Tensor, "rows vocabulary"],
    weights: Float[Tensor, "groups members"],
    index: Int[Tensor, "groups members"],
) -> Mixture:
    """H(m), argmax m, JSD and max m of m = sum_k w_k exp(rows_logp[index_k]), in one pass, without m.

    Weights are divided by their sum over the members that are there; a group without a member gives NaN.
    Of equal probabilities the first token is taken. All results but the token are differentiable by
    log-probabilities and weights, as if log-probabilities were free numbers; forward mode is not offered.

    Args:
        rows_logp: log-probabilities in nats, -inf where a token is ruled out; float32 or float64.
        weights: not negative.
        index: which row each member is; a negative number stands for none.

    Raises:
        TypeError: for a dtype that does not fit.
        ValueError: for shapes or devices that do not fit together; on the CPU also for a negative weight or a
            row that is not there.

    Example:
        >>> two = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]])
        >>> buffer_mix(two, torch.ones(1, 2), torch.tensor([[0, 1]])).jsd  # log 2
        tensor([0.6931])
    """
    require_shape("rows_logp", rows_logp, (None, None))
    require_shape("weights", weights, (None, None))
    require_shape("index", index, tuple(weights.shape))
    if rows_logp.dtype not in (torch.float32, torch.float64) or weights.dtype != rows_logp.dtype:
        raise TypeError(
            f"rows_logp has dtype {rows_logp.dtype} and weights {weights.dtype}; expected torch.float32 or "
            "torch.float64 for both"
        )
    if index.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"index has dtype {index.dtype}; expected torch.int64 or torch.int32")
    for name, tensor in (("weights", weights), ("index", index)):
        if tensor.device != rows_logp.device:
            raise ValueError(f"{name} lies on {tensor.device} but rows_logp on {rows_logp.device}; move one")
    if 0 in rows_logp.shape and weights.numel():
        raise ValueError(f"rows_logp has shape {list(rows_logp.shape)}; members need rows and tokens")
    there = torch.where(index >= 0, weights, 0)
    run = _forward if without_derivatives() else _buffer_mix
    return Mixture(*run(rows_logp, there / there.sum(1, keepdim=True), index.long()))


def _fake_forward(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    a, b, c = (rows_logp.new_empty(index.shape[0]) for _ in range(3))
    return a, rows_logp.new_empty(index.shape[0], dtype=torch.int64), b, c


def _fake_backward(*inputs: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(inputs[3]), torch.empty_like(inputs[4])


_forward = raw_op(
    "buffer_mix",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
# A few rows a step: torch's passes are good enough for a gradient.
_backward = raw_op("buffer_mix_backward", reference.backward, fake=_fake_backward)


class _Backward(torch.autograd.Function):
    """(g, log-probabilities, weights, index, argmax) -> gradients; its own derivative is the reference's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *values, index, argmax = ctx.saved_tensors
        outputs, vjp = torch.func.vjp(lambda *given: reference.backward(*given, index, argmax), *values)
        return *vjp(tuple(zeros_for_none(grads, outputs))), None, None


_buffer_mix_backward = differentiable(_Backward)


class _BufferMix(torch.autograd.Function):
    """(log-probabilities, weights, index) -> entropy, token, divergence, largest probability."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, *output)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rows_logp, weights, index, entropy, argmax, divergence, top = ctx.saved_tensors
        given = zeros_for_none((grads[0], grads[2], grads[3]), (entropy, divergence, top))
        return *_buffer_mix_backward(*given, rows_logp, weights, index, argmax), None


_buffer_mix = differentiable(_BufferMix)
