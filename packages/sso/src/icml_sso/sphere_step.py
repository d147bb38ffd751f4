"""One step of the Spectral Sphere Optimizer on a batch of equal matrices (arXiv 2601.08393, Algorithm 1).

    (sigma, u, v) <- block Krylov steps on W, from the block of the step before
    Phi <- msign(N / ||N||_F + lambda* Theta)       N: momentum, lambda*: tangent to the sphere, Theta = u v^T
    W   <- (R / sigma) W - lr s (Phi - h Theta)     h = <Theta, Phi>: what a computed matrix sign leaves

The retraction R / sigma stands at the start of the step: one triplet serves it and the tangent condition, and
Theta is the same before and after it. h is 0 but for the tolerance of lambda* and for rounding; without it
the update is tangent whatever the precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from icml_kernels.matrices.block_krylov import KrylovTop, krylov_top
from icml_kernels.matrices.msign import Reduce
from icml_kernels.matrices.retract_axpy import retract_axpy_
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_sso.matrix_sign import has_outliers
from icml_sso.solver_options import SIXTEEN_BITS, SolverOptions
from icml_sso.tangent_multiplier import Direction, tangent_direction


@dataclass(frozen=True)
class StepOptions:
    """What is the same for all matrices of a parameter group.

    Attributes:
        solver: how the multiplier is found.
        power_iters: block Krylov steps that follow the top singular triplet.
        retract: ``"hard"``, ``"dynamic"`` or ``"off"``.
        retract_alpha: of the dynamic retraction.
        weight_decay: decoupled, times lr.
        tangent: whether the update is made tangent.
    """

    solver: SolverOptions = field(default_factory=SolverOptions)
    power_iters: int = 2
    retract: str = "hard"
    retract_alpha: float = 0.05
    weight_decay: float = 0.0
    tangent: bool = True


class Stepped(NamedTuple):
    """A batch after its step, and what there is to report.

    Attributes:
        block: right vectors for the next step.
        sigma: spectral norms before the retraction.
        lam: multipliers.
        residual: |h| of the matrix sign, which the update is without.
        calls: matrix signs.
        factor: retraction factors.
        failed: no multiplier within tolerance.
        rerun: matrix signs that came out wrong in 16 bits and were computed again in float32.
    """

    block: Float[Tensor, "batch vectors columns"]
    sigma: Float[Tensor, " batch"]
    lam: Float[Tensor, " batch"]
    residual: Float[Tensor, " batch"]
    calls: Int[Tensor, " batch"]
    factor: Float[Tensor, " batch"]
    failed: Bool[Tensor, " batch"]
    rerun: Bool[Tensor, " batch"]


def sphere_step(
    weight: Float[Tensor, "batch rows columns"],
    momentum: Float[Tensor, "batch rows columns"],
    block: Float[Tensor, "batch vectors columns"],
    radius: Float[Tensor, " batch"],
    lr: float | Tensor,
    scale: Float[Tensor, " batch"],
    options: StepOptions,
    reduce: Reduce | None = None,
    top: KrylovTop | None = None,
    turn: int | Tensor = 0,
) -> Stepped:
    """Retract to the spheres and move along the steepest tangent directions.

    Args:
        weight: W, float32 or float64; overwritten.
        momentum: N, the (Nesterov) momentum, of any scale, in the precision of ``weight``.
        block: Right vectors of the step before.
        radius: R.
        lr: Learning rate; a tensor where it must not be part of a captured graph.
        scale: s; the update has spectral norm lr s.
        options: The rest.
        reduce: Where the columns are spread over processes: sums a tensor over them.
        top: The triplets of ``weight``, where they are known already, as with ``reduce``.
        turn: Number of the step; chooses the vector that finds singular values which nothing has seen.
    """
    top = top or krylov_top(weight, block, options.power_iters, turn=turn)
    solver = options.solver if options.tangent else replace(options.solver, solver="none")
    direction = tangent_direction(momentum, top.u, top.v, solver, reduce)
    direction, rerun = _repaired(direction, momentum, top.u, top.v, solver, reduce)
    factor = retraction_factor(top.sigma, radius, lr, options)
    kept = factor * (1.0 - lr * options.weight_decay) if options.weight_decay else factor
    # The matrix sign of a zero momentum is zero: such a matrix is retracted and does not move.
    length = scale * lr
    retract_axpy_(weight, kept, direction.phi, length)
    if solver.solver != "none":
        left_over = torch.where(direction.failed, 0.0, direction.residual) * length
        weight.baddbmm_((left_over[:, None] * top.u)[:, :, None], top.v[:, None])
    return Stepped(
        top.block,
        top.sigma,
        direction.lam,
        direction.residual.abs(),
        direction.calls,
        factor,
        direction.failed,
        rerun,
    )


def retraction_factor(
    sigma: Float[Tensor, " batch"], radius: Float[Tensor, " batch"], lr: float | Tensor, options: StepOptions
) -> Float[Tensor, " batch"]:
    """What W is multiplied by: R / sigma (hard), 1 -+ alpha lr towards the sphere (dynamic), or 1 (off).

    With lr = 0 (a frozen group, the first step of a warm-up) the weights stay as they are.
    """
    if options.retract == "off":
        return torch.ones_like(sigma)
    if options.retract == "hard":
        factor = radius / sigma.clamp_min(1e-30)
        return torch.where(lr != 0, factor, 1.0) if isinstance(lr, Tensor) else factor
    return 1.0 + torch.where(sigma > radius, -1.0, 1.0).to(sigma.dtype) * (options.retract_alpha * lr)


def _repaired(
    direction: Direction, momentum: Tensor, u: Tensor, v: Tensor, solver: SolverOptions, reduce: Reduce | None
) -> tuple[Direction, Tensor]:
    """Matrix signs that 16 bits got wrong, computed again in float32.

    Looking at the check costs a synchronisation; in a captured graph wrong ones are only counted.
    """
    none = torch.zeros_like(direction.failed)
    if solver.msign_dtype not in SIXTEEN_BITS or reduce is not None or min(momentum.shape[1:]) == 1:
        return direction, none
    wrong = has_outliers(direction.phi)
    if not solver.synchronise or not bool(wrong.any()):
        return direction, wrong
    rows = wrong.nonzero()[:, 0]
    precise = replace(solver, msign_dtype=torch.float32, removable=0.0)
    again = tangent_direction(momentum[rows], u[rows], v[rows], precise)
    phi = direction.phi.clone()
    phi[rows] = again.phi.to(phi.dtype)
    return Direction(
        phi,
        direction.lam.index_copy(0, rows, again.lam),
        direction.residual.index_copy(0, rows, again.residual),
        direction.calls.index_add(0, rows, again.calls),
        direction.failed.index_copy(0, rows, again.failed),
    ), wrong
