"""Hamiltonians against Kronecker products, closed forms and full configuration interaction."""

from __future__ import annotations

import json
import math
import tracemalloc
from functools import reduce

import numpy as np
import pytest
import torch
from icml_mpvmc import Sector, exact
from icml_mpvmc.hamiltonian import enumerate_spins, state_numbers
from icml_mpvmc.hamiltonians import (
    J1J2,
    TFIM,
    Heisenberg,
    PauliSum,
    from_molecule,
    from_netket,
    from_scipy,
)
from icml_mpvmc.lattices import neighbours
from icml_mpvmc.problem_files import lattice, read_hamiltonian, read_shape
from scipy import sparse

MATRICES = {
    "I": np.eye(2),
    "X": np.array([[0, 1], [1, 0]]),
    "Y": np.array([[0, -1j], [1j, 0]]),
    "Z": np.diag([1, -1]),
}


def dense(terms):
    """By Kronecker products."""
    return sum(c * reduce(np.kron, [MATRICES[letter] for letter in word]) for word, c in terms)


def test_matrix_elements_are_those_of_rows():
    """100 random sums with Y, not Hermitian: ⟨x|O|x'⟩ is row x, column x' of the dense matrix."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 5))
        words = ["".join(rng.choice(list("IXYZ"), n)) for _ in range(rng.integers(1, 7))]
        terms = [(w, complex(*rng.normal(size=2))) for w in words]
        H = PauliSum(terms, hermitian=False)
        np.testing.assert_allclose(H.to_sparse().toarray(), dense(terms), atol=1e-12)


def test_hermitian_sums_are_known_as_such():
    H = PauliSum([("XY", 0.5), ("YX", 0.5), ("ZI", 1.0)])
    assert H.is_hermitian
    assert not H.is_real
    assert PauliSum([("YY", 1.0)]).is_real
    with pytest.raises(
        ValueError, match="not Hermitian: the largest asymmetry is 2, of the term that flips spins 0"
    ):
        PauliSum([("XZ", 1j), ("ZZ", 3.0)])


def test_all_forms_of_a_sum_are_one():
    word = PauliSum([("ZZI", 1.0), ("IXI", -0.5)])
    places = PauliSum([("ZZ", (0, 1), 1.0), ("X", (1,), -0.5)], 3)
    openfermion = PauliSum({((0, "Z"), (1, "Z")): 1.0, ((1, "X"),): -0.5}, 3)
    pennylane = PauliSum([({0: "Z", 1: "Z"}, 1.0), ({1: "X"}, -0.5)], 3)
    many = PauliSum([("ZZ", np.array([[0, 1]]), [1.0]), ("X", np.array([[1]]), -0.5)], 3)
    strings = PauliSum({"ZZI": 1.0, "IXI": -0.5})
    for H in (places, openfermion, pennylane, many, strings):
        np.testing.assert_array_equal(H.to_sparse().toarray(), word.to_sparse().toarray())


def test_equal_flips_are_one_connection():
    n = 32
    terms = [("ZX", (i, k), 1.0) for i in range(n) for k in range(n) if i != k]
    H = PauliSum(terms, n, hermitian=False)
    assert (H.n_connected, H.n_terms) == (n, n * (n - 1))
    x = torch.ones(1, n, dtype=torch.int8)
    x[0, :4] = -1
    expected = x.double().sum() - x.double()
    torch.testing.assert_close(H.elements(x)[:, torch.argsort(H.flip_sites)], expected)


def test_a_hundred_thousand_bonds_fit_into_50_megabytes():
    tracemalloc.start()
    bonds = np.stack([np.arange(100_000), (np.arange(100_000) + 1) % 100_000], 1)
    terms = [(w, bonds, 1.0) for w in ("XX", "YY", "ZZ")]
    H = PauliSum(terms, 100_000)
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert H.n_connected == 100_000
    assert H.nbytes < 50e6
    assert held < 50e6


@pytest.mark.parametrize(("n", "J", "h"), [(4, 1.0, 1.0), (8, 1.0, 0.5), (10, 2.0, 3.0), (12, -1.0, 1.0)])
def test_ising_chains_are_free_fermions(n, J, h):
    assert exact.ground_energy(TFIM(n, J, h)) == pytest.approx(
        exact.tfim_chain_energy(n, abs(J), h), rel=1e-10
    )


def test_known_energies_of_ising_chains():
    assert exact.tfim_chain_energy(16, 1.0, 0.5) == pytest.approx(-17.016712, abs=1e-6)
    assert exact.tfim_chain_energy(64) == pytest.approx(-81.495513, abs=1e-6)
    assert exact.tfim_chain_energy(128, 1.0, 0.5) == pytest.approx(-136.133684, abs=1e-6)
    with pytest.raises(ValueError, match="even chains"):
        exact.tfim_chain_energy(7)


def test_heisenberg_chains_with_and_without_the_sign_rule():
    """Four spins: -2 J in units of the spin-1/2 form, -8 here; ten: -4.515446 (Bethe) times 4."""
    assert exact.ground_energy(Heisenberg(4)) == pytest.approx(-8.0)
    for marshall in (True, False):
        H = Heisenberg(10, marshall=marshall)
        assert exact.ground_energy(H) == pytest.approx(4 * -4.515446354, abs=1e-7)
    amplitudes = exact.ground_state_vector(Heisenberg(8))[1]
    assert (amplitudes * np.sign(amplitudes[0]) > 0).all()


def test_majumdar_and_ghosh():
    """At J2 = J1/2 a chain's ground energy is exactly -3/8 a spin, -3/2 here."""
    for marshall in (True, False):
        assert exact.ground_energy(J1J2(8, 1.0, 0.5, marshall=marshall)) == pytest.approx(-1.5 * 8)


