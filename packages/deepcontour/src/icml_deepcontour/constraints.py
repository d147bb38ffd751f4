"""Linear constraints C x = 0 taken out of a pencil: x = Z y, Z a basis of the null space of C."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from icml_deepcontour.pencil import Pencil

RANK = 1e-10  # of the largest pivot: a row of C below depends on the others
LARGEST = 50_000_000  # entries of the dense part of C


def null_space(C: Any, n: int) -> sp.csc_array:
    """A sparse basis of the null space of C, from its pivot columns.

    [C_p C_f] x = 0 gives x_p = -C_p^-1 C_f x_f: the other unknowns stay what they are. Rows that depend on
    others are recognised. A row with one entry fixes its unknown at 0.

    Args:
        C: constraints [m, n], sparse or dense.
        n: unknowns.

    Raises:
        ValueError: another width, entries that are not finite, or constraints that leave nothing free.
        MemoryError: constraints that touch too many unknowns for a dense decomposition.
    """
    c = sp.csr_array(C)
    if c.ndim != 2 or c.shape[1] != n:
        raise ValueError(f"eliminate has shape {list(c.shape)}; expected [constraints, {n}]")
    if not np.isfinite(c.data).all():
        raise ValueError("eliminate has entries that are not finite")
    c.eliminate_zeros()
    single = np.diff(c.indptr) == 1
    fixed = np.unique(c.indices[c.indptr[:-1][single]])
    free = np.ones(n, dtype=bool)
    free[fixed] = False
    rest = c[~single]
    touched = np.unique(rest.indices)
    touched = touched[free[touched]]
    if rest.shape[0] * len(touched) > LARGEST:
        raise MemoryError(
            f"{rest.shape[0]} constraints on {len(touched)} unknowns are too many for a dense decomposition; "
            "apply those of single unknowns by leaving out their rows and columns"
        )
    columns = np.arange(n)
    dependent = np.zeros((0, 0))
    pivots = others = np.zeros(0, dtype=int)
    if len(touched) and rest.shape[0]:
        _, r, order = scipy.linalg.qr(rest[:, touched].toarray(), mode="economic", pivoting=True)
        diagonal = np.abs(np.diag(r))
        rank = (
            int(np.count_nonzero(diagonal > RANK * diagonal[0])) if len(diagonal) and diagonal[0] > 0 else 0
        )
        dependent = -scipy.linalg.solve_triangular(r[:rank, :rank], r[:rank, rank:])
        pivots, others = touched[order[:rank]], touched[order[rank:]]
        free[pivots] = False
    kept = columns[free]
    if len(kept) == 0:
        raise ValueError("eliminate leaves no unknown free")
    place = np.full(n, -1)
    place[kept] = np.arange(len(kept))
    small = np.abs(dependent) < 1e-14 * max(float(np.abs(dependent).max(initial=0.0)), 1e-300)
    rows, cols = np.nonzero(~small)
    data = np.concatenate([np.ones(len(kept)), dependent[rows, cols]])
    index = np.concatenate([kept, pivots[rows]]), np.concatenate([np.arange(len(kept)), place[others[cols]]])
    return sp.csc_array((data, index), shape=(n, len(kept)))


def eliminated(A: Any, B: Any, C: Any) -> tuple[sp.csc_array, sp.csc_array, sp.csc_array]:
    """Z^H A Z, Z^H B Z and Z.

    Raises:
        ValueError: as for `null_space` and `Pencil.of`.
    """
    pencil = Pencil.of(A, B)
    z = null_space(C, pencil.n)
    zh = sp.csr_array(z.conj().T)
    return sp.csc_array(zh @ pencil.A @ z), sp.csc_array(zh @ pencil.B @ z), z
