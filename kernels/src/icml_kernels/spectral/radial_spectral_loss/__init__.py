"""Radially weighted differences of Fourier amplitudes: the spectral loss of iterative refinement operators.

The published expression (arXiv 2605.24041) transforms the target and builds the grid of wave numbers anew for
every iterate. Here the target's amplitudes and the table of weights are made once and handed in, and value
and gradient of an iterate cost one transform each way and one pass over the half plane between them.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.spectral.radial_spectral_loss import reference

_HERE = "icml_kernels.spectral.radial_spectral_loss"
_FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
NYQUIST = 0.5  # cycles a sample


def radial_spectral_loss(
    pred: Float[Tensor, "batch channels *space"],
    target_amp: Float[Tensor, "batch channels *half"],
    lam: float = 1.5,
    *,
    hermitian: bool = False,
    weight: Float[Tensor, "*half"] | None = None,
) -> Float[Tensor, " batch"]:
    """L_b = mean_c sum_w W(w) (|P_bc(w)| - target_amp_bc(w))^2, P the orthonormal real transform of pred.

    W is proportional to 1 + (|w| / 0.5)^lam with |w| in cycles a sample, and sums to 1 over the half plane.
    Amplitudes alone are compared: the loss is blind to phase and stands beside a squared error, not for it.

    Half precision is transformed in float32, also under autocast. Value and gradient by ``pred`` are made
    together; the gradient by ``target_amp`` and second derivatives run through the definition. At a bin where
    P is 0 the gradient is 0.

    Args:
        pred: fields with one to three spatial axes.
        target_amp: |rfftn(target, norm="ortho")| over the spatial axes; :func:`spectral_amplitude` gives it.
        lam: exponent of the weights, from 0 (all equal) on.
        hermitian: count the columns twice that stand for two, so that with lam = 0 the loss of a field
            against 0 is its mean square (Parseval). Off in the paper, where all columns count once.
        weight: W instead, from :func:`radial_weight`; ``lam`` and ``hermitian`` are then not used.

    Raises:
        TypeError: for dtypes that are not floating, or are complex.
        ValueError: for shapes or devices that do not fit together, no or more than three spatial axes, an
            empty tensor, or a lam that is negative or not finite.

    Example:
        >>> field = torch.tensor([[[1.0, -1.0, 1.0, -1.0]]])
        >>> radial_spectral_loss(field, torch.zeros(1, 1, 3), lam=0.0, hermitian=True)  # the mean square
        tensor([1.])
    """
    _require(pred, target_amp)
    natural = torch.float64 if pred.dtype == torch.float64 else torch.float32
    if weight is None:
        weight = _kept_weight(tuple(pred.shape[2:]), lam, hermitian, natural, pred.device)
    elif weight.shape != target_amp.shape[2:] or weight.device != pred.device:
        raise ValueError(
            f"weight has shape {list(weight.shape)} on {weight.device}; expected "
            f"{list(target_amp.shape[2:])} on {pred.device}, as radial_weight gives"
        )
    with_grad = torch.is_grad_enabled()
    loss, _ = _radial_loss(pred.to(natural), target_amp.to(natural), weight.to(natural), with_grad)
    return loss


def spectral_amplitude(
    field: Float[Tensor, "batch channels *space"],
) -> Float[Tensor, "batch channels *half"]:
    """|rfftn(field, norm="ortho")| over the spatial axes, in float32 or float64; derivative 0 where it is 0.

    Raises:
        TypeError: for a dtype that is not floating.
        ValueError: for no or more than three spatial axes, or an empty tensor.

    Example:
        >>> spectral_amplitude(torch.ones(1, 1, 4))
        tensor([[[2., 0., 0.]]])
    """
    _require_field("field", field)
    natural = torch.float64 if field.dtype == torch.float64 else torch.float32
    with torch.autocast(field.device.type, enabled=False):
        return reference._amplitude(reference._spectrum(field.to(natural)))


def radial_weight(
    shape: tuple[int, ...],
    lam: float,
    hermitian: bool = False,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "*half"]:
    """1 + (|w| / 0.5)^lam over the half plane of a real transform, divided by its sum.

    |w| is the radial frequency in cycles a sample, from 0 to sqrt(d) / 2 in the corners of d axes.

    Args:
        shape: of the spatial axes.
        lam: exponent, from 0 on.
        hermitian: double the columns that stand for two.
        dtype: float32 or float64.
        device: where the table lies.

    Raises:
        ValueError: for a lam that is negative or not finite, or an empty shape.
    """
    # A copy: what is kept for the next call must not be written to.
    return _kept_weight(shape, lam, hermitian, dtype, device).clone()


def _kept_weight(
    shape: tuple[int, ...], lam: float, hermitian: bool, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    if not (lam >= 0 and math.isfinite(lam)):
        raise ValueError(f"lam={lam}; expected a finite exponent from 0 on")
    if not shape or min(shape) < 1:
        raise ValueError(f"shape={tuple(shape)}; expected one to three positive sizes")
    return _table(tuple(int(n) for n in shape), float(lam), bool(hermitian), dtype, torch.device(device))


@lru_cache(maxsize=256)
def _table(
    shape: tuple[int, ...], lam: float, hermitian: bool, dtype: torch.dtype, device: torch.device
) -> Tensor:
    with torch.inference_mode(False):  # what is kept must serve a backward pass later
        axes = [torch.fft.fftfreq(n, dtype=torch.float64) for n in shape[:-1]]
        axes.append(torch.fft.rfftfreq(shape[-1], dtype=torch.float64))
        square = sum(f.square().view(-1, *[1] * (len(axes) - 1 - i)) for i, f in enumerate(axes))
        table = 1 + (torch.sqrt(torch.as_tensor(square)) / NYQUIST) ** lam
        if hermitian:
            column = torch.arange(table.shape[-1])
            table = table * torch.where((column == 0) | (2 * column == shape[-1]), 1.0, 2.0).double()
        return (table / table.sum()).to(device, dtype)


def _require(pred: Tensor, target_amp: Tensor) -> None:
    _require_field("pred", pred)
    if not isinstance(target_amp, Tensor) or target_amp.dtype not in _FLOATS:
        raise TypeError(
            f"target_amp is {getattr(target_amp, 'dtype', type(target_amp).__name__)}; expected real "
            "amplitudes, as spectral_amplitude gives"
        )
    half = (*pred.shape[:-1], pred.shape[-1] // 2 + 1)
    if tuple(target_amp.shape) != half:
        raise ValueError(
            f"target_amp has shape {list(target_amp.shape)}; expected {list(half)} for fields of shape "
            f"{list(pred.shape)}"
        )
    if target_amp.device != pred.device:
        raise ValueError(f"target_amp lies on {target_amp.device} but pred on {pred.device}; move one")


def _require_field(name: str, field: Tensor) -> None:
    if not isinstance(field, Tensor) or field.dtype not in _FLOATS:
        raise TypeError(
            f"{name} is {getattr(field, 'dtype', type(field).__name__)}; expected a real floating tensor "
            "[batch, channels, *space]"
        )
    if not 3 <= field.dim() <= 5 or 0 in field.shape:
        raise ValueError(
            f"{name} has shape {list(field.shape)}; expected [batch, channels, *space] with one to three "
            "spatial axes, none of them empty"
        )


def _fake(pred: Tensor, target_amp: Tensor, weight: Tensor, with_grad: bool) -> tuple[Tensor, Tensor]:
    return pred.new_empty(pred.shape[0]), pred.new_empty(pred.shape if with_grad else (0,))


_forward = raw_op(
    "radial_spectral_loss",
    reference.forward,
    fake=_fake,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)


class _RadialLossBackward(torch.autograd.Function):
    """g_b dL_b/dpred with the gradient made ahead; its own derivative is the definition's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, ahead: Tensor, pred: Tensor, target_amp: Tensor, weight: Tensor) -> Tensor:
        return _wide(g, pred) * ahead

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        g, _, pred, target_amp, weight = inputs
        ctx.save_for_backward(g, pred, target_amp, weight)
        ctx.save_for_forward(g, pred, target_amp, weight)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        g, pred, target_amp, weight = ctx.saved_tensors
        _, vjp = torch.func.vjp(lambda *a: _definition(*a, weight), g, pred, target_amp)
        by_g, by_pred, by_target = vjp(grad)
        # The gradient made ahead is a function of pred and target, and went into their derivatives.
        return by_g, None, by_pred, by_target, None

    @staticmethod
    def jvp(ctx: Any, g_t: Any, ahead_t: Any, pred_t: Any, target_t: Any, weight_t: Any) -> Any:
        g, pred, target_amp, weight = ctx.saved_tensors
        tangents = zeros_for_none((g_t, pred_t, target_t), (g, pred, target_amp))
        return _moved(g, pred, target_amp, weight, *tangents)


