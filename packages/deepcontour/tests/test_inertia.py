"""Counts by inertia against dense LAPACK, closed forms, and pencils that are singular or indefinite."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from icml_deepcontour import certify
from icml_deepcontour.datasets import elastic_block, laplacian, piezo, plate, uniform_plate
from icml_deepcontour.factorization import Factorizer
from icml_deepcontour.inertia import definiteness
from icml_deepcontour.pencil import Pencil
from scipy.sparse.linalg import LinearOperator


@pytest.mark.parametrize("k", [20, 40, 55])
def test_counts_of_a_plate_equal_the_position_of_dense_eigenvalues(k):
    given = plate(24, 3)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
    count = certify(given.A, given.B, b=float(exact[k - 1] + exact[k]) / 2)
    assert (count.n, count.exact) == (k, True)
    assert (
        certify(given.A, given.B, float(exact[4]), float(exact[k])).n == k - 4
    )  # half-open: [lambda_4, lambda_k)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.integers(5, 40), st.floats(-3, 3), st.floats(0.01, 3))
def test_counts_of_random_pencils_are_those_of_their_eigenvalues(seed, n, a, width):
    rng = np.random.default_rng(seed)
    dense = rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.3)
    A = dense + dense.T
    root = np.eye(n) + 0.3 * rng.normal(size=(n, n)) * (rng.random((n, n)) < 0.2)
    B = root @ root.T
    exact = scipy.linalg.eigh(A, B, eigvals_only=True)
    assume(min(np.abs(exact - a).min(), np.abs(exact - a - width).min()) > 1e-8)
    count = certify(sp.csr_array(A), sp.csr_array(B), a, a + width)
    assert count.exact
    assert count.n == int(((exact >= a) & (exact < a + width)).sum())


def test_a_bound_that_is_an_eigenvalue_belongs_above_it():
    A = sp.diags_array([1.0, 2.0, 2.0, 5.0])
    assert [certify(A, None, a, b).n for a, b in ((1, 2), (2, 5), (2, 5.1), (0, 1))] == [1, 2, 3, 0]
    mu = 4 * 26**2 * np.sin(np.pi * np.arange(1, 26) / 52) ** 2
    exact = np.sort(((mu[:, None] + mu) ** 2).ravel())
    given = uniform_plate(25)
    for k in (1, 3, 9):
        assert certify(given.A, given.B, b=float(exact[k])).n == int((exact < exact[k] * (1 - 1e-9)).sum())


def test_missed_and_duplicate_values_are_reported():
    A = sp.diags_array(np.arange(1.0, 31.0))
    count = certify(A, None, 0.5, 10.5, eigenvalues=[1, 2, 3, 5, 6, 7, 8, 9, 10])
    assert (count.n, count.missed, count.duplicates) == (10, 1, 0)
    assert certify(A, None, 0.5, 2.5, eigenvalues=[1, 1, 2]).duplicates == 1


def test_six_rigid_modes_of_a_free_block_are_counted_as_not_below_zero():
    block = elastic_block((3, 3, 3))
    exact = scipy.linalg.eigh(block.A.toarray(), block.B.toarray(), eigvals_only=True)
    assert (np.abs(exact[:6]) < 1e-10).all()
    assert exact[6] > 1e-2
    assert certify(block.A, block.B, b=0.0).n == 0
    assert certify(block.A, block.B, 0.0, float(exact[6]) / 2).n == 6
    assert certify(block.A, block.B, 1e-6, float(exact[6]) * 1.01).n >= 1


def test_infinite_eigenvalues_are_left_out():
    given = piezo(6, 0)
    pencil = Pencil.of(given.A, given.B)
    kind = definiteness(pencil, Factorizer(pencil))
    massless = int((given.B.diagonal() == 0).sum())
    assert (kind.infinite, kind.base, kind.exact) == (massless, massless, True)
    condensed = piezo(6, 0, condensed=True)
    exact = scipy.linalg.eigh(condensed.A.toarray(), condensed.B.toarray(), eigvals_only=True)
    assert certify(given.A, given.B).n == len(exact)
    assert certify(given.A, given.B, b=float(exact[9] + exact[10]) / 2).n == 10


def test_null_vectors_of_b_that_are_no_rows_are_found():
    rng = np.random.default_rng(0)
    n, rank = 30, 22
    root = rng.normal(size=(n, rank))
    B = root @ root.T
    dense = rng.normal(size=(n, n))
    A = dense @ dense.T + np.eye(n)
    inverse = scipy.linalg.eigh(B, A, eigvals_only=True)
    finite = np.sort(1 / inverse[inverse > 1e-10])
    pencil = Pencil.of(A, B)
    kind = definiteness(pencil, Factorizer(pencil))
    assert (kind.infinite, kind.base) == (n - rank, 0)
    assert certify(A, B, b=float(finite[7] + finite[8]) / 2).n == 8


def test_complex_hermitian_pencils_are_counted():
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(40, 40)) + 1j * rng.normal(size=(40, 40))
    A = dense + dense.conj().T
    exact = np.linalg.eigvalsh(A)
    assert certify(A, None, b=float(exact[11] + exact[12]) / 2).n == 12


def test_a_shift_that_hits_an_eigenvalue_is_moved_and_logged(caplog):
    pencil = Pencil.of(sp.diags_array([1.0, 2.0, 3.0]))
    with caplog.at_level(logging.INFO, logger="icml_deepcontour.factorization"):
        factor = Factorizer(pencil)(2.0, spacing=1.0)
    assert factor.negative == 1
    assert 0 < 2.0 - factor.shift < 1e-6
    assert "hits an eigenvalue" in caplog.text


def test_pivots_off_the_diagonal_are_not_trusted(monkeypatch):
    """A saddle point has zeros on the diagonal: dense inertia where it is small, else a reason."""
    C = sp.csr_array(np.array([[1.0, -1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]]))
    A = sp.csc_array(sp.block_array([[sp.diags_array([1.0, 2.0, 3.0, 4.0]), C.T], [C, None]]))
    exact = np.linalg.eigvalsh(A.toarray())
    factor = Factorizer(Pencil.of(A))(0.0)
    assert factor.negative == int((exact < factor.shift).sum())
    tiny = sp.csc_array(np.array([[1e-9, 1.0], [1.0, 1e-9]]))  # pivots 1e-9 and -1e9: too much growth
    assert (Factorizer(Pencil.of(tiny))(0.0).negative, Factorizer(Pencil.of(tiny))(0.0).exact) == (1, True)
    monkeypatch.setattr("icml_deepcontour.factorization.DENSE", 0)
    found = Factorizer(Pencil.of(tiny))(0.0)
    assert not found.exact
    assert "lose too many digits" in found.reason


@pytest.mark.parametrize(
    ("A", "B", "bounds", "error", "message"),
    [
        (np.eye(3), None, (2, 1), ValueError, "give a < b"),
        (np.eye(3), None, (np.nan, 1), ValueError, "give a < b"),
        (np.ones((2, 3)), None, (0, 1), ValueError, r"A has shape \[2, 3\]; expected \[n, n\]"),
        (np.eye(3), np.eye(2), (0, 1), ValueError, "a pencil needs equal shapes"),
        (np.diag([1.0, np.inf]), None, (0, 1), ValueError, "A has 1 entries that are not finite"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), None, (0, 1), ValueError, "A is not Hermitian"),
        (np.eye(3), np.diag([1.0, 1.0, -3e-2]), (0, 1), ValueError, "B has negative curvature -3.00e-02"),
        (np.eye(3), np.zeros((3, 3)), (0, 1), ValueError, "B is zero"),
        (np.array(["a"]), None, (0, 1), TypeError, "expected a sparse or dense square matrix"),
        (LinearOperator((3, 3), matvec=lambda x: x), None, (0, 1), TypeError, "pass a scipy.sparse matrix"),
    ],
)
def test_bad_input_says_what_to_do(A, B, bounds, error, message):
    with pytest.raises(error, match=message):
        certify(A, B, *bounds)


def test_negative_curvature_off_the_diagonal_is_seen():
    B = np.eye(6)
    B[0, 1] = B[1, 0] = 1.03
    with pytest.raises(ValueError, match=r"negative curvature -3\.0.e-02.*cirr"):
        certify(np.eye(6), B, 0, 1)


def test_a_common_null_vector_is_named():
    A, B = sp.diags_array([1.0, 2.0, 0.0]), sp.diags_array([1.0, 1.0, 0.0])
    with pytest.raises(np.linalg.LinAlgError, match="share a null vector"):
        certify(A, B, 0, 3)


def test_counts_of_a_box_are_those_of_the_closed_form():
    lines = [4 * (n + 1) ** 2 * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1))) ** 2 for n in (7, 8, 9)]
    exact = np.sort((lines[0][:, None, None] + lines[1][:, None] + lines[2]).ravel())
    assert certify(laplacian((7, 8, 9)), None, b=float(exact[60] + exact[61]) / 2).n == 61
