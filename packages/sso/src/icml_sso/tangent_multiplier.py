"""The multiplier that makes the steepest direction tangent to the spectral sphere: the root of h.

    h(lambda) = <Theta, msign(M + lambda Theta)> = u^T msign(M + lambda u v^T) v,     M normalised, Theta = u
    v^T

h does not fall, and is the derivative of the convex function ||M + lambda Theta||_* (arXiv 2601.08393,
appendix A). `"bisection"` is the paper's solver: a matrix sign for every value of h. `"krylov"` finds the
root on a Krylov space of 16 dimensions, measures h once with a matrix sign, and corrects: one to three matrix
signs in all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from icml_kernels import block_lanczos, msign_rank1
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.msign import Reduce, frobenius_norm
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_sso.krylov_model import TangentModel
from icml_sso.matrix_sign import exact_msign
from icml_sso.solver_options import NOISE, SIXTEEN_BITS, SolverOptions

WIDE = 3.0  # from this aspect on the first Krylov root is better than anything that 16 bits can measure
FIRST_STEP = 1e-3  # of the bisection's search for a change of sign
DOUBLINGS = 10
LEAST_MOVE = 1e-6  # between two multipliers; nearer ones give no slope
TRUST = 10.0  # Newton steps around the first root within which a correction may go
FAILURE = 10.0  # times the tolerance: beyond, the Krylov solver hands over to bisection
_JUMP = 1e-3  # of lambda, within which a jump of h over 0 must lie
FLOOR = 1e-8  # of the norm that M is divided by
WORST = 1.5  # in place of an |h| that is no number


class Direction(NamedTuple):
    """The update direction of each matrix of a batch.

    Attributes:
        phi: msign(M + lam u v^T), in the precision of the matrix sign.
        lam: the multiplier, relative to the normalised M.
        residual: h there, as measured.
        calls: matrix signs computed for it.
        failed: whether no multiplier within tolerance was found.
    """

    phi: Float[Tensor, "batch rows columns"]
    lam: Float[Tensor, " batch"]
    residual: Float[Tensor, " batch"]
    calls: Int[Tensor, " batch"]
    failed: Bool[Tensor, " batch"]


def tangent_direction(
    m: Float[Tensor, "batch rows columns"],
    u: Float[Tensor, "batch rows"],
    v: Float[Tensor, "batch columns"],
    options: SolverOptions,
    reduce: Reduce | None = None,
) -> Direction:
    """Steepest direction of the batch, tangent at Theta = u v^T; float32 or float64 matrices of any scale.

    With ``reduce`` the columns are spread over processes, with their part of ``v``.
    """
    if reduce is None and m.shape[1] > m.shape[2]:
        turned = tangent_direction(m.mT, v, u, options)
        return turned._replace(phi=turned.phi.mT)
    problem = _Problem(m, u, v, options, reduce)
    zero = torch.zeros_like(problem.inverse)
    if options.solver == "none":
        return replace_failed(problem.start(zero), False)
    if m.shape[1] == 1 and reduce is None:
        return problem.single_row()
    if options.solver == "bisection":
        return bisection(problem)
    return krylov(problem)


class _Problem:
    """A batch of tangent problems: evaluates h by matrix signs, and keeps what has been seen."""

    def __init__(
        self, m: Tensor, u: Tensor, v: Tensor, options: SolverOptions, reduce: Reduce | None
    ) -> None:
        self.m, self.u, self.v, self.options, self.reduce = m, u, v, options, reduce
        norm = frobenius_norm(m, reduce)
        self.inverse = torch.where(norm > 0, 1.0 / norm.clamp_min(FLOOR), 0.0).to(m.dtype)
        # Where the floor of the norm applies the matrix is not of norm 1.
        self.square = (norm.to(m.dtype) * self.inverse).square()
        if options.solver == "none":  # the multiplier is 0, and nothing depends on the overlap
            self.overlap = torch.zeros_like(self.inverse)
        else:
            image = matvec(m, v)
            self.overlap = (u * (image if reduce is None else reduce(image))).sum(1) * self.inverse
        self.noise = NOISE[options.msign_dtype]
        self.failure = max(FAILURE * max(options.tol, self.noise), options.removable)

    def evaluate(self, lam: Tensor, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """msign(M + lam Theta) and h, of the whole batch or of some of its matrices."""
        m, u, v, inverse, overlap = self.m, self.u, self.v, self.inverse, self.overlap
        if rows is not None:
            m, u, v, inverse, overlap = m[rows], u[rows], v[rows], inverse[rows], overlap[rows]
        phi = msign_rank1(
            m,
            u,
            v,
            lam.to(m.dtype),
            inverse,
            self.options.msign_steps,
            overlap=overlap,
            dtype=self.options.msign_dtype,
            reduce=self.reduce,
        )
        image = matvec(phi, v)
        h = (u * (image if self.reduce is None else self.reduce(image))).sum(1)
        # |h| <= 1. A matrix sign that overflowed in 16 bits counts as far off, and is handed over.
        return phi, torch.nan_to_num(h, nan=WORST, posinf=WORST, neginf=WORST).clamp(-WORST, WORST)

    def start(self, lam: Tensor) -> Direction:
        """The direction at given multipliers, one matrix sign each."""
        phi, h = self.evaluate(lam)
        return Direction(phi, lam, h, torch.ones_like(lam, dtype=torch.int64), h.abs() > self.failure)

    def single_row(self) -> Direction:
        """One row: Theta = W / ||W||, so that M is projected and normalised; lambda = -<M, Theta> exactly."""
        theta = self.u[:, :, None] * self.v[:, None, :]
        scaled = self.m * self.inverse[:, None, None]
        lam = -(scaled * theta).sum((1, 2))
        left = scaled + lam[:, None, None] * theta
        norm = torch.linalg.vector_norm(left, dim=(1, 2))
        # Parallel to W nothing but rounding is left: no direction is tangent to a sphere of one dimension
        # less.
        known = norm > 1e-6
        phi = torch.where(known[:, None, None], left / norm.clamp_min(1e-30)[:, None, None], 0.0)
        h = (phi * theta).sum((1, 2))
        return Direction(phi, lam, h, torch.zeros_like(lam, dtype=torch.int64), h.abs() > self.failure)


def replace_failed(direction: Direction, failed: bool) -> Direction:
    """The same direction, all or nothing of it failed."""
    return direction._replace(failed=torch.full_like(direction.failed, failed))


def krylov(problem: _Problem) -> Direction:
    """One matrix sign at the root on the Krylov space, then corrections by what it measured.

    lambda_1 solves h_k(lambda) + (h_0 - h_k(lambda_0)) = 0; lambda_2 lets the discrepancy grow linearly. In
    16 bits wide matrices stop at lambda_0 and others at lambda_1, where measured residuals are noise. A step
    that does not lower |h| is not taken.
    """
    options, m = problem.options, problem.m
    made = block_lanczos(
        m, problem.u, problem.v, options.krylov_dim, scale=problem.inverse, reduce=problem.reduce
    )
    # ||M||_* <= sqrt(rows) ||M||_F bounds the root whatever the spectrum.
    largest = 2.0 * m.shape[1] ** 0.5 + 1.0
    model = TangentModel(made, options.msign_steps, largest, problem.square, options.synchronise)
    lam0 = model.root()
    best = problem.start(lam0.to(m.dtype))
    in_16_bits = options.msign_dtype in SIXTEEN_BITS
    aspect = max(m.shape[1:]) / min(m.shape[1:])
    corrections = (0 if aspect >= WIDE and problem.reduce is None else 1) if in_16_bits else 2
    if corrections:
        best = _corrected(problem, model, lam0, best, corrections)
    if options.synchronise and bool(best.failed.any()):
        best = _handed_over(problem, best)
    return best


def _corrected(
    problem: _Problem, model: TangentModel, lam0: Tensor, best: Direction, corrections: int
) -> Direction:
    slope = model.slope(lam0).clamp_min(1e-12)
    h0 = best.residual.double()
    reach = (TRUST * h0.abs() / slope).clamp_max(model.largest)
    # What the matrix sign measured, less what the model says there.
    discrepancy0 = h0 - model.h(lam0[:, None])[:, 0]
    enough = problem.options.tol
    if corrections == 1:
        enough = max(enough, problem.noise, problem.options.removable)
    zero = torch.zeros_like(lam0)
    lam1 = model.corrected_root(lam0, discrepancy0, zero, reach)
    best, h1 = _try(problem, best, lam1, best.residual.abs() > enough)
    # 16 bits go further only where bisection would be next.
    goal = problem.options.tol if corrections > 1 else problem.failure
    if corrections == 1 and not (problem.options.synchronise and bool(best.failed.any())):
        return best
    move = lam1 - lam0
    discrepancy1 = h1.double() - model.h(lam1[:, None])[:, 0]
    informative = (move.abs() >= LEAST_MOVE) & (h1.abs() > 3 * problem.noise)
    tilt = torch.where(informative, (discrepancy1 - discrepancy0) / move, zero)
    shift = discrepancy1 - tilt * move
    lam2 = model.corrected_root(lam0, shift, tilt, reach)
    wanted = (best.residual.abs() > goal) & informative
    return _try(problem, best, lam2, wanted)[0]


def _try(problem: _Problem, best: Direction, lam: Tensor, wanted: Tensor) -> tuple[Direction, Tensor]:
    """Evaluate h at other multipliers where wanted, and keep what is better. Also gives the h measured."""
    lam = lam.to(problem.m.dtype)
    if problem.options.synchronise:
        rows = wanted.nonzero()[:, 0]
        if len(rows) == 0:
            return best, best.residual
        if len(rows) < len(wanted):
            phi, h = problem.evaluate(lam[rows], rows)
            measured = best.residual.index_copy(0, rows, h)
            better = h.abs() < best.residual[rows].abs()
            taken = rows[better]
            best.phi[taken] = phi[better]
            kept = best._replace(
                lam=best.lam.index_copy(0, taken, lam[taken]),
                residual=best.residual.index_copy(0, taken, h[better]),
                calls=best.calls.index_add(0, rows, torch.ones_like(rows)),
            )
            return kept._replace(failed=kept.residual.abs() > problem.failure), measured
    phi, h = problem.evaluate(lam)
    better = wanted & (h.abs() < best.residual.abs())
    residual = torch.where(better, h, best.residual)
    return Direction(
        torch.where(better[:, None, None], phi, best.phi),
        torch.where(better, lam, best.lam),
        residual,
        best.calls + 1,
        residual.abs() > problem.failure,
    ), h


def _handed_over(problem: _Problem, best: Direction) -> Direction:
    """The matrices on which the solver failed, once more: 16 bits in float32, and those by bisection.

    The better of the two stays.
    """
    rows = best.failed.nonzero()[:, 0]
    options, in_16_bits = problem.options, problem.options.msign_dtype in SIXTEEN_BITS
    if in_16_bits:
        options = replace(options, msign_dtype=torch.float32, removable=0.0)
    part = _Problem(problem.m[rows], problem.u[rows], problem.v[rows], options, problem.reduce)
    found = krylov(part) if in_16_bits else bisection(part)
    better = found.residual.abs() < best.residual[rows].abs()
    taken = rows[better]
    best.phi[taken] = found.phi[better].to(best.phi.dtype)
    residual = best.residual.index_copy(0, taken, found.residual[better])
    return best._replace(
        lam=best.lam.index_copy(0, taken, found.lam[better]),
        residual=residual,
        calls=best.calls.index_add(0, rows, found.calls),
        failed=residual.abs() > problem.failure,
    )


def bisection(problem: _Problem) -> Direction:
    """The paper's solver: search outwards for a change of sign, halve the bracket, keep the best point.

    Where no change of sign is found within 1e-3 (1 + 2 + ... + 2^9) the multiplier stays 0 (a step of Muon),
    and the failure is counted.
    """
    options = problem.options
    best = problem.start(torch.zeros_like(problem.inverse))
    best = best._replace(phi=best.phi.clone())
    h0 = best.residual
    active = h0.abs() > options.tol
    side = torch.where(h0 > 0, -1.0, 1.0).to(h0.dtype)
    inner, outer = torch.zeros_like(h0), torch.zeros_like(h0)
    bracketed = torch.zeros_like(active)
    reached = torch.zeros_like(h0)
    for doubling in range(DOUBLINGS):
        searching = (active & ~bracketed).nonzero()[:, 0]
        if len(searching) == 0:
            break
        reached = reached + side * FIRST_STEP * 2.0**doubling
        best, h = _measured(problem, best, reached, searching)
        crossed = h * side[searching] >= 0
        outer[searching] = reached[searching]
        inner[searching[~crossed]] = reached[searching[~crossed]]
        bracketed[searching[crossed]] = True
    lost = active & ~bracketed
    for _ in range(options.max_iters):
        going = (bracketed & (best.residual.abs() > options.tol)).nonzero()[:, 0]
        if len(going) == 0:
            break
        middle = (inner + outer) / 2
        best, h = _measured(problem, best, middle, going)
        beyond = h * side[going] >= 0
        outer[going[beyond]] = middle[going[beyond]]
        inner[going[~beyond]] = middle[going[~beyond]]
    if bool(lost.any()):
        rows = lost.nonzero()[:, 0]
        phi, h = problem.evaluate(torch.zeros_like(problem.inverse[rows]), rows)
        best.phi[rows] = phi
        best = best._replace(
            lam=best.lam.index_fill(0, rows, 0.0),
            residual=best.residual.index_copy(0, rows, h),
            calls=best.calls.index_add(0, rows, torch.ones_like(rows)),
        )
    return best._replace(failed=lost)


def _measured(problem: _Problem, best: Direction, lam: Tensor, rows: Tensor) -> tuple[Direction, Tensor]:
    phi, h = problem.evaluate(lam[rows], rows)
    better = h.abs() < best.residual[rows].abs()
    taken = rows[better]
    best.phi[taken] = phi[better]
    return best._replace(
        lam=best.lam.index_copy(0, taken, lam[taken]),
        residual=best.residual.index_copy(0, taken, h[better]),
        calls=best.calls.index_add(0, rows, torch.ones_like(rows)),
    ), h


@dataclass(frozen=True)
class TangentProblem:
    """A matrix M and the top singular vectors of the weights: find the multiplier.

    Attributes:
        m: the momentum, of any scale.
        u: left unit vector.
        v: right unit vector.
    """

    m: Float[Tensor, "rows columns"]
    u: Float[Tensor, " rows"]
    v: Float[Tensor, " columns"]


@dataclass(frozen=True)
class LambdaResult:
    """A multiplier and the direction that it gives.

    Attributes:
        lam: lambda, relative to M / ||M||_F.
        phi: msign(M / ||M||_F + lam u v^T), in the precision of ``m``.
        residual: h(lam) as measured with that matrix sign.
        calls: matrix signs computed.
        failed: no multiplier within tolerance was found.
    """

    lam: float
    phi: Float[Tensor, "rows columns"]
    residual: float
    calls: int
    failed: bool = False

    def verify(self, problem: TangentProblem, tolerance: float = 5e-3) -> None:
        """Check by singular value decomposition in float64 that the exact h vanishes at ``lam``, or jumps
        over 0.

        h jumps where a singular value of M + lambda Theta passes 0, as that of a square matrix may.

        Raises:
            ValueError: it does not, or ``phi`` is not the direction at ``lam``.
        """
        m = problem.m.double()
        u, v = problem.u.double(), problem.v.double()
        m = m / m.norm().clamp_min(FLOOR)
        theta = torch.outer(u, v)
        near = _JUMP * max(abs(self.lam), 1e-2)
        below, above = (float(u @ exact_msign(m + x * theta) @ v) for x in (self.lam - near, self.lam + near))
        if not (below <= tolerance and above >= -tolerance):
            raise ValueError(
                f"h is {below:.3g} to {above:.3g} around lambda = {self.lam:.6g}; the direction is not "
                f"tangent to {tolerance:g}"
            )
        total = m + self.lam * theta
        nuclear = float(torch.linalg.matrix_norm(total, ord="nuc"))
        reached = float((self.phi.double() * total).sum())
        if not abs(reached - nuclear) <= 0.05 * nuclear:
            raise ValueError(f"<phi, M> = {reached:.4g}, but the nuclear norm is {nuclear:.4g}")


def tangent_lambda(
    m: Float[Tensor, "rows columns"],
    u: Float[Tensor, " rows"],
    v: Float[Tensor, " columns"],
    *,
    solver: str = "krylov",
    tol: float = 2e-4,
    krylov_dim: int = 8,
    max_iters: int = 20,
    msign_steps: int = 8,
    msign_dtype: torch.dtype = torch.bfloat16,
) -> LambdaResult:
    """Find lambda with u^T msign(M / ||M||_F + lambda u v^T) v = 0 for one matrix.

    Args:
        m: The momentum, float32 or float64 (16 bits are converted), of any scale.
        u: Left unit vector, as the top singular vector of the weights.
        v: Right unit vector.
        solver: ``"krylov"``, ``"bisection"`` (the paper's) or ``"none"``.
        tol: Of |h|.
        krylov_dim: Lanczos steps.
        max_iters: Bisections.
        msign_steps: Newton-Schulz steps.
        msign_dtype: Of the matrix signs.

    Raises:
        TypeError: Arguments that are not floating tensors.
        ValueError: Shapes that do not fit, NaN or infinite numbers, vectors not of length 1, unknown options.
    """
    return _solved(m, u, v, SolverOptions(solver, tol, krylov_dim, max_iters, msign_steps, msign_dtype))


def _solved(m: Tensor, u: Tensor, v: Tensor, options: SolverOptions) -> LambdaResult:
    m, u, v = _checked(m, u, v)
    found = tangent_direction(m[None], u[None], v[None], options)
    return LambdaResult(
        float(found.lam),
        found.phi[0].to(m.dtype),
        float(found.residual),
        int(found.calls),
        bool(found.failed),
    )


def _checked(m: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    for name, x, dims in (("m", m, 2), ("u", u, 1), ("v", v, 1)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"{name} is {getattr(x, 'dtype', type(x).__name__)}; expected a floating tensor")
        if x.dim() != dims or x.numel() == 0:
            raise ValueError(f"{name} has shape {list(x.shape)}; expected {dims} dimensions, none of them 0")
        if not bool(x.isfinite().all()):
            raise ValueError(f"{name} holds NaN or infinite numbers")
    if (len(u), len(v)) != tuple(m.shape):
        raise ValueError(
            f"m has shape {list(m.shape)} but u {len(u)} and v {len(v)} entries; they must agree"
        )
    dtype = torch.float64 if m.dtype == torch.float64 else torch.float32
    m, u, v = (x.detach().to(dtype) for x in (m, u, v))
    for name, x in (("u", u), ("v", v)):
        if abs(float(x.norm()) - 1.0) > 1e-2:
            raise ValueError(f"{name} has length {float(x.norm()):.4g}; expected a unit vector")
    return m, u / u.norm(), v / v.norm()


class TangentLambda:
    """The multiplier as a solver: ``solve(TangentProblem(m, u, v))`` gives a `LambdaResult`.

    Args:
        options: how the multiplier is found.
    """

    def __init__(self, options: SolverOptions | None = None) -> None:
        self.options = options or SolverOptions()

    def solve(self, problem: TangentProblem, **options: object) -> LambdaResult:
        """Find the multiplier.

        Raises:
            TypeError: Not a `TangentProblem`.
            ValueError: As for `tangent_lambda`.
        """
        if not isinstance(problem, TangentProblem):
            raise TypeError(f"the problem is a {type(problem).__name__}; expected a TangentProblem")
        chosen = replace(self.options, **options)  # type: ignore[arg-type]
        return _solved(problem.m, problem.u, problem.v, chosen)
