"""The classical prior of a coarse-grained molecule: bonds, angles, dihedrals and repulsion, for all replicas
at once.

Forms and units stand in `icml_kernels.molecules.bonded`; the parameters come from `prior_fit`. Summed with a
network (`SumPotential`) it keeps the chain together where the network has seen no data.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import NamedTuple

import torch
from icml_kernels.molecules.bonded import (
    PARTS,
    BondedTerms,
    bonded_energy,
    bonded_energy_forces,
    bonded_terms,
)
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.molecules.radius_pairs import radius_pairs, without_pairs
from jaxtyping import Float, Int
from torch import Tensor, nn

from icml_flashschnet.beads import N_TYPES
from icml_flashschnet.prior_fit import (
    FittedTerm,
    PriorParameters,
    angle_names,
    bond_names,
    dihedral_names,
    fit_prior,
    pair_name,
    plain,
)
from icml_flashschnet.structure import Molecule
from icml_flashschnet.topology import excluded_pairs

COEFFICIENTS = ("bond_table", "angle_table", "dihedral_table")


class PriorPairs(NamedTuple):
    """The pairs that a prior's repulsion acts on."""

    pairs: HalfList


class CGPrior(nn.Module):
    """The prior of one molecule.

        E = Σ k (r - r0)² + Σ k (cos θ - cos θ0)² + Σ_n s_n sin nφ + c_n cos nφ + Σ S(r) (σ/r)⁶

    Angles of a CA trace take the restricted quartic instead. Energies in kcal/mol, lengths in Å.

    Args:
        molecule: its beads and topology.
        parameters: from `fit_prior`, of the same representation.
        trainable: make the coefficients of bonds, angles and dihedrals parameters of the module.

    Raises:
        ValueError: another representation, or a class of term that the parameters lack.

    Example:
        >>> from icml_flashschnet import demo_prior, example_structure, read_pdb
        >>> molecule = read_pdb(example_structure("1ejg"))
        >>> prior = CGPrior(molecule, demo_prior())
        >>> energy, forces = prior.energy_forces(torch.tensor(molecule.pos), torch.tensor(molecule.types))
        >>> forces.shape
        torch.Size([226, 3])
    """

    def __init__(self, molecule: Molecule, parameters: PriorParameters, *, trainable: bool = False) -> None:
        super().__init__()
        if parameters.representation != molecule.representation:
            raise ValueError(
                f"the prior was fitted on the {parameters.representation} map, the molecule is in the "
                f"{molecule.representation} map"
            )
        terms = _terms_of(molecule, parameters)
        self.parameters_ = parameters
        self.cutoff, self.switch = terms.cutoff, terms.switch
        for field in fields(terms):
            value = getattr(terms, field.name)
            if isinstance(value, Tensor):
                if trainable and field.name in COEFFICIENTS:
                    self.register_parameter(field.name, nn.Parameter(value))
                else:
                    self.register_buffer(field.name, value)
        excluded = excluded_pairs(molecule.bonds, molecule.n_beads, parameters.exclusion)
        self.register_buffer("excluded", torch.as_tensor(excluded))

    @classmethod
    def fit(
        cls,
        molecule: Molecule,
        coords: Float[Tensor, "frames beads 3"],
        *,
        temperature: float = 300.0,
        min_count: int = 500,
        others: Iterable[tuple[Molecule, Float[Tensor, "frames beads 3"]]] = (),
        trainable: bool = False,
    ) -> CGPrior:
        """The prior of a molecule by Boltzmann inversion of its own samples, and those of others.

        `prior.parameters_.table()` shows each term with its samples, coefficients and residual.

        Args:
            molecule: the molecule.
            coords: positions sampled at equilibrium, Å.
            temperature: of the sampling, K.
            min_count: as in `fit_prior`.
            others: more molecules with their samples.
            trainable: as in the class.

        Raises:
            ValueError: as `fit_prior`.
        """
        samples = [(m, torch.as_tensor(x).numpy()) for m, x in ((molecule, coords), *others)]
        return cls(
            molecule, fit_prior(samples, temperature=temperature, min_count=min_count), trainable=trainable
        )

    @property
    def r_cut(self) -> float:
        """Where the repulsion ends, Å."""
        return self.cutoff

    @property
    def n_beads(self) -> int:
        """Beads of one replica."""
        return self._buffer("incidence_ptr").shape[1] - 1

    def neighbours(
        self,
        pos: Float[Tensor, "beads 3"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        skin: float = 0.0,
    ) -> PriorPairs:
        """Pairs within the repulsion's cutoff plus `skin` (Å), without those bonded too closely."""
        replicas = self._replicas(pos, batch, n_replicas)
        ptr = torch.arange(replicas + 1, device=pos.device) * self.n_beads
        pairs, _ = radius_pairs(pos.detach(), ptr, self.cutoff, skin)
        return PriorPairs(without_pairs(pairs, self._buffer("excluded"), self.n_beads)[0])

    def forward(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"] | None = None,
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: PriorPairs | None = None,
    ) -> Float[Tensor, " replicas"]:
        """Energy of each replica, kcal/mol in float64, differentiable.

        Args:
            pos: positions of all replicas, one after the other, Å.
            types: not needed: the prior knows its molecule.
            batch: replica of each bead (all replicas are of one molecule).
            n_replicas: number of replicas.
            nlist: pairs from `neighbours`.

        Raises:
            ValueError: positions that are no whole number of replicas.
        """
        replicas = self._replicas(pos, batch, n_replicas)
        nlist = self.neighbours(pos, n_replicas=replicas) if nlist is None else nlist
        return bonded_energy(pos.view(replicas, -1, 3), self._terms(pos.dtype), nlist.pairs)

    def energy_forces(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"] | None = None,
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: PriorPairs | None = None,
        check: bool = True,
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces (kcal/mol, kcal/mol/Å) without a graph; arguments as in the call."""
        parts, forces = self._parts(pos, batch, n_replicas, nlist)
        return parts.sum(-1), forces.view(-1, 3)

    def energies_by_part(
        self, pos: Float[Tensor, "beads 3"], *, n_replicas: int | None = None
    ) -> dict[str, Float[Tensor, " replicas"]]:
        """Energies of bonds, angles, dihedrals and repulsion apart, kcal/mol."""
        parts, _ = self._parts(pos, None, n_replicas, None)
        return dict(zip(PARTS, parts.unbind(-1), strict=True))

    def _parts(
        self, pos: Tensor, batch: Tensor | None, n_replicas: int | None, nlist: PriorPairs | None
    ) -> tuple[Tensor, Tensor]:
        replicas = self._replicas(pos, batch, n_replicas)
        nlist = self.neighbours(pos, n_replicas=replicas) if nlist is None else nlist
        with torch.no_grad():
            return bonded_energy_forces(pos.view(replicas, -1, 3), self._terms(pos.dtype), nlist.pairs)

    def _buffer(self, name: str) -> Tensor:
        value = getattr(self, name)
        assert isinstance(value, Tensor)
        return value

    def _terms(self, dtype: torch.dtype) -> BondedTerms:
        tensors = {
            f.name: getattr(self, f.name) for f in fields(BondedTerms) if f.name not in ("cutoff", "switch")
        }
        terms = BondedTerms(**tensors, cutoff=self.cutoff, switch=self.switch)
        return terms if self.bond_table.dtype == dtype else terms.to(dtype=dtype)

    def _replicas(self, pos: Tensor, batch: Tensor | None, n_replicas: int | None) -> int:
        if pos.ndim != 2 or pos.shape[1] != 3 or pos.shape[0] % self.n_beads or not pos.shape[0]:
            raise ValueError(
                f"pos must be [replicas * {self.n_beads}, 3] for this molecule, got {list(pos.shape)}"
            )
        replicas = pos.shape[0] // self.n_beads
        if n_replicas is not None and n_replicas != replicas:
            raise ValueError(f"n_replicas is {n_replicas}, pos holds {replicas} of {self.n_beads} beads")
        if batch is not None:
            expected = torch.arange(replicas, device=pos.device).repeat_interleave(self.n_beads)
            if not torch.equal(batch, expected):
                raise ValueError(f"batch must number {replicas} replicas of {self.n_beads} beads in order")
        return replicas


def _terms_of(molecule: Molecule, parameters: PriorParameters) -> BondedTerms:
    bonds = [parameters.term(*names) for names in bond_names(molecule)]
    angles = [parameters.term(*names) for names in angle_names(molecule)]
    dihedrals = [parameters.term(*names) for names in dihedral_names(molecule)]
    cosine = [place for place, term in enumerate(angles) if term.form == "cosine"]
    quartic = [place for place, term in enumerate(angles) if term.form == "quartic"]
    order = max((len(term.parameters) // 2 for term in dihedrals), default=1)
    angle_index = torch.as_tensor(molecule.angles)
    types = torch.as_tensor(molecule.types)
    sigma = _ranges(molecule, parameters)
    terms = bonded_terms(
        molecule.n_beads,
        bonds=torch.as_tensor(molecule.bonds),
        bond_k=_column(bonds, 0),
        bond_r0=_column(bonds, 1),
        angles=angle_index[cosine],
        angle_k=_column([angles[p] for p in cosine], 0),
        angle_theta0=_column([angles[p] for p in cosine], 1).acos(),
        quartic_angles=angle_index[quartic],
        quartic=torch.tensor([angles[p].parameters for p in quartic], dtype=torch.float64).view(-1, 6),
        dihedrals=torch.as_tensor(molecule.dihedrals),
        dihedral_v0=_column(dihedrals, 0),
        dihedral_sin=_series(dihedrals, order, 0),
        dihedral_cos=_series(dihedrals, order, 1),
        types=types,
        sigma=sigma,
        cutoff=parameters.cutoff,
    )
    # acos and cos again would lose digits near a straight angle: put the fitted cosine back.
    table = terms.angle_table.clone()
    table[: len(cosine), 0] = _column([angles[p] for p in cosine], 1)
    return replace(terms, angle_table=table)


def _column(terms: list[FittedTerm], place: int) -> Float[Tensor, " terms"]:
    return torch.tensor([term.parameters[place] for term in terms], dtype=torch.float64)


def _series(terms: list[FittedTerm], order: int, half: int) -> Float[Tensor, "terms order"]:
    """Sine (half 0) or cosine (half 1) coefficients, filled with zeros up to the order."""
    table = torch.zeros(len(terms), order, dtype=torch.float64)
    for row, term in enumerate(terms):
        own = len(term.parameters) // 2
        chosen = term.parameters[1 + half * own : 1 + (half + 1) * own]
        table[row, :own] = torch.tensor(chosen, dtype=torch.float64)
    return table


def _ranges(molecule: Molecule, parameters: PriorParameters) -> Float[Tensor, "types types"]:
    """σ between the types of this molecule; 0 where even the pooled class was too rare to tell."""
    label_of = {int(t): label for t, label in zip(molecule.types, molecule.labels, strict=True)}
    sigma = torch.zeros(
        max(N_TYPES, *(t + 1 for t in label_of)),
        max(N_TYPES, *(t + 1 for t in label_of)),
        dtype=torch.float64,
    )
    for first, label in label_of.items():
        for second, other in label_of.items():
            names = (pair_name(label, other), f"any {pair_name(plain(label), plain(other))}")
            found = next((parameters.terms[n] for n in names if n in parameters.terms), None)
            sigma[first, second] = found.parameters[0] if found is not None else 0.0
    return sigma