def test_lattices():
    assert len(neighbours((4, 4))) == 32
    assert len(neighbours((4, 4), pbc=False)) == 24
    assert len(neighbours((2,))) == 1
    assert J1J2((4, 4)).n_spins == 16
    with pytest.raises(ValueError, match="odd number of spins"):
        Heisenberg(5)
    assert Heisenberg(5, total_sz=0.5).sectors == (Sector((0, 1, 2, 3, 4), 1),)
    with pytest.raises(ValueError, match="no two sublattices"):
        Heisenberg(5, total_sz=0.5, marshall=True)
    with pytest.raises(ValueError, match="multiple of 1/2"):
        Heisenberg(4, total_sz=0.3)
    with pytest.raises(ValueError, match="shape"):
        TFIM(0)


@pytest.mark.parametrize("kind", ["real", "complex"])
def test_sparse_matrices(kind):
    rng = np.random.default_rng(1)
    a = rng.normal(size=(16, 16)) * (rng.random((16, 16)) < 0.3)
    a = a + (1j * rng.normal(size=(16, 16)) * (a != 0) if kind == "complex" else 0)
    matrix = sparse.csr_array(a + a.conj().T)
    H = from_scipy(matrix)
    np.testing.assert_allclose(H.to_sparse().toarray(), matrix.toarray())
    assert H.is_real == (kind == "real")
    assert H.n_spins == 4
    matrix[0, 1] += 0.25
    with pytest.raises(ValueError, match="largest asymmetry is 0.25"):
        from_scipy(matrix)
    with pytest.raises(ValueError, match=r"expected 2\*\*n rows"):
        from_scipy(np.eye(6))
    with pytest.raises(ValueError, match="not finite"):
        from_scipy(np.diag([np.nan, 0.0]))


class LikeNetKet:
    """What NetKet's operators offer, for H = Σ σz σz - h Σ σx on a ring."""

    is_hermitian, dtype, max_conn_size = True, np.float64, 5

    class hilbert:
        size, local_states = 4, (-1.0, 1.0)

    def get_conn_padded(self, x):
        n = x.shape[1]
        flipped = np.repeat(x[:, None, :], n + 1, 1)
        flipped[:, np.arange(1, n + 1), np.arange(n)] *= -1
        elements = np.full((len(x), n + 1), -0.7)
        elements[:, 0] = (x * np.roll(x, 1, 1)).sum(1)
        return flipped, elements


