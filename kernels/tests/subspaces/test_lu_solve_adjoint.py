"""Solves with the adjoint of sparse factors against NumPy and SuperLU."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from icml_kernels.subspaces.lu_solve_adjoint import SparseFactors, lu_solve_adjoint, sparse_factors
from icml_kernels.testing import check_raw_ops, use_route
from scipy.sparse.linalg import splu

DTYPES = [np.float64, np.float32, np.complex128, np.complex64]


def numbers(shape, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape)
    return (x + 1j * rng.normal(size=shape) if np.issubdtype(dtype, np.complexfloating) else x).astype(dtype)


def parts(m):
    m = sp.csc_array(m)
    return [torch.from_numpy(x) for x in (m.data, m.indices.astype(np.int32), m.indptr.astype(np.int32))]


def factors(n, dtype, *, stored=True, order=None) -> tuple[SparseFactors, np.ndarray]:
    """Well conditioned, with their product."""
    x = numbers((n, n), dtype, 0) * (np.random.default_rng(1).random((n, n)) < 0.4) / n
    lower, upper = np.tril(x, -1), np.triu(x, 1)
    diagonal = (2 + numbers(n, dtype, 2) / 4).astype(dtype)
    one = np.eye(n, dtype=dtype)
    given = (lower + one, upper + np.diag(diagonal)) if stored else (lower, upper)
    made = sparse_factors(*parts(given[0]), *parts(given[1]), torch.from_numpy(diagonal), order)
    return made, (lower + one) @ (upper + np.diag(diagonal))


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "b"), [(1, 1), (7, 3), (40, 8), (33, 21), (5, 0)])
@pytest.mark.parametrize("stored", [True, False])
def test_solutions_are_those_of_the_dense_adjoint(n, b, dtype, stored, route):
    made, product = factors(n, dtype, stored=stored)
    rhs = numbers((n, b), dtype, 3)
    with use_route(route):
        found = lu_solve_adjoint(made, torch.from_numpy(rhs)).numpy()
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(found, np.linalg.solve(product.conj().T, rhs), atol=200 * eps, rtol=200 * eps)


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_rows_in_another_order(route):
    order = torch.from_numpy(np.random.default_rng(4).permutation(20))
    made, product = factors(20, np.float64, order=order)
    rhs = numbers((20, 5), np.float64, 5)
    with use_route(route):
        found = lu_solve_adjoint(made, torch.from_numpy(rhs)).numpy()
    expected = np.empty_like(rhs)
    expected[order] = np.linalg.solve(product.T, rhs[order])
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("columns", ["C", "F"])
def test_the_factors_of_superlu_solve_a_symmetric_matrix(columns):
    line = sp.diags_array([[-1.0] * 29, [2.3] * 30, [-1.0] * 29], offsets=[-1, 0, 1])
    A = sp.csc_array(
        sp.kron(line, sp.eye_array(30)) + sp.kron(sp.eye_array(30), line) - 1.7 * sp.eye_array(900)
    )
    lu = splu(A, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    assert np.array_equal(lu.perm_r, lu.perm_c)
    order = torch.from_numpy(np.argsort(lu.perm_r))
    made = sparse_factors(*parts(lu.L), *parts(lu.U), torch.from_numpy(lu.U.diagonal()), order)
    rhs = np.asarray(numbers((900, 11), np.float64, 6), order=columns)
    found = lu_solve_adjoint(made, torch.from_numpy(rhs)).numpy()
    np.testing.assert_allclose(found, lu.solve(rhs), rtol=1e-9, atol=1e-9 * abs(found).max())


def test_raw_operator_is_well_formed():
    made, _ = factors(6, np.float64)
    assert check_raw_ops(lambda: lu_solve_adjoint(made, torch.ones(6, 2, dtype=torch.float64)), ()) == {
        "icml::lu_solve_adjoint"
    }


def test_bad_arguments_are_named():
    made, _ = factors(6, np.float64)
    given = list(made[:7])
    with pytest.raises(TypeError, match=r"b has dtype torch.float32"):
        lu_solve_adjoint(made, torch.ones(6, 2))
    with pytest.raises(ValueError, match=r"b has shape \[5, 2\]; expected \[6"):
        lu_solve_adjoint(made, torch.ones(5, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"l_indices has dtype torch.int64"):
        sparse_factors(given[0], given[1].long(), *given[2:])
    with pytest.raises(ValueError, match="l_indptr must rise"):
        sparse_factors(*given[:2], given[2].flip(0), *given[3:])
    with pytest.raises(ValueError, match="l_indices leave the lower triangle"):
        sparse_factors(given[3], given[4], given[5], *given[3:])
    with pytest.raises(ValueError, match="do not fit a diagonal of 5"):
        sparse_factors(*given[:6], given[6][:5])
    with pytest.raises(ValueError, match="expected a permutation of 6 rows"):
        sparse_factors(*given, torch.zeros(6, dtype=torch.int64))
