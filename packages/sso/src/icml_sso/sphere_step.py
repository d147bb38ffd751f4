"""One step of the Spectral Sphere Optimizer on a batch of equal matrices (arXiv 2601.08393, Algorithm 1).

    (sigma, u, v) <- block Lanczos steps on W
    Phi <- msign(N / ||N||_F + lambda* u v^T)       N: momentum, lambda*: tangent to the sphere
    W   <- (R / sigma) W - lr s Phi

The retraction R / sigma stands at the start of the step: one triplet serves it and the tangent condition, and
Theta = u v^T is the same before and after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from icml_kernels import retract_axpy
from icml_kernels.matrices.msign import Reduce, frobenius_norm
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_sso.matrix_sign import has_outliers
from icml_sso.singular_vectors import followed_triplet
from icml_sso.tangent_multiplier import SIXTEEN_BITS, Direction, SolverOptions, tangent_direction


@dataclass(frozen=True)
class StepOptions:
    """What is the same for all matrices of a parameter group.

    Attributes:
        solver: how the multiplier is found.
        power_iters: block Lanczos steps that follow the top singular triplet.
        retract: ``"hard"``, ``"dynamic"`` or ``"off"``.
        retract_alpha: of the dynamic retraction.
        weight_decay: decoupled, times lr.
        tangent: whether the update is made tangent.
    """

    solver: SolverOptions = field(default_factory=SolverOptions)
    power_iters: int = 16
    retract: str = "hard"
    retract_alpha: float = 0.05
    weight_decay: float = 0.0
    tangent: bool = True


class Stepped(NamedTuple):
    """A batch after its step, and what there is to report.

    Attributes:
        weight: new matrices.
        v: right singular vectors, for the next step.
        sigma: spectral norms before the retraction.
        lam: multipliers.
        residual: |h| as measured.
        calls: matrix signs.
        factor: retraction factors.
        failed: no multiplier within tolerance.
        rerun: matrix signs that came out wrong in 16 bits and were computed again in float32.
    """

    weight: Float[Tensor, "batch rows columns"]
    v: Float[Tensor, "batch columns"]
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
    v: Float[Tensor, "batch columns"],
    radius: Float[Tensor, " batch"],
    lr: float | Tensor,
    scale: Float[Tensor, " batch"],
    options: StepOptions,
    reduce: Reduce | None = None,
    triplet: tuple[Tensor, Tensor, Tensor] | None = None,
    turn: int | Tensor = 0,
) -> Stepped:
    """Retract to the spheres and move along the steepest tangent directions.

    Args:
        weight: W, float32 or float64.
        momentum: N, the (Nesterov) momentum, of any scale, in the precision of ``weight``.
        v: Right singular vectors of the step before.
        radius: R.
        lr: Learning rate; a tensor where it must not be part of a captured graph.
        scale: s; the update has spectral norm lr s.
        options: The rest.
        reduce: Where the columns are spread over processes: sums a tensor over them.
        triplet: sigma, u and v of ``weight``, where they are known already, as with ``reduce``.
        turn: Number of the step; chooses the vector that finds singular values which overtake.
    """
    sigma, u, v = triplet or followed_triplet(weight, v, options.power_iters, turn)
    solver = options.solver if options.tangent else replace(options.solver, solver="none")
    direction = tangent_direction(momentum, u, v, solver, reduce)
    direction, rerun = _repaired(direction, momentum, u, v, solver, reduce)
    factor = retraction_factor(sigma, radius, lr, options)
    norm = frobenius_norm(momentum, reduce)
    moves = (norm > 0).to(weight.dtype)
    kept = factor * (1.0 - lr * options.weight_decay) if options.weight_decay else factor
    updated = retract_axpy(weight, kept, direction.phi, moves * scale * lr)
    return Stepped(
        updated,
        v,
        sigma,
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
    precise = replace(solver, msign_dtype=torch.float32)
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
