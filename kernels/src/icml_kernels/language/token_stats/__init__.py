"""log p of tokens, entropy and varentropy of their distributions, without logits of all rows.

Varentropy is the variance of log p under p. The pair (log p + H, varentropy) is the centred
log-likelihood of arXiv 2602.12222 and its variance.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import require_head, require_targets
from icml_kernels.language.head import arithmetic, empty_gradients
from icml_kernels.language.token_stats import reference

_HERE = "icml_kernels.language.token_stats"


class TokenStats(NamedTuple):
    """Of every row, in nats (the varentropy in squared nats); 0 where the row is ignored."""

    logp: Float[Tensor, " rows"]
    entropy: Float[Tensor, " rows"]
    varentropy: Float[Tensor, " rows"]


def token_stats(
    hidden: Float[Tensor, "rows features"] | Float[Tensor, "rows vocabulary"],
    targets: Int[Tensor, " rows"],
    *,
    weight: Float[Tensor, "vocabulary features"] | None = None,
    bias: Float[Tensor, " vocabulary"] | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
) -> TokenStats:
    """log p_y, H = -sum_v p_v log p_v and Var = sum_v p_v (log p_v + H)^2, with p = softmax(x).

    x = cap(logit_scale (hidden weight^T + bias)) / temperature, with cap(z) = softcap tanh(z / softcap);
    without ``weight``, ``hidden`` holds logits in place of the products. Logits of -inf have p = 0 and
    count for nothing. Blocks of rows share one buffer, so that logits of all rows never exist; the
    gradient computes them anew.

    Differentiable by hidden, weight and bias in all three results; second derivatives run through the
    definition, forward mode is not offered. 16-bit inputs are computed with in float32.

    Args:
        hidden: last hidden states, or logits.
        targets: the token of each row; the row's own successor, so shift before the call.
        weight, bias: the head.
        temperature: divides the logits.
        logit_scale: multiplies the head's products.
        softcap: of the scaled products; None stands for none.
        ignore_index: target of the rows that do not count.

    Returns:
        float32, or float64 for float64.

    Raises:
        TypeError: for dtypes that differ or do not fit.
        ValueError: for shapes or devices that do not fit together, targets outside the vocabulary, or a
            temperature or cap that is not positive.

    Example:
        >>> token_stats(torch.zeros(1, 4), torch.tensor([2])).entropy  # log 4
        tensor([1.3863])
    """
    require_head(hidden, weight, bias, temperature, logit_scale, softcap)
    targets = require_targets(targets, hidden.shape[0], hidden.device)
    cap = None if softcap is None else float(softcap)
    options = (float(temperature), float(logit_scale), cap, ignore_index)
    logp, entropy, varentropy, _ = _token_stats(hidden, weight, bias, targets, *options)
    return TokenStats(logp, entropy, varentropy)


def _fake_forward(hidden: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return tuple(hidden.new_empty(hidden.shape[0], dtype=arithmetic(hidden.dtype)) for _ in range(4))


def _fake_backward(*inputs: Any) -> tuple[Tensor, ...]:
    return empty_gradients(*inputs[3:6], *inputs[-2:])


_forward = raw_op(
    "token_stats",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "token_stats_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)
_N_OPTIONS = 4


class _TokenStatsBackward(torch.autograd.Function):
    """(g, hidden, weight, bias, ...) -> gradients; its own derivative is the reference's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:7])
        ctx.options = inputs[10:14]
        ctx.flags = inputs[14:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *values, targets = ctx.saved_tensors
        present = [t is not None for t in values]

        def definition(*given: Tensor) -> Any:
            supply = iter(given)
            g1, g2, g3, *head = (next(supply) if p else None for p in present)
            _, *stats = reference.forward(*head, targets, *ctx.options)
            return reference.backward(g1, g2, g3, *head, targets, *stats, *ctx.options, *ctx.flags)

        outputs, vjp = torch.func.vjp(definition, *(t for t in values if t is not None))
        by = iter(vjp(tuple(zeros_for_none(grads, outputs))))
        # The statistics among the inputs are functions of the others, and went into their derivatives.
        return *(next(by) if p else None for p in present), *(None,) * (4 + _N_OPTIONS + 2)


_token_stats_backward = differentiable(_TokenStatsBackward)


class _TokenStats(torch.autograd.Function):
    """(hidden, weight, bias, targets) -> log p, entropy, varentropy; log-sum-exp without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:4], *output[1:])
        ctx.options = inputs[4:]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, bias = ctx.saved_tensors[:3]
        flags = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
        gh, gw, gb = _token_stats_backward(*grads[:3], *ctx.saved_tensors, *ctx.options, *flags)
        found = (
            gh.to(hidden.dtype) if flags[0] else None,
            gw.to(weight.dtype) if weight is not None and flags[1] else None,
            gb.to(bias.dtype) if bias is not None and flags[1] else None,
        )
        return *found, *(None,) * (1 + _N_OPTIONS)


_token_stats = differentiable(_TokenStats)
