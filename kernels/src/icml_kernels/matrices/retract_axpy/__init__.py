"""Retraction to a sphere and a step along a direction, in one pass over the weights: W <- a W - b Phi."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.matrices.checks import require_matrices, require_vectors
from icml_kernels.matrices.matvec import PIECE
from icml_kernels.matrices.retract_axpy import reference

_HERE = "icml_kernels.matrices.retract_axpy"


def _fake(w: Tensor, scale: Tensor, phi: Tensor, alpha: Tensor) -> Tensor:
    return w.new_empty(w.shape)


_retract_axpy = raw_op(
    "retract_axpy",
    reference.retract_axpy,
    fake=_fake,
    cpu=f"{_HERE}.cpu:retract_axpy",
    cuda=f"{_HERE}.triton:retract_axpy",
)


def retract_axpy(
    w: Float[Tensor, "batch rows columns"],
    scale: Float[Tensor, " batch"],
    phi: Float[Tensor, "batch rows columns"],
    alpha: Float[Tensor, " batch"],
) -> Float[Tensor, "batch rows columns"]:
    """scale W - alpha Phi for each matrix of the batch, in the precision of W. Not differentiable.

    Args:
        w: Weights.
        scale: Retraction factors R / sigma, in the precision of ``w``.
        phi: Directions, in any floating precision.
        alpha: Step lengths, in the precision of ``w``.

    Raises:
        TypeError: A dtype that is not floating, or factors of another precision than the weights.
        ValueError: Shapes that do not fit together.

    Example:
        >>> one = torch.ones(1)
        >>> retract_axpy(torch.ones(1, 1, 2), 2 * one, torch.ones(1, 1, 2), one)
        tensor([[[1., 1.]]])
    """
    _check(w, scale, phi, alpha)
    return _retract_axpy(w, scale, phi, alpha)


def retract_axpy_(
    w: Float[Tensor, "batch rows columns"],
    scale: Float[Tensor, " batch"],
    phi: Float[Tensor, "batch rows columns"],
    alpha: Float[Tensor, " batch"],
) -> None:
    """`retract_axpy` in place: W <- scale W - alpha Phi. On a CPU piece by piece, without further memory.

    Raises:
        TypeError: As for `retract_axpy`.
        ValueError: As for `retract_axpy`.

    Example:
        >>> w, one = torch.ones(1, 1, 2), torch.ones(1)
        >>> retract_axpy_(w, 2 * one, torch.ones(1, 1, 2), one)
        >>> w
        tensor([[[1., 1.]]])
    """
    _check(w, scale, phi, alpha)
    if w.device.type != "cpu" or torch.compiler.is_compiling():
        w.copy_(_retract_axpy(w, scale, phi, alpha))
        return
    batch, rows, columns = w.shape
    matrices = max(1, PIECE // (rows * columns))
    height = max(1, min(rows, PIECE // columns))
    for first in range(0, batch, matrices):
        own = slice(first, first + matrices)
        for at in range(0, rows, height):
            piece = w[own, at : at + height].mul_(scale[own, None, None])
            moved = phi[own, at : at + height].to(w.dtype)
            piece.addcmul_(moved, alpha[own, None, None], value=-1.0)


def _check(w: Tensor, scale: Tensor, phi: Tensor, alpha: Tensor) -> None:
    require_matrices("w", w)
    if w.dim() != 3 or phi.shape != w.shape:
        raise ValueError(
            f"w has shape {list(w.shape)} and phi {list(phi.shape)}; expected [batch, rows, columns] twice"
        )
    for name, factor in (("scale", scale), ("alpha", alpha)):
        require_vectors(name, factor, (w.shape[0],))
        if factor.dtype != w.dtype:
            raise TypeError(f"{name} has dtype {factor.dtype} but w {w.dtype}; convert one")