def test_operators_of_netket():
    found = from_netket(LikeNetKet()).to_sparse().toarray()
    np.testing.assert_allclose(found, TFIM(4, 1.0, 0.7).to_sparse().toarray())
    with pytest.raises(TypeError, match="get_conn_padded"):
        from_netket(object())
    other = LikeNetKet()
    other.is_hermitian = False
    with pytest.raises(ValueError, match="not Hermitian"):
        from_netket(other)


@pytest.mark.parametrize(
    ("atoms", "spin"),
    [
        ("H 0 0 0; H 0 0 0.74", 0),
        ("He 0 0 0; H 0 0 0.8", 0),
        ("H 0 0 0; H 0 0 1; H 0 0 2; H 0 0 3", 0),
        ("H 0 0 0; H 0 0 0.9; H 0 0.8 0", 1),
    ],
)
def test_molecules_have_the_energy_of_full_configuration_interaction(atoms, spin):
    pyscf = pytest.importorskip("pyscf")
    from pyscf import fci

    charge = 1 if "He" in atoms else 0
    molecule = pyscf.gto.M(atom=atoms, basis="sto-3g", charge=charge, spin=spin, verbose=0)
    field = (pyscf.scf.RHF if spin == 0 else pyscf.scf.ROHF)(molecule).run(verbose=0)
    solver = fci.FCI(field)
    solver.verbose = 0
    expected = solver.kernel(nelec=molecule.nelec)[0]
    H = from_molecule(field)
    assert H.is_real
    assert exact.ground_energy(H) == pytest.approx(expected, abs=1e-8)
    assert H.n_spins == 2 * molecule.nao


def test_states_are_numbered_as_in_kronecker_products():
    x = enumerate_spins(3)
    assert x[0].tolist() == [1, 1, 1]
    assert x[1].tolist() == [1, 1, -1]
    assert state_numbers(x).tolist() == list(range(8))
    inside = enumerate_spins(4, (Sector((0, 1), 0), Sector((2, 3), 2)))
    assert inside.tolist() == [[1, -1, 1, 1], [-1, 1, 1, 1]]
    with pytest.raises(ValueError, match=r"2\*\*25 states"):
        enumerate_spins(25)
    with pytest.raises(ValueError, match="different spins"):
        PauliSum([("ZZ", 1.0)], sectors=[Sector((0,), 1), Sector((0,), 1)])


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "needs a term"),
        ([("ZQ", 1.0)], "letters other than"),
        ([("ZZ", (0, 0), 1.0)], "names a spin twice"),
        ([("ZZ", (0, -1), 1.0)], "names spin -1"),
        ([("Z", math.nan)], "not finite"),
        ([("Z",)], "neither"),
        ({((0, "Z"), (0, "X")): 1.0}, "names spin 0 twice"),
    ],
)
def test_bad_terms_are_named(terms, message):
    with pytest.raises(ValueError, match=message):
        PauliSum(terms)


def test_files(tmp_path):
    matrix = TFIM(3).to_sparse()
    sparse.save_npz(tmp_path / "h.npz", sparse.csr_matrix(matrix))
    np.testing.assert_allclose(read_hamiltonian(tmp_path / "h.npz").to_sparse().toarray(), matrix.toarray())
    (tmp_path / "h.json").write_text(json.dumps({"ZZ": 1.0, "XI": -0.5}))
    assert read_hamiltonian(tmp_path / "h.json").n_spins == 2
    (tmp_path / "l.json").write_text(json.dumps([["ZZ", [0, 3], 1.0], ["X", [1], 0.5]]))
    assert read_hamiltonian(tmp_path / "l.json").n_spins == 4
    (tmp_path / "bad.json").write_text("[1, 2]")
    for name in ("bad.json", "none.json", "h.txt"):
        (tmp_path / "h.txt").write_text("x")
        with pytest.raises((ValueError, FileNotFoundError), match=name):
            read_hamiltonian(tmp_path / name)
    (tmp_path / "pickle.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match="no sparse matrix"):
        read_hamiltonian(tmp_path / "pickle.npz")
    assert read_shape("10x10") == (10, 10)
    for text in ("0", "x", "10x", "9999x9999", "-3"):
        with pytest.raises(ValueError, match="--shape"):
            read_shape(text)
    assert lattice("j1j2", (4,)).n_spins == 4
