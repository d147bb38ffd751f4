"""How sure a model is at chosen positions, and of which token: one pass over their logits, no probabilities.

What the decoder of a masked diffusion language model asks at every step (arXiv 2512.02044, section 3): the
negative entropy and the largest probability of each masked position, its token, and the log-sum-exp with
which log-probabilities of a few rows are made from logits.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import FLOATS, require_shape
from icml_kernels.language.head import arithmetic
from icml_kernels.language.masked_entropy_argmax import reference

_HERE = "icml_kernels.language.masked_entropy_argmax"


class RowScores(NamedTuple):
    """Of every chosen row: -H in nats, the largest probability, its token, log sum e^(x / temperature)."""

    neg_entropy: Float[Tensor, " chosen"]
    maxprob: Float[Tensor, " chosen"]
    argmax: Int64[Tensor, " chosen"]
    lse: Float[Tensor, " chosen"]


def masked_entropy_argmax(
    logits: Float[Tensor, "rows vocabulary"],
    rows: Int[Tensor, " chosen"],
    temperature: float = 1.0,
    exclude: int | None = None,
) -> RowScores:
    """H = lse - sum_v p_v x_v of x = logits[rows] / temperature, with max p and its token.

    Rows that are not chosen are never read, and nothing of the vocabulary's size is written. Of equal logits
    the first token is taken. Logits of -inf have p = 0 and count for nothing; a row with NaN, or of -inf
    alone, gives NaN. 16-bit logits are computed with in float32. The results but the token are
    differentiable; second derivatives run through the definition, forward mode is not offered.

    Args:
        logits: of any positions; chosen rows are read in place where the last axis is contiguous.
        rows: which rows, in any order; a row may come more than once.
        temperature: divides the logits.
        exclude: a token that counts for nothing, such as the mask, as if its logit were -inf.

    Returns:
        float32, or float64 for float64; the token in int64.

    Raises:
        TypeError: for a dtype that does not fit.
        ValueError: for a shape or device that does not fit, a row or token that is not there, or a
            temperature that is not positive.

    Example:
        >>> masked_entropy_argmax(torch.zeros(3, 4), torch.tensor([1])).neg_entropy  # -log 4
        tensor([-1.3863])
    """
    if logits.dtype not in FLOATS:
        raise TypeError(f"logits has dtype {logits.dtype}; expected one of {', '.join(map(str, FLOATS))}")
    require_shape("logits", logits, (None, None))
    require_shape("rows", rows, (None,))
    if rows.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"rows has dtype {rows.dtype}; expected torch.int64 or torch.int32")
    if rows.device != logits.device:
        raise ValueError(f"rows lies on {rows.device} but logits on {logits.device}; move one")
    if logits.shape[1] == 0:
        raise ValueError("the vocabulary is empty; logits needs one column a token")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature={temperature} is not a positive number")
    if exclude is not None and not 0 <= exclude < logits.shape[1]:
        raise ValueError(f"exclude={exclude} is none of the tokens 0 to {logits.shape[1] - 1}")
    options = (float(temperature), -1 if exclude is None else exclude)
    run = _forward if without_derivatives() else _masked_entropy_argmax
    return RowScores(*run(logits, rows.long(), *options))


def without_derivatives() -> bool:
    """Whether no derivative can be asked for, so that the raw operator alone will do.

    An autograd Function costs time even under ``torch.no_grad``, on a small call as much as the operator.
    Transforms of ``torch.func`` and forward mode work there too, and Dynamo wants the Function.
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    transforms = torch._C._functorch.get_interpreter_stack()
    return transforms is None and torch.autograd.forward_ad._current_level < 0


def _fake_forward(logits: Tensor, rows: Tensor, temperature: float, exclude: int) -> tuple[Tensor, ...]:
    a, b, c = (logits.new_empty(rows.shape[0], dtype=arithmetic(logits.dtype)) for _ in range(3))
    return a, b, logits.new_empty(rows.shape[0], dtype=torch.int64), c


def _fake_backward(*inputs: Any) -> Tensor:
    return inputs[3].new_empty(inputs[3].shape, dtype=arithmetic(inputs[3].dtype))


_forward = raw_op(
    "masked_entropy_argmax",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "masked_entropy_argmax_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)


class _Backward(torch.autograd.Function):
    """(g, logits, rows, scores, ...) -> gradient; its own derivative is the reference's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:5])
        ctx.options = inputs[9:]

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        *values, rows = ctx.saved_tensors

        def definition(g1: Tensor, g2: Tensor, g3: Tensor, logits: Tensor) -> Tensor:
            scores = reference.forward(logits, rows, *ctx.options)
            return reference.backward(g1, g2, g3, logits, rows, *scores, *ctx.options)

        _, vjp = torch.func.vjp(definition, *values)
        # The scores among the inputs are functions of the logits, and went into their derivatives.
        return *vjp(grad), *(None,) * 7


_masked_entropy_argmax_backward = differentiable(_Backward)


class _MaskedEntropyArgmax(torch.autograd.Function):
    """(logits, rows, ...) -> negative entropy, largest probability, its token, log-sum-exp."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs[:2], *output)
        ctx.options = inputs[2:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        logits, rows, *scores = ctx.saved_tensors
        floats = (scores[0], scores[1], scores[3])
        given = zeros_for_none((grads[0], grads[1], grads[3]), floats)
        by = _masked_entropy_argmax_backward(*given, logits, rows, *scores, *ctx.options)
        return by.to(logits.dtype), None, None, None


_masked_entropy_argmax = differentiable(_MaskedEntropyArgmax)
