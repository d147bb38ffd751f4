"""Continuous-filter convolution (SchNet) with the filter network evaluated on the fly, pair by pair.

The convolution and its filter network are those of Schütt et al., arXiv 1706.08566, section 3.2, with the
double cosine envelope of CGSchNet; basis, network, product and reduction in one pass follow FlashSchNet,
arXiv 2602.13140, except that the derivative of both envelopes is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.cfconv_mlp import reference
from icml_kernels.molecules.checks import require_float, require_list, require_shape
from icml_kernels.molecules.neighbors import HalfList

_HERE = "icml_kernels.molecules.cfconv_mlp"
BASES = ("gaussian", "expnorm")
ACTIVATIONS = ("tanh", "ssp")


def cfconv_mlp(
    x: Float[Tensor, "atoms filters"],
    distances: Float[Tensor, " pairs"],
    pairs: HalfList,
    w1: Float[Tensor, "hidden basis"],
    b1: Float[Tensor, " hidden"],
    w2: Float[Tensor, "filters hidden"],
    b2: Float[Tensor, " filters"] | None = None,
    *,
    centers: Float[Tensor, " basis"],
    widths: Float[Tensor, " basis"],
    cutoff: float,
    basis: str = "gaussian",
    alpha: float = 1.0,
    origin: float = 0.0,
    activation: str = "tanh",
    basis_envelope: bool = True,
    filter_envelope: bool = True,
) -> Float[Tensor, "atoms filters"]:
    """out_i = sum over the partners j of i of x_j * W(r_ij), with W from the filter network.

    z = r for ``basis="gaussian"``, z = exp(alpha (r - origin)) for ``"expnorm"``;
    e_k = exp(-widths_k (z - centers_k)^2); C(r) = (cos(pi r / cutoff) + 1) / 2;
    W(r) = C (w2 act(w1 (C e) + b1) + b2), with act tanh or ssp(a) = softplus(a) - log 2. The inner C
    stands where ``basis_envelope`` is on, the outer where ``filter_envelope`` is; W is exactly 0 for
    r >= cutoff in any case. No tensor of pairs times filters is kept.

    Differentiable by x, distances, the weights, centers and widths, with the derivative of both
    envelopes. The second derivative runs in plain torch.

    Args:
        x: features of the atoms.
        distances: r of every pair in the order of ``pairs.idx``, in the unit of ``cutoff``.
        pairs: the neighbour list; each pair serves both of its atoms.
        w1, b1: first layer of the filter network.
        w2, b2: second layer; no b2 stands for zeros.
        centers: of the radial basis, in the unit of z.
        widths: positive inverse squares of the basis functions' widths.
        cutoff: where interactions end.
        basis: ``"gaussian"`` or ``"expnorm"``.
        alpha, origin: of the ``expnorm`` basis.
        activation: ``"tanh"`` or ``"ssp"``.
        basis_envelope: multiply the basis by C.
        filter_envelope: multiply the filter by C.

    Raises:
        TypeError: where dtypes differ or are neither float32 nor float64.
        ValueError: where shapes or devices do not fit together, or an option is unknown.
    """
    require_list(pairs, x.device)
    if b2 is None:
        b2 = w2.new_zeros(w2.shape[0])
    require_float(x=x, distances=distances, w1=w1, b1=b1, w2=w2, b2=b2, centers=centers, widths=widths)
    filters, hidden, n_basis = x.shape[-1], w1.shape[0], w1.shape[-1]
    require_shape("x", x, (pairs.n_atoms, None))
    require_shape("distances", distances, (pairs.capacity,))
    require_shape("w1", w1, (hidden, n_basis))
    require_shape("b1", b1, (hidden,))
    require_shape("w2", w2, (filters, hidden))
    require_shape("b2", b2, (filters,))
    require_shape("centers", centers, (n_basis,))
    require_shape("widths", widths, (n_basis,))
    if basis not in BASES:
        raise ValueError(f"basis={basis!r} is not one of {', '.join(BASES)}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation={activation!r} is not one of {', '.join(ACTIVATIONS)}")
    if not cutoff > 0:
        raise ValueError(f"cutoff={cutoff} is not positive")
    options = (float(cutoff), basis, float(alpha), float(origin), activation, basis_envelope, filter_envelope)
    return _cfconv_mlp(x, distances, *pairs.tensors(), w1, b1, w2, b2, centers, widths, *options)


def _fake_backward(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    x, r, _, _, _, _, _, *weights = inputs[:13]
    return tuple(torch.empty_like(t) for t in (x, r, *weights))


_forward = raw_op(
    "cfconv_mlp",
    reference.forward,
    fake=lambda x, *rest: torch.empty_like(x),
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "cfconv_mlp_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)

_NO_GRADIENT_BY_LISTS = (None,) * 5
_N_OPTIONS = 7
_NO_FORWARD_MODE = (
    "cfconv_mlp has forward-mode derivatives by x and distances alone; for those by the weights, the "
    "centers or the widths use reverse mode (torch.func.grad, vjp or jacrev)"
)


def _refuse_tangents_of_weights(tangents: Any) -> None:
    if any(t is not None for t in tangents):
        raise RuntimeError(_NO_FORWARD_MODE)


def _save(ctx: Any, inputs: Any, n_options: int) -> None:
    ctx.save_for_backward(*inputs[:-n_options])
    ctx.save_for_forward(*inputs[:-n_options])
    ctx.options = inputs[-n_options:]
    # None, not zeros, for what is absent: the tangents of weights are not offered.
    ctx.set_materialize_grads(False)


class _CFConvMLPBackward(torch.autograd.Function):
    """(g, x, r, weights) -> gradients by x, r and weights; its own derivative is the reference's."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs, _N_OPTIONS + 1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        values, lists, weights = ctx.saved_tensors[:3], ctx.saved_tensors[3:8], ctx.saved_tensors[8:]

        def definition(*v: Tensor) -> Any:
            return reference.backward(*v[:3], *lists, *v[3:], *ctx.options)

        outputs, vjp = torch.func.vjp(definition, *values, *weights)
        by = vjp(tuple(zeros_for_none(grads, outputs)))
        return *by[:3], *_NO_GRADIENT_BY_LISTS, *by[3:], *(None,) * (_N_OPTIONS + 1)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_tangents_of_weights(tangents[8:14])
        values, rest = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
        directions = zeros_for_none(tangents[:3], values)
        by_values = reference.backward_tangent(*directions, *values, *rest, *ctx.options[:-1])
        if ctx.options[-1]:
            raise RuntimeError(_NO_FORWARD_MODE)
        return *by_values, *(torch.zeros_like(w) for w in rest[5:])


_cfconv_mlp_backward = differentiable(_CFConvMLPBackward)


class _CFConvMLP(torch.autograd.Function):
    """(x, r, weights) -> out."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        _save(ctx, inputs, _N_OPTIONS)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        if g is None:
            return (None,) * (13 + _N_OPTIONS)
        by_weights = any(ctx.needs_input_grad[7:13])
        by = _cfconv_mlp_backward(g, *ctx.saved_tensors, *ctx.options, by_weights)
        return *by[:2], *_NO_GRADIENT_BY_LISTS, *by[2:], *(None,) * _N_OPTIONS

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        _refuse_tangents_of_weights(tangents[7:13])
        values, rest = ctx.saved_tensors[:2], ctx.saved_tensors[2:]
        directions = zeros_for_none(tangents[:2], values)
        return reference.tangent(*directions, *values, *rest, *ctx.options)


_cfconv_mlp = differentiable(_CFConvMLP)
