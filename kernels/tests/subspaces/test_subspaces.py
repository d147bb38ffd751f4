"""Orthogonalisation, moments and sparse products against LAPACK, NumPy and SciPy."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from icml_kernels import block_b_orth, moment_accumulate, moment_accumulate_, spmm_csr
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route, use_route


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def inner_product(n: int, dtype: torch.dtype) -> torch.Tensor:
    root = random(n, n, seed=9, dtype=dtype)
    return root @ root.mH / n + torch.eye(n, dtype=dtype)


def basis(n: int, m: int, B: torch.Tensor) -> torch.Tensor:
    """m columns with Q^H B Q = I."""
    q = torch.linalg.qr(random(n, m, seed=1, dtype=B.dtype)).Q
    lower = torch.linalg.cholesky(q.mH @ B @ q)
    return torch.linalg.solve_triangular(lower, q.mH, upper=False).mH


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize(("m", "b"), [(0, 4), (10, 1), (25, 8)])
@pytest.mark.parametrize("route", ["auto", "reference"])
def test_blocks_become_orthonormal_and_are_given_back(m, b, dtype, route):
    B = inner_product(50, dtype)
    q, w = basis(50, m, B), random(50, b, seed=2, dtype=dtype)
    with use_route(route):
        found = block_b_orth(q, B @ q, w, B @ w)
    eye = torch.eye(b, dtype=dtype)
    torch.testing.assert_close(found.w.mH @ B @ found.w, eye, rtol=0, atol=1e-12)
    assert m == 0 or float((q.mH @ B @ found.w).abs().max()) < 1e-12
    torch.testing.assert_close(q @ found.c + found.w @ found.r, w, rtol=0, atol=1e-12)


def test_both_routes_span_the_same_space():
    B = inner_product(40, torch.float64)
    q, w = basis(40, 12, B), random(40, 5, seed=3)
    results = []
    for route in ("auto", "reference"):
        with use_route(route):
            results.append(block_b_orth(q, B @ q, w, B @ w))
    torch.testing.assert_close(results[0].c, results[1].c, rtol=0, atol=1e-12)
    torch.testing.assert_close(results[0].w @ results[0].r, results[1].w @ results[1].r, rtol=0, atol=1e-12)


def test_dependent_columns_become_zeros():
    w = random(30, 3)
    q = torch.linalg.qr(random(30, 4, seed=1)).Q
    given = torch.cat([w, w @ random(3, 2, seed=4), q[:, :1]], dim=1)
    found = block_b_orth(q, q, given, given)
    kept = (found.r != 0).any(1)
    assert kept.tolist() == [True] * 3 + [False] * 3
    assert bool((found.w[:, 3:] == 0).all())
    torch.testing.assert_close(q @ found.c + found.w @ found.r, given, rtol=0, atol=1e-10)


def test_two_passes_are_needed_where_the_block_nearly_lies_in_the_basis():
    q = torch.linalg.qr(random(60, 20)).Q
    w = q @ random(20, 4, seed=1) + 1e-7 * random(60, 4, seed=2)
    once, twice = (block_b_orth(q, q, w, w, passes=p).w for p in (1, 2))
    assert float((q.mT @ twice).abs().max()) < 1e-8
    assert float((q.mT @ once).abs().max()) > 10 * float((q.mT @ twice).abs().max())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("K", "n", "L"), [(1, 5, 1), (4, 33, 6), (8, 1, 3)])
def test_moments_equal_the_definition(K, n, L, dtype):
    parts = random(n, L, 2, seed=1)

    def call(s, y):
        return moment_accumulate(s, torch.view_as_complex(y.contiguous()), 0.3 - 0.8j, 0.2 + 0.1j)

    check_route(call, (random(K, n, L), parts), dtype=dtype)


def test_moments_are_those_of_numpy_and_in_place_the_same():
    s, y = random(3, 7, 2), random(7, 2, dtype=torch.complex128, seed=1)
    z, w = 0.6 + 0.8j, 0.1 - 0.3j
    expected = np.stack([s[k].numpy() + (w * z**k * y.numpy()).real for k in range(3)])
    np.testing.assert_allclose(moment_accumulate(s, y, z, w).numpy(), expected, rtol=1e-14)
    for route in ("auto", "reference"):
        own = s.clone()
        with use_route(route):
            moment_accumulate_(own, y, z, w)
        np.testing.assert_allclose(own.numpy(), expected, rtol=1e-14)


def test_derivatives_of_moments():
    def call(s, y):
        return moment_accumulate(s, torch.view_as_complex(y.contiguous()), 0.3 - 0.8j, 0.2 + 0.1j)

    arguments = random(3, 4, 2), random(4, 2, 2, seed=1)
    check_derivatives(call, arguments)
    assert check_raw_ops(lambda s, y: call(s, y) ** 2, arguments) == {
        "icml::moment_accumulate",
        "icml::moment_gather",
    }


def matrix(rows: int, columns: int, seed: int = 0) -> sp.csr_array:
    return sp.csr_array(
        sp.random_array(
            (rows, columns), density=0.3, rng=np.random.default_rng(seed), format="csr", dtype=float
        )
    )


def parts(m: sp.csr_array) -> tuple[torch.Tensor, ...]:
    return (
        torch.from_numpy(m.data),
        torch.from_numpy(m.indices.astype(np.int32)),
        torch.from_numpy(m.indptr.astype(np.int32)),
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "columns", "b"), [(6, 5, 1), (40, 30, 8), (3, 3, 70), (5, 4, 0)])
def test_sparse_products_equal_the_definition(rows, columns, b, dtype):
    data, indices, indptr = parts(matrix(rows, columns))

    def call(data, x):
        return spmm_csr(data, indices, indptr, x)

    check_route(call, (data, random(columns, b)), dtype=dtype)


def test_sparse_products_are_scipys():
    m = matrix(50, 40, 3)
    x = random(40, 8)
    np.testing.assert_allclose(spmm_csr(*parts(m), x).numpy(), m @ x.numpy(), rtol=1e-13)


def test_derivatives_of_sparse_products():
    data, indices, indptr = parts(matrix(4, 3))

    def call(data, x):
        return spmm_csr(data, indices, indptr, x)

    arguments = data, random(3, 2)
    check_derivatives(call, arguments)
    check_compiled(call, arguments)
    assert check_raw_ops(call, arguments) == {
        "icml::spmm_csr",
        "icml::spmm_csr_transposed",
        "icml::spmm_csr_sampled",
    }


def test_raw_operator_of_the_orthogonalisation_is_well_formed():
    q = torch.linalg.qr(random(9, 3)).Q
    w = random(9, 2, seed=1)
    assert check_raw_ops(lambda: block_b_orth(q, q, w, w.clone()), ()) == {"icml::block_b_orth"}


def test_bad_arguments_are_named():
    q, w = random(5, 2), random(5, 3)
    with pytest.raises(ValueError, match=r"bw has shape \[5, 2\]; expected \[5, 3\]"):
        block_b_orth(q, q, w, q)
    with pytest.raises(TypeError, match=r"w has dtype torch.float32 but q torch.float64"):
        block_b_orth(q, q, w.float(), w)
    with pytest.raises(TypeError, match=r"q has dtype torch.int64"):
        block_b_orth(q.long(), q, w, w)
    with pytest.raises(ValueError, match="passes=0"):
        block_b_orth(q, q, w, w, passes=0)
    with pytest.raises(ValueError, match="cut=1"):
        block_b_orth(q, q, w, w, cut=1.0)
    y = random(5, 3, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"s has shape \[2, 5, 2\] and y \[5, 3\]"):
        moment_accumulate(random(2, 5, 2), y, 1j, 1.0)
    with pytest.raises(TypeError, match=r"y has dtype torch.complex128 but s torch.float32"):
        moment_accumulate(random(2, 5, 3).float(), y, 1j, 1.0)
    with pytest.raises(TypeError, match=r"y has dtype torch.float64"):
        moment_accumulate(random(2, 5, 3), w, 1j, 1.0)
    with pytest.raises(ValueError, match="not contiguous"):
        moment_accumulate_(random(2, 3, 5).mT, y, 1j, 1.0)
    data, indices, indptr = parts(matrix(4, 3))
    with pytest.raises(TypeError, match=r"indices has dtype torch.int64"):
        spmm_csr(data, indices.long(), indptr, random(3, 2))
    with pytest.raises(ValueError, match="x has rows 0 to 0"):
        spmm_csr(data, indices, indptr, random(1, 2))
    with pytest.raises(ValueError, match="indptr must rise"):
        spmm_csr(data, indices, indptr[:-1], random(3, 2))
    with pytest.raises(ValueError, match=r"indptr \[0\]"):
        spmm_csr(data, indices, indptr[:0], random(3, 2))
