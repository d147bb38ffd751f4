"""Negative log-likelihood of tokens with weights from their own statistics, without logits of all rows.

Loss and gradient come from one pass over the head. The weights are those of arXiv 2602.12222 and its
relatives; with weight 1 it is the cross-entropy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import require_head, require_shape, require_targets
from icml_kernels.language.head import arithmetic
from icml_kernels.language.token_stats import token_stats
from icml_kernels.language.weighted_nll import reference
from icml_kernels.language.weighted_nll.weights import KINDS, Rule

_HERE = "icml_kernels.language.weighted_nll"
WeightFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class WeightedNLL(NamedTuple):
    """The loss, and of every row what it was made of, without a gradient; 0 where the row is ignored."""

    loss: Float[Tensor, ""]
    logp: Float[Tensor, " rows"]
    entropy: Float[Tensor, " rows"]
    weight: Float[Tensor, " rows"]


def weighted_nll(
    hidden: Float[Tensor, "rows features"] | Float[Tensor, "rows vocabulary"],
    weight: Float[Tensor, "vocabulary features"] | None,
    targets: Int[Tensor, " rows"],
    *,
    kind: str | WeightFunction = "sft",
    beta: float = 1.0,
    gamma: tuple[float, float] = (0.1, 2.0),
    mix: float = 1.0,
    gamma_start: float = 1.0,
    standardized: bool = False,
    weight_range: tuple[float, float] = (0.1, 1.0),
    threshold: float = 0.0,
    width: float = 1.0,
    token_weight: Float[Tensor, " rows"] | None = None,
    normalizer: float | Float[Tensor, ""] | Int[Tensor, ""] | None = None,
    bias: Float[Tensor, " vocabulary"] | None = None,
    temperature: float = 1.0,
    logit_scale: float = 1.0,
    softcap: float | None = None,
    ignore_index: int = -100,
) -> WeightedNLL:
    """loss = -(1 / normalizer) sum_t token_weight_t w_t log p_t(y_t), with w_t from the row's statistics.

    With phi = log p + H (H the entropy of the row) and
    g = gamma_start + mix (clip(exp(-phi / beta), gamma_min, gamma_max) - gamma_start):

    - ``"sft"``: w = 1, the cross-entropy; ``"dft"``: w = p; ``"idft"``: w = p^g;
    - ``"reverse"``: w = (1 - p)^g; ``"eaft"``: w = H / log(vocabulary);
    - ``"indomain"``: w = w_min + (w_max - w_min) sigmoid(-(phi - threshold) / width);
    - a callable (log p, H, varentropy) -> w, each [rows]: costs a further pass over the head.

    w is held fixed by the derivative. It is taken from the model as it is now, so call it at every step.
    Value and gradients are made together, block of rows by block of rows, with three products of matrices;
    the gradients by hidden, weight and bias wait for the backward pass, which scales them. Second derivatives
    (w and token_weight fixed) run through the definition; forward mode is not offered.

    Args:
        hidden: last hidden states; or logits, where ``weight`` is None.
        weight, bias: the head.
        targets: the token of each row; shift before the call.
        beta, gamma, mix, gamma_start: of the exponent; ``gamma`` holds its bounds.
        standardized: divide phi by sqrt(varentropy + 1e-3) in the exponent.
        weight_range, threshold, width: of ``"indomain"``.
        token_weight: of each row besides; it has no gradient.
        normalizer: number of supervised tokens of the whole batch, over all its parts and devices; those
            given here by default. Without any, the loss is 0 and its gradients are 0.
        temperature, logit_scale, softcap, ignore_index: as in ``token_stats``.

    Returns:
        loss, log p, entropy and w in float32, or float64 for float64.

    Raises:
        TypeError: for dtypes that differ or do not fit.
        ValueError: for shapes or devices that do not fit together, targets outside the vocabulary, an unknown
            kind, constants out of range, or a token_weight that wants a gradient.

    Example:
        >>> weighted_nll(torch.zeros(1, 4), None, torch.tensor([2])).loss  # log 4
        tensor(1.3863)
    """
    require_head(hidden, weight, bias, temperature, logit_scale, softcap)
    targets = require_targets(targets, hidden.shape[0], hidden.device)
    rule = Rule(beta, *gamma, mix, gamma_start, float(standardized), *weight_range, threshold, width)
    _require_rule(kind, rule)
    ones = hidden.new_ones(hidden.shape[0], dtype=arithmetic(hidden.dtype))
    c = ones if token_weight is None else _require_token_weight(token_weight, ones)
    cap = None if softcap is None else float(softcap)
    options = (float(temperature), float(logit_scale), cap, ignore_index)
    kept = targets != ignore_index
    given = None
    if callable(kind):
        given = torch.where(kept, _called(kind, hidden, weight, bias, targets, options), 0)
        c, kind = c * given, "sft"
    needed = torch.is_grad_enabled()
    by_hidden = needed and hidden.requires_grad
    by_head = needed and any(t is not None and t.requires_grad for t in (weight, bias))
    constants = torch.tensor(rule, dtype=torch.float64)
    inputs = (hidden, weight, bias, targets, c, kind, constants, *options)
    total, logp, entropy, w, *_ = _weighted_nll(*inputs, by_hidden, by_head)
    count = kept.sum().clamp(min=1) if normalizer is None else _require_normalizer(normalizer)
    loss = total / count
    return WeightedNLL(loss, logp.detach(), entropy.detach(), w.detach() if given is None else given)


def _called(
    kind: WeightFunction,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    options: tuple[float, float, float | None, int],
) -> Tensor:
    head = [None if t is None else t.detach() for t in (weight, bias)]
    names = ("temperature", "logit_scale", "softcap", "ignore_index")
    found = token_stats(
        hidden.detach(),
        targets,
        weight=head[0],
        bias=head[1],
        **dict(zip(names, options, strict=True)),  # type: ignore[arg-type]
    )
    w = kind(*found).detach()
    if w.shape != targets.shape:
        raise ValueError(f"kind gave weights of shape {list(w.shape)}; expected {list(targets.shape)}")
    return w.to(found.logp.dtype)


def _require_rule(kind: str | WeightFunction, rule: Rule) -> None:
    if not callable(kind) and kind not in KINDS:
        raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}, nor callable")
    for name, value in rule._asdict().items():
        if not math.isfinite(value):
            raise ValueError(f"{name}={value} is not a finite number")
    if not rule.beta > 0:
        raise ValueError(f"beta={rule.beta} is not positive")
    if not rule.width > 0:
        raise ValueError(f"width={rule.width} is not positive")
    if not 0 <= rule.gamma_min <= rule.gamma_max:
        bounds = (rule.gamma_min, rule.gamma_max)
        raise ValueError(f"gamma={bounds} is no pair of bounds; it wants 0 <= lower <= upper")
    if not 0 <= rule.weight_min <= rule.weight_max:
        bounds = (rule.weight_min, rule.weight_max)
        raise ValueError(f"weight_range={bounds} is no pair of bounds; it wants 0 <= lower <= upper")
    if not 0 <= rule.mix <= 1:
        raise ValueError(f"mix={rule.mix} does not lie in 0..1")
    if not rule.gamma_start >= 0:
        raise ValueError(f"gamma_start={rule.gamma_start} is negative")


def _require_token_weight(token_weight: Tensor, like: Tensor) -> Tensor:
    if not (token_weight.is_floating_point() or token_weight.dtype == torch.bool):
        raise TypeError(f"token_weight has dtype {token_weight.dtype}; expected a floating one, or bool")
    require_shape("token_weight", token_weight, tuple(like.shape))
    if token_weight.device != like.device:
        raise ValueError(
            f"token_weight lies on {token_weight.device} but the other tensors on {like.device}; move one"
        )
    if token_weight.requires_grad:
        raise ValueError("token_weight wants a gradient, which it does not get here; detach it")
    return token_weight.to(like.dtype)


def _require_normalizer(normalizer: float | Tensor) -> float | Tensor:
    if isinstance(normalizer, Tensor):
        if normalizer.numel() != 1:
            raise ValueError(f"normalizer has shape {list(normalizer.shape)}; expected one number")
        return normalizer.reshape(())
    if not (normalizer > 0 and math.isfinite(normalizer)):
        raise ValueError(
            f"normalizer={normalizer} is not positive; expected the number of supervised tokens of a batch"
        )
    return normalizer


def _fake_forward(hidden: Tensor, weight: Any, bias: Any, *rest: Any) -> tuple[Tensor, ...]:
    by_hidden, by_head = rest[-2:]
    rows = (hidden.shape[0],)
    wanted = (by_hidden, by_head and weight is not None, by_head and bias is not None)
    by = [t.shape if w else (0,) for t, w in zip((hidden, weight, bias), wanted, strict=True)]
    dtype = arithmetic(hidden.dtype)
    return tuple(hidden.new_empty(shape, dtype=dtype) for shape in ((), rows, rows, rows, *by))


_forward = raw_op(
    "weighted_nll",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_N_OPTIONS = 4


class _WeightedNLLBackward(torch.autograd.Function):
    """(g, hidden, weight, bias, targets, c, gradients made ahead, ...) -> g times the gradients.

    Its own derivative is the reference's, with c fixed.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        g, ahead = inputs[0], inputs[6:9]
        return tuple(g * t for t in ahead)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:6])
        ctx.options = inputs[9:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        *values, targets, c = ctx.saved_tensors
        present = [t is not None for t in values]

        def definition(*given: Tensor) -> Any:
            supply = iter(given)
            g, *head = (next(supply) if p else None for p in present)
            return tuple(g * t for t in reference.gradients(*head, targets, c, *ctx.options))

        outputs, vjp = torch.func.vjp(definition, *(t for t in values if t is not None))
        by = iter(vjp(tuple(zeros_for_none(grads, outputs))))
        # The gradients made ahead are functions of the other inputs, and went into their derivatives.
        return *(next(by) if p else None for p in present), *(None,) * (5 + _N_OPTIONS + 2)


_weighted_nll_backward = differentiable(_WeightedNLLBackward)


class _WeightedNLL(torch.autograd.Function):
    """(hidden, weight, bias, ...) -> sum; log p, H, w and the sum's gradients, without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:5], inputs[6], output[3], *output[4:])
        ctx.kind = inputs[5]
        ctx.options = inputs[7:11]
        ctx.ahead = inputs[11:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Any, *rest: Any) -> Any:
        nothing = (None,) * (4 + _N_OPTIONS + 2)
        hidden, weight, bias, targets, token_weight, rule, w, *by = ctx.saved_tensors
        wanted = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:3])
        if g is None:
            return None, None, None, *nothing
        inputs, made = (hidden, weight, bias, targets), ctx.ahead
        if any(now and not ahead for now, ahead in zip(wanted, made, strict=True)):
            # A transform of torch.func hid at the call that a gradient would be asked for.
            made = wanted
            again = (*inputs, token_weight, ctx.kind, rule, *ctx.options, *made)
            _, _, _, _, *by = _weighted_nll(*again)
        gh, gw, gb = _weighted_nll_backward(g, *inputs, w * token_weight, *by, *ctx.options, *made)
        return (
            gh.to(hidden.dtype) if wanted[0] else None,
            gw.to(weight.dtype) if weight is not None and wanted[1] else None,
            gb.to(bias.dtype) if bias is not None and wanted[1] else None,
            *nothing,
        )


_weighted_nll = differentiable(_WeightedNLL)
