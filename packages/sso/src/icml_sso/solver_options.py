"""How the tangent multiplier is found: the solver, its precision, and what counts as found."""

from __future__ import annotations

from dataclasses import dataclass

import torch

SOLVERS = ("krylov", "bisection", "none")
# How far a measured h strays in each precision: below this a correction fits noise.
NOISE = {torch.bfloat16: 2e-3, torch.float16: 3e-4, torch.float32: 2e-6, torch.float64: 1e-12}
SIXTEEN_BITS = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class SolverOptions:
    """How the multiplier is found.

    Attributes:
        solver: ``"krylov"``, ``"bisection"``, or ``"none"`` (lambda = 0: MuonSphere).
        tol: of |h|.
        krylov_dim: Lanczos steps; the space has twice as many dimensions.
        max_iters: bisections.
        msign_steps: Newton-Schulz steps of a matrix sign.
        msign_dtype: of a matrix sign.
        removable: up to this |h| no further matrix sign is computed in 16 bits, because the caller takes
            h u v^T out of the direction, which makes its spectral norm at most about 1 + |h| / 2.
        synchronise: whether results may be looked at on the host: settled matrices are then left out of later
            matrix signs, and failures handed to bisection. Without, the number of matrix signs is fixed,
            which a CUDA graph needs.
    """

    solver: str = "krylov"
    tol: float = 2e-4
    krylov_dim: int = 8
    max_iters: int = 20
    msign_steps: int = 8
    msign_dtype: torch.dtype = torch.bfloat16
    removable: float = 0.0
    synchronise: bool = True

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is not one of {', '.join(SOLVERS)}")
        if self.msign_dtype not in NOISE:
            raise ValueError(f"msign_dtype={self.msign_dtype} is not one of {', '.join(map(str, NOISE))}")
        if self.msign_steps < 1 or self.krylov_dim < 1 or self.max_iters < 0:
            raise ValueError(
                f"msign_steps={self.msign_steps}, krylov_dim={self.krylov_dim}, max_iters={self.max_iters}; "
                "expected at least 1, 1 and 0"
            )
        if not 0.0 <= self.removable < 1.0:
            raise ValueError(f"removable={self.removable} must lie in [0, 1): |h| is at most 1")
        if not self.tol > 0:
            raise ValueError(f"solver_tol={self.tol} must be positive")
        if self.solver == "bisection" and not self.synchronise:
            raise ValueError(
                "solver='bisection' looks at h on the host; capturable=True needs solver='krylov'"
            )
