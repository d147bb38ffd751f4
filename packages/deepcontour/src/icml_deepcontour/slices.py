"""Spectrum slicing: every eigenpair of an interval, one factorization and one block Lanczos run a slice.

Inertia says how many eigenvalues each slice holds before any is computed, so that a slice ends when exactly
so many have been found inside, and one that is missing is looked for until it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float

from icml_deepcontour.errors import EigenConvergenceError
from icml_deepcontour.factorization import Factorizer, ShiftedFactor
from icml_deepcontour.inertia import Count, Definiteness, count_below, lower_bound, of_factor
from icml_deepcontour.lanczos import BLOCK, BlockLanczos, Ritz, Wanted, converged
from icml_deepcontour.pencil import Pencil

LARGEST_SLICE = 128  # eigenvalues beyond which a slice is divided
ENLARGEMENTS = 3  # times that a slice may begin again with more room
ROUNDING = 128 * np.finfo(float).eps  # of |A| |x|: what a residual cannot be brought below
FINEST = 4e-15  # of the largest theta: what an error of a Ritz value cannot be brought below
MARGIN = 0.3  # estimated residuals are brought this far below the tolerance
NEIGHBOURS = 4  # columns of a warm start beyond those wanted
CLOSE = 16  # Ritz values nearest to the shift that show the spacing there
LOOKS = 4  # steps without a look at the Ritz values, at most
SETTLE = 3  # steps that fresh columns get before others join
ORTHOGONAL = 1e-8  # largest entry of X^H B X - I with which vectors are counted as different
SAME = 1e-6  # of 1 / (lambda - s): eigenvalues closer than this are one cluster


@dataclass
class Effort:
    """What was spent.

    Attributes:
        shifts: of all factorizations that served to solve.
        solves: right-hand sides.
        restarts: slices that were enlarged.
    """

    shifts: list[float] = field(default_factory=list)
    solves: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class Found:
    """Eigenpairs of one slice.

    Attributes:
        values: rising.
        vectors: [n, k], B-orthonormal.
        above: no eigenvalue lies between the last value and this one; infinity where the slice says nothing.
        beyond: the same for `Wanted.nearest`, as a distance from the shift.
        cluster: the eigenvalue after the last belongs to the same cluster.
        basis: Ritz vectors of the wanted and their neighbours, a warm start for the next pencil.
    """

    values: Float[np.ndarray, " k"]
    vectors: Float[np.ndarray, "n k"]
    above: float
    beyond: float
    cluster: bool
    basis: Float[np.ndarray, "n p"]


class Pace:
    """When to look at the Ritz values again: a projection of 160 rows costs as much as several solves."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None

    def wait(self, step: int, left: float) -> int:
        """Steps until the next look.

        Args:
            step: now.
            left: largest residual over what is allowed; it falls about as fast as since the last look.
        """
        last, self._last = self._last, (step, left)
        if last is None or not np.isfinite(left) or not 1 < left < last[1] < np.inf:
            return 1
        fall = np.log(last[1] / left) / (step - last[0])
        return int(min(max(0.7 * np.log(left) / fall, 1), LOOKS))


