"""Molecules on which every route of the prior energies is compared."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from icml_kernels.molecules.bonded.terms import BondedTerms, bonded_terms
from icml_kernels.molecules.cases import random, with_spare_places
from icml_kernels.molecules.neighbors import HalfList, half_list
from icml_kernels.testing import Case

CUTOFF, SWITCH = 5.0, 3.5
TABLES = ("bond_table", "angle_table", "dihedral_table", "sigma")


def coefficients(n_beads: int = 9, order: int = 3, seed: int = 0) -> dict[str, Tensor]:
    """Arguments of `bonded_terms` for a chain: every kind of term, some out of order."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, low: float = -1.0, high: float = 1.0) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64) * (high - low) + low

    def runs(width: int) -> Tensor:
        return torch.arange(max(n_beads - width + 1, 0))[:, None] + torch.arange(width)

    bonds, angles, dihedrals = runs(2), runs(3), runs(4)
    if n_beads > 7:
        dihedrals = torch.cat((dihedrals, torch.tensor([[4, 1, 7, 2]])))
    angles, quartic_angles = angles[::2], angles[1::2].flip(1)
    sigma = draw(3, 3, low=1.0, high=3.0)
    return {
        "bonds": bonds,
        "bond_k": draw(len(bonds), low=1.0, high=20.0),
        "bond_r0": draw(len(bonds), low=1.0, high=2.0),
        "angles": angles,
        "angle_k": draw(len(angles), low=1.0, high=10.0),
        "angle_theta0": draw(len(angles), low=1.0, high=3.0),
        "quartic_angles": quartic_angles,
        "quartic": draw(len(quartic_angles), 6),
        "dihedrals": dihedrals,
        "dihedral_v0": draw(len(dihedrals)),
        "dihedral_sin": draw(len(dihedrals), order),
        "dihedral_cos": draw(len(dihedrals), order),
        "types": torch.arange(n_beads) % 3,
        "sigma": sigma + sigma.T,
    }


def molecule(n_beads: int = 9, order: int = 3) -> BondedTerms:
    """A chain with every kind of term."""
    return bonded_terms(n_beads, **coefficients(n_beads, order), cutoff=CUTOFF, switch=SWITCH)


def chains(n_replicas: int = 3, n_beads: int = 9, seed: int = 1) -> Tensor:
    """Random walks with steps of about 1.5 Å whose beads keep 1.2 Å from each other."""
    generator = torch.Generator().manual_seed(seed)
    walks = torch.zeros(n_replicas, n_beads, 3, dtype=torch.float64)
    for walk in walks:
        bead = 1
        while bead < n_beads:
            step = torch.randn(3, generator=generator, dtype=torch.float64)
            walk[bead] = walk[bead - 1] + (1.5 / step.norm() + 0.1) * step
            bead += bool(((walk[:bead] - walk[bead]).norm(dim=1) > 1.2).all())
    return walks


def every_pair(n_replicas: int = 3, n_beads: int = 9) -> HalfList:
    """All pairs at least two bonds apart, in every replica."""
    i, j = torch.triu_indices(n_beads, n_beads, 2)
    first = torch.arange(n_replicas)[:, None] * n_beads
    pairs = half_list((i + first).reshape(-1), (j + first).reshape(-1), n_replicas * n_beads)
    assert isinstance(pairs, HalfList)
    return pairs


def arguments(
    n_replicas: int = 3, n_beads: int = 9, *, order: int = 3, spare: int = 0, shifted: bool = False
) -> tuple[Any, ...]:
    """pos, terms, pairs and, on demand, an offset of every pair."""
    pairs = with_spare_places(every_pair(n_replicas, n_beads), spare)
    pos, terms = chains(n_replicas, n_beads), molecule(n_beads, order)
    return (pos, terms, pairs, 0.1 * random(pairs.capacity, 3)) if shifted else (pos, terms, pairs)


def only(terms: BondedTerms, kind: str) -> BondedTerms:
    """The terms of one kind: bond, angle, dihedral or repulsion."""
    empty = {
        "bond": {"bonds": terms.bonds[:0], "bond_table": terms.bond_table[:0]},
        "angle": {"angles": terms.angles[:0], "angle_table": terms.angle_table[:0]},
        "dihedral": {"dihedrals": terms.dihedrals[:0], "dihedral_table": terms.dihedral_table[:0]},
        "repulsion": {"sigma": terms.sigma[:0, :0]},
    }
    ptr = terms.incidence_ptr.clone()
    for row, name in enumerate(("bond", "angle", "dihedral")):
        if name != kind:
            ptr[row] = 0
    rest: dict[str, Any] = {}
    for name in set(empty) - {kind}:
        rest |= empty[name]
    return dataclasses.replace(terms, **rest, incidence_ptr=ptr)


def _star() -> tuple[Any, ...]:
    """A bead with more bonds than a warp has lanes."""
    n = 36
    bonds = torch.stack((torch.arange(1, n), torch.zeros(n - 1, dtype=torch.int64)), 1)
    terms = bonded_terms(n, bonds=bonds, bond_k=torch.ones(n - 1), bond_r0=torch.linspace(1, 4, n - 1))
    return random(1, n, 3), terms


def _straight() -> tuple[Any, ...]:
    """Angles and dihedrals on a line; the restricted quartic has no place there."""
    c = coefficients()
    c["quartic"][:, 4] = 0.0
    line = torch.arange(9.0, dtype=torch.float64)[:, None] * torch.tensor([0.0, 0.0, 1.5]).double()
    return line[None], bonded_terms(9, **c, cutoff=CUTOFF), every_pair(1)


CASES = (
    Case("two chains", lambda: arguments(2)),
    Case("more pairs than lanes", lambda: arguments(1, 36)),
    Case("first order", lambda: arguments(1, order=1)),
    Case("no series", lambda: arguments(1, order=0)),
    Case("offsets and spare places", lambda: arguments(1, shifted=True, spare=5)),
    *(
        Case(kind, lambda kind=kind: (chains(1), only(molecule(), kind), every_pair(1)))
        for kind in ("bond", "angle", "dihedral", "repulsion")
    ),
    Case("more bonds than lanes", _star),
    Case("on a line", _straight),
    Case(
        "two beads",
        lambda: (chains(2, 2), bonded_terms(2, **coefficients(2), cutoff=CUTOFF), every_pair(2, 2)),
    ),
    Case("one bead", lambda: (chains(2, 1), bonded_terms(1))),
    Case("no replicas", lambda: (chains(0), bonded_terms(9))),
)
