"""The kernel of small eigenvalue problems under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import KrylovSign, block_lanczos, block_vectors, krylov_top, small_eigh, start_block
from icml_kernels.matrices.krylov_sign import reference
from icml_kernels.matrices.small_eigh import LARGEST
from icml_kernels.matrices.small_eigh.cases import SIZES, matrices, random, worst_error
from icml_kernels.testing import use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)

HARDEST = ("clusters", "graded")  # of many rows: the interpreter takes seconds each


@pytest.mark.parametrize("size", SIZES)
def test_eigenvalues_are_lapacks(size):
    a = torch.stack([a for name, a in matrices(size).items() if size <= 16 or name in HARDEST])
    with use_route("triton"):
        found = small_eigh(a)
    assert worst_error(a, *found) <= 20


@pytest.mark.parametrize("size", [2, 7, 16])
def test_in_float32(size):
    a = torch.stack(list(matrices(size).values())).float()
    with use_route("triton"):
        values, vectors = small_eigh(a)
    assert values.dtype == vectors.dtype == torch.float32
    assert worst_error(a, values, vectors) <= 20


def test_larger_matrices_go_to_torch():
    wide = random(1, LARGEST + 1, LARGEST + 1)
    a = wide @ wide.mT
    with use_route("triton"):
        assert all(torch.equal(x, y) for x, y in zip(small_eigh(a), torch.linalg.eigh(a), strict=True))


def test_from_the_lower_triangle_of_any_layout():
    a = random(3, 9, 9)
    symmetric = a.tril() + a.tril(-1).mT
    spoilt = a + torch.full_like(a, float("nan")).triu(1)
    with use_route("triton"):
        for given in (spoilt, spoilt.mT.contiguous().mT, torch.cat([spoilt, spoilt], dim=2)[:, :, :9]):
            assert worst_error(symmetric, *small_eigh(given)) <= 20


def test_numbers_that_are_none_spoil_their_own_matrix_only():
    dense = random(4, 6, 6)
    a = dense + dense.mT
    spoilt = a.clone()
    spoilt[1, 3, 2], spoilt[2] = float("nan"), float("inf")
    with use_route("triton"):
        values, vectors = small_eigh(spoilt)
    assert bool(values[1].isnan().any())
    assert bool(values[2].isnan().any())
    for kept in (0, 3):
        one = slice(kept, kept + 1)
        assert worst_error(a[one], values[one], vectors[one]) <= 20


@pytest.mark.parametrize("shape", [(1, 40, 50), (2, 6, 20), (1, 20, 6)], ids=str)
def test_triplets_are_those_of_the_definition(shape):
    w = random(*shape)
    w[-1, :, 1:] = w[-1, :, :1]  # of rank one: most rows of the Krylov space do not exist
    block = start_block(w, block_vectors(*shape[1:]))
    expected = krylov_top(w, block, turn=1)
    with use_route("triton"):
        found = krylov_top(w, block, turn=1)
    torch.testing.assert_close(found.sigma, expected.sigma, rtol=1e-12, atol=1e-12)
    signs = (found.v * expected.v).sum(1).sign()[:, None]
    torch.testing.assert_close(found.v * signs, expected.v, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.u * signs, expected.u, rtol=0, atol=1e-7)


def test_tangent_multiplier_is_numbas():
    m, u, v = random(1, 30, 40), random(1, 30, seed=1), random(1, 40, seed=2)
    m, u, v = m / m.norm(), u / u.norm(), v / v.norm()
    model = block_lanczos(m, u, v, 4)
    one = torch.ones(1, dtype=torch.float64)
    sign = KrylovSign(model.t, model.a, model.b, model.overlap, one)
    expected = sign.root()
    given = sign._given
    with use_route("triton"):
        found = reference.sign_root(*given, sign.largest, False)
    assert abs(float(sign.h(found[:, None]))) <= 1e-6
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
