"""Integration contours, and the quadratures that turn them into filters.

    f(lambda) = 1 / (2 pi i) * integral of dz / (z - lambda)  ~  sum over j of w_j / (z_j - lambda)

is 1 inside and 0 outside. With 2 N nodes of the trapezoidal rule on a circle, an eigenvalue outside leaks
with
(rho / |lambda - c|)^(2 N).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Complex

RULES = ("trapezoid", "gauss")
FILTER = 1e-8  # what the filter should leave of the nearest eigenvalue outside
NODES = (6, 16)  # fewest and most nodes of the upper half; with 4 no trial converged


@dataclass(frozen=True)
class Contour:
    """An ellipse.

    Attributes:
        center: its centre; real for Hermitian pencils.
        radius: half axis along `angle`.
        expected: eigenvalues that it should hold.
        aspect: the other half axis, in units of the radius.
        angle: of the first axis to the real one.
        outside: distance from the centre to the nearest eigenvalue known or predicted outside; 0 if unknown.
    """

    center: complex | float
    radius: float
    expected: int = 0
    aspect: float = 1.0
    angle: float = 0.0
    outside: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.center) and 0 < self.radius < math.inf and 0 < self.aspect < math.inf):
            raise ValueError(f"{self}: expected a finite centre, and radius and aspect above 0")

    @property
    def interval(self) -> tuple[float, float]:
        """Where the contour crosses the real axis, for a real centre and angle 0."""
        return float(np.real(self.center)) - self.radius, float(np.real(self.center)) + self.radius

    @property
    def symmetric(self) -> bool:
        """Symmetric about the real axis."""
        return np.imag(self.center) == 0 and self.angle % (math.pi / 2) == 0

    def level(self, values: Complex[np.ndarray, " k"]) -> np.ndarray:
        """Below 1 inside, 1 on the contour, above 1 outside."""
        z = (np.asarray(values) - self.center) * np.exp(-1j * self.angle) / self.radius
        return np.hypot(z.real, z.imag / self.aspect)

    def contains(self, values: Complex[np.ndarray, " k"]) -> np.ndarray:
        """Inside; of the real ends the lower one is."""
        if self.symmetric and np.isrealobj(values):
            low, high = self.interval
            return (np.asarray(values) >= low) & (np.asarray(values) < high)
        return self.level(values) < 1

    def nodes_wanted(self) -> int:
        """Nodes of the upper half that filter the nearest outside eigenvalue to 1e-8, from 6 to 16.

        N = ln(1e8) / (2 ln(d / rho)); 8 where no eigenvalue outside is known.
        """
        if self.outside <= 0:
            return 8
        ratio = math.log(max(self.outside / self.radius, 1 + 1e-9))
        return int(np.clip(math.ceil(math.log(1 / FILTER) / (2 * ratio)), *NODES))


def contour_quadrature(
    contour: Contour, N: int, rule: str = "trapezoid", *, half: bool = True
) -> tuple[Complex[np.ndarray, " nodes"], Complex[np.ndarray, " nodes"]]:
    """Nodes and weights of the filter.

    Args:
        contour: an ellipse.
        N: nodes of its upper half.
        rule: ``"trapezoid"``, or ``"gauss"`` for Gauss-Legendre on each half.
        half: only the upper half: f(lambda) = sum of Re(w_j / (z_j - lambda)) for real lambda. Else both
            halves,
            2 N nodes, and f(lambda) = sum of w_j / (z_j - lambda).

    Raises:
        ValueError: N below 1, an unknown rule.

    Example:
        >>> z, w = contour_quadrature(Contour(0.0, 1.0), 8)
        >>> round(float((w / (z - 0.3)).real.sum()), 6), abs(round(float((w / (z - 3.0)).real.sum()), 6))
        (1.0, 0.0)
    """
    if isinstance(N, bool) or int(N) != N or N < 1:
        raise ValueError(f"N={N!r} must be a whole number from 1 on")
    if rule not in RULES:
        raise ValueError(f"rule={rule!r} is none of {', '.join(RULES)}")
    if rule == "trapezoid":
        theta, share = (np.arange(1, N + 1) - 0.5) * np.pi / N, np.full(N, 1.0 / N)
    else:
        points, weights = np.polynomial.legendre.leggauss(N)
        theta, share = np.pi / 2 * (1 + points), weights / 2
    if not half:
        theta, share = np.concatenate([theta, theta + np.pi]), np.concatenate([share, share]) / 2
    turn = np.exp(1j * contour.angle) * contour.radius
    z = contour.center + turn * (np.cos(theta) + 1j * contour.aspect * np.sin(theta))
    w = turn * (contour.aspect * np.cos(theta) + 1j * np.sin(theta)) * share
    return z, w
