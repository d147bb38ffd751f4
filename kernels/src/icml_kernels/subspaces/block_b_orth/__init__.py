"""Orthogonalise a block of vectors against a basis in the inner product of a matrix B, and within itself.

    C = Q^H B W,   W - Q C = W' R,   W'^H B W' = I

Block classical Gram-Schmidt, twice, with a QR decomposition by the Gram matrix (G. W. Stewart, SIAM J. Sci.
Comput. 31 (2008) 761-775): two products with the basis a pass, whatever the number of columns. Differences:
the Gram matrix is split by its eigenvalues and not by Cholesky, so that dependent columns are told from
independent ones; and B itself is never needed, only its products with the vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Num
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.subspaces.block_b_orth import reference
from icml_kernels.subspaces.checks import COMPLEX, REAL, require_dtype, require_matrix

_HERE = "icml_kernels.subspaces.block_b_orth"


class Orthogonalised(NamedTuple):
    """W = Q C + W' R.

    Attributes:
        w: W', with W'^H B W' = I; columns of zeros, the last, stand for dependent directions.
        c: coefficients on the basis.
        r: within the block; rows of zeros where W' has none.
    """

    w: Num[Tensor, "n columns"]
    c: Num[Tensor, "basis columns"]
    r: Num[Tensor, "columns columns"]


def _fake(
    q: Tensor, bq: Tensor, w: Tensor, bw: Tensor, passes: int, cut: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows, columns = w.shape
    # W' lies column by column, as LAPACK and SciPy want it.
    return w.new_empty(columns, rows).T, w.new_empty(q.shape[1], columns), w.new_empty(columns, columns)


# On a GPU the same products run in its BLAS; Triton has nothing to add to a tall matrix times a narrow one.
_block_b_orth = raw_op(
    "block_b_orth",
    reference.block_b_orth,
    fake=_fake,
    cpu=f"{_HERE}.cpu:block_b_orth",
    cuda=f"{_HERE}.cpu:block_b_orth",
)


def block_b_orth(
    q: Num[Tensor, "n basis"],
    bq: Num[Tensor, "n basis"],
    w: Num[Tensor, "n columns"],
    bw: Num[Tensor, "n columns"],
    *,
    passes: int = 2,
    cut: float = 1e-11,
) -> Orthogonalised:
    """Orthogonalise W against Q and within itself. Not differentiable.

    Args:
        q: basis, orthonormal in the inner product of B; may have no columns.
        bq: B Q; Q itself where B is the identity.
        w: block.
        bw: B W; W itself where B is the identity.
        passes: times that the basis is projected out.
        cut: a direction of W of which less than this part is left counts as dependent.

    Raises:
        TypeError: dtypes that are no floating ones, or differ.
        ValueError: shapes that do not fit, passes below 1, a cut outside of 0 to 1.

    Example:
        >>> import torch
        >>> q = torch.tensor([[1.0], [0.0]])
        >>> w = torch.tensor([[3.0], [2.0]])
        >>> found = block_b_orth(q, q, w, w)
        >>> found.c.item(), abs(found.r.item()), found.w.abs().T.tolist()
        (3.0, 2.0, [[0.0, 1.0]])
    """
    require_dtype((*REAL, *COMPLEX), q=q, bq=bq, w=w, bw=bw)
    require_matrix("w", w)
    rows, columns = w.shape
    require_matrix("bw", bw, rows, columns)
    require_matrix("q", q, rows)
    require_matrix("bq", bq, rows, q.shape[1])
    if passes < 1:
        raise ValueError(f"passes={passes}; at least one projection is needed")
    if not 0 <= cut < 1:
        raise ValueError(f"cut={cut:g} must lie between 0 and 1")
    return Orthogonalised(*_block_b_orth(q, bq, w, bw, passes, cut))
