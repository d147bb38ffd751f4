"""Divergence from a teacher known by its most probable tokens and what they leave, without kept logits.

The bucket form treats all tokens outside the list as one event, so that it is a divergence: exact on the
coarser alphabet, never negative, and the whole divergence where the list holds the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import require_head, require_shape
from icml_kernels.language.head import arithmetic, empty_gradients
from icml_kernels.language.topk_kl import reference

_HERE = "icml_kernels.language.topk_kl"
MODES = ("bucket", "paper")


def topk_kl(
    hidden: Float[Tensor, "rows features"] | Float[Tensor, "rows vocabulary"],
    weight: Float[Tensor, "vocabulary features"] | None,
    idx: Int[Tensor, "rows k"],
    logp: Float[Tensor, "rows k"],
    tail: Float[Tensor, " rows"],
    *,
    temperature: float = 1.0,
    mode: str = "bucket",
    token_weight: Float[Tensor, " rows"] | None = None,
    bias: Float[Tensor, " vocabulary"] | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> Float[Tensor, " rows"]:
    """sum_k p_k (log p_k - log q_k) + tail (log tail - log(1 - sum_k q_k)) of each row, in nats.

    q = softmax(x) of the student, x as in ``token_stats``; p from ``topk_logprobs`` of the teacher at the
    same temperature. ``mode="paper"`` drops the second term, as arXiv 2605.13981 does: that is no
    divergence and can be negative. A mean over rows, and the factor temperature^2, are the caller's.

    Differentiable by hidden, weight and bias; second derivatives run through the definition, forward
    mode is not offered. The teacher's tensors have no gradient. 16-bit inputs are computed with in float32.

    Args:
        hidden: the student's last hidden states; or its logits, where ``weight`` is None.
        weight, bias: the student's head.
        idx: tokens that the teacher lists, each once a row.
        logp: their log-probabilities under the teacher.
        tail: the teacher's probability of all others together.
        temperature, logit_scale, softcap: as in ``token_stats``.
        mode: ``"bucket"`` or ``"paper"``.
        token_weight: multiplies each row; rows with 0 are not computed. It has no gradient.

    Returns:
        float32, or float64 for float64.

    Raises:
        TypeError: for dtypes that differ or do not fit.
        ValueError: for shapes or devices that do not fit together, tokens outside the vocabulary or listed
            twice, an unknown mode, or teacher's tensors that want a gradient.

    Example:
        >>> x = torch.tensor([[0.0, 2.0, 1.0]])
        >>> idx, logp, tail = icml_kernels.topk_logprobs(x, None, 2)
        >>> bool(topk_kl(x, None, idx, logp, tail) < 1e-6)  # the student is the teacher
        True
    """
    vocabulary = require_head(hidden, weight, bias, temperature, logit_scale, softcap)
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    n, dtype = hidden.shape[0], arithmetic(hidden.dtype)
    _require_teacher(hidden, vocabulary, idx, logp, tail)
    if token_weight is None:
        counted = torch.ones(n, dtype=torch.bool, device=hidden.device)
    else:
        _require_fixed(hidden, "token_weight", token_weight, (n,))
        counted = token_weight != 0
    cap = None if softcap is None else float(softcap)
    options = (mode, float(temperature), float(logit_scale), cap)
    teacher = idx.long(), logp.to(dtype), tail.to(dtype)
    loss, _, _ = _topk_kl(hidden, weight, bias, *teacher, counted, *options)
    return loss if token_weight is None else loss * token_weight.to(dtype)


def _require_teacher(hidden: Tensor, vocabulary: int, idx: Tensor, logp: Tensor, tail: Tensor) -> None:
    if idx.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"idx has dtype {idx.dtype}; expected torch.int64 or torch.int32")
    require_shape("idx", idx, (hidden.shape[0], None))
    if not 1 <= idx.shape[1] <= vocabulary:
        raise ValueError(f"idx lists {idx.shape[1]} tokens a row; expected 1 to {vocabulary}")
    _require_fixed(hidden, "idx", idx, tuple(idx.shape))
    for name, tensor, shape in (("logp", logp, tuple(idx.shape)), ("tail", tail, (hidden.shape[0],))):
        if not tensor.is_floating_point():
            raise TypeError(f"{name} has dtype {tensor.dtype}; expected a floating one")
        _require_fixed(hidden, name, tensor, shape)


def _require_fixed(hidden: Tensor, name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    require_shape(name, tensor, shape)
    if tensor.device != hidden.device:
        raise ValueError(f"{name} lies on {tensor.device} but hidden on {hidden.device}; move one")
    if tensor.requires_grad:
        raise ValueError(f"{name} wants a gradient, which it does not get here; detach it")


def _fake_forward(hidden: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(hidden.new_empty(hidden.shape[0], dtype=arithmetic(hidden.dtype)) for _ in range(3))


def _fake_backward(*inputs: Any) -> tuple[Tensor, ...]:
    return empty_gradients(*inputs[1:4], *inputs[-2:])


_forward = raw_op(
    "topk_kl",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "topk_kl_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)
_N_OPTIONS = 4


class _TopKKLBackward(torch.autograd.Function):
    """(g, hidden, weight, bias, ...) -> gradients; its own derivative is the reference's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:8])
        ctx.options = inputs[10:14]
        ctx.flags = inputs[14:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *values, idx, logp, tail, counted = ctx.saved_tensors
        teacher = (idx, logp, tail, counted)
        present = [t is not None for t in values]

        def definition(*given: Tensor) -> Any:
            supply = iter(given)
            g, *head = (next(supply) if p else None for p in present)
            _, *row_sums = reference.forward(*head, *teacher, *ctx.options)
            return reference.backward(g, *head, *teacher, *row_sums, *ctx.options, *ctx.flags)

        outputs, vjp = torch.func.vjp(definition, *(t for t in values if t is not None))
        by = iter(vjp(tuple(zeros_for_none(grads, outputs))))
        # The sums among the inputs are functions of the others, and went into their derivatives.
        return *(next(by) if p else None for p in present), *(None,) * (6 + _N_OPTIONS + 2)


_topk_kl_backward = differentiable(_TopKKLBackward)


class _TopKKL(torch.autograd.Function):
    """(hidden, weight, bias, teacher, ...) -> divergence, and two sums without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:7], *output[1:])
        ctx.options = inputs[7:]

    @staticmethod
    def backward(ctx: Any, g: Any, *rest: Any) -> Any:
        hidden, weight, bias = ctx.saved_tensors[:3]
        flags = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
        gh, gw, gb = _topk_kl_backward(g, *ctx.saved_tensors, *ctx.options, *flags)
        found = (
            gh.to(hidden.dtype) if flags[0] else None,
            gw.to(weight.dtype) if weight is not None and flags[1] else None,
            gb.to(bias.dtype) if bias is not None and flags[1] else None,
        )
        return *found, *(None,) * (4 + _N_OPTIONS)


_topk_kl = differentiable(_TopKKL)
