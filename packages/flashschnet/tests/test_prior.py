"""The prior against OpenMM's custom forces, and Boltzmann inversion against densities that are known."""

from __future__ import annotations

import math

import numpy as np
import openmm
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_flashschnet.prior import CGPrior
from icml_flashschnet.prior_fit import CONTACT_LEVEL, FittedTerm, PriorParameters, fit_prior
from icml_flashschnet.structure import Molecule, Residue, example_structure, read_pdb
from icml_flashschnet.topology import Topology, excluded_pairs
from icml_flashschnet.units import BOLTZMANN

KT = BOLTZMANN * 300.0


def small_molecule(n_beads: int, labels: str, **terms: list) -> Molecule:
    """Beads named by letters, with the given bonds, angles and dihedrals."""

    def index(name: str, width: int) -> np.ndarray:
        return np.array(terms.get(name, []), dtype=np.int64).reshape(-1, width)

    dihedrals = index("dihedrals", 4)
    topology = Topology(index("bonds", 2), index("angles", 3), dihedrals, ("proper",) * len(dihedrals))
    return Molecule(
        pos=np.arange(3.0 * n_beads).reshape(-1, 3), types=np.arange(n_beads), masses=np.full(n_beads, 12.0),
        names=tuple(labels), labels=tuple(labels), residues=(Residue("UNK", 1, "", "A"),),
        residue_of=np.zeros(n_beads, dtype=np.int64), topology=topology, representation=None,
    )  # fmt: skip


def drawn(density, low: float, high: float, n: int, seed: int) -> np.ndarray:
    """Samples of a one-dimensional density by inversion on a fine grid."""
    x = np.linspace(low, high, 200_001)
    cumulative = np.cumsum(density(x))
    return np.interp(np.random.default_rng(seed).random(n) * cumulative[-1], cumulative, x)


def planar_frames(r1: np.ndarray, theta: np.ndarray, phi: np.ndarray) -> np.ndarray:
    """Four beads: bond 0-1 of length r1, angle 0-1-2 of theta, a right angle 1-2-3, the dihedral phi."""
    zero = np.zeros_like(r1)
    first = np.stack([r1 * np.cos(theta), r1 * np.sin(theta), zero], -1)
    third = np.stack([zero + 1.4, 1.3 * np.cos(phi), 1.3 * np.sin(phi)], -1)
    return np.stack([first, np.zeros_like(first), np.broadcast_to([1.4, 0, 0], first.shape), third], 1)


@pytest.fixture(scope="module")
def crambin():
    """Crambin with parameters made up for every class that it needs."""
    molecule = read_pdb(example_structure("1ejg"))
    rng = np.random.default_rng(1)
    terms = [
        FittedTerm(f"any bond {b}", "harmonic", 1, (rng.uniform(50, 400), rng.uniform(1.2, 1.6)), 0.0)
        for b in ("CA-N", "CA-CB", "C-CA", "C-O", "C-N")
    ]
    terms += [
        FittedTerm(f"any angle {a}", "cosine", 1, (rng.uniform(30, 150), rng.uniform(-0.6, -0.3)), 0.0)
        for a in ("CB-CA-N", "C-CA-N", "C-CA-CB", "CA-C-O", "CA-C-N", "N-C-O", "C-N-CA")
    ]
    terms += [
        FittedTerm(f"any {kind}", "fourier", 1, tuple(rng.uniform(-2, 2, 2 * order + 1)), 0.0)
        for kind, order in (("phi", 3), ("psi", 4), ("omega", 1), ("carbonyl", 1), ("chirality", 1))
    ]
    beads = ("C", "CA", "CB", "N", "O")
    terms += [
        FittedTerm(f"any repulsion {a}-{b}", "repulsion", 1, (rng.uniform(2.5, 4.0),), 0.0)
        for a in beads for b in beads if a <= b
    ]  # fmt: skip
    terms.append(FittedTerm("phi PRO", "fourier", 1, (0.3, 1.0, -0.5), 0.0))
    return molecule, PriorParameters({t.name: t for t in terms}, "5bead", 300.0, cutoff=7.0, exclusion=4)


