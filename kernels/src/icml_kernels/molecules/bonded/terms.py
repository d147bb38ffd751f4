"""The term tables of a classical coarse-grained potential: one molecule's topology and parameters."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

DEFAULT_SWITCH = 0.8
"""Where the repulsion begins to be switched off, as a fraction of its cutoff."""
PLACES = 4
"""An incidence is the term's number times this, plus the bead's place in the term."""


@dataclass(frozen=True)
class BondedTerms:
    """Term tables of one molecule, shared by all its replicas; `bonded_terms` builds them.

    The tables of coefficients may require gradients: then `bonded_energy` trains them.
    """

    bonds: Int[Tensor, "bonds 2"]
    bond_table: Float[Tensor, "bonds 2"]
    """k (kcal/mol/Å²) and r0 (Å) of k (r - r0)²."""
    angles: Int[Tensor, "angles 3"]
    angle_table: Float[Tensor, "angles 7"]
    """c0, a0, a1, a2, a3, a4, k of Σ a_n (cos θ - c0)^n + k / sin² θ, in kcal/mol."""
    dihedrals: Int[Tensor, "dihedrals 4"]
    dihedral_table: Float[Tensor, "dihedrals 1+2*order"]
    """v0, the sine coefficients of φ, 2φ, ..., then the cosine coefficients, in kcal/mol."""
    types: Int[Tensor, " beads"]
    sigma: Float[Tensor, "types types"]
    """Range σ (Å) of the repulsion (σ/r)^6 between two types; 0 where there is none."""
    cutoff: float
    """Distance (Å) at which the repulsion has become 0."""
    switch: float
    """Distance (Å) at which the repulsion begins to be switched off."""
    incidence_ptr: Int[Tensor, "3 beads+1"]
    incidence: Int[Tensor, " slots"]
    """For bonds, angles, dihedrals and each bead: term * 4 + the bead's place, found from `incidence_ptr`."""

    @property
    def n_beads(self) -> int:
        """Number of beads of one replica."""
        return self.incidence_ptr.shape[1] - 1

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> BondedTerms:
        """The same terms on another device, the coefficients in another floating dtype."""
        moved = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                moved[field.name] = value.to(device, dtype if value.is_floating_point() else None)
        return replace(self, **moved)


