"""Products of complex matrices, one for each Fourier mode: the channel mixing of a spectral convolution."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.spectral.mode_product import reference

_HERE = "icml_kernels.spectral.mode_product"


def mode_product(
    a: Float[Tensor, "p q modes 2"],
    b: Float[Tensor, "q r modes 2"],
    *,
    conj_a: bool = False,
    conj_b: bool = False,
) -> Float[Tensor, "p r modes 2"]:
    """c[p, r, m] = sum_q a[p, q, m] b[q, r, m] for complex numbers that are stored as pairs.

    Transposed views are read where they lie, as long as each row of modes is contiguous. All derivatives are
    products of the same kind.

    Args:
        a, b: float32 or float64; real part first.
        conj_a, conj_b: take the conjugate.

    Raises:
        TypeError: for other dtypes, or two different ones.
        ValueError: for shapes or devices that do not fit together.

    Example:
        >>> i = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
        >>> mode_product(i, i).flatten()
        tensor([-1.,  0.])
    """
    for name, t in (("a", a), ("b", b)):
        if not isinstance(t, Tensor) or t.dtype not in (torch.float32, torch.float64):
            raise TypeError(
                f"{name} is {getattr(t, 'dtype', type(t).__name__)}; expected float32 or float64 pairs, as "
                "torch.view_as_real gives"
            )
        if t.dim() != 4 or t.shape[3] != 2:
            raise ValueError(f"{name} has shape {list(t.shape)}; expected [rows, columns, modes, 2]")
    if a.dtype != b.dtype:
        raise TypeError(f"a has dtype {a.dtype} but b has {b.dtype}; convert one")
    if a.device != b.device:
        raise ValueError(f"a lies on {a.device} but b on {b.device}; move one")
    if a.shape[1] != b.shape[0] or a.shape[2] != b.shape[2]:
        raise ValueError(f"a of shape {list(a.shape)} and b of shape {list(b.shape)} cannot be multiplied")
    return _mode_product(a, b, bool(conj_a), bool(conj_b))


def _fake(a: Tensor, b: Tensor, conj_a: bool, conj_b: bool) -> Tensor:
    return a.new_empty(a.shape[0], b.shape[1], a.shape[2], 2)


_forward = raw_op(
    "mode_product",
    reference.mode_product,
    fake=_fake,
    cpu=f"{_HERE}.cpu:mode_product",
    cuda=f"{_HERE}.triton:mode_product",
)


class _ModeProduct(torch.autograd.Function):
    """C = A B a mode: dA = dC B^H and dB = A^H dC, with conjugates where A or B entered by theirs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, conj_a: bool, conj_b: bool) -> Tensor:
        return _forward(a, b, conj_a, conj_b)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        a, b, ctx.conj_a, ctx.conj_b = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        a, b = ctx.saved_tensors
        by_a = by_b = None
        # Where A entered by its conjugate, so does its gradient: the conjugate of dC B^H is conj(dC) B^T.
        if ctx.needs_input_grad[0]:
            by_a = _mode_product(g, b.transpose(0, 1), ctx.conj_a, ctx.conj_a == ctx.conj_b)
        if ctx.needs_input_grad[1]:
            by_b = _mode_product(a.transpose(0, 1), g, ctx.conj_a == ctx.conj_b, ctx.conj_b)
        return by_a, by_b, None, None

    @staticmethod
    def jvp(ctx: Any, a_t: Any, b_t: Any, *rest: Any) -> Any:
        a, b = ctx.saved_tensors
        a_t, b_t = zeros_for_none((a_t, b_t), (a, b))
        flags = ctx.conj_a, ctx.conj_b
        return _mode_product(a_t, b, *flags) + _mode_product(a, b_t, *flags)


_mode_product = differentiable(_ModeProduct)
