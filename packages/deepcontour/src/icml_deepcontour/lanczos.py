"""Shift-invert block Lanczos with full B-orthogonalisation: eigenpairs around one shift.

    Op = (A - s B)^-1 B,   Op Q_j = Q T e_j + Q_{j+1} R,   theta = 1 / (lambda - s)

(R. G. Grimes, J. G. Lewis, H. D. Simon, SIAM J. Matrix Anal. Appl. 15 (1994) 228-272). Differences: the
projection T is kept whole, as the coefficients come from orthogonalisation, so that any block may join the
basis (a warm start, fresh random columns, the Ritz vectors of a restart); and how many eigenvalues are wanted
on each side of the shift is known from inertia, so that the end is a count and not a guess.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from icml_kernels import block_b_orth
from jaxtyping import Float

from icml_deepcontour.factorization import ShiftedFactor, refined
from icml_deepcontour.pencil import Pencil

BLOCK = 8  # right-hand sides of a solve; also the multiplicity that a single run sees
DEPENDENT = 1e-11  # of its length before orthogonalisation: a shorter column is rounding


@dataclass(frozen=True)
class Wanted:
    """Which Ritz values end the iteration.

    Attributes:
        below: eigenvalues below the shift.
        above: eigenvalues above it.
        nearest: on either side, by distance; then the two others are 0.
        guard: neighbours whose place must be known roughly, so that a cut beside the wanted is safe.
        low, inside_below: so many Ritz values below the shift must have reached `low`; inertia counts them.
        high, inside_above: so many above it must lie below `high`.
        radius, inside_radius: so many must be nearer than `radius` to `centre`.
        centre: None for the shift.
    """

    below: int = 0
    above: int = 0
    nearest: int = 0
    guard: int = 1
    low: float = -np.inf
    inside_below: int = 0
    high: float = np.inf
    inside_above: int = 0
    radius: float = np.inf
    inside_radius: int = 0
    centre: float | None = None


@dataclass(frozen=True)
class Ritz:
    """Ritz values around a shift, rising in lambda.

    Attributes:
        values: lambda.
        error: bound of the error of each theta, in the B-norm.
        theta: 1 / (lambda - s).
        coordinates: of the vectors in the basis.
    """

    values: Float[np.ndarray, " m"]
    error: Float[np.ndarray, " m"]
    theta: Float[np.ndarray, " m"]
    coordinates: Float[np.ndarray, "m m"]


class BlockLanczos:
    """A growing basis.

    Args:
        pencil: Hermitian.
        factor: of A - s B.
        rng: for random columns.
        largest: basis vectors that are kept at once; beyond, it restarts from the best Ritz vectors.
        start: first block, [n, p]; random without.
    """

    def __init__(
        self,
        pencil: Pencil,
        factor: ShiftedFactor,
        rng: np.random.Generator,
        *,
        largest: int,
        start: np.ndarray | None = None,
    ) -> None:
        self.pencil, self.factor, self.rng = pencil, factor, rng
        self.apply = factor.solve
        self.largest = min(largest, pencil.n)
        room = self.largest + 2 * BLOCK + (0 if start is None else start.shape[1])
        self._q = np.empty((room, pencil.n), dtype=pencil.dtype)  # rows are basis vectors
        # With a diagonal B > 0 the basis holds B^(1/2) x, and the inner product is the plain one.
        self._root = None
        if not pencil.identity and pencil.diagonal_b and bool((pencil.b_diagonal > 0).all()):
            self._root = np.sqrt(pencil.b_diagonal)
        self._plain = pencil.identity or self._root is not None
        self._bq = self._q if self._plain else np.empty_like(self._q)
        self._t = np.zeros((room, room), dtype=pencil.dtype)
        self.done = 0  # columns to which Op has been applied
        self.size = 0  # columns of the basis
        self.solves = 0
        self._near = 0  # where the block before the newest begins; 0 where any may couple
        if start is not None and self._root is not None:
            start = start * self._root[:, None]
        self._append(self._random(min(BLOCK, pencil.n)) if start is None else start)

    @property
    def exhausted(self) -> bool:
        """The basis spans everything, or no direction is left."""
        return self.done == self.size

    def step(self) -> None:
        """Apply Op to the newest block, and make what is new in it the next one."""
        if self.done == self.size:
            return
        new = slice(self.done, self.size)
        width = self.size - self.done
        right = self._bq[new] if self._root is None else self._bq[new] * self._root
        image = self.apply(right.T)
        if self._root is not None:
            image *= self._root[:, None]
        self.solves += width
        near, self._near, self.done = self._near, self.done, self.size
        if not np.isfinite(image).all():
            raise FloatingPointError(
                f"the solve at shift {self.factor.shift:g} gave values that are not finite"
            )
        coefficients, upper = self._append(image, near)
        height = coefficients.shape[0]
        self._t[:height, new] = coefficients
        self._t[height : height + upper.shape[0], new] = upper

    def refine(self) -> None:
        """From now on every solve with one step of refinement."""
        self.apply = refined(self.factor.solve, self.pencil, self.factor.shift)

    def inject(self, columns: int = BLOCK) -> None:
        """Random columns, orthogonal to all, join the next block: they see what the start block missed."""
        if self.size + columns > self._q.shape[0]:
            self.restart(self.ritz(), keep=self.size // 2)
        self._append(self._random(min(columns, self.pencil.n - self.size)))
        self._near = 0

    def grow(self, largest: int) -> None:
        """Make room for more basis vectors."""
        self.largest = min(largest, self.pencil.n)
        room = self.largest + 4 * BLOCK + (self.size - self.done)
        if room <= self._q.shape[0]:
            return
        for name in ("_q", "_bq"):
            if name == "_bq" and self._plain:
                self._bq = self._q
                continue
            old = getattr(self, name)
            new = np.empty((room, old.shape[1]), dtype=old.dtype)
            new[: self.size] = old[: self.size]
            setattr(self, name, new)
        t = np.zeros((room, room), dtype=self._t.dtype)
        t[: self.size, : self.size] = self._t[: self.size, : self.size]
        self._t = t

    def ritz(self) -> Ritz:
        """Eigenpairs of the projection on the columns that Op has been applied to."""
        m = self.done
        t = self._t[:m, :m]
        theta, s = np.linalg.eigh((t + t.conj().T) / 2)
        tail = self._t[m : self.size, :m] @ s
        error = np.sqrt((np.abs(tail) ** 2).sum(axis=0)) if tail.size else np.zeros(m)
        with np.errstate(divide="ignore"):
            values = self.factor.shift + 1.0 / np.where(theta == 0, np.inf, theta)
            values = np.where(theta == 0, np.inf, values)
        order = np.argsort(values, kind="stable")
        return Ritz(values[order], error[order], theta[order], s[:, order])

    def vectors(self, ritz: Ritz, which: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Ritz vectors, improved by the part of Op x that the next block holds: x + (Op x - theta x) / theta.

        The residual of the improved vector is B (Op x - theta x) / theta^2, without the factor ||A||.
        """
        m = self.done
        s = ritz.coordinates[:, which]
        x = s.T @ self._q[:m]
        if self.size > m:
            tail = (self._t[m : self.size, :m] @ s) / ritz.theta[which]
            x += tail.T @ self._q[m : self.size]
        return (x if self._root is None else x / self._root).T

    def basis(self, ritz: Ritz, which: np.ndarray) -> Float[np.ndarray, "n k"]:
        """Ritz vectors as they are."""
        x = ritz.coordinates[:, which].T @ self._q[: self.done]
        return (x if self._root is None else x / self._root).T

    def residuals(self, ritz: Ritz) -> Float[np.ndarray, " m"]:
        """Estimates of ||A x - lambda B x|| over the typical ||B x||, of the improved vectors."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(ritz.theta == 0, np.inf, ritz.error / ritz.theta**2)

    def restart(self, ritz: Ritz, keep: int, wanted: Wanted | None = None) -> None:
        """Thick restart: keep the wanted Ritz vectors, those with the largest |theta|, and the next block."""
        m = self.done
        first = np.zeros(0, dtype=int) if wanted is None else choose(ritz, wanted)
        rest = np.argsort(-np.abs(ritz.theta), kind="stable")
        best = np.concatenate([first, rest[~np.isin(rest, first)]])[:keep]
        tail = slice(m, self.size)
        width = self.size - m
        rows = ritz.coordinates[:, best].T @ self._q[:m]
        coupling = self._t[tail, :m] @ ritz.coordinates[:, best]
        if not self._plain:
            brows = ritz.coordinates[:, best].T @ self._bq[:m]
            nexts = self._bq[tail].copy()
            self._bq[: len(best)], self._bq[len(best) : len(best) + width] = brows, nexts
        nexts = self._q[tail].copy()
        self._q[: len(best)], self._q[len(best) : len(best) + width] = rows, nexts
        self._t[:] = 0
        self._t[: len(best), : len(best)] = np.diag(ritz.theta[best])
        self._t[len(best) : len(best) + width, : len(best)] = coupling
        self.done, self.size = len(best), len(best) + width
        self._near = 0

    def _random(self, columns: int) -> np.ndarray:
        x = self.rng.standard_normal((self.pencil.n, columns)).astype(self.pencil.dtype)
        if np.iscomplexobj(x):
            x += 1j * self.rng.standard_normal(x.shape)
        # One application of Op takes out null vectors of B, which no orthogonalisation sees.
        if not self.pencil.identity and (self.pencil.b_diagonal == 0).any():
            self.solves += columns
            x = self.factor.solve(self.pencil.times_b(x))
        return x

    def _append(self, block: np.ndarray, near: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Orthogonalise a block against the basis, and add what is independent.

        Of Op times the newest block all but rounding lies in the two newest ones: these come first, alone,
            and
        then the whole basis once. Other blocks meet the whole basis twice.

        Args:
            block: [n, b].
            near: where the basis begins that the block couples with.

        Returns:
            The coefficients on the old basis, and R: block = Q C + new R.
        """
        m, p = self.size, self.pencil
        w = np.asfortranarray(block, dtype=p.dtype)
        coefficients = np.zeros((m, w.shape[1]), dtype=p.dtype)
        upper = np.eye(w.shape[1], dtype=p.dtype)
        cut = DEPENDENT
        for first in (near, 0):
            # B w is formed anew: by recurrence it loses digits where w nearly lies in the basis.
            bw = w if self._plain else np.asfortranarray(p.times_b(w))
            given = (torch.from_numpy(x) for x in (self._q[first:m].T, self._bq[first:m].T, w, bw))
            w, c, r = (x.numpy() for x in block_b_orth(*given, passes=1, cut=cut))
            kept = np.flatnonzero((r != 0).any(axis=1))
            if len(kept) < len(r):
                w, r = np.asfortranarray(w[:, kept]), r[kept]
            coefficients[first:] += c @ upper
            upper = r @ upper
            cut = 0.5  # what is left has unit length; a column that loses half of it was rounding
        width = w.shape[1]
        if m + width > self._q.shape[0]:
            raise RuntimeError(f"the basis has room for {self._q.shape[0]} vectors; {m + width} are wanted")
        self._q[m : m + width] = w.T
        if not self._plain:
            self._bq[m : m + width] = p.times_b(w).T
        self.size = m + width
        return coefficients, upper