def in_openmm(molecule: Molecule, prior: CGPrior) -> openmm.System:
    """The same potential written in OpenMM's expressions, in Å and kcal/mol as if they were nm and kJ/mol."""
    system = openmm.System()
    for mass in molecule.masses:
        system.addParticle(mass)
    bond = openmm.CustomBondForce("k*(r-r0)^2")
    angle = openmm.CustomAngleForce("k*(cos(theta)-c0)^2")
    series = "+".join(f"s{n}*sin({n}*theta)+c{n}*cos({n}*theta)" for n in range(1, 5))
    dihedral = openmm.CustomTorsionForce(f"v0+{series}")
    coefficients = ["v0", *(f"s{n}" for n in range(1, 5)), *(f"c{n}" for n in range(1, 5))]
    for names, add in (
        (("k", "r0"), bond.addPerBondParameter),
        (("k", "c0"), angle.addPerAngleParameter),
        (coefficients, dihedral.addPerTorsionParameter),
    ):
        for name in names:
            add(name)
    for beads, row in zip(molecule.bonds.tolist(), prior.bond_table.tolist(), strict=True):
        bond.addBond(*beads, row)
    for beads, row in zip(molecule.angles.tolist(), prior.angle_table.tolist(), strict=True):
        angle.addAngle(*beads, [row[3], row[0]])
    for beads, row in zip(molecule.dihedrals.tolist(), prior.dihedral_table.tolist(), strict=True):
        dihedral.addTorsion(*beads, row)
    n = prior.sigma.shape[0]
    repulsion = openmm.CustomNonbondedForce(
        "(sigma(t1,t2)/r)^6*w; w=1-x^3*(10-x*(15-6*x)); x=max(0,(r-switch)/(cutoff-switch))"
    )
    repulsion.addGlobalParameter("switch", prior.switch)
    repulsion.addGlobalParameter("cutoff", prior.cutoff)
    repulsion.addTabulatedFunction("sigma", openmm.Discrete2DFunction(n, n, prior.sigma.T.flatten().tolist()))
    repulsion.addPerParticleParameter("t")
    for kind in molecule.types.tolist():
        repulsion.addParticle([kind])
    for pair in excluded_pairs(molecule.bonds, molecule.n_beads, 4).tolist():
        repulsion.addExclusion(*pair)
    repulsion.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffNonPeriodic)
    repulsion.setCutoffDistance(prior.cutoff)
    for force in (bond, angle, dihedral, repulsion):
        system.addForce(force)
    return system


def test_energy_and_forces_are_those_of_openmm(crambin):
    molecule, parameters = crambin
    prior = CGPrior(molecule, parameters)
    context = openmm.Context(
        in_openmm(molecule, prior),
        openmm.VerletIntegrator(1e-3),
        openmm.Platform.getPlatformByName("Reference"),
    )
    rng = np.random.default_rng(0)
    frames = molecule.pos + 0.2 * rng.standard_normal((3, molecule.n_beads, 3))
    energy, forces = prior.energy_forces(torch.tensor(frames).view(-1, 3), n_replicas=3)
    for frame, e, f in zip(frames, energy, forces.view(3, -1, 3), strict=True):
        context.setPositions(frame)
        state = context.getState(energy=True, forces=True)
        assert float(e) == pytest.approx(state.getPotentialEnergy()._value, rel=1e-9)
        expected = state.getForces(asNumpy=True)._value
        np.testing.assert_allclose(f.numpy(), expected, atol=1e-6 * np.abs(expected).max())


def test_autograd_gives_the_same_forces_and_lists_change_nothing(crambin):
    molecule, parameters = crambin
    prior = CGPrior(molecule, parameters)
    pos = torch.tensor(molecule.pos).repeat(2, 1).requires_grad_()
    energy = prior(pos, n_replicas=2)
    (gradient,) = torch.autograd.grad(energy.sum(), pos)
    listed, forces = prior.energy_forces(
        pos.detach(), n_replicas=2, nlist=prior.neighbours(pos.detach(), n_replicas=2, skin=2.0)
    )
    torch.testing.assert_close(forces, -gradient, rtol=1e-10, atol=1e-9)
    torch.testing.assert_close(listed, energy.detach(), rtol=1e-12, atol=0)
    parts = prior.energies_by_part(pos.detach(), n_replicas=2)
    torch.testing.assert_close(sum(parts.values()), listed)


