"""Continuous densities on a grid, each coordinate in Gray code: neighbours on the grid differ by one bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import require_sizes


class GrayCoded:
    """log rho(x) = log_density(centre of the cell) + d log(cell width), so that Z is that of the continuous
    density.

    Args:
        log_density: of points [n, d], one number a point.
        bounds: (low, high) of every coordinate.
        n_bits: bits a coordinate, the most significant first.

    Raises:
        ValueError: bounds that are empty or not finite, or no bits.

    Example:
        ``GrayCoded(lambda u: -0.5 * (u**2).sum(-1), [(-4, 4), (-4, 4)], n_bits=5)``
    """

    V = 2

    def __init__(
        self,
        log_density: Callable[[Float64[Tensor, "n d"]], Float[Tensor, " n"]],
        bounds: Sequence[tuple[float, float]],
        n_bits: int,
    ) -> None:
        if n_bits < 1 or n_bits > 52:
            raise ValueError(f"n_bits={n_bits} must lie in 1 to 52")
        for low, high in bounds:
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise ValueError(f"the bounds {low} to {high} are empty or not finite")
        self.continuous, self.n_bits, self.d = log_density, n_bits, len(bounds)
        self.D = self.d * n_bits
        require_sizes(self.D, 2)
        self.low = torch.tensor([b[0] for b in bounds], dtype=torch.float64)
        high = torch.tensor([b[1] for b in bounds], dtype=torch.float64)
        self.width = (high - self.low) / 2**n_bits

    def cells(self, x: Int64[Tensor, "n D"]) -> Int64[Tensor, "n d"]:
        """The number of the cell in each coordinate: the running parity of the bits is the binary code."""
        bits = x.view(len(x), self.d, self.n_bits).cumsum(-1) % 2
        return (bits << torch.arange(self.n_bits - 1, -1, -1, device=x.device)).sum(-1)

    def decode(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, "n d"]:
        """Centres of the cells."""
        return self.low.to(x.device) + (self.cells(x).double() + 0.5) * self.width.to(x.device)

    def encode_cells(self, cells: Int64[Tensor, "n d"]) -> Int64[Tensor, "n D"]:
        """Bits of cells; the inverse of :meth:`cells`."""
        gray = cells ^ (cells >> 1)
        places = torch.arange(self.n_bits - 1, -1, -1, device=cells.device)
        return ((gray[..., None] >> places) & 1).reshape(len(cells), self.D)

    def encode(self, points: Float[Tensor, "n d"]) -> Int64[Tensor, "n D"]:
        """Bits of the cells that hold the points; points outside go to the nearest cell."""
        cells = ((points.double() - self.low.to(points.device)) / self.width.to(points.device)).floor().long()
        return self.encode_cells(cells.clamp(0, 2**self.n_bits - 1))

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """The density at the centres, times the volume of a cell."""
        return self.continuous(self.decode(x)).double() + float(self.width.log().sum())

    def centres(self, coordinate: int) -> Float64[Tensor, " cells"]:
        """Centres of all cells of a coordinate, rising."""
        numbers = torch.arange(2**self.n_bits, dtype=torch.float64)
        return self.low[coordinate] + (numbers + 0.5) * self.width[coordinate]