class Slicer:
    """Slices of one pencil.

    Args:
        pencil: Hermitian.
        factors: its factorizations.
        kind: what is known of B.
        tol: residual of every pair, see `residuals`.
        seed: of random columns.
        start: whole basis of a similar pencil, [n, p].
        rough: Ritz values of its columns, rising; None where they depend on each other.
        threads: slices at the same time.
        basis: keep a warm start for the next pencil.
    """

    def __init__(
        self,
        pencil: Pencil,
        factors: Factorizer,
        kind: Definiteness,
        *,
        tol: float,
        seed: int,
        start: np.ndarray | None = None,
        rough: np.ndarray | None = None,
        threads: int = 1,
        basis: bool = False,
    ) -> None:
        self.pencil, self.factors, self.kind = pencil, factors, kind
        self.tol, self.seed, self.threads = tol, seed, threads
        self.start, self.rough = start, rough
        self.effort = Effort()
        self.margin = MARGIN
        self.basis = basis

    @property
    def unproved(self) -> str:
        """Why counts of this pencil prove nothing; empty where they do."""
        return "" if self.kind.exact else "the null vectors of B could not be counted"

    def below(self, factor: ShiftedFactor) -> int:
        """Finite eigenvalues below the shift of a factorization."""
        return of_factor(factor, self.kind).n

    def allowed(self, run: BlockLanczos, ritz: Ritz, strict: float) -> np.ndarray:
        """Residual over ||B x|| below which a Ritz pair has converged.

        A tenth of the tolerance, but no finer than the rounding of Op beside a mode that is nearly at the
        shift.
        """
        size = np.abs(ritz.theta)
        with np.errstate(divide="ignore"):
            floor = np.where(size > 0, FINEST * size.max(initial=0.0) / size**2, np.inf)
        # The factors stand for a matrix that differs by rounding, and its eigenvalues with it.
        floor = np.maximum(floor, 16 * max(run.factor.rounding, self.pencil.rounding(0.0)))
        # Far from 0 the tolerance may be wider than the gaps, which a count must tell apart.
        near = ritz.values[np.argsort(-size, kind="stable")[:CLOSE]]
        spacing = float(np.ptp(near)) / max(len(near) - 1, 1)
        wide = np.minimum(self.margin * strict * self.tol * np.abs(ritz.values), 0.1 * spacing)
        return np.maximum(wide, floor)

    def first_block(self, count: int, key: int, near: float | None = None) -> np.ndarray | None:
        """A warm start: mixtures of Ritz vectors of the last basis, each of which holds all of them.

        A block as wide as the basis would be applied whole in every step, and cost more than it saves.

        Args:
            count: eigenvalues that are wanted.
            key: of the slice.
            near: where they lie; None for the lowest.
        """
        if self.start is None:
            return None
        wide = count + NEIGHBOURS
        x = self.start[:, :wide]
        if near is not None and self.rough is not None:
            x = self.start[:, np.sort(np.argsort(np.abs(self.rough - near), kind="stable")[:wide])]
        if x.shape[1] <= BLOCK:
            return x
        return x @ np.random.default_rng([self.seed, key, 1]).standard_normal((x.shape[1], BLOCK))

    def run(self, factor: ShiftedFactor, count: int, key: int, start: np.ndarray | None) -> BlockLanczos:
        """A new basis with room for so many eigenpairs."""
        largest = max(2 * count + 12 * BLOCK, 16 * BLOCK) + (0 if start is None else start.shape[1])
        rng = np.random.default_rng([self.seed, key])
        return BlockLanczos(self.pencil, factor, rng, largest=largest, start=start)

    def solve(self, run: BlockLanczos, wanted: Wanted) -> Found:
        """Iterate until the wanted eigenpairs of a run have converged, with more room where it is needed.

        Raises:
            EigenConvergenceError: not after three enlargements.
        """
        total = wanted.nearest or wanted.below + wanted.above
        strict = 1.0
        for attempt in range(ENLARGEMENTS + 1):
            ritz, chosen, done = self._iterate(run, wanted, total, strict)
            found = self._extract(run, ritz, chosen, wanted)
            fine = residuals(self.pencil, found.values, found.vectors, self.tol) <= self.tol
            if done and not fine.all():
                found, fine = self._polished(run, found, ~fine)
            if done and fine.all() and len(fine) >= min(total, run.pencil.n):
                return found
            strict *= 1e-2
            if done:
                run.refine()  # the rounding of the solves may be what is left
            elif attempt < ENLARGEMENTS:
                self.effort.restarts += 1
                run.grow(run.largest + total + 8 * BLOCK)
                run.inject()
        raise EigenConvergenceError(
            f"{int(fine.sum())} of {total} eigenpairs around {run.factor.shift:g} reached "
            f"tol={self.tol:g} after "
            f"{ENLARGEMENTS} enlargements; the error holds them. Raise tol, or check the scaling of A and B",
            found.values[fine],
            found.vectors[:, fine],
        )

    def _iterate(
        self, run: BlockLanczos, wanted: Wanted, total: int, strict: float
    ) -> tuple[Ritz, np.ndarray, bool]:
        steps = 12 + 6 * -(-total // BLOCK)
        injected = -SETTLE
        pace, look = Pace(), 0
        for step in range(steps):
            if 2 * run.size - run.done > run.largest and not run.exhausted:
                keep = total + 3 * BLOCK
                if run.done > keep:
                    run.restart(run.ritz(), keep, wanted)
                else:
                    run.grow(run.largest + run.size - run.done)
            run.step()
            if not run.exhausted and (run.done < min(total + BLOCK, run.pencil.n) or step < look):
                continue
            ritz = run.ritz()
            allowed = self.allowed(run, ritz, strict)
            chosen, state = converged(ritz, wanted, run, allowed)
            if state == "done":
                return ritz, chosen, True
            if run.done >= run.pencil.n:
                break
            if run.exhausted or (state == "short" and step - injected >= SETTLE):
                run.inject()
                injected = step
            left = run.residuals(ritz)[chosen] / allowed[chosen]
            look = step + pace.wait(step, float(left.max(initial=0.0)) if len(chosen) >= total else np.inf)
        ritz = run.ritz()
        chosen, state = converged(ritz, wanted, run, self.allowed(run, ritz, strict))
        return ritz, chosen, state == "done"

    def _polished(self, run: BlockLanczos, found: Found, which: np.ndarray) -> tuple[Found, np.ndarray]:
        """One step of inverse iteration with refinement, against the rounding of a solve without pivoting.

        Returns:
            The pairs, and which are below the tolerance now.
        """
        p, shift = self.pencil, run.factor.shift
        b = p.times_b(found.vectors[:, which])
        y = run.factor.solve(b)
        for _ in range(2):
            y = y + run.factor.solve(b - (p.times_a(y) - shift * p.times_b(y)))
        run.solves += 3 * b.shape[1]
        values, vectors = found.values.copy(), found.vectors.copy()
        # The Rayleigh quotient of y, as (A - s B) y = b; its error is the square of that of y.
        quotient = (y.conj() * b).sum(axis=0).real / (y.conj() * p.times_b(y)).sum(axis=0).real
        vectors[:, which] = y * (values[which] - shift)
        values[which] = shift + quotient
        values, vectors = orthonormal(p, values, vectors)
        fine = residuals(p, values, vectors, self.tol) <= self.tol
        return replace(found, values=values, vectors=vectors), fine

    def _extract(self, run: BlockLanczos, ritz: Ritz, chosen: np.ndarray, wanted: Wanted) -> Found:
        values = ritz.values[chosen]
        vectors = run.vectors(ritz, chosen)
        values, vectors = orthonormal(self.pencil, values, vectors)
        theta, error = ritz.theta, ritz.error
        shift = run.factor.shift
        last, cluster, above, beyond = 0.0, False, np.inf, np.inf
        rest = np.setdiff1d(np.arange(len(theta)), chosen)
        if not run.exhausted:
            side = rest if wanted.nearest else rest[theta[rest] > 0]
            if len(side) and len(chosen):
                size = np.abs(theta)
                neighbour = side[np.argmax(size[side])]
                own = chosen if wanted.nearest else chosen[theta[chosen] > 0]
                last = size[own].min() if len(own) else np.inf
                same = max(SAME, 8 * self.pencil.rounding(0.0) * last) * last
                cluster = bool(last - size[neighbour] <= same) if np.isfinite(last) else False
                reach = 1.0 / (size[neighbour] + error[neighbour])
                above, beyond = shift + reach, reach
        basis = vectors
        if self.basis:
            near = np.argsort(-np.abs(theta), kind="stable")[: len(chosen) + 2 * BLOCK]
            basis = run.basis(ritz, near)
        return Found(values, vectors, above, beyond, cluster, basis)


def residuals(pencil: Pencil, values: np.ndarray, vectors: np.ndarray, tol: float) -> Float[np.ndarray, " k"]:
    """||A x - lambda B x|| / max(||A x||, 128 eps || |A| |x| || / tol): down to what doubles can show.

    The second term matters where A x is nothing but rounding, as for the rigid modes of a free structure.
    """
    if vectors.shape[1] == 0:
        return np.zeros(0)
    ax = pencil.times_a(vectors)
    r = np.linalg.norm(ax - pencil.times_b(vectors) * values, axis=0)
    image = np.linalg.norm(ax, axis=0)
    if (r <= tol * image).all():
        return r / np.maximum(image, np.finfo(float).tiny)
    floor = ROUNDING / tol * np.linalg.norm(pencil.abs_a @ np.abs(vectors), axis=0)
    return r / np.maximum(image, np.maximum(floor, np.finfo(float).tiny))


def independent(pencil: Pencil, vectors: np.ndarray, count: Count | None) -> Count | None:
    """The count as it stands where X^H B X = I to 1e-8; else two may be one, and nothing is proved."""
    if count is None or not count.exact or vectors.shape[1] == 0:
        return count
    gram = vectors.conj().T @ pencil.times_b(vectors)
    off = float(np.abs(gram - np.eye(vectors.shape[1])).max())
    if off <= ORTHOGONAL:
        return count
    reason = f"X^H B X differs from I by {off:.1e}: two vectors may be one"
    return replace(count, exact=False, reason=reason)


def orthonormal(
    pencil: Pencil, values: np.ndarray, vectors: np.ndarray
) -> tuple[Float[np.ndarray, " k"], Float[np.ndarray, "n k"]]:
    """B-orthonormal vectors, rising by value, the largest entry of each positive.

    By Cholesky factors of the Gram matrix, vectors of small |lambda| first: to take the part of a low vector
    out of a high one costs a residual of its own size, the other way round it costs their ratio.
    """
    order = np.argsort(values, kind="stable")
    values, x = values[order], np.asarray(vectors[:, order])
    if x.shape[1] == 0:
        return values, x
    ranks = np.argsort(np.abs(values), kind="stable")
    for _ in range(2):
        gram = x.conj().T @ pencil.times_b(x)
        if np.abs(gram - np.eye(len(values))).max() <= 1e-14 * len(values):
            break
        ordered = gram[np.ix_(ranks, ranks)]
        try:
            lower = np.linalg.cholesky((ordered + ordered.conj().T) / 2)
        except np.linalg.LinAlgError:
            break  # two vectors are one; whoever asked looks at the Gram matrix
        x = x.copy()
        x[:, ranks] = scipy.linalg.solve_triangular(lower, x[:, ranks].conj().T, lower=True).conj().T
    at = np.argmax(np.abs(x), axis=0)
    top = x[at, np.arange(x.shape[1])]
    return values, np.asfortranarray(x * (np.abs(top) / np.where(top == 0, 1, top)))


@dataclass(frozen=True)
class Piece:
    """A part of the spectrum.

    Attributes:
        low, high: its ends; eigenvalues in [low, high).
        before: eigenvalues below `low`.
        count: eigenvalues inside.
        shift: where to factorize; None for the middle.
    """

    low: float
    high: float
    before: int
    count: int
    shift: float | None = None


def solve_piece(slicer: Slicer, piece: Piece, key: int, factor: ShiftedFactor | None = None) -> Found:
    """All eigenpairs of a piece whose count is known.

    Raises:
        EigenConvergenceError: fewer were found.
    """
    p = slicer.pencil
    if piece.count == 0:
        empty = np.zeros((p.n, 0), dtype=p.dtype)
        return Found(np.zeros(0), empty, piece.high, np.inf, False, empty)
    spacing = (piece.high - piece.low) / piece.count
    if factor is None:
        at = piece.shift if piece.shift is not None else (piece.low + piece.high) / 2
        factor = slicer.factors(at, spacing=spacing)
    slicer.effort.shifts.append(factor.shift)
    below = min(max(slicer.below(factor) - piece.before, 0), piece.count) if factor.exact else 0
    above = piece.count - below
    wanted = Wanted(
        below, above, guard=0, low=piece.low, inside_below=below, high=piece.high, inside_above=above
    )  # fmt: skip
    run = slicer.run(factor, piece.count, key, slicer.first_block(piece.count, key, factor.shift))
    try:
        found = slicer.solve(run, wanted)
    finally:
        slicer.effort.solves += run.solves
    inside = (found.values >= piece.low) & (found.values < piece.high)
    if int(inside.sum()) < piece.count:
        raise EigenConvergenceError(
            f"{int(inside.sum())} of the {piece.count} eigenvalues that inertia counts in [{piece.low:g}, "
            f"{piece.high:g}) were found",
            found.values[inside],
            found.vectors[:, inside],
        )
    return replace(found, values=found.values[inside], vectors=found.vectors[:, inside], above=piece.high)


def solve_pieces(slicer: Slicer, pieces: Sequence[Piece]) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Pieces side by side, merged: vectors of neighbouring slices are made orthogonal.

    Each piece draws from a generator of its own, so that threads change no bit.
    """

    if len(pieces) > 1:
        slicer.margin = 0.1 * MARGIN  # slices are orthogonal as far as they converged

    def one(at: int) -> Found:
        return solve_piece(slicer, pieces[at], at + 1)

    if slicer.threads > 1 and len(pieces) > 1:
        with ThreadPoolExecutor(slicer.threads) as pool:
            found = list(pool.map(one, range(len(pieces))))
    else:
        found = [one(at) for at in range(len(pieces))]
    values = np.concatenate([f.values for f in found])
    vectors = np.concatenate([f.vectors for f in found], axis=1)
    values, vectors = orthonormal(slicer.pencil, values, vectors)
    return values, vectors, [f.basis for f in found]


def divide(
    slicer: Slicer, low: float, high: float, before: int, count: int, guesses: Any = None
) -> list[Piece]:
    """Cut an interval until no piece holds more than 128 eigenvalues; every cut costs a factorization.

    Args:
        slicer: of the pencil.
        low: where the interval begins.
        high: where it ends.
        before: eigenvalues below `low`.
        count: eigenvalues inside.
        guesses: predicted eigenvalues; cuts go into the widest gap near the median, else to the middle.
    """
    if count <= LARGEST_SLICE:
        return [Piece(low, high, before, count, inner_shift(low, high, guesses))]
    at = inner_shift(low, high, guesses, parts=-(-count // LARGEST_SLICE))
    if at is None:
        at = (low + high) / 2
    cut = slicer.factors(at, spacing=(high - low) / count)
    below = min(max(slicer.below(cut), before), before + count)
    if high - low <= slicer.pencil.rounding(high):
        return [Piece(low, high, before, count)]
    left = divide(slicer, low, cut.shift, before, below - before, guesses)
    right = divide(slicer, cut.shift, high, below, before + count - below, guesses)
    return [piece for piece in (*left, *right) if piece.count]


def inner_shift(low: float, high: float, guesses: Any, parts: int = 2) -> float | None:
    """The middle of the widest gap between the predictions around the median, or None without predictions."""
    if guesses is None:
        return None
    inside = np.sort(guesses[(guesses > low) & (guesses < high)])
    if len(inside) < 2:
        return None
    middle = len(inside) // parts * (parts // 2) if parts > 2 else len(inside) // 2
    reach = max(1, len(inside) // 10)
    from_, to = max(middle - reach, 1), min(middle + reach, len(inside) - 1)
    gaps = inside[from_ : to + 1] - inside[from_ - 1 : to]
    if gaps.max() <= 0:
        return None
    at = from_ + int(np.argmax(gaps))
    return float(inside[at - 1] + inside[at]) / 2


def count_interval(slicer: Slicer, a: float, b: float) -> tuple[int, int, bool, str]:
    """Eigenvalues below a, in [a, b), whether both are proved, and why not."""
    low = count_below(slicer.pencil, slicer.factors, slicer.kind, a)
    high = count_below(slicer.pencil, slicer.factors, slicer.kind, b)
    reason = "; ".join(c.reason for c in (low, high) if c.reason)
    return low.n, high.n - low.n, low.exact and high.exact, reason


def real_ends(slicer: Slicer, a: float, b: float) -> tuple[float, float]:
    """The ends as compared with computed values."""
    return lower_bound(slicer.pencil, a), lower_bound(slicer.pencil, b)
