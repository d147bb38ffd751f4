"""What can go wrong while eigenpairs are sought, with what was found so far."""

from __future__ import annotations

from typing import Any


class EigenConvergenceError(RuntimeError):
    """Not everything that was asked for was found, or not to the tolerance.

    Attributes:
        eigenvalues: those that converged, rising.
        eigenvectors: theirs, [n, found].
    """

    def __init__(self, message: str, eigenvalues: Any, eigenvectors: Any) -> None:
        super().__init__(message)
        self.eigenvalues, self.eigenvectors = eigenvalues, eigenvectors


class FillError(MemoryError):
    """A factorization would need more memory than allowed; nothing has been allocated.

    Attributes:
        entries: predicted entries of the factors.
        n_bytes: predicted bytes.
    """

    def __init__(self, message: str, entries: int, n_bytes: int) -> None:
        super().__init__(message)
        self.entries, self.n_bytes = entries, n_bytes


class TooManyEigenvaluesError(MemoryError):
    """An interval holds more eigenvalues than ``max_count``; by inertia, before any is computed.

    Attributes:
        count: how many there are.
    """

    def __init__(self, message: str, count: int) -> None:
        super().__init__(message)
        self.count = count