def test_special_classes_go_before_pooled_ones(crambin):
    molecule, parameters = crambin
    prior = CGPrior(molecule, parameters)
    kinds = np.array(molecule.topology.dihedral_kinds)
    residues = np.array([molecule.residues[molecule.residue_of[d[1]]].name for d in molecule.dihedrals])
    proline = np.nonzero((kinds == "phi") & (residues == "PRO"))[0]
    other = np.nonzero((kinds == "phi") & (residues != "PRO"))[0]
    assert len(proline) == 5
    assert prior.dihedral_table[proline, 0].tolist() == [0.3] * 5
    assert prior.dihedral_table[other, 0].unique().tolist() == [parameters.terms["any phi"].parameters[0]]


def test_parameters_survive_json_and_lacking_terms_are_named(crambin):
    molecule, parameters = crambin
    again = PriorParameters.from_json(parameters.to_json())
    torch.testing.assert_close(
        CGPrior(molecule, again).bond_table, CGPrior(molecule, parameters).bond_table, rtol=1e-6, atol=0
    )
    with pytest.raises(ValueError, match="no prior parameters"):
        PriorParameters.from_json("{}")
    terms = {name: term for name, term in parameters.terms.items() if name != "any omega"}
    with pytest.raises(ValueError, match="the prior has no term 'omega THR', nor 'any omega'"):
        CGPrior(molecule, PriorParameters(terms, "5bead", 300.0, 7.0, 4))
    with pytest.raises(ValueError, match="fitted on the 5bead map, the molecule is in the ca map"):
        CGPrior(read_pdb(example_structure("1ejg"), cg="ca"), parameters)


def test_bond_angle_and_dihedral_of_known_densities_are_recovered():
    """Samples of exact Boltzmann densities, Jacobians included: the parameters come back within 4 %."""
    n = 60_000
    r = drawn(lambda x: x**2 * np.exp(-120.0 * (x - 1.5) ** 2 / KT), 1.0, 2.0, n, 1)
    theta = drawn(lambda x: np.sin(x) * np.exp(-60.0 * (np.cos(x) + 0.4) ** 2 / KT), 0.5, 3.1, n, 2)
    phi = drawn(lambda x: np.exp(-(0.9 * np.cos(x) - 0.5 * np.sin(2 * x)) / KT), -math.pi, math.pi, n, 3)
    molecule = small_molecule(4, "ABCD", bonds=[(0, 1)], angles=[(0, 1, 2)], dihedrals=[(0, 1, 2, 3)])
    fitted = fit_prior([(molecule, planar_frames(r, theta, phi))], exclusion=9).terms
    assert fitted["bond A-B"].parameters == pytest.approx((120.0, 1.5), rel=0.04)
    assert fitted["angle A-B-C"].parameters == pytest.approx((60.0, -0.4), rel=0.04)
    sine, cosine = fitted["proper A-B-C-D"].parameters[1:5], fitted["proper A-B-C-D"].parameters[5:]
    np.testing.assert_allclose(sine, [0.0, -0.5, 0.0, 0.0], atol=0.04)
    np.testing.assert_allclose(cosine, [0.9, 0.0, 0.0, 0.0], atol=0.04)
    assert fitted["bond A-B"].count == n
    assert fitted["bond A-B"].residual < 0.1


def test_the_jacobian_matters():
    """Without dividing r² out, the equilibrium length of a soft bond would be too long by kT / (k r0)."""
    r = drawn(lambda x: x**2 * np.exp(-3.0 * (x - 2.0) ** 2 / KT), 0.2, 5.0, 200_000, 1)
    zero = np.zeros_like(r)
    molecule = small_molecule(2, "AB", bonds=[(0, 1)])
    frames = np.stack([np.stack([zero, zero, zero], -1), np.stack([r, zero, zero], -1)], 1)
    fitted = fit_prior([(molecule, frames)], exclusion=9).terms["bond A-B"]
    assert fitted.parameters[1] == pytest.approx(2.0, abs=0.02)
    assert r.mean() > 2.08


