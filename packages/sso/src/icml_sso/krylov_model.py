"""The tangent equation on a Krylov space: a 16 x 16 problem in place of matrix signs.

h(lambda) = u^T msign(Z) v with Z = M + lambda u v^T. Since msign(Z) = (Z Z^T)^(-1/2) Z, and Z Z^T differs
from M M^T by terms inside the span of u and M v, one basis Q serves every lambda
(`icml_kernels.block_lanczos`):

    Q^T Z Z^T Q = T + lambda (a b^T + b a^T) + lambda^2 a a^T = V E V^T
    h_k = (V^T a)^T diag(p(s / nu) / s) (V^T (b + lambda a)),   s = sqrt(E),   nu = ||Z||_F

with p the same composite Newton-Schulz polynomial as the matrix sign itself, so that the two agree.
"""

from __future__ import annotations

import torch
from icml_kernels import KrylovModel, polar_express_coefficients
from jaxtyping import Float
from torch import Tensor

GRID = 14  # points of the first search for a change of sign, between the bound and its 1e-5th part
GRID_RATIO = 2.5
ROOT_ITERATIONS = 12  # where the host may not look at results
MOST_ITERATIONS = 80
SETTLED = 1e-10  # of |h_k|, or of the bracket
_EPSILON = 1e-7  # that the matrix sign adds to the norm


class TangentModel:
    """h on the Krylov space of each matrix of a batch, in float64.

    Args:
        model: of M / ||M||_F.
        steps: Newton-Schulz steps of the matrix sign.
        largest: the least upper bound known for |lambda*|, 2 ||M||_* (arXiv 2601.08393, A.2).
        square: ||M||_F^2 as normalised: 1, or 0 for a zero matrix.
        synchronise: whether iterations may end when their results say so.
    """

    def __init__(
        self,
        model: KrylovModel,
        steps: int,
        largest: float,
        square: Float[Tensor, " batch"],
        synchronise: bool = True,
    ) -> None:
        self.adaptive = synchronise and not model.t.is_cuda
        self.t, self.a, self.b = model.t.double(), model.a.double(), model.b.double()
        self.overlap, self.square = model.overlap.double(), square.double()
        self.coefficients = polar_express_coefficients(steps)
        self.largest = largest
        mixed = self.a[:, :, None] * self.b[:, None, :]
        self._linear = mixed + mixed.mT
        self._quadratic = self.a[:, :, None] * self.a[:, None, :]

    def h(self, lam: Float[Tensor, "batch points"]) -> Float[Tensor, "batch points"]:
        """h_k at several multipliers of each matrix."""
        at = lam[:, :, None, None]
        matrix = self.t[:, None] + at * self._linear[:, None] + at.square() * self._quadratic[:, None]
        squares, vectors = torch.linalg.eigh(matrix)
        norm = (self.square[:, None] + 2 * lam * self.overlap[:, None] + lam.square()).clamp_min(0.0).sqrt()
        inverse = 1.0 / (norm + _EPSILON)
        y2 = squares.clamp_min(0.0) * inverse.square()[:, :, None]
        ratio = inverse[:, :, None].expand_as(y2)
        for a, b, c in self.coefficients:
            factor = torch.addcmul(torch.full_like(y2, a), torch.add(y2 * c, b), y2)
            ratio = ratio * factor
            y2 = y2 * factor.square()
        left = torch.einsum("bpij,bi->bpj", vectors, self.a)
        right = torch.einsum("bpij,bpi->bpj", vectors, self.b[:, None] + lam[:, :, None] * self.a[:, None])
        return (left * ratio * right).sum(2)

    def root(self) -> Float[Tensor, " batch"]:
        """The multiplier at which h_k changes sign."""
        zero = torch.zeros_like(self.overlap)
        exponents = torch.arange(GRID - 1, -1, -1, device=zero.device, dtype=torch.float64)
        steps = self.largest * GRID_RATIO**-exponents
        grid = torch.cat([zero[:, None], steps.expand(len(zero), -1)], dim=1)
        # h rises with lambda: where h(0) = overlap of the polar factor is positive the root is negative.
        start = self.h(zero[:, None])
        side = torch.where(start > 0, -1.0, 1.0)
        grid = grid * side
        values = torch.cat([start, self.h(grid[:, 1:])], dim=1)
        crossed = ((values * side) >= 0.0)[:, 1:]
        first = torch.where(crossed.any(1), crossed.to(torch.int8).argmax(1), GRID - 1)[:, None]
        low, high = grid.gather(1, first)[:, 0], grid.gather(1, first + 1)[:, 0]
        f_low, f_high = values.gather(1, first)[:, 0], values.gather(1, first + 1)[:, 0]
        found = self._bracketed(low, high, f_low, f_high, zero, zero, zero)
        return torch.where(start[:, 0] == 0.0, zero, found)

    def corrected_root(
        self,
        center: Float[Tensor, " batch"],
        shift: Float[Tensor, " batch"],
        tilt: Float[Tensor, " batch"],
        reach: Float[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """The root of h_k(lambda) + shift + tilt (lambda - center) within ``reach`` of the center."""
        low = (center - reach).clamp(-self.largest, self.largest)
        high = (center + reach).clamp(-self.largest, self.largest)
        values = self.h(torch.stack([low, high], dim=1))
        f_low = values[:, 0] + shift + tilt * (low - center)
        f_high = values[:, 1] + shift + tilt * (high - center)
        return self._bracketed(low, high, f_low, f_high, center, shift, tilt)

    def slope(self, lam: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        """dh_k / dlambda by central differences."""
        step = 1e-6 * (1.0 + lam.abs())
        values = self.h(torch.stack([lam - step, lam + step], dim=1))
        return (values[:, 1] - values[:, 0]) / (2 * step)

    def _bracketed(
        self,
        low: Tensor,
        high: Tensor,
        f_low: Tensor,
        f_high: Tensor,
        center: Tensor,
        shift: Tensor,
        tilt: Tensor,
    ) -> Tensor:
        """Regula falsi with Illinois' halving, every third point the middle: h_k may be all but a step.

        Without a change of sign the end that is nearer to one.
        """
        best = torch.where(f_low.abs() < f_high.abs(), low, high)
        usable = (f_low * f_high) <= 0.0
        for iteration in range(MOST_ITERATIONS if self.adaptive else ROOT_ITERATIONS):
            width = f_high - f_low
            secant = torch.where(width.abs() > 1e-300, high - f_high * (high - low) / width, high)
            middle = (low + high) / 2 if iteration % 3 == 2 else secant
            value = self.h(middle[:, None])[:, 0] + shift + tilt * (middle - center)
            same = value * f_high > 0.0
            low, f_low = torch.where(same, low, high), torch.where(same, f_low / 2, f_high)
            high, f_high = middle, value
            if self.adaptive:
                open_ends = usable & (value.abs() > SETTLED) & ((high - low).abs() > SETTLED)
                if not bool(open_ends.any()):
                    break
        return torch.where(usable, high, best)
