"""The first two moments of a covariance's spectrum, without eigenvalues and with a gradient in closed form.

    tr C = sum of ev,   ||C||_F^2 = sum of ev^2,   so that   Var(ev) = (||C||_F^2 - (tr C)^2 / D) / (D - 1)

A loss on the spread of a spectrum, such as that of GeoReg (arXiv 2605.23033), needs no more. The gradient of
an eigen-decomposition divides by differences of eigenvalues and is not finite where two coincide; that of the
moments,

    d tr C / dX = 2 X / m,   d ||C||_F^2 / dX = 4 X C / m   (X centred, m = rows - correction),

is a polynomial.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.covariance.checks import require_floats
from icml_kernels.covariance.spectrum_moments import reference
from icml_kernels.dispatch import raw_op

_HERE = "icml_kernels.covariance.spectrum_moments"


class SpectrumMoments(NamedTuple):
    """Moments of the eigenvalues of covariances.

    Attributes:
        trace: sum of the eigenvalues.
        square: sum of their squares.
    """

    trace: Float[Tensor, "*batch"]
    square: Float[Tensor, "*batch"]

    def mean(self, count: int) -> Float[Tensor, "*batch"]:
        """Mean of ``count`` eigenvalues, those that are zero included."""
        return self.trace / count

    def variance(self, count: int, correction: int = 0) -> Float[Tensor, "*batch"]:
        """Variance of ``count`` eigenvalues, of a population or, with ``correction=1``, of a sample."""
        return (self.square - self.trace.square() / count) / (count - correction)


def spectrum_moments(x: Float[Tensor, "*batch rows dim"], *, correction: int = 1) -> SpectrumMoments:
    """tr C and ||C||_F^2 of the covariance C = X^T X / (rows - correction) of centred columns.

    The smaller of X X^T and X^T X is computed: O(min(rows, dim) rows dim). Differentiable to any order.

    Args:
        x: samples in rows; half precision is computed in float32.
        correction: 1 for the sample covariance, 0 for the population's.

    Raises:
        TypeError: a dtype that is not floating.
        ValueError: fewer than two dimensions, or not more rows than ``correction``.

    Example:
        >>> spectrum_moments(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).trace
        tensor(2.)
    """
    require_floats("x", x, 2, "[..., rows, dim]")
    if correction not in (0, 1) or x.shape[-2] <= correction:
        raise ValueError(
            f"x has {x.shape[-2]} rows and correction is {correction!r}; expected more rows than the "
            "correction, "
            "which is 0 or 1"
        )
    flat = x.reshape(-1, *x.shape[-2:])
    if flat.dtype in (torch.float16, torch.bfloat16):
        flat = flat.float()
    trace, square, _ = _spectrum_moments(flat, int(correction))
    return SpectrumMoments(trace.reshape(x.shape[:-2]), square.reshape(x.shape[:-2]))


def _fake_moments(x: Tensor, correction: int) -> tuple[Tensor, Tensor, Tensor]:
    side = min(x.shape[1], x.shape[2])
    return x.new_empty(x.shape[0]), x.new_empty(x.shape[0]), x.new_empty(x.shape[0], side, side)


def _fake_gradient(x: Tensor, gram: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


_moments = raw_op(
    "spectrum_moments",
    reference.moments,
    fake=_fake_moments,
    cpu=f"{_HERE}.cpu:moments",
    cuda=f"{_HERE}.triton:moments",
)
_gradient = raw_op(
    "spectrum_moments_gradient",
    reference.gradient,
    fake=_fake_gradient,
    cpu=f"{_HERE}.cpu:gradient",
    cuda=f"{_HERE}.triton:gradient",
)


class _SpectrumMoments(torch.autograd.Function):
    """The Gram matrix is a result too, for the backward pass alone."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, correction: int) -> Any:
        return _moments(x, correction)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.correction = inputs
        ctx.save_for_backward(x, output[2])
        ctx.save_for_forward(x, output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    def backward(ctx: Any, by_trace: Any, by_square: Any, unused: Any) -> Any:
        x, gram = ctx.saved_tensors
        return _moments_gradient(x, gram, by_trace, by_square, ctx.correction), None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *rest: Any) -> Any:
        x, gram = ctx.saved_tensors
        one, none = x.new_ones(x.shape[0]), x.new_zeros(x.shape[0])
        first = _moments_gradient(x, gram, one, none, ctx.correction)
        second = _moments_gradient(x, gram, none, one, ctx.correction)
        return (first * tangent).sum((1, 2)), (second * tangent).sum((1, 2)), None


class _SpectrumMomentsGradient(torch.autograd.Function):
    """The gradient as a function of x and the incoming gradients; the Gram matrix is known from x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, gram: Tensor, by_trace: Tensor, by_square: Tensor, correction: int) -> Any:
        return _gradient(x, gram, by_trace, by_square, correction)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, _gram, by_trace, by_square, ctx.correction = inputs
        ctx.save_for_backward(x, by_trace, by_square)
        ctx.save_for_forward(x, by_trace, by_square)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, by_trace, by_square = ctx.saved_tensors
        c = ctx.correction
        one, none = torch.ones_like(by_trace), torch.zeros_like(by_trace)
        gram = reference.moments(x, c)[2]
        of_trace = (reference.gradient(x, gram, one, none, c) * g).sum((1, 2))
        of_square = (reference.gradient(x, gram, none, one, c) * g).sum((1, 2))
        return reference.hessian_product(x, g, by_trace, by_square, c), None, of_trace, of_square, None

    @staticmethod
    def jvp(ctx: Any, x_t: Any, gram_t: Any, trace_t: Any, square_t: Any, *rest: Any) -> Any:
        x, by_trace, by_square = ctx.saved_tensors
        c = ctx.correction
        gram = reference.moments(x, c)[2]
        total = torch.zeros_like(x)
        if x_t is not None:
            total = total + reference.hessian_product(x, x_t, by_trace, by_square, c)
        if trace_t is not None or square_t is not None:
            none = torch.zeros_like(by_trace)
            a = none if trace_t is None else trace_t
            b = none if square_t is None else square_t
            total = total + reference.gradient(x, gram, a, b, c)
        return total


_spectrum_moments = differentiable(_SpectrumMoments)
_moments_gradient = differentiable(_SpectrumMomentsGradient)