def test_repulsion_stands_where_the_pair_density_falls_off():
    """An ideal gas of pairs in a soft wall, g(r) = exp(-(3.2/r)^12): (σ/r)⁶ is n kT where g is exp(-n)."""
    r = drawn(lambda x: x**2 * np.exp(-((3.2 / np.maximum(x, 0.5)) ** 12)), 0.0, 8.0, 300_000, 1)
    zero = np.zeros_like(r)
    frames = np.stack([np.stack([zero, zero, zero], -1), np.stack([r, zero, zero], -1)], 1)
    sigma = fit_prior([(small_molecule(2, "AB"), frames)]).terms["repulsion A-B"].parameters[0]
    flank = 3.2 * CONTACT_LEVEL ** (-1 / 12)
    assert (sigma / flank) ** 6 == pytest.approx(CONTACT_LEVEL * KT, rel=0.15)


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (
            lambda rng: np.concatenate([rng.normal(1.3, 0.02, 3000), rng.normal(1.9, 0.02, 3000)]),
            "more than one peak",
        ),
        (lambda rng: rng.normal(1.5, 0.03, 10), "'bond A-B' has 10 samples, fewer than min_count=500"),
        (lambda rng: np.full(1000, 1.5), "a parabola needs 4"),
    ],
)
def test_hopeless_fits_are_refused_with_the_name_of_the_term(lengths, message):
    r = lengths(np.random.default_rng(0))
    zero = np.zeros_like(r)
    frames = np.stack([np.stack([zero, zero, zero], -1), np.stack([r, zero, zero], -1)], 1)
    with pytest.raises(ValueError, match=message) as error:
        fit_prior([(small_molecule(2, "AB", bonds=[(0, 1)]), frames)], exclusion=9)
    assert "bond A-B" in str(error.value)


def test_wrong_samples_are_refused():
    molecule = small_molecule(2, "AB", bonds=[(0, 1)])
    with pytest.raises(ValueError, match=r"\[frames, 2, 3\], got \[5, 3, 3\]"):
        fit_prior([(molecule, np.zeros((5, 3, 3)))])
    with pytest.raises(ValueError, match="one representation"):
        fit_prior([])
    with pytest.raises(ValueError, match="temperature must be positive"):
        fit_prior([(molecule, np.zeros((5, 2, 3)))], temperature=-1.0)


def test_trainable_coefficients_get_gradients(crambin):
    molecule, parameters = crambin
    prior = CGPrior(molecule, parameters, trainable=True)
    assert {n for n, _ in prior.named_parameters()} == {"bond_table", "angle_table", "dihedral_table"}
    prior(torch.tensor(molecule.pos)).sum().backward()
    expected = (np.linalg.norm(np.diff(molecule.pos[molecule.bonds], axis=1)[:, 0], axis=1)
                - prior.bond_table[:, 1].detach().numpy()) ** 2  # fmt: skip
    np.testing.assert_allclose(prior.bond_table.grad[:, 0], expected, atol=1e-12)
    assert all(not p.requires_grad for p in CGPrior(molecule, parameters).parameters())


def test_positions_of_another_molecule_are_refused(crambin):
    prior = CGPrior(*crambin)
    with pytest.raises(ValueError, match=r"must be \[replicas \* 226, 3\]"):
        prior.energy_forces(torch.zeros(225, 3))
    with pytest.raises(ValueError, match="n_replicas is 2, pos holds 1"):
        prior.energy_forces(torch.zeros(226, 3), n_replicas=2)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_energy_does_not_change_under_rigid_motion_but_under_reflection(crambin, seed):
    molecule, parameters = crambin
    prior = CGPrior(molecule, parameters)
    rng = np.random.default_rng(seed)
    rotation, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    rotation *= np.sign(np.linalg.det(rotation))
    pos = molecule.pos + 0.1 * rng.standard_normal(molecule.pos.shape)
    energy, forces = prior.energy_forces(torch.tensor(pos))
    moved, turned = prior.energy_forces(torch.tensor(pos @ rotation.T + rng.uniform(-50, 50, 3)))
    torch.testing.assert_close(moved, energy, rtol=1e-9, atol=0)
    torch.testing.assert_close(turned, forces @ torch.tensor(rotation.T), rtol=1e-6, atol=1e-6)
    mirrored = prior.energies_by_part(torch.tensor(pos * [1.0, 1.0, -1.0]))
    parts = prior.energies_by_part(torch.tensor(pos))
    torch.testing.assert_close(mirrored["angle"], parts["angle"], rtol=1e-9, atol=0)
    assert abs(float(mirrored["dihedral"] - parts["dihedral"])) > 1e-3