def bonded_terms(
    n_beads: int,
    *,
    bonds: Int[Tensor, "bonds 2"] | None = None,
    bond_k: Float[Tensor, " bonds"] | None = None,
    bond_r0: Float[Tensor, " bonds"] | None = None,
    angles: Int[Tensor, "angles 3"] | None = None,
    angle_k: Float[Tensor, " angles"] | None = None,
    angle_theta0: Float[Tensor, " angles"] | None = None,
    quartic_angles: Int[Tensor, "quartic 3"] | None = None,
    quartic: Float[Tensor, "quartic 6"] | None = None,
    dihedrals: Int[Tensor, "dihedrals 4"] | None = None,
    dihedral_v0: Float[Tensor, " dihedrals"] | None = None,
    dihedral_sin: Float[Tensor, "dihedrals order"] | None = None,
    dihedral_cos: Float[Tensor, "dihedrals order"] | None = None,
    types: Int[Tensor, " beads"] | None = None,
    sigma: Float[Tensor, "types types"] | None = None,
    cutoff: float = 0.0,
    switch: float | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> BondedTerms:
    """Gather a molecule's prior terms, in the forms of mlcg, into the tables that `bonded_energy` reads.

        bonds            k (r - r0)²                                       no factor 1/2
        angles           k (cos θ - cos θ0)²
        quartic angles   a cos⁴θ + b cos³θ + c cos²θ + d cos θ + k / sin²θ + v0     ("restricted quartic")
        dihedrals        v0 + Σ_n sin_n sin(nφ) + cos_n cos(nφ)            also impropers and ω
        repulsion        S(r) (σ/r)⁶ over the pairs that `bonded_energy` is given
        S(r)             1 below `switch`, 0 from `cutoff` on, between them 1 - 10x³ + 15x⁴ - 6x⁵,
                         x = (r - switch)/(cutoff - switch): twice continuously differentiable

    Args:
        n_beads: Beads of one replica.
        bonds: Pairs of beads.
        bond_k: In kcal/mol/Å².
        bond_r0: In Å.
        angles: Triples i, j, k with the vertex j in the middle.
        angle_k: In kcal/mol.
        angle_theta0: In radians.
        quartic_angles: Triples of the restricted quartic.
        quartic: Columns a, b, c, d, k, v0 in kcal/mol.
        dihedrals: Quadruples; φ is the angle of Blondel and Karplus (IUPAC sign), 0 when cis.
        dihedral_v0: Constant, 0 by default.
        dihedral_sin: Coefficients of sin φ, sin 2φ, ...
        dihedral_cos: Coefficients of cos φ, cos 2φ, ...
        types: Type of each bead for the repulsion.
        sigma: Range between two types in Å, symmetric; 0 for none.
        cutoff: End of the repulsion in Å; needed where `sigma` is given.
        switch: Where its switching function begins; 0.8 cutoff by default.
        dtype: Of the tables; that of the positions is best on a GPU.
        device: Where the tables live.

    Returns:
        The tables.

    Raises:
        ValueError: A bead out of range or twice in a term, numbers of terms and coefficients that differ,
            coefficients that are not finite, sigma not symmetric, or types outside sigma.
    """
    index = {
        "bonds": _index("bonds", bonds, n_beads, 2, device),
        "angles": _index("angles", angles, n_beads, 3, device),
        "quartic_angles": _index("quartic_angles", quartic_angles, n_beads, 3, device),
        "dihedrals": _index("dihedrals", dihedrals, n_beads, 4, device),
    }

    def column(name: str, values: Tensor | None, term: str) -> Tensor:
        return _coefficients(name, values, (len(index[term]),), dtype, device)

    theta0 = column("angle_theta0", angle_theta0, "angles")
    k = column("angle_k", angle_k, "angles")
    zero = torch.zeros_like(k)
    cosine_table = torch.stack((torch.cos(theta0), zero, zero, k, zero, zero, zero), -1)
    a, b, c, d, restriction, v0 = _coefficients(
        "quartic", quartic, (len(index["quartic_angles"]), 6), dtype, device
    ).unbind(-1)
    quartic_table = torch.stack((torch.zeros_like(a), v0, d, c, b, a, restriction), -1)
    n_dihedrals = len(index["dihedrals"])
    series = [s for s in (dihedral_sin, dihedral_cos) if s is not None]
    order = series[0].shape[-1] if series else 0
    if any(s is None for s in (dihedral_sin, dihedral_cos)) and n_dihedrals:
        zeros = torch.zeros(n_dihedrals, order)
        dihedral_sin, dihedral_cos = (zeros if s is None else s for s in (dihedral_sin, dihedral_cos))
    constant = torch.zeros(n_dihedrals) if dihedral_v0 is None else dihedral_v0
    dihedral_table = torch.cat(
        (
            _coefficients("dihedral_v0", constant, (n_dihedrals,), dtype, device)[:, None],
            _coefficients("dihedral_sin", dihedral_sin, (n_dihedrals, order), dtype, device),
            _coefficients("dihedral_cos", dihedral_cos, (n_dihedrals, order), dtype, device),
        ),
        -1,
    )
    types, sigma, switch = _repulsion(n_beads, types, sigma, cutoff, switch, dtype, device)
    every_angle = torch.cat((index["angles"], index["quartic_angles"]))
    kinds = (index["bonds"], every_angle, index["dihedrals"])
    incidence_ptr, incidence = _incidence(kinds, n_beads)
    return BondedTerms(
        bonds=index["bonds"],
        bond_table=torch.stack((column("bond_k", bond_k, "bonds"), column("bond_r0", bond_r0, "bonds")), -1),
        angles=every_angle,
        angle_table=torch.cat((cosine_table, quartic_table)),
        dihedrals=index["dihedrals"],
        dihedral_table=dihedral_table,
        types=types,
        sigma=sigma,
        cutoff=float(cutoff),
        switch=switch,
        incidence_ptr=incidence_ptr,
        incidence=incidence,
    )


def _index(name: str, beads: Tensor | None, n_beads: int, width: int, device: torch.device | str) -> Tensor:
    if beads is None:
        return torch.zeros(0, width, dtype=torch.int64, device=device)
    if beads.dim() != 2 or beads.shape[1] != width or beads.dtype.is_floating_point:
        raise ValueError(
            f"{name} is {beads.dtype} of shape {list(beads.shape)}; expected integers [terms, {width}]"
        )
    outside = ((beads < 0) | (beads >= n_beads)).any(1)
    if bool(outside.any()):
        raise ValueError(f"{name} holds {beads[outside][0].tolist()}; beads are numbered 0 to {n_beads - 1}")
    ordered = beads.sort(1).values
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(1)
    if bool(twice.any()):
        raise ValueError(f"{name} holds {beads[twice][0].tolist()}, which names a bead twice")
    return beads.to(device, torch.int64)


def _coefficients(
    name: str, values: Tensor | None, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    if values is None:
        if shape[0]:
            raise ValueError(f"{name} is missing; expected shape {list(shape)}")
        return torch.zeros(shape, dtype=dtype, device=device)
    if tuple(values.shape) != shape:
        raise ValueError(f"{name} has shape {list(values.shape)}; expected {list(shape)}")
    if not bool(torch.isfinite(values).all()):
        term = int((~torch.isfinite(values)).nonzero()[0, 0])
        raise ValueError(f"{name}[{term}] is not finite: {values[term].tolist()}")
    return values.to(device, dtype)


def _repulsion(
    n_beads: int,
    types: Tensor | None,
    sigma: Tensor | None,
    cutoff: float,
    switch: float | None,
    dtype: torch.dtype,
    device: torch.device | str,
) -> tuple[Tensor, Tensor, float]:
    if sigma is None:
        return (
            torch.zeros(n_beads, dtype=torch.int64, device=device),
            torch.zeros(0, 0, dtype=dtype, device=device),
            0.0,
        )
    if types is None or tuple(types.shape) != (n_beads,) or types.dtype.is_floating_point:
        got = None if types is None else (types.dtype, list(types.shape))
        raise ValueError(f"types is {got}; sigma needs an integer type for each of the {n_beads} beads")
    sigma = _coefficients("sigma", sigma, (len(sigma), len(sigma)), dtype, device)
    if bool((sigma != sigma.T).any()):
        a, b = (sigma != sigma.T).nonzero()[0].tolist()
        raise ValueError(
            f"sigma[{a}, {b}] = {sigma[a, b]} but sigma[{b}, {a}] = {sigma[b, a]}; make it symmetric"
        )
    if n_beads and not (int(types.min()) >= 0 and int(types.max()) < len(sigma)):
        raise ValueError(
            f"types run from {int(types.min())} to {int(types.max())}; sigma has {len(sigma)} types"
        )
    switch = DEFAULT_SWITCH * cutoff if switch is None else float(switch)
    if not 0.0 <= switch < cutoff:
        raise ValueError(f"switch={switch} and cutoff={cutoff}: the repulsion needs 0 <= switch < cutoff")
    return types.to(device, torch.int64), sigma, switch


def _incidence(kinds: tuple[Tensor, ...], n_beads: int) -> tuple[Tensor, Tensor]:
    """Where each bead stands: for each kind of term and bead, term * PLACES + place, in order."""
    bounds, entries, first = [], [], 0
    for index in kinds:
        width = index.shape[1]
        beads = index.reshape(-1)
        order = torch.argsort(beads, stable=True)
        counts = torch.bincount(beads, minlength=n_beads)
        bounds.append(torch.cat((counts.new_zeros(1), counts.cumsum(0))) + first)
        entries.append(order // width * PLACES + order % width)
        first += len(beads)
    return torch.stack(bounds).int(), torch.cat(entries).int()
