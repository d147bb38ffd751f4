"""Fixed points of h -> h + f(h), each sample on its own: plain steps, or Anderson acceleration.

Anderson (type II, after Walker and Ni 2011): with the last residuals f_j and points h_j, gamma minimises
|f_k - dF gamma|^2 + lambda |gamma|^2, and the next point is h_k + f_k - (dH + dF) gamma. Differences from
textbook code: a step is kept only if the residual does not grow, else the plain step from before is taken; a
singular system takes the plain step; each sample stops, freezes and counts alone; the best point is returned.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

CONVERGED, STOPPED, DIVERGED = "converged", "max_iter", "diverged"
REGULARIZATION = 1e-4  # of Anderson's system, relative to its smaller scale
LIMIT = 1e3  # growth of a norm over that of the start, from which a sample counts as diverged


@dataclass(frozen=True)
class SolveInfo:
    """How a batch was solved.

    Attributes:
        statuses: of each sample: ``"converged"``, ``"max_iter"`` or ``"diverged"``.
        residual: |h_{k+1} - h_k| / |h_k| of each sample's returned step; infinite where the sample diverged.
        calls: evaluations of f for each sample.
        accelerated: Anderson steps that were kept.
        rejected: Anderson steps after which the residual had grown.
    """

    statuses: tuple[str, ...]
    residual: Float[Tensor, " batch"]
    calls: Int[Tensor, " batch"]
    accelerated: Int[Tensor, " batch"]
    rejected: Int[Tensor, " batch"]

    @property
    def status(self) -> str:
        """Of the batch: diverged where one sample did, converged where all did."""
        if DIVERGED in self.statuses:
            return DIVERGED
        return CONVERGED if all(s == CONVERGED for s in self.statuses) else STOPPED


def solve_fixed_point(
    residual: Callable[[Tensor, Tensor], Tensor],
    start: Float[Tensor, "batch ..."],
    *,
    tol: float = 1e-3,
    max_iter: int = 12,
    anderson: int = 0,
    regularization: float = REGULARIZATION,
    limit: float = LIMIT,
    valid: Bool[Tensor, ...] | None = None,
) -> tuple[Float[Tensor, "batch ..."], SolveInfo]:
    """Repeat h <- h + f(h) until |f(h)| < tol |h|.

    Args:
        residual: ``f(h, rows)`` for the samples ``rows`` of the batch.
        start: h_0.
        tol: relative length of a step at which a sample stops; the step is still taken.
        max_iter: most evaluations of f for a sample.
        anderson: number of earlier points that a step is mixed from; 0 for plain steps.
        regularization: lambda over the smaller of |f_k|^2 and the largest |dF|^2; 0 for none.
        limit: a sample whose norm exceeds this times that of its start (or of its first step) has diverged,
            and its last point before is returned.
        valid: True where an entry counts in norms and in the mixture; broadcast to ``start``. The others
            move along.

    Returns:
        of each sample the point with the least relative residual, its step taken; and how it went.

    Raises:
        ValueError: an option out of range.

    Example:
        >>> h, info = solve_fixed_point(lambda h, rows: 1 - 0.5 * h, torch.ones(1, 1), tol=1e-6, max_iter=40)
        >>> round(float(h), 4), info.status
        (2.0, 'converged')
    """
    if not tol >= 0 or max_iter < 1 or anderson < 0 or not regularization >= 0:
        raise ValueError(
            f"tol={tol} and regularization={regularization} must be at least 0, max_iter={max_iter} at "
            f"least 1 and anderson={anderson} at least 0"
        )
    return _Solving(start, tol, anderson, regularization, limit, valid).run(residual, max_iter)


class _Solving:
    """State of every sample; ``trial`` is where f is evaluated next."""

    def __init__(
        self,
        start: Tensor,
        tol: float,
        anderson: int,
        regularization: float,
        limit: float,
        valid: Tensor | None,
    ) -> None:
        n, device = start.shape[0], start.device
        self.shape, self.tol, self.regularization, self.limit = start.shape, tol, regularization, limit
        flat = start.reshape(n, -1)
        self.valid = None if valid is None else valid.expand(start.shape).reshape(n, -1)
        self.trial, self.plain, self.best = flat.clone(), flat.clone(), flat.clone()
        infinite = torch.full((n,), torch.inf, device=device, dtype=torch.float64)
        self.best_relative, self.norm = infinite.clone(), infinite.clone()
        self.reference = self._length(flat, torch.arange(n, device=device))
        self.proposed = torch.zeros(n, dtype=torch.bool, device=device)
        self.active = torch.ones(n, dtype=torch.bool, device=device)
        counter = torch.zeros(n, dtype=torch.int64, device=device)
        self.calls, self.accelerated, self.rejected = counter.clone(), counter.clone(), counter.clone()
        self.statuses = [STOPPED] * n
        self.memory = anderson
        size = (n, anderson + 1, flat.shape[1] if anderson else 0)
        self.points, self.residuals = flat.new_zeros(size), flat.new_zeros(size)
        self.known = counter.clone()

    def run(self, residual: Callable[[Tensor, Tensor], Tensor], max_iter: int) -> tuple[Tensor, SolveInfo]:
        for _ in range(max_iter):
            rows = self.active.nonzero().flatten()
            if len(rows) == 0:
                break
            f = residual(self.trial[rows].view(-1, *self.shape[1:]), rows).reshape(len(rows), -1)
            self.calls[rows] += 1
            self._take(rows, f)
        info = SolveInfo(
            tuple(self.statuses), self.best_relative, self.calls, self.accelerated, self.rejected
        )
        return self.best.view(self.shape), info

    def _counted(self, values: Tensor, rows: Tensor) -> Tensor:
        """In float64, with 0 where an entry does not count."""
        values = values.double()
        if self.valid is None:
            return values
        valid = self.valid[rows]
        return torch.where(valid if values.dim() == 2 else valid[:, None], values, 0.0)

    def _length(self, values: Tensor, rows: Tensor) -> Tensor:
        return self._counted(values, rows).norm(dim=1)

    def _take(self, rows: Tensor, f: Tensor) -> None:
        norm = self._length(f, rows)
        grown = self.proposed[rows] & ~(norm <= self.norm[rows])
        back = rows[grown]
        self.rejected[back] += 1
        self.trial[back] = self.plain[back]
        self.proposed[back] = False
        self.known[back] = 0  # what misled the step is forgotten
        rows, f, norm = rows[~grown], f[~grown], norm[~grown]
        point = self.trial[rows]
        stepped = point + f
        length = self._length(stepped, rows)
        first = self.calls[rows] == 1
        self.reference[rows] = torch.where(
            first & torch.isfinite(length), torch.maximum(self.reference[rows], length), self.reference[rows]
        )
        sound = torch.isfinite(length) & (first | (length <= self.limit * self.reference[rows]))
        self._end(rows[~sound], DIVERGED)
        rows, f, norm, point, stepped = (t[sound] for t in (rows, f, norm, point, stepped))
        self.accelerated[rows] += self.proposed[rows]
        self.norm[rows], self.plain[rows] = norm, stepped
        # A start of zeros has no length to compare with.
        scale = self._length(point, rows).clamp_min(torch.finfo(point.dtype).tiny)
        relative = torch.where(norm == 0, 0.0, norm / scale)
        better = relative <= self.best_relative[rows]
        self.best[rows[better]] = stepped[better]
        self.best_relative[rows[better]] = relative[better]
        self._end(rows[relative < self.tol], CONVERGED)
        going = ~(relative < self.tol)
        self._propose(rows[going], point[going], f[going], stepped[going])

    def _end(self, rows: Tensor, status: str) -> None:
        self.active[rows] = False
        for row in rows.tolist():
            self.statuses[row] = status
        if status == DIVERGED:
            # The last point before: the one that f was evaluated at, unless it is not finite itself.
            finite = torch.isfinite(self.trial[rows]).all(1)
            self.best[rows[finite]] = self.trial[rows[finite]]
            self.best_relative[rows] = torch.inf

    def _propose(self, rows: Tensor, point: Tensor, f: Tensor, stepped: Tensor) -> None:
        self.trial[rows], self.proposed[rows] = stepped, False
        if not self.memory:
            return
        for store, value in ((self.points, point), (self.residuals, f)):
            store[rows] = torch.cat([store[rows, 1:], value[:, None]], 1)
        self.known[rows] = (self.known[rows] + 1).clamp_max(self.memory + 1)
        rows_ready = self.known[rows] > 1
        rows, f, stepped = rows[rows_ready], f[rows_ready], stepped[rows_ready]
        if len(rows) == 0:
            return
        d_points = self.points[rows].diff(dim=1)
        d_residuals = self.residuals[rows].diff(dim=1)
        gamma, solved = self._mixture(
            self._counted(d_residuals, rows), self._counted(f, rows), self.known[rows] - 1
        )
        mixed = stepped - torch.einsum("bm,bmn->bn", gamma.to(f.dtype), d_points + d_residuals)
        solved &= torch.isfinite(mixed).all(1)
        self.trial[rows[solved]] = mixed[solved]
        self.proposed[rows[solved]] = True

    def _mixture(self, d_residuals: Tensor, f: Tensor, used: Tensor) -> tuple[Tensor, Tensor]:
        """gamma of each sample, from its last ``used`` differences, and whether its system had a solution."""
        memory = d_residuals.shape[1]
        absent = torch.arange(memory, device=f.device)[None] < memory - used[:, None]
        d_residuals = torch.where(absent[:, :, None], 0.0, d_residuals)
        gram = d_residuals @ d_residuals.mT
        diagonal = gram.diagonal(dim1=1, dim2=2)
        scale = torch.minimum(diagonal.amax(1), f.square().sum(1))
        damping = self.regularization * scale[:, None] + absent.double()
        factor, failed = torch.linalg.cholesky_ex(gram + torch.diag_embed(damping))
        ok = failed == 0
        factor = torch.where(ok[:, None, None], factor, torch.eye(memory, dtype=f.dtype, device=f.device))
        right = torch.einsum("bmn,bn->bm", d_residuals, f)
        gamma = torch.cholesky_solve(right[:, :, None], factor)[:, :, 0]
        return gamma, ok & torch.isfinite(gamma).all(1)
