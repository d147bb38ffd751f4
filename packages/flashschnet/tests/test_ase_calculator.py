"""The ASE calculator and periodic cells: finite differences, supercells, open axes, ASE's integrator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import make_supercell
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.md.verlet import VelocityVerlet
from icml_flashschnet import FlashSchNetCalculator, compress, periodic_pairs, to_ase
from icml_flashschnet.demo import demo_model, demo_prior
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.prior import CGPrior
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.structure import example_structure, read_pdb

KCAL = units.kcal / units.mol


@pytest.fixture(scope="module")
def network() -> FlashSchNet:
    config = SchNetConfig(n_types=5, hidden=16, filters=16, n_rbf=12, layers=2, r_cut=5.0, out=(16,))
    return FlashSchNet(config, seed=3).double()


@pytest.fixture
def crystal() -> Atoms:
    """Seven beads in a triclinic cell smaller than twice the cutoff, some outside of it."""
    rng = np.random.default_rng(4)
    cell = np.array([[6.0, 0.0, 0.0], [1.5, 5.5, 0.0], [-1.0, 0.8, 6.5]])
    scaled = (np.arange(7)[:, None] * np.array([0.37, 0.61, 0.23]) + 0.03 * rng.random((7, 3))) % 1.0
    atoms = Atoms("C7", positions=scaled @ cell, cell=cell, pbc=True)
    atoms.positions[0] += cell[0] - 2 * cell[2]
    atoms.set_array("bead_types", np.arange(7) % 5)
    return atoms


@pytest.mark.parametrize("kernel", ["auto", "torch"])
@pytest.mark.parametrize("tables", [False, True])
def test_forces_and_stress_are_the_slopes_of_the_energy(network, crystal, kernel, tables):
    model = compress(network, tol=1e-9)[0] if tables else network
    model.kernel = kernel
    crystal.calc = FlashSchNetCalculator(model)
    expected = calculate_numerical_forces(crystal, eps=1e-4)
    np.testing.assert_allclose(crystal.get_forces(), expected, atol=2e-7)
    np.testing.assert_allclose(crystal.get_stress(), calculate_numerical_stress(crystal, eps=1e-5), atol=2e-7)
    model.kernel = "auto"


def test_a_supercell_has_as_many_times_the_energy_and_the_same_forces_and_stress(network, crystal):
    crystal.calc = FlashSchNetCalculator(network)
    large = make_supercell(crystal, np.diag([2, 1, 3]))
    large.calc = FlashSchNetCalculator(network)
    np.testing.assert_allclose(large.get_potential_energy(), 6 * crystal.get_potential_energy(), rtol=1e-12)
    np.testing.assert_allclose(large.get_stress(), crystal.get_stress(), atol=1e-12)
    np.testing.assert_allclose(
        np.linalg.norm(large.get_forces(), axis=1).reshape(-1, 7), np.linalg.norm(
            np.tile(crystal.get_forces(), (6, 1, 1)), axis=2
        ), atol=1e-10,
    )  # fmt: skip


def test_open_axes_ignore_the_cell(network, crystal):
    crystal.pbc = False
    crystal.calc = FlashSchNetCalculator(network)
    expected = crystal.get_potential_energy()
    crystal.cell = np.eye(3)
    assert crystal.get_potential_energy() == pytest.approx(expected, rel=1e-12)
    slab = crystal.copy()
    slab.set_cell([[6.0, 0, 0], [1.5, 5.5, 0], [0, 0, 1.0]])
    slab.pbc = (True, True, False)
    slab.calc = FlashSchNetCalculator(network)
    far = slab.copy()
    far.set_cell([[6.0, 0, 0], [1.5, 5.5, 0], [0, 0, 200.0]])
    far.pbc = True
    far.calc = FlashSchNetCalculator(network)
    np.testing.assert_allclose(slab.get_forces(), far.get_forces(), atol=1e-12)


def test_pairs_are_those_of_all_images_by_brute_force(crystal):
    pos, cell = torch.tensor(crystal.positions), torch.tensor(crystal.cell.array)
    pairs, images = periodic_pairs(pos, 5.0, cell, torch.tensor([True, True, True]))
    i, j = pairs.ij()
    found = (pos[j] - pos[i] + images.double() @ cell).norm(dim=1).numpy()
    reach = np.stack(np.meshgrid(*[np.arange(-6, 7)] * 3, indexing="ij"), -1).reshape(-1, 3) @ cell.numpy()
    apart = np.linalg.norm(pos.numpy()[None, :, None] - pos.numpy()[:, None, None] + reach, axis=-1)
    each = np.sort(apart[(apart > 1e-9) & (apart < 5.0)])
    np.testing.assert_allclose(np.sort(np.repeat(found, 2)), each, rtol=1e-12)


def test_a_protein_keeps_its_energy_under_ase_and_lists_are_kept():
    molecule = read_pdb(example_structure("1ejg"))
    saved = demo_model()
    potential = SumPotential(saved.network.double(), CGPrior(molecule, demo_prior()))
    atoms = to_ase(molecule)
    atoms.calc = FlashSchNetCalculator(potential)
    energy, forces = potential.energy_forces(torch.tensor(molecule.pos), torch.tensor(molecule.types))
    assert atoms.get_potential_energy() == pytest.approx(float(energy) * KCAL, rel=1e-12)
    np.testing.assert_allclose(atoms.get_forces(), forces.numpy() * KCAL, rtol=1e-12)
    pairs = atoms.calc._pairs
    before = atoms.get_total_energy()
    VelocityVerlet(atoms, 1 * units.fs).run(20)
    assert atoms.get_kinetic_energy() > 0.01
    assert abs(atoms.get_total_energy() - before) < 0.02 * atoms.get_kinetic_energy()
    assert atoms.calc._pairs is pairs  # nothing has moved by half the skin
    atoms.positions[3] += 0.6
    atoms.get_potential_energy()
    assert atoms.calc._pairs is not pairs


def test_a_model_in_other_units_gives_the_same(crystal):
    """A model that thinks in nm and kJ/mol is fed nm: its cutoff of 0.5 is 5 Å."""
    config = SchNetConfig(n_types=5, hidden=8, filters=8, n_rbf=8, layers=1, r_cut=0.5, out=(8,))
    model = FlashSchNet(config, seed=1).double()
    crystal.calc = FlashSchNetCalculator(model, units="kJ/mol/nm")
    pos = torch.tensor(crystal.positions / 10)
    pairs, images = periodic_pairs(pos, 0.5, torch.tensor(crystal.cell.array / 10), torch.ones(3, dtype=bool))
    shift = images.double() @ torch.tensor(crystal.cell.array / 10)
    energy = model(pos, torch.tensor(crystal.arrays["bead_types"]), nlist=pairs, shift=shift)
    assert crystal.get_potential_energy() == pytest.approx(float(energy) * units.kJ / units.mol, rel=1e-9)
    np.testing.assert_allclose(crystal.get_forces(), calculate_numerical_forces(crystal, eps=1e-4), atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, n: a.arrays.pop("bead_types"), "carry no bead types"),
        (lambda a, n: setattr(a, "pbc", (True, False, True)), "stress needs three periodic axes"),
        (lambda a, n: setattr(a, "calc", FlashSchNetCalculator(n, types=[1, 2])), "2 bead types for 7 atoms"),
        (lambda a, n: setattr(a, "calc", FlashSchNetCalculator(SumPotential(n))), "takes no periodic cell"),
    ],
)
def test_what_cannot_be_computed_is_said(network, crystal, change, message):
    crystal.calc = FlashSchNetCalculator(network)
    change(crystal, network)
    with pytest.raises(ValueError, match=message):
        crystal.get_stress()


def test_bad_options_are_named(network):
    with pytest.raises(ValueError, match="skin must be at least 0"):
        FlashSchNetCalculator(network, skin=-1.0)
    with pytest.raises(ValueError, match="'furlong'"):
        FlashSchNetCalculator(network, units="furlong")
