"""The kernels of the matrix operations under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import ns_poly, ns_syrk, rank1_load, retract_axpy
from icml_kernels.testing import use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)

SHAPES = ((1, 5, 7), (2, 64, 33), (1, 130, 40), (2, 200, 65))


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_same(call, tolerance: float = 2e-5) -> None:
    with use_route("reference"):
        expected = call()
    with use_route("triton"):
        found = call()
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max()))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_symmetric_product(shape):
    x = random(*shape)
    assert_same(lambda: ns_syrk(x))
    symmetric = x @ x.mT
    assert_same(lambda: ns_syrk(x, 1.5, -0.25, symmetric))
    assert_same(lambda: ns_poly(symmetric / shape[2], -2.0, 0.5))
    # Rows that are not contiguous: the iteration of a tall matrix reads its transpose.
    assert_same(lambda: ns_syrk(random(shape[0], shape[2], shape[1]).mT))


def test_only_the_lower_tiles_of_c_are_read():
    x = random(1, 130, 20)
    symmetric = x @ x.mT
    spoilt = symmetric.clone()
    spoilt[:, :64, 64:] = float("nan")
    with use_route("triton"):
        assert torch.equal(ns_syrk(x, 1.0, 1.0, spoilt), ns_syrk(x, 1.0, 1.0, symmetric))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("phi", [torch.bfloat16, torch.float32], ids=str)
def test_retraction_and_update(dtype, phi):
    w, direction = random(3, 17, 100).to(dtype), random(3, 17, 100, seed=1).to(phi)
    scale, alpha = random(3, seed=2).to(dtype), random(3, seed=3).to(dtype)
    assert_same(lambda: retract_axpy(w, scale, direction, alpha), 1e-6)


@pytest.mark.parametrize("shape", [(2, 9, 130), (1, 20, 3)], ids=str)
def test_rank_one_load(shape):
    m = random(*shape)
    u, v = random(*shape[:2], seed=1), random(shape[0], shape[2], seed=2)
    scale, weight = random(shape[0], seed=3), random(shape[0], seed=4)
    assert_same(lambda: rank1_load(m, u, v, scale, weight, torch.float32), 1e-6)
    assert_same(lambda: rank1_load(m.mT, v, u, scale, weight, torch.float32), 1e-6)
