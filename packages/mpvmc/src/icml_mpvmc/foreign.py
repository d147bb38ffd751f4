"""Hamiltonians that exist already: sparse matrices, and operators of NetKet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from icml_mpvmc.hamiltonian import MAX_ENUMERATED, Connected, Hamiltonian, Sector, conserves, digest
from icml_mpvmc.lattices import magnetisation
from icml_mpvmc.pauli import HERMITIAN_TOLERANCE


class SparseHamiltonian(Hamiltonian):
    """A Hermitian matrix over all 2^n states, up to 2^20.

    The number of a state has the bits of its spins, the first spin first, and 0 is +1: the order of Kronecker
    products.

    Args:
        matrix: any SciPy sparse matrix, or an array.
        sectors: groups of spins whose sum it conserves.

    Raises:
        ValueError: a size that is no power of 2 or too large, entries that are not finite, or a matrix that
            is not Hermitian (the message has the largest asymmetry).
    """

    def __init__(self, matrix: Any, sectors: Sequence[Sector] = ()) -> None:
        csr = sparse.csr_array(matrix)
        size = csr.shape[0]
        n_spins = max(size.bit_length() - 1, 0)
        if csr.shape != (size, size) or size != 2**n_spins or not 1 <= n_spins <= MAX_ENUMERATED:
            raise ValueError(
                f"the matrix has shape {csr.shape}; expected 2**n rows and columns with 1 <= n <= "
                f"{MAX_ENUMERATED}"
            )
        csr.sum_duplicates()
        if not np.isfinite(csr.data).all():
            raise ValueError("the matrix has entries that are not finite")
        difference = abs(csr - csr.conj().T)
        worst = float(difference.max()) if difference.nnz else 0.0
        scale = float(abs(csr).max()) if csr.nnz else 0.0
        if worst > HERMITIAN_TOLERANCE * max(scale, 1e-300):
            raise ValueError(f"the matrix is not Hermitian: the largest asymmetry is {worst:.3g}")
        super().__init__(n_spins, sectors)
        self.is_real = not np.iscomplexobj(csr.data) or not np.abs(csr.data.imag).any()
        kind = np.float64 if self.is_real else np.complex128
        self._diagonal = torch.from_numpy(
            (csr.diagonal().real if self.is_real else csr.diagonal()).astype(kind)
        )
        rest = csr - sparse.diags_array(csr.diagonal(), format="csr")
        rest = sparse.csr_array(rest)
        rest.eliminate_zeros()
        data = rest.data.real if self.is_real else rest.data
        self._ptr = torch.from_numpy(rest.indptr.astype(np.int64))
        self._column = torch.from_numpy(rest.indices.astype(np.int64))
        self._data = torch.from_numpy(np.ascontiguousarray(data.astype(kind)))
        self.n_connected = int(np.diff(rest.indptr).max(initial=0))
        self._matrix = csr
        if not conserves(self, self.sectors):
            raise ValueError("the matrix does not conserve the sums of the sectors")

    def fingerprint(self) -> str:
        """A digest of all entries."""
        return digest(self.n_spins, [self._matrix.indptr, self._matrix.indices, self._matrix.data])

    def diagonal(self, x: Tensor) -> Tensor:
        """⟨x|H|x⟩."""
        return self._diagonal.to(x.device)[self._numbers(x)]

    def connected(self, x: Tensor, begin: int, end: int) -> Connected:
        """The entries number ``begin`` up to ``end`` of the row of each state."""
        numbers = self._numbers(x).cpu()
        first, last = self._ptr[numbers], self._ptr[numbers + 1]
        slot = torch.arange(begin, end)
        at = first[:, None] + slot
        row, _ = torch.nonzero(at < last[:, None], as_tuple=True)
        entry = at[at < last[:, None]]
        shifts = torch.arange(self.n_spins - 1, -1, -1)
        other = (1 - 2 * (self._column[entry][:, None] >> shifts & 1)).to(torch.int8)
        return Connected(other.to(x.device), self._data[entry].to(x.device), row.to(x.device))

    def _numbers(self, x: Tensor) -> Tensor:
        powers = 2 ** torch.arange(self.n_spins - 1, -1, -1, device=x.device)
        return ((x < 0).long() * powers).sum(1)


class NetKetHamiltonian(Hamiltonian):
    """An operator with NetKet's methods ``get_conn_padded`` and ``hilbert.size``, on spins ±1.

    NetKet itself is not imported. Rows are x: ``get_conn_padded(x)`` gives x' and ⟨x|H|x'⟩.

    Args:
        operator: such as ``netket.operator.Ising(hilbert, graph, h=1.0)``.
        total_sz: magnetisation that is kept; give that of the operator's space.
        exchange_pairs: pairs [P, 2] for exchange moves.

    Raises:
        TypeError: an object without these methods.
        ValueError: local states other than ±1, an operator that says of itself that it is not Hermitian, or a
            constrained space without its total_sz.
    """

    def __init__(
        self, operator: Any, *, total_sz: float | None = None, exchange_pairs: np.ndarray | None = None
    ) -> None:
        space = getattr(operator, "hilbert", None)
        if not callable(getattr(operator, "get_conn_padded", None)) or not hasattr(space, "size"):
            raise TypeError(
                f"{type(operator).__name__} has no get_conn_padded and hilbert.size; expected an operator "
                "of NetKet"
            )
        local = getattr(space, "local_states", None)
        if local is not None and sorted(np.asarray(local, dtype=float).tolist()) != [-1.0, 1.0]:
            raise ValueError(f"the local states are {list(np.asarray(local))}; expected spins ±1")
        if getattr(operator, "is_hermitian", True) is False:
            raise ValueError("the operator says that it is not Hermitian")
        n_spins = int(space.size)
        kept = getattr(space, "_total_sz", None)
        if getattr(space, "constrained", False) or kept is not None:
            if total_sz is None:
                which = "" if kept is None else f" (the space says {kept})"
                raise ValueError(
                    f"the operator's space is constrained; say total_sz{which}, so that chains keep it"
                )
            if kept is not None and float(kept) != float(total_sz):
                raise ValueError(f"total_sz={total_sz}, and the operator's space has total_sz={kept}")
        super().__init__(n_spins, magnetisation(n_spins, total_sz), exchange_pairs)
        self.operator = operator
        self.is_real = not np.issubdtype(np.dtype(getattr(operator, "dtype", float)), np.complexfloating)
        probe = torch.ones(1, n_spins, dtype=torch.int8)
        self.n_connected = int(getattr(operator, "max_conn_size", 0) or self._padded(probe)[0].shape[1])

    def _padded(self, x: Tensor) -> tuple[Tensor, Tensor]:
        other, elements = self.operator.get_conn_padded(x.cpu().numpy().astype(np.float64))
        other = torch.from_numpy(np.array(other)).to(x.device).round().to(torch.int8)
        elements = np.array(elements)
        kind = np.float64 if self.is_real else np.complex128
        return other, torch.from_numpy(elements.astype(kind)).to(x.device)

    def diagonal(self, x: Tensor) -> Tensor:
        """⟨x|H|x⟩: the connections that lead back to x."""
        other, elements = self._padded(x)
        here = (other == x[:, None, :]).all(2)
        return torch.where(here, elements, torch.zeros_like(elements)).sum(1)

    def connected(self, x: Tensor, begin: int, end: int) -> Connected:
        """The connections number ``begin`` up to ``end`` that lead elsewhere."""
        other, elements = self._padded(x)
        other, elements = other[:, begin:end], elements[:, begin:end]
        kept = (other != x[:, None, :]).any(2) & (elements != 0)
        row, slot = torch.nonzero(kept, as_tuple=True)
        return Connected(other[row, slot], elements[row, slot], row)


def from_scipy(matrix: Any, *, sectors: Sequence[Sector] = ()) -> SparseHamiltonian:
    """See ``SparseHamiltonian``."""
    return SparseHamiltonian(matrix, sectors)


def from_netket(operator: Any, *, total_sz: float | None = None) -> NetKetHamiltonian:
    """See ``NetKetHamiltonian``."""
    return NetKetHamiltonian(operator, total_sz=total_sz)
