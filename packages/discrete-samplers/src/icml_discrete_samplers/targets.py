"""Named targets of the paper, with exact log Z and exact samples where there are any."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.energies import GrayCoded, Ising2D, Potts2D
from icml_discrete_samplers.exact import enumerate_law, kaufman_log_z, transfer_matrix_log_z

BOX = 50.0  # of Gaussian mixtures
QUICK_ROWS = 2500  # of a transfer matrix whose eigenvalues take seconds: Potts of three states up to L = 7


class GaussianMixture:
    """Equal Gaussians of one variance; a density of points.

    Raises:
        ValueError: a variance that is not positive.
    """

    def __init__(self, centres: Float64[Tensor, "modes d"], variance: float) -> None:
        if not variance > 0:
            raise ValueError(f"variance={variance} must be positive")
        self.centres, self.variance = centres.double(), float(variance)

    def __call__(self, u: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
        """log density."""
        squared = torch.cdist(u, self.centres.to(u.device)).square()
        d = u.shape[1]
        norm = 0.5 * d * math.log(2 * math.pi * self.variance) + math.log(len(self.centres))
        return (-0.5 * squared / self.variance).logsumexp(1) - norm

    def nearest(self, u: Float64[Tensor, "n d"]) -> Int64[Tensor, " n"]:
        """The mode whose centre is nearest."""
        return torch.cdist(u, self.centres.to(u.device)).argmin(1)


def many_well(u: Float64[Tensor, "n d"]) -> Float64[Tensor, " n"]:
    """-sum over pairs of u1^4 - 6 u1^2 - 0.5 u1 + 0.5 u2^2, pairs rotated by 45 degrees.

    Raises:
        ValueError: an odd number of coordinates.
    """
    if u.shape[1] % 2:
        raise ValueError(f"a many-well has pairs of coordinates, and there are {u.shape[1]}")
    first, second = u[:, 0::2], u[:, 1::2]
    a, b = (first + second) / math.sqrt(2), (second - first) / math.sqrt(2)
    return -(a**4 - 6 * a**2 - 0.5 * a + 0.5 * b**2).sum(1)


@dataclass(frozen=True)
class Target:
    """An energy with what is known of it.

    Attributes:
        name: of the target.
        energy: it.
        log_z: exact, or None.
        mixture: the continuous mixture of a Gray-coded one.
    """

    name: str
    energy: Any
    log_z: float | None = None
    mixture: GaussianMixture | None = None

    def sample(self, n: int, seed: int) -> Int64[Tensor, "n D"]:
        """Independent exact samples, or, of large lattices, Swendsen-Wang states of independent chains.

        Raises:
            ValueError: neither is known.
        """
        energy = self.energy
        if self.mixture is not None:
            return _mixture_samples(energy, self.mixture, n, seed)
        if isinstance(energy, GrayCoded):
            return _pair_samples(energy, n, seed)
        if energy.V**energy.D <= 1 << 20:
            return enumerate_law(energy).sample(n, seed)
        if isinstance(energy, (Ising2D, Potts2D)):
            from icml_discrete_samplers.mcmc import run

            return run(energy, n, "swendsen_wang", 500, thin=500, seed=seed, diagnose=False).x
        raise ValueError(f"no exact samples of {self.name} are known")


def mixture(
    modes: int, d: int, bits: int, variance: float, spread: float, seed: int, name: str = ""
) -> Target:
    """Gray-coded Gaussians in the box of ±50, centres even within ±``spread``."""
    g = torch.Generator().manual_seed(seed)
    centres = spread * (2 * torch.rand(modes, d, generator=g, dtype=torch.float64) - 1)
    density = GaussianMixture(centres, variance)
    energy = GrayCoded(density, [(-BOX, BOX)] * d, bits)
    return Target(name or f"{modes}gmm_{d}d", energy, _mixture_log_z(energy, density), density)


def target(name: str, seed: int = 0) -> Target:
    """A target by its name.

    ``40gmm_2d``, ``40gmm_4d`` (8 bits a coordinate, variance 1), ``9gmm`` (2 x 6 bits, variance 4),
    ``manywell_4d``, ``manywell_10d`` (8 bits), ``ising_L16_b0.6``, ``potts_L16_q3_b1.2``.

    Raises:
        ValueError: another name.
    """
    if name == "9gmm":
        return mixture(9, 2, 6, 4.0, 35.0, seed, name)
    if found := re.fullmatch(r"(\d+)gmm_(\d+)d", name):
        modes, d = (int(v) for v in found.groups())
        return mixture(modes, d, 8, 1.0, BOX - 3.0, seed, name)
    if found := re.fullmatch(r"manywell_(\d+)d", name):
        d = int(found[1])
        energy = GrayCoded(many_well, [(-4.0, 4.0)] * d, 8)
        return Target(name, energy, d // 2 * _pair_law(energy)[0])
    if found := re.fullmatch(r"ising_L(\d+)_b([\d.]+)", name):
        L, beta = int(found[1]), float(found[2])
        return Target(name, Ising2D(L, beta), kaufman_log_z(L, beta))
    if found := re.fullmatch(r"potts_L(\d+)_q(\d+)_b([\d.]+)", name):
        L, q, beta = int(found[1]), int(found[2]), float(found[3])
        energy = Potts2D(L, q, beta)
        log_z = transfer_matrix_log_z(L, q, beta) if q**L <= QUICK_ROWS else None
        return Target(name, energy, log_z)
    raise ValueError(
        f"unknown target {name!r}; there are 9gmm, <n>gmm_<d>d, manywell_<d>d, ising_L<L>_b<beta>, "
        "potts_L<L>_q<q>_b<beta>"
    )


def _mixture_log_z(energy: GrayCoded, density: GaussianMixture) -> float:
    """Sums over the grid factorise: log mean over modes of prod over coordinates of sum over cells."""
    logs = torch.zeros(len(density.centres), dtype=torch.float64)
    for j in range(energy.d):
        logs += _cell_weights(energy, density, j).sum(1).log()
    return float(logs.logsumexp(0) - math.log(len(logs)))


def _cell_weights(energy: GrayCoded, density: GaussianMixture, j: int) -> Float64[Tensor, "modes cells"]:
    z = energy.centres(j)[None] - density.centres[:, j, None]
    scale = float(energy.width[j]) / math.sqrt(2 * math.pi * density.variance)
    return scale * torch.exp(-0.5 * z.square() / density.variance)


def _mixture_samples(energy: GrayCoded, density: GaussianMixture, n: int, seed: int) -> Int64[Tensor, "n D"]:
    g = torch.Generator().manual_seed(seed)
    weights = [_cell_weights(energy, density, j) for j in range(energy.d)]
    # A mode's share of the grid's Z, which cells outside the box are not part of.
    share = torch.stack([w.sum(1) for w in weights]).prod(0)
    mode = torch.multinomial(share, n, replacement=True, generator=g)
    cells = [torch.multinomial(w[mode], 1, generator=g)[:, 0] for w in weights]
    return energy.encode_cells(torch.stack(cells, 1))


def _pair_law(energy: GrayCoded) -> tuple[float, Float64[Tensor, "cells cells"]]:
    """log Z of one pair of a many-well, and its cells' probabilities."""
    a, b = torch.meshgrid(energy.centres(0), energy.centres(1), indexing="ij")
    values = energy.continuous(torch.stack([a.flatten(), b.flatten()], 1)) + energy.width[:2].log().sum()
    log_z = float(values.logsumexp(0))
    return log_z, (values - log_z).exp().view(a.shape)


def _pair_samples(energy: GrayCoded, n: int, seed: int) -> Int64[Tensor, "n D"]:
    g = torch.Generator().manual_seed(seed)
    _, law = _pair_law(energy)
    pairs = energy.d // 2
    flat = torch.multinomial(law.flatten(), n * pairs, replacement=True, generator=g)
    cells = torch.stack([flat // law.shape[1], flat % law.shape[1]], -1).view(n, energy.d)
    return energy.encode_cells(cells)
