"""The pencil A x = lambda B x as every solver here sees it: checked once, with one pattern for all shifts.

A - s B is assembled for many s; both matrices are laid out once on the union of their patterns and the
diagonal, so that a shift costs one pass over the entries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool, Float, Int
from scipy.sparse.linalg import LinearOperator

ASYMMETRY = 1e-10  # of the norm: what counts as rounding in a Hermitian matrix


@dataclass(frozen=True)
class Pencil:
    """A x = lambda B x with sparse A and B; made by `Pencil.of`.

    Attributes:
        A: [n, n], CSC, real or complex double.
        B: [n, n], CSC; the identity where none was given.
        identity: B is the identity.
        hermitian: both are Hermitian.
    """

    A: sp.csc_array
    B: sp.csc_array
    identity: bool
    hermitian: bool

    @staticmethod
    def of(A: Any, B: Any = None, *, require_hermitian: bool = False) -> Pencil:
        """Check and convert two matrices.

        Args:
            A: sparse or dense, [n, n].
            B: the same, or None for the identity.
            require_hermitian: refuse what is not Hermitian to 1e-10 of the norm.

        Raises:
            TypeError: a `LinearOperator`, or something that is no matrix.
            ValueError: shapes that are not square or differ, non-finite entries, a matrix that is not
                Hermitian where that is required.
        """
        a = _matrix("A", A)
        identity = B is None
        b = sp.csc_array(sp.eye_array(a.shape[0])) if identity else _matrix("B", B)
        if a.shape != b.shape:
            raise ValueError(f"A is {list(a.shape)} but B {list(b.shape)}; a pencil needs equal shapes")
        off_a, off_b = _asymmetry(a), 0.0 if identity else _asymmetry(b)
        hermitian = max(off_a, off_b) <= ASYMMETRY
        if require_hermitian and not hermitian:
            name, off = ("A", off_a) if off_a >= off_b else ("B", off_b)
            raise ValueError(
                f"{name} is not Hermitian: ||{name} - {name}^H|| is {off:.1e} of ||{name}||, more than "
                f'{ASYMMETRY:g}; take (M + M^H)/2 if that is rounding, else backend="cirr" with '
                f'which=("contour", ...)'
            )
        if hermitian:
            a = a if off_a == 0 else sp.csc_array((a + a.conj().T) / 2)
            b = b if off_b == 0 else sp.csc_array((b + b.conj().T) / 2)
        if np.iscomplexobj(a.data) or np.iscomplexobj(b.data):
            a, b = a.astype(np.complex128), b.astype(np.complex128)
        return Pencil(a, b, identity, hermitian)

    @property
    def n(self) -> int:
        """Rows."""
        return self.A.shape[0]

    @property
    def dtype(self) -> np.dtype:
        """float64 or complex128."""
        return self.A.dtype

    @cached_property
    def norm_a(self) -> float:
        """Largest absolute column sum of A."""
        return _norm1(self.A)

    @cached_property
    def abs_a(self) -> sp.csc_array:
        """|A|, entry by entry."""
        return abs(self.A)

    @cached_property
    def b_diagonal(self) -> Float[np.ndarray, " n"]:
        """Real diagonal of B."""
        return self.B.diagonal().real

    @cached_property
    def b_typical(self) -> float:
        """Median of the non-zero diagonal of B."""
        used = np.abs(self.b_diagonal[self.b_diagonal != 0])
        return float(np.median(used)) if len(used) else 1.0

    @cached_property
    def diagonal_b(self) -> bool:
        """B has no entry off the diagonal."""
        return self.identity or int(self.B.nnz) == int(np.count_nonzero(self.b_diagonal))

    @cached_property
    def scale(self) -> float:
        """The largest A_ii / B_ii: about the largest finite eigenvalue."""
        d, b = np.abs(self.A.diagonal()), np.abs(self.b_diagonal)
        used = b > 0
        rayleigh = float(np.max(d[used] / b[used], initial=0.0))
        return rayleigh or self.norm_a / self.b_typical or 1.0

    @cached_property
    def weights(self) -> Float[np.ndarray, " n"]:
        """D of the scaled matrix D^(-1/2) M D^(-1/2), whose size bounds how far M moves eigenvalues.

        The diagonal of B; of an unknown without mass |A_ii| over the spectral scale.
        """
        d = self.b_diagonal.copy()
        empty = d <= 0
        if empty.any():
            smallest = float(d[~empty].min()) if not empty.all() else 1.0
            own = np.abs(self.A.diagonal()[empty]) / self.scale
            d[empty] = np.where(own > 0, own, smallest)
        return d

    @cached_property
    def coupled(self) -> Bool[np.ndarray, " n"]:
        """Rows with an entry off the diagonal. Elimination leaves the others as they are."""
        found = np.zeros(self.n, dtype=bool)
        for m in (self.A, self.B):
            columns = np.repeat(np.arange(self.n), np.diff(m.indptr))
            off = (m.indices != columns) & (m.data != 0)
            found[m.indices[off]] = found[columns[off]] = True
        return found

    @cached_property
    def rounding_scale(self) -> float:
        """The spectral scale of the coupled rows; without any, the smallest size of an eigenvalue."""
        d, b = np.abs(self.A.diagonal()), self.b_diagonal
        used = b > 0
        if self.coupled.any():
            inside = used & self.coupled
            return float(np.max(d[inside] / b[inside], initial=0.0)) or self.scale
        sizes = d[used] / b[used]
        return float(np.min(sizes[sizes > 0], initial=np.inf)) if (sizes > 0).any() else self.scale

    def rounding(self, at: float) -> float:
        """How far rounding may move an eigenvalue near ``at``: 1e-10 of it, or 16 eps of the spectral scale.

        Values closer than this to a bound count as equal to it.
        """
        return max(1e-10 * abs(at), 16 * np.finfo(float).eps * self.rounding_scale)

    def times_a(self, x: np.ndarray) -> np.ndarray:
        """A x."""
        return self.A @ x

    def times_b(self, x: np.ndarray) -> np.ndarray:
        """B x; a copy where B is the identity."""
        if self.identity:
            return x.copy()
        if self.diagonal_b:
            d = self.b_diagonal
            return d[:, None] * x if x.ndim == 2 else d * x
        return self.B @ x

    @cached_property
    def pattern(self) -> Pattern:
        """A and B on one pattern."""
        return Pattern.of(self.A, self.B)


@dataclass(frozen=True)
class Pattern:
    """Two matrices on the union of their patterns and the diagonal, CSC; rows and columns may be permuted.

    Attributes:
        indices, indptr: of the union.
        a, b: entries.
        order: new position i holds the old row and column order[i]; None where not permuted.
    """

    indices: Int[np.ndarray, " nnz"]
    indptr: Int[np.ndarray, " n_1"]
    a: np.ndarray
    b: np.ndarray
    order: Int[np.ndarray, " n"] | None = None

    @staticmethod
    def of(A: sp.csc_array, B: sp.csc_array) -> Pattern:
        """The union pattern, entries aligned by binary search among its keys column * n + row."""
        n = A.shape[0]
        ones = [sp.csc_array((np.ones(m.nnz), m.indices, m.indptr), shape=m.shape) for m in (A, B)]
        union = sp.csc_array(ones[0] + ones[1] + sp.eye_array(n, format="csc"))
        union.sort_indices()
        keys = _keys(union, n)

        def aligned(m: sp.csc_array) -> np.ndarray:
            out = np.zeros(len(keys), dtype=m.dtype)
            out[np.searchsorted(keys, _keys(m, n))] = m.data
            return out

        return Pattern(union.indices, union.indptr, aligned(A), aligned(B))

    @property
    def n(self) -> int:
        """Rows."""
        return len(self.indptr) - 1

    def shifted(self, shift: complex) -> sp.csc_array:
        """A - shift B."""
        data = self.a - shift * self.b
        return sp.csc_array((data, self.indices, self.indptr), shape=(self.n, self.n))

    def permuted(self, order: Int[np.ndarray, " n"]) -> Pattern:
        """Rows and columns in another order."""
        place = sp.csc_array(
            (np.arange(1, len(self.indices) + 1), self.indices, self.indptr), shape=(self.n, self.n)
        )
        moved = sp.csc_array(place[order][:, order])
        moved.sort_indices()
        where = moved.data - 1
        return Pattern(moved.indices, moved.indptr, self.a[where], self.b[where], order)


def _keys(m: sp.csc_array, n: int) -> np.ndarray:
    m.sort_indices()
    columns = np.repeat(np.arange(n, dtype=np.int64), np.diff(m.indptr))
    return columns * n + m.indices


def _norm1(m: sp.csc_array) -> float:
    return float(np.max(np.asarray(abs(m).sum(axis=0)), initial=0.0))


def _asymmetry(m: sp.csc_array) -> float:
    norm = _norm1(m)
    return 0.0 if norm == 0 else _norm1(sp.csc_array(m - m.conj().T)) / norm


def _matrix(name: str, m: Any) -> sp.csc_array:
    if isinstance(m, LinearOperator) or (callable(m) and not hasattr(m, "shape")):
        raise TypeError(
            f"{name} is a {type(m).__name__}; shifts need the entries: pass a scipy.sparse matrix, or also "
            "factorize=f with f(sigma) -> (solve, negative_count) for factors of your own"
        )
    found: Any
    make: Any = sp.csc_array  # its stubs do not know every sparse type
    if sp.issparse(m):
        found = make(m).copy()
    else:
        dense = np.asarray(m)
        if dense.ndim != 2 or dense.dtype.kind not in "biufc":
            raise TypeError(
                f"{name} is a {type(m).__name__}; expected a sparse or dense square matrix of numbers"
            )
        found = sp.csc_array(dense)
    if found.shape[0] != found.shape[1] or found.shape[0] == 0:
        raise ValueError(f"{name} has shape {list(found.shape)}; expected [n, n] with n >= 1")
    found.sum_duplicates()
    found = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    if not np.isfinite(found.data).all():
        bad = int(np.count_nonzero(~np.isfinite(found.data)))
        raise ValueError(f"{name} has {bad} entries that are not finite; correct them first")
    found.eliminate_zeros()
    return found
