"""Distances and unit vectors of the pairs of a neighbour list, differentiable at will."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import require_float, require_list, require_shape
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.molecules.pair_geometry import reference

_HERE = "icml_kernels.molecules.pair_geometry"


def pair_geometry(
    positions: Float[Tensor, "atoms 3"],
    pairs: HalfList,
    shift: Float[Tensor, "pairs 3"] | None = None,
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, "pairs 3"]]:
    """Distance r = |x_j - x_i + shift| of every pair i < j, and the unit vector from i to j.

    Where r = 0 the direction is 0, and so is the derivative. Spare places of the list give 0.

    Args:
        positions: in any unit of length.
        pairs: the neighbour list.
        shift: what is added to x_j - x_i, such as the lattice vector of a periodic image; it may carry
            a gradient (which gives the stress).

    Returns:
        Distances and directions, in the order of ``pairs.idx``.

    Raises:
        TypeError: where dtypes differ or are neither float32 nor float64.
        ValueError: where shapes or devices do not fit together.

    Example:
        >>> pairs = half_list(torch.tensor([0]), torch.tensor([1]), n_atoms=2)
        >>> pair_geometry(torch.tensor([[0.0, 0, 0], [3, 4, 0]]), pairs)[0]
        tensor([5.])
    """
    require_list(pairs, positions.device)
    require_shape("positions", positions, (pairs.n_atoms, 3))
    if shift is None:
        require_float(positions=positions)
        shift = positions.new_empty(0, 3)
    else:
        require_float(positions=positions, shift=shift)
        require_shape("shift", shift, (pairs.capacity, 3))
    return _pair_geometry(positions, shift, pairs.ptr, pairs.idx, pairs.ptr_t, pairs.pair_t)


def _fake_forward(
    positions: Tensor, shift: Tensor, ptr: Tensor, idx: Tensor, ptr_t: Tensor, pair_t: Tensor
) -> tuple[Tensor, Tensor]:
    return positions.new_empty(idx.shape[0]), positions.new_empty(idx.shape[0], 3)


def _fake_backward(grad_r: Tensor, grad_u: Tensor, r: Tensor, u: Tensor, ptr: Tensor, *rest: Tensor) -> Any:
    return r.new_empty(ptr.shape[0] - 1, 3), r.new_empty(r.shape[0], 3)


_forward = raw_op(
    "pair_geometry",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_backward = raw_op(
    "pair_geometry_backward",
    reference.backward,
    fake=_fake_backward,
    cpu=f"{_HERE}.cpu:backward",
    cuda=f"{_HERE}.triton:backward",
)


class _PairGeometryBackward(torch.autograd.Function):
    """(grad_r, grad_u, r, u) -> (grad_positions, grad_shift); its derivatives go through the reference."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _backward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        values, lists = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        _, vjp = torch.func.vjp(lambda *v: reference.backward(*v, *lists), *values)
        return *vjp(grads), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        values, lists = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
        return reference.backward_tangent(*zeros_for_none(tangents[:4], values), *values, *lists)


_pair_geometry_backward = differentiable(_PairGeometryBackward)


class _PairGeometry(torch.autograd.Function):
    """(positions, shift) -> (r, u)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> Any:
        return _forward(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*output, *inputs[2:])
        ctx.save_for_forward(*output, *inputs[2:])
        ctx.shifted = inputs[1].shape[0] > 0

    @staticmethod
    def backward(ctx: Any, grad_r: Any, grad_u: Any) -> Any:
        grad_x, grad_shift = _pair_geometry_backward(grad_r, grad_u, *ctx.saved_tensors)
        return grad_x, grad_shift if ctx.shifted else grad_shift[:0], None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        shift = tangents[1] if ctx.shifted else None
        return reference.tangent(tangents[0], shift, *ctx.saved_tensors)


_pair_geometry = differentiable(_PairGeometry)
