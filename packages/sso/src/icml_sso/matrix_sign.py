"""The matrix sign of a rectangular matrix, its polar factor: msign(X) = U V^T for X = U S V^T.

The direction of steepest descent under a bound on the spectral norm (arXiv 2601.08393, section 3). Computed
by the Newton-Schulz iteration of icml-kernels in 16 bits by default; `exact_msign` is the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import icml_kernels
import torch
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.msign import Form
from icml_kernels.matrices.singular import start_vectors
from jaxtyping import Bool, Float
from torch import Tensor

OUTLIER = 1.2  # a polar factor's singular values are at most 1; rounding in 16 bits adds about 0.02
CONVERTED_ENTRIES = 2**18
RANK_TOLERANCE = 1e-12  # singular values below this part of the largest count as 0 in the definition
_VERIFY = {torch.bfloat16: 0.05, torch.float16: 0.02, torch.float32: 5e-3, torch.float64: 5e-3}


def msign(
    x: Float[Tensor, "*batch rows columns"],
    steps: int = 8,
    form: Form = "auto",
    dtype: torch.dtype = torch.bfloat16,
) -> Float[Tensor, "*batch rows columns"]:
    """The polar factor of each matrix by Newton-Schulz iteration, in the dtype of ``x``.

    Args:
        x: Matrices; never written to.
        steps: Newton-Schulz steps; the coefficients suit their number.
        form: ``"standard"``, ``"gram"`` (wide matrices), or whichever needs fewer operations.
        dtype: Of the arithmetic: bfloat16, float16, float32 or float64.

    Raises:
        TypeError: ``x`` or ``dtype`` is not floating.
        ValueError: ``x`` is empty or has fewer than two dimensions; ``steps`` below 1; an unknown form.

    Example:
        >>> msign(torch.tensor([[0.0, 2.0], [3.0, 0.0]]), dtype=torch.float32).round(decimals=2)
        tensor([[0., 1.],
                [1., 0.]])
    """
    return icml_kernels.msign(x.detach(), steps, form, dtype).to(x.dtype)


def exact_msign(x: Float[Tensor, "*batch rows columns"]) -> Float[Tensor, "*batch rows columns"]:
    """The polar factor by singular value decomposition; null directions stay null."""
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    kept = (s > RANK_TOLERANCE * s[..., :1].clamp_min(torch.finfo(x.dtype).tiny)).to(x.dtype)
    return (u * kept[..., None, :]) @ vh


def has_outliers(phi: Float[Tensor, "batch rows columns"]) -> Bool[Tensor, " batch"]:
    """Whether a computed polar factor is wrong: NaN, infinite, or with a singular value above 1.2.

    Two power iterations, with a filter in between: y = A x and z = A y - y with A = phi^T phi removes every
    direction of singular value 0 or 1, so that what is left points at an outlier. The value returned by the
    quotient ||phi z|| / ||z|| is never above the largest singular value: a good factor is never accused.
    """
    wide = phi if phi.shape[1] <= phi.shape[2] else phi.mT
    dtype = torch.promote_types(wide.dtype, torch.float32)
    # Products take matrices in 16 bits as they are; small ones are faster converted once.
    precise = wide.to(dtype) if wide.numel() <= CONVERTED_ENTRIES else wide
    x = matvec(precise.mT, matvec(precise, start_vectors(precise).to(dtype)))
    y = x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(1e-30)
    image = matvec(precise, y)
    z = matvec(precise.mT, image) - y
    size = torch.linalg.vector_norm(z, dim=1).clamp_min(1e-30)
    quotient = torch.linalg.vector_norm(matvec(precise, z), dim=1) / size
    largest = torch.maximum(quotient, torch.linalg.vector_norm(image, dim=1))
    # Entries so large that squares overflow leave nothing of y; their norm shows.
    bound = OUTLIER * min(phi.shape[1:]) ** 0.5
    return ~((largest <= OUTLIER) & (torch.linalg.vector_norm(precise, dim=(1, 2)).to(dtype) <= bound))


@dataclass(frozen=True)
class PolarFactor:
    """A solution of `MatrixSign`.

    Attributes:
        factor: U V^T.
        dtype: of the arithmetic that gave it.
    """

    factor: Float[Tensor, "*batch rows columns"]
    dtype: torch.dtype

    def verify(self, problem: Float[Tensor, "*batch rows columns"]) -> None:
        """Check optimality: spectral norm at most 1, and <factor, X> equal to the nuclear norm of X.

        Raises:
            ValueError: one of the two is missed by more than the arithmetic explains.
        """
        tolerance = _VERIFY[self.dtype]
        largest = float(torch.linalg.matrix_norm(self.factor.double(), ord=2).max())
        if not largest <= 1 + tolerance:
            raise ValueError(f"the factor has a singular value of {largest:.4g}; at most 1 is allowed")
        nuclear = torch.linalg.matrix_norm(problem.double(), ord="nuc")
        reached = (self.factor.double() * problem.double()).sum((-2, -1))
        short = float(((nuclear - reached) / nuclear.clamp_min(1e-300)).abs().max())
        if not short <= tolerance:
            raise ValueError(f"<factor, X> misses the nuclear norm of X by {short:.3g} of it")


class MatrixSign:
    """The polar factor as a solver: ``solve(x)`` gives a `PolarFactor`.

    Args:
        steps: Newton-Schulz steps.
        form: as for `msign`.
        dtype: of the arithmetic.

    Raises:
        ValueError: ``steps`` below 1.
    """

    def __init__(self, steps: int = 8, form: Form = "auto", dtype: torch.dtype = torch.bfloat16) -> None:
        if steps < 1:
            raise ValueError(f"steps={steps}; the iteration needs at least 1")
        self.steps, self.form, self.dtype = steps, form, dtype

    def solve(self, problem: Float[Tensor, "*batch rows columns"], **options: Any) -> PolarFactor:
        """The polar factor of each matrix.

        Raises:
            TypeError: The problem is not a floating tensor.
            ValueError: It holds NaN or infinite numbers, or is no matrix.
        """
        if not isinstance(problem, Tensor):
            raise TypeError(
                f"the problem is a {type(problem).__name__}; expected a tensor (..., rows, columns)"
            )
        if problem.is_floating_point() and not bool(problem.isfinite().all()):
            raise ValueError("the matrix holds NaN or infinite numbers; it has no polar factor")
        given = {"steps": self.steps, "form": self.form, "dtype": self.dtype} | options
        return PolarFactor(msign(problem, **given), given["dtype"])
