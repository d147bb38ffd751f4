"""(z B - A)^-1 B V at the nodes of a contour: one complex factorization a node."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from icml_kernels import moment_accumulate_
from jaxtyping import Num
from scipy.sparse.linalg import SuperLU, splu

from icml_deepcontour.contour import Contour, contour_quadrature
from icml_deepcontour.fill import available_memory, check_fill
from icml_deepcontour.pencil import Pencil

ENTRY = 20  # bytes of a complex entry with its index
BAD = 1e-8  # relative residual of a solve above which pivots are chosen anew, by size


class Moments:
    """The filtered moments of one contour.

    Args:
        pencil: any pencil.
        contour: where.
        N: nodes of its upper half.
        rule: of the quadrature.
        workers: nodes at the same time.
        max_bytes: of all factors together; beyond it they are made anew at every use.
    """

    def __init__(
        self,
        pencil: Pencil,
        contour: Contour,
        N: int,
        rule: str,
        *,
        workers: int = 1,
        max_bytes: float | None = None,
    ) -> None:
        self.pencil, self.contour, self.workers = pencil, contour, workers
        # Of a contour that is symmetric about the real axis the upper half gives the lower one.
        self.half = contour.symmetric and (pencil.hermitian or pencil.dtype.kind == "f")
        self.nodes, self.weights = contour_quadrature(contour, N, rule, half=self.half)
        self.factorizations = 0
        self.solves = 0
        if pencil.hermitian:
            check_fill(pencil.pattern.shifted(0.0).astype(complex), max_bytes)
        self._limit = 0.5 * (available_memory() if max_bytes is None else float(max_bytes))
        self._kept: dict[int, SuperLU] = {}
        self._bytes = 0.0

    @property
    def real(self) -> bool:
        """Moments are real."""
        return self.half and self.pencil.dtype.kind == "f"

    def __call__(self, V: Num[np.ndarray, "n L"], K: int) -> Num[np.ndarray, "n KL"]:
        """S = [S_0 ... S_{K-1}], S_k = sum over nodes of w_j ((z_j - c) / rho)^k (z_j B - A)^-1 B V."""
        rhs = self.pencil.times_b(V).astype(complex)
        n, L = V.shape
        total = np.zeros((K, n, L), dtype=float if self.real else complex)
        turn = self.contour.radius * np.exp(1j * self.contour.angle)
        places = range(len(self.nodes))
        for first in range(0, len(self.nodes), self.workers):
            batch = places[first : first + self.workers]
            solved = self._batch(batch, rhs)
            for j, (y, below) in zip(batch, solved, strict=True):
                unit = (self.nodes[j] - self.contour.center) / turn
                self._add(total, y, below, complex(unit), complex(self.weights[j]))
        return total.transpose(1, 0, 2).reshape(n, K * L)

    def filter(self, values: np.ndarray) -> np.ndarray:
        """The rational filter at these values: about 1 inside, 0 outside."""
        terms = self.weights[:, None] / (self.nodes[:, None] - values)
        if not self.half:
            return terms.sum(axis=0)
        below = self.weights.conj()[:, None] / (self.nodes.conj()[:, None] - values)
        return (terms + below).sum(axis=0) / 2

    def _batch(self, batch: Any, rhs: np.ndarray) -> list[tuple[np.ndarray, np.ndarray | None]]:
        def one(j: int) -> tuple[np.ndarray, np.ndarray | None]:
            lu: Any = self._factor(j)
            y = lu.solve(np.asfortranarray(rhs))
            # The conjugate node of a Hermitian pencil is the adjoint of the same factors.
            below = lu.solve(np.asfortranarray(rhs), trans="H") if self.half and not self.real else None
            return y, below

        self.solves += len(batch) * rhs.shape[1]
        if self.workers > 1 and len(batch) > 1:
            with ThreadPoolExecutor(self.workers) as pool:
                return list(pool.map(one, batch))
        return [one(j) for j in batch]

    def _add(
        self, total: np.ndarray, y: np.ndarray, below: np.ndarray | None, unit: complex, w: complex
    ) -> None:
        if self.real:
            moment_accumulate_(torch.from_numpy(total), torch.from_numpy(np.ascontiguousarray(y)), unit, w)
            return
        power = w
        for k in range(total.shape[0]):
            total[k] += (power if below is None else power / 2) * y
            if below is not None:
                total[k] += np.conj(power) / 2 * below
            power *= unit

    def _factor(self, j: int) -> SuperLU:
        if (kept := self._kept.get(j)) is not None:
            return kept
        lu = node_factor(self.pencil, complex(self.nodes[j]))
        self.factorizations += 1
        size = float(lu.nnz) * ENTRY
        if self._bytes + size <= self._limit:
            self._kept[j] = lu
            self._bytes += size
        return lu


def node_factor(pencil: Pencil, z: complex) -> SuperLU:
    """Factors of z B - A, on the diagonal where that is accurate, else with pivots by size."""
    matrix = pencil.pattern.shifted(z).astype(complex) * -1.0
    if pencil.hermitian:
        lu = splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        b = np.cos(np.arange(1.0, pencil.n + 1)).astype(complex)
        x = lu.solve(b)
        if np.linalg.norm(matrix @ x - b) <= BAD * np.linalg.norm(b):
            return lu
    return splu(matrix)


def stochastic_count(pencil: Pencil, V: np.ndarray, S0: np.ndarray) -> tuple[float, float]:
    """Estimated number of eigenvalues inside, and its standard error.

    The mean over columns of v^H S_0, entries of variance 1.
    """
    each = np.einsum("nl,nl->l", V.conj(), S0).real
    return float(each.mean()), float(each.std(ddof=1) / np.sqrt(len(each))) if len(each) > 1 else np.inf


def winding_number(A: Any, B: Any, contour: Contour, N: int) -> int:
    """Eigenvalues inside by the argument principle: turns of det(z B - A) along 2 N nodes.

    The phase of the determinant is read off the LU factors. Right where it turns by less than half a turn
    between neighbouring nodes, for which 2 N should be at least 4 times the count; else an estimate.

    Args:
        A: any square matrix.
        B: the same size, or None.
        contour: where.
        N: nodes of its upper half.

    Raises:
        ValueError: as for `Pencil.of` and `contour_quadrature`.
    """
    return turns(Pencil.of(A, B), contour, N)[0]


def turns(pencil: Pencil, contour: Contour, N: int) -> tuple[int, float]:
    """The winding number, and the largest turn between neighbouring nodes, at most 0.5.

    Near 0.5 some turn may have been taken for one in the other direction: N is too small.
    """
    nodes, _ = contour_quadrature(contour, N, half=False)
    phases = [_phase(node_factor(pencil, complex(z))) for z in nodes]
    steps = np.diff(np.append(phases, phases[0]))
    steps = (steps + np.pi) % (2 * np.pi) - np.pi
    return round(float(steps.sum()) / (2 * np.pi)), float(np.abs(steps).max()) / (2 * np.pi)


def _phase(lu: SuperLU) -> float:
    turns = float(np.angle(lu.U.diagonal()).sum())
    return turns + np.pi * (_odd(lu.perm_r) + _odd(lu.perm_c))


def _odd(order: np.ndarray) -> int:
    """1 for an odd permutation: elements less cycles."""
    seen = np.zeros(len(order), dtype=bool)
    moved = order.tolist()
    cycles = 0
    for at in range(len(moved)):
        if not seen[at]:
            cycles += 1
            while not seen[at]:
                seen[at] = True
                at = moved[at]
    return (len(moved) - cycles) % 2
