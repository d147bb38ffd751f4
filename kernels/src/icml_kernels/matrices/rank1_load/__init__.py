"""Load a matrix for an iteration in lower precision: scale it, add a matrix of rank one, round.

    X = scale M + weight u v^T

The rank-one matrix is never stored. This is how lambda Theta enters the polar factor of M + lambda Theta
(arXiv 2601.08393, Algorithm 1).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.matrices.checks import FLOATS, require_matrices, require_vectors
from icml_kernels.matrices.rank1_load import reference

_HERE = "icml_kernels.matrices.rank1_load"


def _fake(m: Tensor, u: Tensor, v: Tensor, scale: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(m.shape, dtype=dtype, device=m.device)


_rank1_load = raw_op(
    "rank1_load",
    reference.rank1_load,
    fake=_fake,
    cpu=f"{_HERE}.cpu:rank1_load",
    cuda=f"{_HERE}.triton:rank1_load",
)


def rank1_load(
    m: Float[Tensor, "batch rows columns"],
    u: Float[Tensor, "batch rows"],
    v: Float[Tensor, "batch columns"],
    scale: Float[Tensor, " batch"],
    weight: Float[Tensor, " batch"],
    dtype: torch.dtype,
) -> Float[Tensor, "batch rows columns"]:
    """scale M + weight u v^T, computed in the precision of M and rounded to ``dtype``. Not differentiable.

    Args:
        m: Matrices.
        u: Left vectors, in the precision of ``m``, like all that follow.
        v: Right vectors.
        scale: Factor of each matrix.
        weight: Factor of each rank-one matrix.
        dtype: Of the result.

    Raises:
        TypeError: A dtype that is not floating, or arguments of two.
        ValueError: Shapes that do not fit together.

    Example:
        >>> one = torch.ones(1)
        >>> rank1_load(torch.ones(1, 1, 2), torch.ones(1, 1), torch.ones(1, 2), one, 2 * one, torch.bfloat16)
        tensor([[[3., 3.]]], dtype=torch.bfloat16)
    """
    require_matrices("m", m)
    if m.dim() != 3:
        raise ValueError(f"m has shape {list(m.shape)}; expected [batch, rows, columns]")
    batch, rows, columns = m.shape
    named = {"u": (u, (batch, rows)), "v": (v, (batch, columns))}
    named |= {"scale": (scale, (batch,)), "weight": (weight, (batch,))}
    for name, (tensor, shape) in named.items():
        require_vectors(name, tensor, shape)
        if tensor.dtype != m.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype} but m {m.dtype}; convert one")
    if dtype not in FLOATS:
        raise TypeError(f"dtype={dtype}; expected one of {', '.join(map(str, FLOATS))}")
    return _rank1_load(m, u, v, scale, weight, dtype)