def _definition(g: Tensor, pred: Tensor, target_amp: Tensor, weight: Tensor) -> Tensor:
    return _wide(g, pred) * reference.gradient(pred, target_amp, weight)


def _moved(
    g: Tensor, pred: Tensor, target_amp: Tensor, weight: Tensor, g_t: Tensor, pred_t: Tensor, target_t: Tensor
) -> Tensor:
    """Derivative of g dL/dpred along tangents, written out: PyTorch allows no transform inside a jvp.

    With u = P / |P|, f = s (|P| - a) u and s the slope's weight: df = s (Re(conj(u) dP) - da) u
    + s (|P| - a) (dP - Re(conj(u) dP) u) / |P|.
    """
    axes = tuple(range(2, pred.dim()))
    spectrum, moved = reference._spectrum(pred), reference._spectrum(pred_t)
    amplitude = reference._amplitude(spectrum)
    some = amplitude > 0
    safe = torch.where(some, amplitude, 1)
    unit = torch.where(some, spectrum / safe, 0)
    along = unit.real * moved.real + unit.imag * moved.imag
    turned = (amplitude - target_amp) / safe * (moved - along * unit)
    slope = torch.where(some, reference.slope_weight(weight, pred.shape), 0) / pred.shape[1]
    change = slope * ((along - target_t) * unit + turned)
    moved_gradient = torch.fft.irfftn(change, s=pred.shape[2:], dim=axes, norm="ortho")
    return _wide(g_t, pred) * reference.gradient(pred, target_amp, weight) + _wide(g, pred) * moved_gradient


