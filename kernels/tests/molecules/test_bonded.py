"""Prior energies against OpenMM, closed forms and finite differences, in float64."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from icml_kernels import (
    BondedTerms,
    bonded_energy,
    bonded_energy_forces,
    bonded_terms,
    half_list,
    radius_pairs,
    without_pairs,
)
from icml_kernels.molecules.bonded.cases import (
    CASES,
    CUTOFF,
    SWITCH,
    TABLES,
    arguments,
    chains,
    coefficients,
    every_pair,
    molecule,
    only,
)
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, use_route

N_BEADS = 9
BONDS = coefficients()["bonds"]


@pytest.fixture(params=["auto", "reference"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ICML_KERNELS", request.param)
    return request.param


def openmm_system(terms: BondedTerms, c: dict[str, torch.Tensor]) -> tuple[list[float], list[np.ndarray]]:
    """Energy and force of each kind of term from OpenMM's Reference platform, a replica at a time."""
    import openmm

    system = openmm.System()
    for _ in range(N_BEADS):
        system.addParticle(1.0)
    bond = openmm.CustomBondForce("k*(r-r0)^2")
    for name in ("k", "r0"):
        bond.addPerBondParameter(name)
    for (i, j), k, r0 in zip(c["bonds"].tolist(), c["bond_k"], c["bond_r0"], strict=True):
        bond.addBond(i, j, [float(k), float(r0)])
    cosine = openmm.CustomAngleForce("k*(cos(theta)-cos(theta0))^2")
    for name in ("k", "theta0"):
        cosine.addPerAngleParameter(name)
    for beads, k, theta0 in zip(c["angles"].tolist(), c["angle_k"], c["angle_theta0"], strict=True):
        cosine.addAngle(*beads, [float(k), float(theta0)])
    quartic = openmm.CustomAngleForce(
        "a*cos(theta)^4+b*cos(theta)^3+c*cos(theta)^2+d*cos(theta)+k/sin(theta)^2+v0"
    )
    for name in ("a", "b", "c", "d", "k", "v0"):
        quartic.addPerAngleParameter(name)
    for beads, row in zip(c["quartic_angles"].tolist(), c["quartic"].tolist(), strict=True):
        quartic.addAngle(*beads, row)
    names = ["v0", *(f"{kind}{n}" for kind in ("s", "c") for n in (1, 2, 3))]
    series = "+".join(f"s{n}*sin({n}*theta)+c{n}*cos({n}*theta)" for n in (1, 2, 3))
    torsion = openmm.CustomTorsionForce("v0+" + series)
    for name in names:
        torsion.addPerTorsionParameter(name)
    for beads, v0, s, k in zip(
        c["dihedrals"].tolist(), c["dihedral_v0"], c["dihedral_sin"], c["dihedral_cos"], strict=True
    ):
        torsion.addTorsion(*beads, [float(v0), *s.tolist(), *k.tolist()])
    repulsion = openmm.CustomNonbondedForce("(sigma(type1,type2)/r)^6")
    repulsion.addPerParticleParameter("type")
    repulsion.addTabulatedFunction(
        "sigma", openmm.Discrete2DFunction(3, 3, c["sigma"].T.reshape(-1).tolist())
    )
    for kind in c["types"].tolist():
        repulsion.addParticle([kind])
    for i, j in c["bonds"].tolist():
        repulsion.addExclusion(i, j)
    repulsion.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffNonPeriodic)
    repulsion.setCutoffDistance(terms.cutoff)
    repulsion.setUseSwitchingFunction(True)
    repulsion.setSwitchingDistance(terms.switch)
    for group, force in enumerate((bond, cosine, quartic, torsion, repulsion)):
        force.setForceGroup(group)
        system.addForce(force)
    context = openmm.Context(
        system, openmm.VerletIntegrator(0.001), openmm.Platform.getPlatformByName("Reference")
    )
    energies, forces = [], []
    for x in chains().numpy():
        context.setPositions(x)
        states = [context.getState(getEnergy=True, getForces=True, groups={g}) for g in range(5)]
        energies.append([s.getPotentialEnergy()._value for s in states])
        forces.append(sum(s.getForces(asNumpy=True)._value for s in states))
    return energies, forces


