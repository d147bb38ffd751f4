"""Radial basis functions and the cosine cutoff of SchNet, with their exact slopes.

Formulas as in CGSchNet (arXiv 2602.13140; Schütt et al., arXiv 1706.08566; PhysNet, arXiv 1902.08408).
All functions here are smooth inside the cutoff and take part in autograd to any order; the slopes are
written out as well, so that forces and filter tables need no graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

BasisKind = Literal["gauss", "expnorm"]

_SMALLEST_EXPONENT = -60.0
"""Below it a basis function is 9e-27, nothing beside the others even in float64. Left to fall further it
becomes a denormal number in float32, which an x86 core handles a hundred times slower, in every product."""


def cosine_cutoff(r: Float[Tensor, " pairs"], r_cut: float) -> Float[Tensor, " pairs"]:
    """The envelope ``C(r) = (cos(pi r / r_cut) + 1) / 2`` for ``r < r_cut``, else 0.

    Args:
        r: distances, Å.
        r_cut: cutoff distance, Å.
    """
    # Clamped before the cosine: C and dC/dr then vanish beyond the cutoff in every derivative order
    # that a force or a force's gradient takes.
    inside = r < r_cut
    clamped = torch.where(inside, r, torch.full_like(r, r_cut))
    return torch.where(inside, 0.5 * (torch.cos(clamped * (math.pi / r_cut)) + 1.0), torch.zeros_like(r))


def cosine_cutoff_slope(r: Float[Tensor, " pairs"], r_cut: float) -> Float[Tensor, " pairs"]:
    """``dC/dr = -(pi / 2 r_cut) sin(pi r / r_cut)`` for ``r < r_cut``, else 0 (1/Å)."""
    slope = (-0.5 * math.pi / r_cut) * torch.sin(r * (math.pi / r_cut))
    return torch.where(r < r_cut, slope, torch.zeros_like(r))


@dataclass(frozen=True)
class RadialBasis:
    """The expansion ``e_k(r)`` of a distance, k = 1..n_rbf.

    ``gauss``:   ``exp(g (r - mu_k)^2)``, mu = linspace(0, r_cut), g = -1 / (2 (mu_2 - mu_1)^2)

    ``expnorm``: ``exp(-b (exp(-a r) - mu_k)^2)``, a = 5 / r_cut, mu = linspace(exp(-r_cut), 1),
    b = (2 (1 - exp(-r_cut)) / n_rbf)^-2. The inner exponential decays with r, as in PhysNet and in the
    code (not the docstring) of mlcg's ``ExpNormalBasis``, whose trained weights expect it.

    Attributes:
        kind: which of the two.
        n_rbf: number of functions, at least 2.
        r_cut: cutoff distance, Å.
        envelope: multiply each function by :func:`cosine_cutoff` (trained CGSchNet models do).
    """

    kind: BasisKind
    n_rbf: int
    r_cut: float
    envelope: bool = True

    @property
    def gamma(self) -> float:
        """The coefficient of the square in the exponent: g < 0 or b > 0 of the formulas above."""
        if self.kind == "gauss":
            return -0.5 * ((self.n_rbf - 1) / self.r_cut) ** 2
        return (2.0 / self.n_rbf * (1.0 - math.exp(-self.r_cut))) ** -2

    def centers(self, like: Tensor) -> Float[Tensor, " n_rbf"]:
        """The centres ``mu_k``, in the dtype and on the device of ``like``."""
        low, high = (0.0, self.r_cut) if self.kind == "gauss" else (math.exp(-self.r_cut), 1.0)
        return torch.linspace(low, high, self.n_rbf, dtype=like.dtype, device=like.device)

    def __call__(self, r: Float[Tensor, " pairs"]) -> Float[Tensor, "pairs n_rbf"]:
        """The basis values at distances ``r`` (Å); differentiable to any order."""
        mu = self.centers(r)
        if self.kind == "gauss":
            exponent = self.gamma * (r[:, None] - mu) ** 2
        else:
            exponent = -self.gamma * (torch.exp(r * (-5.0 / self.r_cut))[:, None] - mu) ** 2
        values = torch.exp(exponent.clamp(min=_SMALLEST_EXPONENT))
        return values * cosine_cutoff(r, self.r_cut)[:, None] if self.envelope else values

    def with_slope(
        self, r: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "pairs n_rbf"], Float[Tensor, "pairs n_rbf"]]:
        """Values and slopes ``de_k/dr`` (1/Å) at distances ``r``."""
        mu = self.centers(r)
        if self.kind == "gauss":
            offset = r[:, None] - mu
            values = torch.exp((self.gamma * offset**2).clamp(min=_SMALLEST_EXPONENT))
            slopes = values * (2.0 * self.gamma * offset)
        else:
            alpha = 5.0 / self.r_cut
            decay = torch.exp(-alpha * r)[:, None]
            offset = decay - mu
            values = torch.exp((-self.gamma * offset**2).clamp(min=_SMALLEST_EXPONENT))
            slopes = values * (2.0 * self.gamma * alpha) * offset * decay
        if self.envelope:
            cut = cosine_cutoff(r, self.r_cut)[:, None]
            cut_slope = cosine_cutoff_slope(r, self.r_cut)[:, None]
            values, slopes = values * cut, slopes * cut + values * cut_slope
        return values, slopes
