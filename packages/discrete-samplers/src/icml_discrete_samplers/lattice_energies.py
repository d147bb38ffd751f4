"""Ising and Potts models on a periodic square lattice, each bond counted once.

Ising: log rho = beta (J sum_<ij> s_i s_j + h sum_i s_i) with s = 2 x - 1. Potts: log rho = beta J sum_<ij>
[x_i = x_j].
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import torch
from icml_kernels import SparseTerms, sparse_terms
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import require_sizes


class Bonds(NamedTuple):
    """What a cluster update needs: probabilities of a bond and of one to the ghost, states, the ghost's
    state.
    """

    p: float
    q: int
    ghost: float
    ghost_state: int


class _Lattice:
    """A torus of L x L sites, in raster order."""

    def __init__(self, L: int, V: int, beta: float, J: float) -> None:
        if L < 2:
            raise ValueError(f"L={L}: a torus needs sides of 2 or more")
        require_sizes(L * L, V)
        if not (math.isfinite(beta) and math.isfinite(J)):
            raise ValueError(f"beta={beta} and J={J} must be finite numbers")
        self.L, self.D, self.V, self.beta, self.J = L, L * L, V, float(beta), float(J)

    def bonds_of_sites(self) -> list[tuple[int, int]]:
        """The two sites of each bond: every site with its right and its lower neighbour."""
        index = torch.arange(self.D).view(self.L, self.L)
        return [
            pair
            for axis in (1, 0)
            for pair in zip(index.flatten().tolist(), index.roll(-1, axis).flatten().tolist(), strict=True)
        ]

    def agreeing(self, x: Int64[Tensor, "n D"]) -> Int64[Tensor, " n"]:
        """How many bonds join equal symbols."""
        square = x.view(-1, self.L, self.L)
        found = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for axis in (2, 1):
            found = found + (square == square.roll(-1, axis)).flatten(1).sum(1)
        return found


class Ising2D(_Lattice):
    """The Ising model on an L x L torus.

    Args:
        L: side.
        beta: inverse temperature; the infinite lattice orders at 0.4407 for J = 1.
        J: coupling, positive where neighbours like to be equal.
        h: field along s = +1.

    Raises:
        ValueError: L < 2, or numbers that are not finite.
    """

    def __init__(self, L: int, beta: float, J: float = 1.0, h: float = 0.0) -> None:
        super().__init__(L, 2, beta, J)
        if not math.isfinite(h):
            raise ValueError(f"h={h} must be a finite number")
        self.h = float(h)

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """beta (J (agreeing - disagreeing bonds) + h (up - down))."""
        pairs = (2 * self.agreeing(x) - 2 * self.D).double()
        field = (2 * x.sum(1) - self.D).double()
        return self.beta * (self.J * pairs + self.h * field)

    @cached_property
    def terms(self) -> SparseTerms:
        """log rho as sparse terms. At L = 2 two sites share two bonds: one term of twice the coupling."""
        merged: dict[tuple[int, ...], float] = {}
        for i, j in self.bonds_of_sites():
            pair = (min(i, j), max(i, j))
            merged[pair] = merged.get(pair, 0.0) + self.beta * self.J
        if self.h:
            merged |= {(i,): self.beta * self.h for i in range(self.D)}
        numbers = torch.tensor(list(merged.values()), dtype=torch.float64)
        return sparse_terms(self.D, list(merged), numbers, torch.tensor([-1.0, 1.0]))

    def decode(self, x: Int64[Tensor, "n D"]) -> Int64[Tensor, "n D"]:
        """Spins -1 and 1."""
        return 2 * x - 1

    def order_parameter(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """Magnetisation a site."""
        return (2.0 * x.double() - 1.0).mean(1)

    def bonds(self, beta: float = 1.0, ghost_site: bool = False) -> Bonds:
        """Bond probability 1 - exp(-2 beta J) of a cluster update at ``beta`` times the model's own.

        Raises:
            ValueError: J <= 0, where equal neighbours do not attract; or a field without a ghost site.
        """
        if self.J <= 0:
            raise ValueError(
                f"Swendsen-Wang needs J > 0, and J={self.J}: unlike neighbours attract; take "
                "hamming_ball or gibbs"
            )
        if self.h and not ghost_site:
            raise ValueError(
                f"Swendsen-Wang without a ghost site needs h = 0, and h={self.h}; take "
                "SwendsenWang(ghost_site=True)"
            )
        strength = beta * self.beta
        ghost = 1 - math.exp(-2 * strength * abs(self.h))
        return Bonds(1 - math.exp(-2 * strength * self.J), 2, ghost, int(self.h > 0))


class Potts2D(_Lattice):
    """The q-state Potts model on an L x L torus.

    Args:
        L: side.
        q: states.
        beta: inverse temperature; the infinite lattice orders at log(1 + sqrt(q)) for J = 1.
        J: coupling, positive where neighbours like to be equal.

    Raises:
        ValueError: L < 2, q < 2, or numbers that are not finite.
    """

    def __init__(self, L: int, q: int, beta: float, J: float = 1.0) -> None:
        super().__init__(L, q, beta, J)

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """beta J times the number of agreeing bonds."""
        return self.beta * self.J * self.agreeing(x).double()

    @cached_property
    def terms(self) -> SparseTerms:
        """log rho as sparse terms of equal symbols."""
        merged: dict[tuple[int, ...], float] = {}
        for i, j in self.bonds_of_sites():
            pair = (min(i, j), max(i, j))
            merged[pair] = merged.get(pair, 0.0) + self.beta * self.J
        numbers = torch.tensor(list(merged.values()), dtype=torch.float64)
        values = torch.arange(self.V, dtype=torch.float64)
        return sparse_terms(self.D, list(merged), numbers, values, equal=True)

    def order_parameter(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """(q [share of state 0] - 1) / (q - 1): 1 where all sites are in it, 0 on average."""
        return (self.V * (x == 0).double().mean(1) - 1) / (self.V - 1)

    def bonds(self, beta: float = 1.0, ghost_site: bool = False) -> Bonds:
        """Bond probability 1 - exp(-beta J) of a cluster update at ``beta`` times the model's own.

        Raises:
            ValueError: J <= 0.
        """
        if self.J <= 0:
            raise ValueError(
                f"Swendsen-Wang needs J > 0, and J={self.J}: unlike neighbours attract; take "
                "hamming_ball or gibbs"
            )
        return Bonds(1 - math.exp(-beta * self.beta * self.J), self.V, 0.0, 0)