def converged(ritz: Ritz, wanted: Wanted, run: BlockLanczos, allowed: np.ndarray) -> tuple[np.ndarray, str]:
    """The places of the wanted Ritz values, and how far the run is.

    Args:
        ritz: of the run.
        wanted: which.
        run: the basis.
        allowed: residual of every Ritz value over the typical ||B x||.

    Returns:
        Places, and ``"open"``, ``"done"``, or ``"short"`` where all have converged but inertia counts one
        more
        inside: a member of a cluster that this start has not seen.
    """
    chosen = choose(ritz, wanted)
    whole = run.done >= run.pencil.n
    if len(chosen) < (wanted.nearest or wanted.below + wanted.above):
        return chosen, "done" if whole else "open"
    if not whole:
        if (run.residuals(ritz)[chosen] > allowed[chosen]).any():
            return chosen, "open"
        if not run.exhausted and not _neighbours_known(ritz, chosen, wanted, 8 * run.pencil.rounding(0.0)):
            return chosen, "open"
        if not _all_inside(ritz, wanted, run.factor.shift):
            return chosen, "short"
    return chosen, "done"


def _all_inside(ritz: Ritz, wanted: Wanted, shift: float) -> bool:
    """As many inside as inertia counts. A Ritz value never lies nearer to the shift than its eigenvalue."""
    above = int(((ritz.theta > 0) & (ritz.values < wanted.high)).sum())
    below = int(((ritz.theta < 0) & (ritz.values >= wanted.low)).sum())
    centre = shift if wanted.centre is None else wanted.centre
    near = int((np.abs(ritz.values - centre) < wanted.radius).sum()) if wanted.inside_radius else 0
    return above >= wanted.inside_above and below >= wanted.inside_below and near >= wanted.inside_radius


