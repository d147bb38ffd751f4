"""Linear systems whose matrix has the shape of a tree, many at once; their derivatives are solves again.

With A x = rhs and g = dL/dx, the solve lambda = A^-T g gives

    dL/drhs = lambda,   dL/dd_i = -lambda_i x_i,   dL/du_i = -lambda_i x_p,   dL/dl_i = -lambda_p x_i

where p is the parent of i; A^T is A with u and l exchanged.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from icml_kernels.autodiff import differentiable, zeros_for_none
from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import require_float, require_shape
from icml_kernels.neurons.checks import require_tree
from icml_kernels.neurons.hines_solve import reference

_HERE = "icml_kernels.neurons.hines_solve"


def hines_solve(
    parent: Int32[Tensor, " nodes"],
    d: Float[Tensor, "nodes batch"],
    u: Float[Tensor, "nodes batch"],
    l: Float[Tensor, "nodes batch"],
    rhs: Float[Tensor, "nodes batch"],
) -> Float[Tensor, "nodes batch"]:
    """Solve A x = rhs for every column, where A has entries on the diagonal and between parents and children.

    A[i, i] = d_i, A[i, p] = u_i and A[p, i] = l_i for the parent p of i. One tree or several (each root has
    -1). The work is linear in the number of nodes. There is no pivoting: for the matrices of cable equations,
    whose diagonal dominates, none is needed.

    Args:
        parent: parents stand before their children; -1 for a root.
        d: diagonal.
        u: entries right of the diagonal towards the parent; a root's is ignored.
        l: entries of the parent's row; a root's is ignored.
        rhs: right-hand sides.

    Raises:
        TypeError: dtypes that differ or are neither float32 nor float64, or a parent that is not int32.
        ValueError: shapes that differ, two devices, or a parent that does not stand before its child.

    Example:
        >>> one = torch.ones(3, 1)
        >>> hines_solve(torch.tensor([-1, 0, 1], dtype=torch.int32), 2 * one, -one, -one, one).squeeze()
        tensor([1.5000, 2.0000, 1.5000])
    """
    require_tree(parent)
    require_float(d=d, u=u, l=l, rhs=rhs)
    shape = (len(parent), rhs.shape[-1])
    for name, tensor in (("d", d), ("u", u), ("l", l), ("rhs", rhs)):
        require_shape(name, tensor, shape)
    if parent.device != d.device:
        raise ValueError(f"parent lies on {parent.device} but d on {d.device}; move one")
    return _solve(parent, d, u, l, rhs)


def _fake(parent: Tensor, d: Tensor, u: Tensor, l: Tensor, rhs: Tensor) -> Tensor:
    return torch.empty_like(rhs, memory_format=torch.contiguous_format)


_raw = raw_op(
    "hines_solve", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward", cuda=f"{_HERE}.triton:forward"
)


class _Solve(torch.autograd.Function):
    """A^-1 rhs; its derivatives call it again, so that they have derivatives of any order."""

    generate_vmap_rule = True

    @staticmethod
    def forward(parent: Tensor, d: Tensor, u: Tensor, l: Tensor, rhs: Tensor) -> Tensor:
        return _raw(parent, d, u, l, rhs)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        parent, d, u, l, _ = inputs
        ctx.save_for_backward(parent, d, u, l, output)
        ctx.save_for_forward(parent, d, u, l, output)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        parent, d, u, l, x = ctx.saved_tensors
        lam = _solve(parent, d, l, u, g)
        at_parent, keep = _above(parent)
        by_u = -lam * x.index_select(0, at_parent) * keep.to(x.dtype)
        by_l = -lam.index_select(0, at_parent) * x * keep.to(x.dtype)
        return None, -lam * x, by_u, by_l, lam

    @staticmethod
    def jvp(ctx: Any, parent_t: Any, d_t: Any, u_t: Any, l_t: Any, rhs_t: Any) -> Any:
        parent, d, u, l, x = ctx.saved_tensors
        d_t, u_t, l_t, rhs_t = zeros_for_none((d_t, u_t, l_t, rhs_t), (d, u, l, x))
        at_parent, keep = _above(parent)
        keep = keep.to(x.dtype)
        moved = d_t * x + u_t * keep * x.index_select(0, at_parent)
        moved = moved.index_add(0, at_parent, l_t * keep * x)
        return _solve(parent, d, u, l, rhs_t - moved)


_solve = differentiable(_Solve)


def _above(parent: Tensor) -> tuple[Tensor, Tensor]:
    """The parent of every node, a root's its own; 1 where there is one, as a column."""
    own = torch.arange(parent.shape[0], device=parent.device)
    has = parent >= 0
    return torch.where(has, parent.long(), own), has[:, None]
