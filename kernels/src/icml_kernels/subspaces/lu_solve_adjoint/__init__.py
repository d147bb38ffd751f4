"""Solve with the adjoint of sparse triangular factors, for a block of right-hand sides.

    (L U)^H P X = P B:   U^H Y = P B,   L^H P X = Y

L and U come by columns, as SuperLU gives them. For a Hermitian matrix L U, the adjoint is the matrix itself.
A column of a factor is a row of its adjoint, so that every unknown is a sum of gathered rows, written once
(T. A. Davis, Direct Methods for Sparse Linear Systems, 2006, section 3.1, for one vector). Difference: the
block is carried in rows, several columns at a time, so that an entry that is read serves all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int, Num
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.subspaces.checks import COMPLEX, REAL, require_dtype, require_matrix
from icml_kernels.subspaces.lu_solve_adjoint import reference

_HERE = "icml_kernels.subspaces.lu_solve_adjoint"


class SparseFactors(NamedTuple):
    """L U by columns; made by `sparse_factors`, which checks it once.

    Attributes:
        l_data: entries of L, unit lower triangular; its diagonal may be stored or left out.
        l_indices: rows of the entries, in any order within a column.
        l_indptr: where the columns begin.
        u_data: entries of U, upper triangular; its diagonal may be stored or left out.
        u_indices: as of L.
        u_indptr: as of L.
        diagonal: of U.
        order: row i of the factors is row order[i] of the right-hand sides and of the solution.
    """

    l_data: Num[Tensor, " l_entries"]
    l_indices: Int[Tensor, " l_entries"]
    l_indptr: Int[Tensor, " n_1"]
    u_data: Num[Tensor, " u_entries"]
    u_indices: Int[Tensor, " u_entries"]
    u_indptr: Int[Tensor, " n_1"]
    diagonal: Num[Tensor, " n"]
    order: Int[Tensor, " n"]


def _fake(
    l_data: Tensor,
    l_indices: Tensor,
    l_indptr: Tensor,
    u_data: Tensor,
    u_indices: Tensor,
    u_indptr: Tensor,
    diagonal: Tensor,
    order: Tensor,
    b: Tensor,
) -> Tensor:
    # X lies column by column, as LAPACK and SciPy want it.
    return b.new_empty(b.shape[1], b.shape[0]).T


# One unknown waits for the next: a GPU has nothing to gain here, and runs the definition.
_lu_solve_adjoint = raw_op("lu_solve_adjoint", reference.forward, fake=_fake, cpu=f"{_HERE}.cpu:forward")


def sparse_factors(
    l_data: Num[Tensor, " l_entries"],
    l_indices: Int[Tensor, " l_entries"],
    l_indptr: Int[Tensor, " n_1"],
    u_data: Num[Tensor, " u_entries"],
    u_indices: Int[Tensor, " u_entries"],
    u_indptr: Int[Tensor, " n_1"],
    diagonal: Num[Tensor, " n"],
    order: Int[Tensor, " n"] | None = None,
) -> SparseFactors:
    """`SparseFactors`, checked. Indices are int32; a zero on the diagonal gives infinities later.

    Without `order` the rows keep theirs.

    Raises:
        TypeError: dtypes that are no floating ones, or differ; indices that are not int32.
        ValueError: shapes that do not fit, entries on the wrong side of the diagonal, an order that is no
            permutation.
    """
    require_dtype((*REAL, *COMPLEX), l_data=l_data, u_data=u_data, diagonal=diagonal)
    if diagonal.dim() != 1:
        raise ValueError(f"diagonal has shape {list(diagonal.shape)}; expected [n]")
    _check("l", l_data, l_indices, l_indptr, len(diagonal), lower=True)
    _check("u", u_data, u_indices, u_indptr, len(diagonal), lower=False)
    rows = torch.arange(len(diagonal), dtype=torch.int32, device=diagonal.device)
    if order is None:
        order = rows
    elif order.shape != rows.shape or not torch.equal(order.sort().values, rows.to(order.dtype)):
        raise ValueError(f"order has shape {list(order.shape)}; expected a permutation of {len(rows)} rows")
    places = order.to(torch.int32)
    return SparseFactors(l_data, l_indices, l_indptr, u_data, u_indices, u_indptr, diagonal, places)


def lu_solve_adjoint(factors: SparseFactors, b: Num[Tensor, "n columns"]) -> Num[Tensor, "n columns"]:
    """X with (L U)^H P X = P B. Not differentiable.

    Args:
        factors: of `sparse_factors`.
        b: right-hand sides.

    Raises:
        TypeError: another dtype than that of the factors.
        ValueError: another number of rows.

    Example:
        >>> import torch
        >>> i = lambda *v: torch.tensor(v, dtype=torch.int32)
        >>> one = torch.tensor([1.0])  # L = [[1, 0], [1, 1]], U = [[2, 1], [0, 4]]
        >>> lower, upper = (one, i(1), i(0, 1, 1)), (one, i(0), i(0, 0, 1))
        >>> factors = sparse_factors(*lower, *upper, torch.tensor([2.0, 4.0]))
        >>> lu_solve_adjoint(factors, torch.tensor([[4.0], [10.0]])).T.tolist()
        [[0.0, 2.0]]
    """
    require_dtype((*REAL, *COMPLEX), diagonal=factors.diagonal, b=b)
    require_matrix("b", b, len(factors.diagonal))
    return _lu_solve_adjoint(*factors, b)


def _check(name: str, data: Tensor, indices: Tensor, indptr: Tensor, n: int, *, lower: bool) -> None:
    for part, t in (("indices", indices), ("indptr", indptr)):
        if t.dtype != torch.int32:
            raise TypeError(f"{name}_{part} has dtype {t.dtype}; expected torch.int32")
    if data.dim() != 1 or indices.shape != data.shape or indptr.shape != (n + 1,):
        raise ValueError(
            f"{name}_data {list(data.shape)}, {name}_indices {list(indices.shape)} and {name}_indptr "
            f"{list(indptr.shape)} do not fit a diagonal of {n}; expected [entries], [entries] and [{n + 1}]"
        )
    sizes = torch.diff(indptr)
    if int(indptr[0]) != 0 or int(indptr[-1]) != len(data) or bool((sizes < 0).any()):
        raise ValueError(f"{name}_indptr must rise from 0 to the {len(data)} entries")
    columns = torch.repeat_interleave(
        torch.arange(n, dtype=torch.int32, device=indices.device), sizes, output_size=len(data)
    )
    inside = (indices >= columns) & (indices < n) if lower else (indices >= 0) & (indices <= columns)
    if not bool(inside.all()):
        raise ValueError(f"{name}_indices leave the {'lower' if lower else 'upper'} triangle of {n} rows")
