"""Symmetric products of a Newton-Schulz step: only tiles on and below the diagonal are computed.

    ns_syrk(X) = alpha X X^T + beta C        ns_poly(A) = b A + c A^2    (A symmetric)

On a GPU a mirrored tile costs a store instead of a product, which halves the work (the system recipe of arXiv
2601.08393 does so from 512 rows on). On a CPU it is one BLAS call.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.matrices.checks import require_matrices
from icml_kernels.matrices.ns_syrk import reference

_HERE = "icml_kernels.matrices.ns_syrk"


def _fake(x: Tensor, alpha: float, beta: float, c: Tensor | None) -> Tensor:
    return x.new_empty(x.shape[0], x.shape[1], x.shape[1])


_ns_syrk = raw_op(
    "ns_syrk",
    reference.ns_syrk,
    fake=_fake,
    cpu=f"{_HERE}.cpu:ns_syrk",
    cuda=f"{_HERE}.triton:ns_syrk",
)


def ns_syrk(
    x: Float[Tensor, "*batch rows columns"],
    alpha: float = 1.0,
    beta: float = 0.0,
    c: Float[Tensor, "*batch rows rows"] | None = None,
) -> Float[Tensor, "*batch rows rows"]:
    """alpha X X^T + beta C, with C symmetric. Not differentiable.

    Args:
        x: Matrices.
        alpha: Factor of the product.
        beta: Factor of ``c``.
        c: Symmetric matrices; its entries above the diagonal may be left unread.

    Raises:
        TypeError: A dtype that is not floating, or two of them.
        ValueError: Shapes that do not fit together.

    Example:
        >>> ns_syrk(torch.tensor([[1.0, 2.0]]))
        tensor([[5.]])
    """
    require_matrices("x", x)
    if c is not None:
        expected = (*x.shape[:-1], x.shape[-2])
        if tuple(c.shape) != expected:
            raise ValueError(
                f"c has shape {list(c.shape)}; for x of {list(x.shape)} it must be {list(expected)}"
            )
        if c.dtype != x.dtype:
            raise TypeError(f"c has dtype {c.dtype} but x {x.dtype}; convert one")
    rows = x.shape[-2]
    flat = x.reshape(-1, *x.shape[-2:])
    symmetric = None if c is None else c.reshape(-1, rows, rows)
    return _ns_syrk(flat, float(alpha), float(beta), symmetric).reshape(*x.shape[:-1], rows)


def ns_poly(a: Float[Tensor, "*batch rows rows"], b: float, c: float) -> Float[Tensor, "*batch rows rows"]:
    """b A + c A^2 for symmetric A. Not differentiable.

    Raises:
        TypeError: A dtype that is not floating.
        ValueError: Matrices that are not square.
    """
    require_matrices("a", a)
    if a.shape[-1] != a.shape[-2]:
        raise ValueError(f"a has shape {list(a.shape)}; expected square symmetric matrices")
    return ns_syrk(a, c, b, a)


def has_symmetric_kernel(x: Tensor, least_rows: int = 512) -> bool:
    """Whether ``ns_syrk`` saves half of the product here, so that it is worth a call of its own."""
    return x.is_cuda and x.dtype != torch.float64 and x.shape[-2] >= least_rows
