"""Sum the moments of a resolvent over the nodes of a contour, node by node.

    S_k <- S_k + Re(w z^k Y),   Y = (z' B - A)^-1 B V,   k = 0 ... K - 1

z is the node in units of the contour, w its weight. The stack of all nodes' solutions is never stored.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op, route
from icml_kernels.subspaces.checks import COMPLEX, REAL, require_dtype
from icml_kernels.subspaces.moment_accumulate import reference

_HERE = "icml_kernels.subspaces.moment_accumulate"


def moment_accumulate(
    s: Float[Tensor, "moments n columns"], y: Complex[Tensor, "n columns"], z: complex, w: complex
) -> Float[Tensor, "moments n columns"]:
    """S_k + Re(w z^k Y). Linear in S and Y, hence differentiable at will.

    Args:
        s: moments so far.
        y: solution at the node, complex of the same precision.
        z: node, in units of the contour: |z| is about 1.
        w: weight.

    Raises:
        TypeError: s not real, y not complex, or two precisions.
        ValueError: shapes that do not fit.

    Example:
        >>> y = torch.tensor([[1 + 2j]])
        >>> moment_accumulate(torch.zeros(2, 1, 1), y, 1j, 1.0).flatten().tolist()
        [1.0, -2.0]
    """
    z, w = _check(s, y, z, w)
    return _moments(s, torch.view_as_real(y.resolve_conj()), z.real, z.imag, w.real, w.imag)


def moment_accumulate_(s: Tensor, y: Tensor, z: complex, w: complex) -> None:
    """`moment_accumulate` in place, without further memory on a CPU. Not differentiable.

    Raises:
        TypeError: as for `moment_accumulate`.
        ValueError: as for `moment_accumulate`; s is not contiguous.
    """
    z, w = _check(s, y, z, w)
    if not s.is_contiguous():
        raise ValueError("s is not contiguous; it is written in place")
    parts = torch.view_as_real(y.detach().resolve_conj())
    if s.device.type == "cpu" and route() == "auto" and not torch.compiler.is_compiling():
        from icml_kernels.subspaces.moment_accumulate.cpu import add_in_place

        add_in_place(s, parts, z.real, z.imag, w.real, w.imag)
        return
    s.copy_(_add(s.detach(), parts, z.real, z.imag, w.real, w.imag))


def _check(s: Tensor, y: Tensor, z: complex, w: complex) -> tuple[complex, complex]:
    require_dtype(REAL, s=s)
    require_dtype(COMPLEX, y=y)
    if y.real.dtype != s.dtype:
        raise TypeError(f"y has dtype {y.dtype} but s {s.dtype}; expected the same precision")
    if s.device != y.device:
        raise ValueError(f"y is on {y.device} but s on {s.device}; move one")
    if s.dim() != 3 or s.shape[0] == 0 or s.shape[1:] != y.shape:
        raise ValueError(
            f"s has shape {list(s.shape)} and y {list(y.shape)}; expected [moments, n, columns] and [n, "
            f"columns]"
        )
    return complex(z), complex(w)


def _fake_add(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    return torch.empty_like(s, memory_format=torch.contiguous_format)


def _fake_gather(g: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
    return g.new_empty((*g.shape[1:], 2))


_add = raw_op(
    "moment_accumulate", reference.add, fake=_fake_add, cpu=f"{_HERE}.cpu:add", cuda=f"{_HERE}.triton:add"
)
_gather = raw_op(
    "moment_gather",
    reference.gather,
    fake=_fake_gather,
    cpu=f"{_HERE}.cpu:gather",
    cuda=f"{_HERE}.triton:gather",
)


class _MomentGather(torch.autograd.Function):
    """The adjoint in Y."""

    generate_vmap_rule = True

    @staticmethod
    def forward(g: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
        return _gather(g, zr, zi, wr, wi)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.node, ctx.shape = inputs[1:], inputs[0].shape

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return _moments(g.new_zeros(ctx.shape), g, *ctx.node), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, g_t: Any, *rest: Any) -> Any:
        return _moment_gather(g_t, *ctx.node)


_moment_gather = differentiable(_MomentGather)


class _Moments(torch.autograd.Function):
    """S_k + Re(w z^k Y)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(s: Tensor, y: Tensor, zr: float, zi: float, wr: float, wi: float) -> Tensor:
        return _add(s, y, zr, zi, wr, wi)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.node, ctx.shapes = inputs[2:], (inputs[0].shape, inputs[1].shape)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g, _moment_gather(g, *ctx.node), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, s_t: Any, y_t: Any, *rest: Any) -> Any:
        like = s_t if s_t is not None else y_t
        s_t = like.new_zeros(ctx.shapes[0]) if s_t is None else s_t
        return s_t.clone() if y_t is None else _moments(s_t, y_t, *ctx.node)


_moments = differentiable(_Moments)
