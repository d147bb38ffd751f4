"""Spin models on hypercubic lattices, in Pauli matrices (four times the spin-½ form)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from icml_mpvmc.hamiltonian import Sector
from icml_mpvmc.pauli import PauliSum


class TFIM(PauliSum):
    """Transverse-field Ising model H = J Σ_<ij> σz σz - h Σ σx.

    J = +1 is antiferromagnetic; on a bipartite lattice its spectrum is that of J = -1.

    Args:
        shape: sides of the lattice; a number for a chain.
        J: coupling.
        h: transverse field; its sign does not change the spectrum, and positive h has a positive ground
            state.
        pbc: periodic boundaries.
    """

    def __init__(self, shape: int | Sequence[int], J: float = 1.0, h: float = 1.0, pbc: bool = True) -> None:
        self.shape, self.J, self.h, self.pbc = sides(shape), float(J), float(h), pbc
        n = math.prod(self.shape)
        bonds = neighbours(self.shape, pbc)
        super().__init__([("ZZ", bonds, J), ("X", np.arange(n)[:, None], -h)], n, exchange_pairs=bonds)


class Heisenberg(PauliSum):
    """Heisenberg model H = J Σ_<ij> σ·σ with conserved magnetisation.

    With ``marshall`` the spins of one sublattice are turned by π about z, which changes the sign of the
    exchange: the ground state for J > 0 is then positive (Marshall's sign rule) and the spectrum the same.

    Args:
        shape: sides of the lattice; a number for a chain.
        J: coupling; positive is antiferromagnetic.
        pbc: periodic boundaries.
        total_sz: magnetisation Σ σz / 2 that is kept, or None for all.
        marshall: apply the sign rule; by default where the lattice is bipartite and J > 0 (for J < 0 the
            ground state is positive without it).

    Raises:
        ValueError: a magnetisation that so many spins cannot have, or a sign rule without two sublattices.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        J: float = 1.0,
        pbc: bool = True,
        *,
        total_sz: float | None = 0,
        marshall: bool | None = None,
    ) -> None:
        self.shape, self.J, self.pbc = sides(shape), float(J), pbc
        self.marshall = _sign_rule(self.shape, pbc, self.J, marshall)
        bonds = neighbours(self.shape, pbc)
        n = math.prod(self.shape)
        exchange = -J if self.marshall else J
        terms = [("XX", bonds, exchange), ("YY", bonds, exchange), ("ZZ", bonds, J)]
        super().__init__(terms, n, sectors=magnetisation(n, total_sz), exchange_pairs=bonds)


class J1J2(PauliSum):
    """J₁ Σ_<ij> σ·σ + J₂ Σ_<<ij>> σ·σ: nearest neighbours, and next ones along diagonals (of a chain: at
    distance 2).

    The sign rule turns one sublattice of the nearest-neighbour bonds.

    Args:
        shape: sides of the lattice; a number for a chain.
        J1: nearest neighbours.
        J2: next-nearest neighbours.
        pbc: periodic boundaries.
        total_sz: magnetisation that is kept, or None for all.
        marshall: apply the sign rule; by default where the lattice is bipartite and J1 > 0.
    """

    def __init__(
        self,
        shape: int | Sequence[int],
        J1: float = 1.0,
        J2: float = 0.5,
        pbc: bool = True,
        *,
        total_sz: float | None = 0,
        marshall: bool | None = None,
    ) -> None:
        self.shape, self.J1, self.J2, self.pbc = sides(shape), float(J1), float(J2), pbc
        self.marshall = _sign_rule(self.shape, pbc, self.J1, marshall)
        near, next_near = neighbours(self.shape, pbc), diagonal_neighbours(self.shape, pbc)
        n = math.prod(self.shape)
        exchange = -J1 if self.marshall else J1
        terms = [("XX", near, exchange), ("YY", near, exchange), ("ZZ", near, J1)]
        terms += [(word, next_near, J2) for word in ("XX", "YY", "ZZ")]
        pairs = np.concatenate([near, next_near])
        super().__init__(terms, n, sectors=magnetisation(n, total_sz), exchange_pairs=pairs)


def sides(shape: int | Sequence[int]) -> tuple[int, ...]:
    """The sides of a lattice.

    Raises:
        ValueError: none, or one below 1.
    """
    found = (int(shape),) if isinstance(shape, int | np.integer) else tuple(int(s) for s in shape)
    if not found or min(found) < 1:
        raise ValueError(f"shape={shape!r}; expected sides of 1 or more, as 12 or (10, 10)")
    return found


def neighbours(shape: tuple[int, ...], pbc: bool = True) -> np.ndarray:
    """Bonds [bonds, 2] between nearest sites, each once; a periodic side of 2 has one bond a pair."""
    steps = [tuple(int(axis == k) for k in range(len(shape))) for axis in range(len(shape))]
    return _bonds(shape, pbc, steps)


def diagonal_neighbours(shape: tuple[int, ...], pbc: bool = True) -> np.ndarray:
    """Bonds between sites that differ by one along two axes; of a chain, by two along it."""
    if len(shape) == 1:
        return _bonds(shape, pbc, [(2,)])
    steps = []
    for first, second in zip(*np.triu_indices(len(shape), 1), strict=True):
        for sign in (1, -1):
            step = [0] * len(shape)
            step[first], step[second] = 1, sign
            steps.append(tuple(step))
    return _bonds(shape, pbc, steps)


def _bonds(shape: tuple[int, ...], pbc: bool, steps: list[tuple[int, ...]]) -> np.ndarray:
    sites = np.array(list(product(*(range(s) for s in shape))))
    found = []
    for step in steps:
        other = sites + np.array(step)
        inside = np.ones(len(sites), bool) if pbc else ((other >= 0) & (other < np.array(shape))).all(1)
        numbers = [np.ravel_multi_index((s[inside] % np.array(shape)).T, shape) for s in (sites, other)]
        found.append(np.sort(np.stack(numbers, axis=1), axis=1))
    bonds = np.unique(np.concatenate(found), axis=0)
    return bonds[bonds[:, 0] != bonds[:, 1]]


def _sign_rule(shape: tuple[int, ...], pbc: bool, J: float, wanted: bool | None) -> bool:
    bipartite = not pbc or all(s % 2 == 0 or s == 1 for s in shape)
    if wanted and not bipartite:
        raise ValueError(f"a periodic lattice of {shape} has no two sublattices; use marshall=False")
    return bipartite and J > 0 if wanted is None else wanted


def magnetisation(n_spins: int, total_sz: float | None) -> tuple[Sector, ...]:
    """The sector of all spins with Σ σz / 2 = total_sz; none for None."""
    if total_sz is None:
        return ()
    if 2 * total_sz != round(2 * total_sz):
        raise ValueError(f"total_sz={total_sz}; expected a multiple of 1/2")
    return (Sector(tuple(range(n_spins)), round(2 * total_sz)),)
