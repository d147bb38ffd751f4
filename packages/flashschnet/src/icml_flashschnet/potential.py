"""Sums of potentials: the network corrects a classical prior, ``E = E_network + E_prior``.

Every potential of this package has the same call: ``neighbours`` finds the pairs that it needs, the call
gives differentiable energies, ``energy_forces`` gives both without a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Potential(Protocol):
    """What a term of a sum, and a simulation, expect of a potential."""

    r_cut: float

    def neighbours(
        self, pos: Tensor, batch: Tensor | None = None, *, n_replicas: int | None = None, skin: float = 0.0
    ) -> Any:
        """The pairs that the potential needs within its cutoff plus ``skin`` (Å), for ``nlist``."""

    def __call__(
        self,
        pos: Tensor,
        types: Tensor,
        batch: Tensor | None = None,
        *,
        n_replicas: int | None = None,
        nlist: Any = None,
    ) -> Tensor:
        """Energies [replicas] in float64, differentiable."""

    def energy_forces(
        self,
        pos: Tensor,
        types: Tensor,
        batch: Tensor | None = None,
        *,
        n_replicas: int | None = None,
        nlist: Any = None,
        check: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Energies [replicas] in float64 and forces [beads, 3], without a graph."""


class SumPotential(nn.Module):
    """The sum of potentials over the same beads.

    Args:
        terms: at least one potential, each a module with the call of :class:`Potential`.

    Raises:
        ValueError: no term.
    """

    def __init__(self, *terms: nn.Module) -> None:
        super().__init__()
        if not terms:
            raise ValueError("a SumPotential needs at least one term")
        self.terms = nn.ModuleList(terms)

    @property
    def r_cut(self) -> float:
        """The longest cutoff of the terms, Å."""
        return max(float(term.r_cut) for term in self.terms)

    def neighbours(
        self,
        pos: Float[Tensor, "beads 3"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        skin: float = 0.0,
    ) -> tuple[Any, ...]:
        """The pairs that each term needs, in the order of the terms, for ``nlist``."""
        return tuple(term.neighbours(pos, batch, n_replicas=n_replicas, skin=skin) for term in self.terms)

    def forward(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: Sequence[Any] | None = None,
    ) -> Float[Tensor, " replicas"]:
        """Energies of the replicas summed over the terms, in float64; arguments as for each term."""
        lists = self._lists(nlist)
        energies = [
            term(pos, types, batch, n_replicas=n_replicas, nlist=pairs)
            for term, pairs in zip(self.terms, lists, strict=True)
        ]
        return torch.stack(energies).sum(0)

    @torch.no_grad()
    def energy_forces(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: Sequence[Any] | None = None,
        check: bool = True,
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces summed over the terms, without a graph; arguments as for each term."""
        results = [
            term.energy_forces(pos, types, batch, n_replicas=n_replicas, nlist=pairs, check=check)
            for term, pairs in zip(self.terms, self._lists(nlist), strict=True)
        ]
        energy, forces = results[0]
        for more_energy, more_forces in results[1:]:
            energy, forces = energy + more_energy, forces + more_forces
        return energy, forces

    def _lists(self, nlist: Sequence[Any] | None) -> Sequence[Any]:
        if nlist is None:
            return (None,) * len(self.terms)
        if not isinstance(nlist, tuple | list) or len(nlist) != len(self.terms):
            raise ValueError(
                f"nlist of a sum has one entry a term ({len(self.terms)}), as from its neighbours(); "
                f"got {type(nlist).__name__}"
            )
        return nlist