def choose(ritz: Ritz, wanted: Wanted) -> np.ndarray:
    """Places of the wanted: the most negative and the most positive thetas, or the largest in size."""
    if wanted.nearest:
        return np.sort(np.argsort(-np.abs(ritz.theta), kind="stable")[: wanted.nearest])
    rising = np.argsort(ritz.theta, kind="stable")
    below = rising[: wanted.below]
    above = rising[len(rising) - wanted.above :]
    below = below[ritz.theta[below] < 0]
    above = above[ritz.theta[above] > 0]
    return np.sort(np.concatenate([below, above]))


def _neighbours_known(ritz: Ritz, chosen: np.ndarray, wanted: Wanted, blur: float) -> bool:
    """The Ritz values next to the outermost wanted ones are right to a third of their distance."""
    if not wanted.guard or len(chosen) == 0:
        return True
    size = np.abs(ritz.theta)
    if wanted.nearest:
        rest = np.delete(np.arange(len(size)), chosen)
        return _apart(size, ritz.error, size[chosen].min(), rest, blur)
    fine = True
    for side, count in ((-1, wanted.below), (1, wanted.above)):
        own = chosen[np.sign(ritz.theta[chosen]) == side]
        if side > 0 and count:
            rest = np.setdiff1d(np.flatnonzero(ritz.theta > 0), own)
            fine = fine and _apart(size, ritz.error, size[own].min(), rest, blur)
    return fine


def _apart(size: np.ndarray, error: np.ndarray, last: float, rest: np.ndarray, blur: float) -> bool:
    if len(rest) == 0:
        return False
    neighbour = rest[np.argmax(size[rest])]
    gap = last - size[neighbour]
    # A neighbour nearer than this belongs to the same cluster, and the cut is made elsewhere.
    same = max(1e-6, blur * last) * last
    return bool(error[neighbour] <= max(gap / 3, same))