def _wide(g: Tensor, pred: Tensor) -> Tensor:
    return g.view(-1, *[1] * (pred.dim() - 1))


_radial_loss_backward = differentiable(_RadialLossBackward)


class _RadialLoss(torch.autograd.Function):
    """(pred, target_amp, weight, with_grad) -> L_b, and dL_b/dpred without a derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(pred: Tensor, target_amp: Tensor, weight: Tensor, with_grad: bool) -> Any:
        return _forward(pred, target_amp, weight, with_grad)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pred, target_amp, weight, ctx.with_grad = inputs
        ctx.save_for_backward(pred, target_amp, weight, output[1])
        ctx.save_for_forward(pred, target_amp, weight)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Any, *rest: Any) -> Any:
        pred, target_amp, weight, ahead = ctx.saved_tensors
        if g is None:
            return None, None, None, None
        by_pred = by_target = None
        if ctx.needs_input_grad[0]:
            if not ctx.with_grad:
                # A transform of torch.func hid at the call that a gradient would be asked for.
                ahead = _radial_loss(pred, target_amp, weight, True)[1]
            by_pred = _radial_loss_backward(g, ahead, pred, target_amp, weight)
        if ctx.needs_input_grad[1]:
            difference = reference._amplitude(reference._spectrum(pred)) - target_amp
            by_target = -2 * _wide(g, pred) * weight * difference / pred.shape[1]
        return by_pred, by_target, None, None

    @staticmethod
    def jvp(ctx: Any, pred_t: Any, target_t: Any, *rest: Any) -> Any:
        pred, target_amp, weight = ctx.saved_tensors
        pred_t, target_t = zeros_for_none((pred_t, target_t), (pred, target_amp))
        difference = reference._amplitude(reference._spectrum(pred)) - target_amp
        along = reference.gradient(pred, target_amp, weight) * pred_t
        by_target = 2 * (weight * difference * target_t).flatten(1).sum(1) / pred.shape[1]
        gradient_t = None
        if ctx.with_grad:
            g = pred.new_ones(pred.shape[0])
            gradient_t = _moved(g, pred, target_amp, weight, torch.zeros_like(g), pred_t, target_t)
        else:
            gradient_t = pred.new_zeros(0)
        return along.flatten(1).sum(1) - by_target, gradient_t


_radial_loss = differentiable(_RadialLoss)