def test_energies_and_forces_are_those_of_openmm(route: str) -> None:
    # OpenMM's numbers are in nm and kJ/mol; the formulas know no units.
    terms, c = molecule(), coefficients()
    energies, forces = openmm_system(terms, c)
    parts, ours = bonded_energy_forces(chains(), terms, every_pair(3))
    expected = np.array(energies)
    expected = np.stack((expected[:, 0], expected[:, 1] + expected[:, 2], expected[:, 3], expected[:, 4]), 1)
    np.testing.assert_allclose(parts.numpy(), expected, rtol=1e-9)
    assert (expected[:, 3] > 0.1).all(), "the repulsion takes part"
    np.testing.assert_allclose(ours.numpy(), np.array(forces), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", ["bond", "angle", "dihedral", "repulsion"])
def test_forces_of_each_kind_are_minus_the_gradient_of_its_energy(kind: str, route: str) -> None:
    terms = only(molecule(), kind)
    x, pairs, h = chains(1), every_pair(1), 1e-5
    parts, forces = bonded_energy_forces(x, terms, pairs)
    assert int((parts != 0).sum()) == 1
    numeric = torch.zeros_like(x)
    for bead, axis in itertools.product(range(N_BEADS), range(3)):
        ends = []
        for sign in (1, -1):
            moved = x.clone()
            moved[0, bead, axis] += sign * h
            ends.append(float(bonded_energy_forces(moved, terms, pairs)[0].sum()))
        numeric[0, bead, axis] = (ends[1] - ends[0]) / (2 * h)
    torch.testing.assert_close(forces, numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype: torch.dtype) -> None:
    pos, terms, *pairs = case.arguments()
    pos, terms = pos.to(dtype), terms.to(dtype=dtype)
    with use_route("reference"):
        expected = bonded_energy_forces(pos, terms, *pairs)
    with use_route("auto"):
        actual = bonded_energy_forces(pos, terms, *pairs)
    assert actual[1].dtype == dtype
    for a, e in zip(actual, expected, strict=True):
        # Both compute in float64 whatever the dtype.
        scale = float(e.abs().max()) if e.numel() else 0.0
        torch.testing.assert_close(a, e, rtol=0, atol=scale * (1e-12 if a.dtype == torch.float64 else 1e-6))


def test_derivatives_by_the_positions() -> None:
    pos, terms, pairs = arguments(1, 5)
    check_derivatives(lambda x: bonded_energy(x, terms, pairs), (pos,))


def test_compiled() -> None:
    pos, terms, pairs = arguments(1, 5)
    check_compiled(lambda x: bonded_energy(x, terms, pairs), (pos,))


def test_the_raw_operator_is_well_formed() -> None:
    pos, terms, pairs = arguments(2)
    names = check_raw_ops(lambda x: bonded_energy(x, terms, pairs), (pos,))
    assert names == {"icml::bonded_energy_gradient"}


def test_coefficients_and_offsets_can_be_trained_by_energies_and_by_forces() -> None:
    base, pairs = molecule(), every_pair(1)
    x = chains(1).requires_grad_()
    offset = torch.zeros(pairs.capacity, 3, dtype=torch.float64)
    tables = [getattr(base, name).clone().requires_grad_() for name in TABLES]

    def energy(x: torch.Tensor, offset: torch.Tensor, *tables: torch.Tensor) -> torch.Tensor:
        return bonded_energy(
            x, dataclasses.replace(base, **dict(zip(TABLES, tables, strict=True))), pairs, offset
        )

    def forces(*arguments: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(energy(*arguments).sum(), arguments[0], create_graph=True)[0]

    inputs = (x, offset.requires_grad_(), *tables)
    assert torch.autograd.gradcheck(energy, inputs, fast_mode=True)
    assert torch.autograd.gradcheck(forces, inputs, fast_mode=True)


def test_energies_and_forces_leave_no_graph() -> None:
    terms = dataclasses.replace(molecule(), bond_table=molecule().bond_table.requires_grad_())
    parts, forces = bonded_energy_forces(chains(1).requires_grad_(), terms, every_pair(1))
    assert not parts.requires_grad
    assert not forces.requires_grad


def test_forward_mode_by_the_coefficients_is_refused() -> None:
    pos, terms, pairs = arguments(1)
    with pytest.raises(RuntimeError, match="use reverse mode"):
        torch.func.jvp(
            lambda table: bonded_energy(pos, dataclasses.replace(terms, bond_table=table), pairs),
            (terms.bond_table,),
            (torch.ones_like(terms.bond_table),),
        )


def bent(angle: float) -> torch.Tensor:
    arm = [1.3 * math.cos(angle), 1.3 * math.sin(angle), 0.0]
    return torch.tensor([[[1.1, 0.0, 0.0], [0.0, 0.0, 0.0], arm]], dtype=torch.float64)


@pytest.mark.parametrize("bend", [1e-2, 1e-4, 1e-6, 1e-7, 0.0])
def test_nearly_straight_angles_have_exact_forces(bend: float, route: str) -> None:
    # dE/dθ = -2 k (cos θ - cos θ0) sin θ, at a right angle to the arm, divided by its length.
    k, theta0 = 30.0, 2.0
    terms = bonded_terms(
        3,
        angles=torch.tensor([[0, 1, 2]]),
        angle_k=torch.tensor([k]),
        angle_theta0=torch.tensor([theta0]).double(),
    )
    for angle in (math.pi - bend, bend):
        x = bent(math.pi - bend) if angle > 1 else bent(bend)
        parts, forces = bonded_energy_forces(x, terms)
        sine, cosine = math.sin(bend), math.copysign(math.cos(bend), math.cos(angle))
        assert float(parts[0, 1]) == pytest.approx(k * (cosine - math.cos(theta0)) ** 2, rel=1e-12)
        torque = 2.0 * k * (cosine - math.cos(theta0)) * sine
        expected = torque / 1.3 * torch.tensor([-math.sin(angle), math.cos(angle), 0.0], dtype=torch.float64)
        torch.testing.assert_close(forces[0, 2], expected, rtol=1e-6, atol=1e-13)
        torch.testing.assert_close(forces.sum(1), torch.zeros(1, 3).double(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("bend", [1e-1, 1e-3, 1e-5])
def test_restricted_angles_push_away_from_straight_as_they_should(bend: float, route: str) -> None:
    # E = k / sin² θ; dE/dθ = -2 k cos θ / sin³ θ.
    quartic = torch.tensor([[0.0, 0, 0, 0, 0.7, 0]])
    terms = bonded_terms(3, quartic_angles=torch.tensor([[0, 1, 2]]), quartic=quartic)
    parts, forces = bonded_energy_forces(bent(math.pi - bend), terms)
    assert float(parts[0, 1]) == pytest.approx(0.7 / math.sin(bend) ** 2, rel=1e-6)
    strength = 2 * 0.7 * math.cos(bend) / math.sin(bend) ** 3 / 1.3
    assert float(forces[0, 2].norm()) == pytest.approx(strength, rel=1e-5)
    assert float(forces[0, 2, 1]) > 0, "away from the line"


def test_dihedrals_of_a_straight_chain_pull_at_nothing(route: str) -> None:
    x = torch.arange(4.0)[None, :, None] * torch.tensor([1.0, 2.0, -0.5]).double()
    terms = bonded_terms(
        4,
        dihedrals=torch.tensor([[0, 1, 2, 3]]),
        dihedral_v0=torch.tensor([0.5]),
        dihedral_sin=torch.tensor([[2.0]]),
        dihedral_cos=torch.tensor([[3.0]]),
    )
    parts, forces = bonded_energy_forces(x, terms)
    assert parts[0].tolist() == [0, 0, 3.5, 0], "as cis"
    assert forces.abs().max() == 0


@pytest.mark.parametrize("phi", [0.0, 0.5, -2.0, math.pi])
def test_dihedral_angles_have_the_iupac_sign(phi: float, route: str) -> None:
    # Seen along j -> k, positive φ turns the front arm clockwise onto the back arm.
    x = torch.tensor(
        [[[1.0, 0, 0], [0, 0, 0], [0, 0, 1], [math.cos(phi), math.sin(phi), 1]]], dtype=torch.float64
    )
    terms = bonded_terms(
        4,
        dihedrals=torch.tensor([[0, 1, 2, 3]]),
        dihedral_sin=torch.tensor([[1.0, 0.0]]),
        dihedral_cos=torch.tensor([[0.0, 10.0]]),
    )
    energy = float(bonded_energy(x, terms))
    assert energy == pytest.approx(math.sin(phi) + 10 * math.cos(2 * phi), abs=1e-12)


def test_repulsion_is_switched_off_smoothly(route: str) -> None:
    terms = bonded_terms(
        2, types=torch.tensor([0, 1]), sigma=torch.tensor([[0.0, 2.0], [2.0, 0.0]]), cutoff=5.0, switch=4.0
    )
    pair = half_list(torch.tensor([0]), torch.tensor([1]), 2)

    def at(r: float) -> tuple[float, float]:
        x = torch.tensor([[[0.0, 0, 0], [0, r, 0]]], dtype=torch.float64)
        parts, forces = bonded_energy_forces(x, terms, pair)
        return float(parts[0, 3]), float(forces[0, 1, 1])

    for r in (1.0, 2.0, 3.9):
        assert at(r) == pytest.approx(((2 / r) ** 6, 6 * 2**6 / r**7), rel=1e-12)
    x = 0.3
    smooth, slope = 1 - 10 * x**3 + 15 * x**4 - 6 * x**5, -30 * x**2 + 60 * x**3 - 30 * x**4
    energy = (2 / 4.3) ** 6
    assert at(4.3) == pytest.approx((energy * smooth, 6 * energy / 4.3 * smooth - energy * slope), rel=1e-12)
    assert at(5.0) == (0.0, 0.0)
    # Two continuous derivatives: near the cutoff S falls as 10 y³, y being the distance from it.
    energy = (2 / 5.0) ** 6
    assert at(5.0 - 1e-4) == pytest.approx((10 * energy * 1e-12, 30 * energy * 1e-8), rel=1e-3)


def test_pairs_across_a_periodic_boundary_take_their_offset(route: str) -> None:
    cell = torch.tensor([[8.0, 0, 0], [2, 9, 0], [0, 1, 7]], dtype=torch.float64)
    x = torch.rand(1, N_BEADS, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64) @ cell
    c = coefficients()
    terms = bonded_terms(N_BEADS, types=c["types"], sigma=c["sigma"], cutoff=3.0)
    cells = torch.randint(-2, 3, (1, N_BEADS, 3), generator=torch.Generator().manual_seed(4)).double()
    moved = x + cells @ cell
    results = []
    for points in (x, moved):
        pairs, shift = radius_pairs(points[0], torch.tensor([0, N_BEADS]), 3.0, cell=cell)
        results.append(bonded_energy_forces(points, terms, pairs, shift.double() @ cell))
    torch.testing.assert_close(results[0], results[1], rtol=1e-9, atol=1e-9)
    assert float(results[0][0][0, 3]) > 0.1


def test_forces_and_torques_add_up_to_nothing(route: str) -> None:
    x = chains()
    _, forces = bonded_energy_forces(x, molecule(), every_pair(3))
    size = float(forces.norm())
    assert float(forces.sum(1).abs().max()) < 1e-13 * size
    assert float(torch.linalg.cross(x, forces).sum(1).abs().max()) < 1e-12 * size


def test_replicas_do_not_know_of_each_other(route: str) -> None:
    terms, x = molecule(), chains(5)
    parts, forces = bonded_energy_forces(x, terms, every_pair(5))
    for r in range(5):
        alone = bonded_energy_forces(x[r : r + 1], terms, every_pair(1))
        assert torch.equal(alone[0][0], parts[r])
        assert torch.equal(alone[1][0], forces[r])


def test_lists_from_the_builder_and_with_spare_places_give_the_same(route: str) -> None:
    terms, x = molecule(), chains(2)
    expected = bonded_energy_forces(x, terms, every_pair(2))
    built, _ = radius_pairs(
        x.reshape(-1, 3), torch.tensor([0, N_BEADS, 2 * N_BEADS]), CUTOFF, 1.0, capacity=300
    )
    first, _ = without_pairs(built, BONDS, N_BEADS)
    torch.testing.assert_close(bonded_energy_forces(x, terms, first), expected)
    sparse = coefficients()
    terms = bonded_terms(N_BEADS, types=sparse["types"], sigma=sparse["sigma"], cutoff=CUTOFF, switch=SWITCH)
    spare = bonded_energy_forces(x, terms, built)
    tight, _ = radius_pairs(x.reshape(-1, 3), torch.tensor([0, N_BEADS, 2 * N_BEADS]), CUTOFF, 1.0)
    torch.testing.assert_close(spare, bonded_energy_forces(x, terms, tight))


def test_single_precision_and_threads(route: str) -> None:
    terms, x, pairs = molecule(), chains(), every_pair(3)
    parts, forces = bonded_energy_forces(x, terms, pairs)
    single = bonded_energy_forces(x.float(), terms.to(dtype=torch.float32), pairs)
    assert single[0].dtype == torch.float64
    assert single[1].dtype == torch.float32
    torch.testing.assert_close(single[0], parts, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(single[1].double(), forces, rtol=1e-4, atol=1e-3)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1 if threads > 1 else 2)
        again = bonded_energy_forces(x, terms, pairs)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(again[0], parts)
    assert torch.equal(again[1], forces)


def test_a_lost_bead_is_seen_in_its_replica_alone(route: str) -> None:
    x = chains()
    x[1, 4] = float("nan")
    parts, forces = bonded_energy_forces(x, molecule(), every_pair(3))
    assert torch.isfinite(parts[[0, 2]]).all()
    assert torch.isfinite(forces[[0, 2]]).all()
    assert parts[1].isnan().all()
    assert forces[1, 4].isnan().all()


def test_a_molecule_without_terms_has_no_energy(route: str) -> None:
    x = chains()
    parts, forces = bonded_energy_forces(x, bonded_terms(N_BEADS))
    assert parts.abs().max() == 0
    assert forces.abs().max() == 0
    nobody = bonded_energy_forces(x[:0], bonded_terms(N_BEADS))
    assert nobody[0].shape == (0, 4)


def test_terms_know_where_each_bead_stands() -> None:
    terms = molecule()
    for kind, index in enumerate((terms.bonds, terms.angles, terms.dihedrals)):
        for bead in range(N_BEADS):
            start, stop = terms.incidence_ptr[kind, bead : bead + 2].tolist()
            found = [(int(code) // 4, int(code) % 4) for code in terms.incidence[start:stop]]
            assert found == [tuple(place) for place in (index == bead).nonzero().tolist()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bonds": BONDS + 1}, r"bonds holds \[8, 9\]; beads are numbered 0 to 8"),
        ({"bonds": BONDS * 0}, r"bonds holds \[0, 0\], which names a bead twice"),
        ({"angles": BONDS}, "angles is torch.int64 of shape"),
        ({"bonds": BONDS.double()}, "bonds is torch.float64"),
        ({"bond_k": None}, "bond_k is missing"),
        ({"bond_k": torch.ones(3)}, r"bond_k has shape \[3\]; expected \[8\]"),
        ({"angle_k": torch.full((4,), float("nan"))}, r"angle_k\[0\] is not finite"),
        ({"quartic": torch.ones(3, 5)}, r"quartic has shape \[3, 5\]; expected \[3, 6\]"),
        ({"dihedral_cos": torch.ones(7, 2)}, r"dihedral_cos has shape \[7, 2\]; expected \[7, 3\]"),
        ({"types": None}, "types is None"),
        ({"types": torch.full((N_BEADS,), 5)}, "types run from 5 to 5; sigma has 3 types"),
        ({"sigma": torch.tensor([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])}, "make it symmetric"),
        ({"switch": 6.0}, "switch=6.0 and cutoff=5.0"),
        ({"cutoff": 0.0, "switch": None}, "0 <= switch < cutoff"),
    ],
)
def test_impossible_terms_are_named(change: dict, message: str) -> None:
    arguments = {**coefficients(), "cutoff": CUTOFF, "switch": SWITCH, **change}
    with pytest.raises(ValueError, match=message):
        bonded_terms(N_BEADS, **arguments)


def test_bad_input_is_named() -> None:
    terms, x = molecule(), chains(2)
    with pytest.raises(ValueError, match="give the pairs"):
        bonded_energy(x, terms)
    with pytest.raises(ValueError, match="pairs has 27 rows; 2 replicas of 9 beads need 18"):
        bonded_energy(x, terms, every_pair(3))
    with pytest.raises(ValueError, match="pos has shape"):
        bonded_energy(x[:, :5], terms, every_pair(2))
    with pytest.raises(ValueError, match="offset has shape"):
        bonded_energy(x, terms, every_pair(2), torch.zeros(2, 3))
    with pytest.raises(TypeError, match="dtype torch.float16"):
        bonded_energy(x.half(), terms, every_pair(2))
