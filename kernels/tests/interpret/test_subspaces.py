"""The kernels of subspaces under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import moment_accumulate, spmm_csr
from icml_kernels.testing import check_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("K", "n", "L"), [(1, 5, 1), (4, 33, 6), (8, 300, 2)])
def test_moments(K, n, L):
    def call(s, y):
        return moment_accumulate(s, torch.view_as_complex(y.contiguous()), 0.3 - 0.8j, 0.2 + 0.1j)

    check_route(call, (random(K, n, L), random(n, L, 2, seed=1)), route="triton", dtype=torch.float32)


@pytest.mark.parametrize(("n", "b"), [(6, 1), (20, 8), (4, 70)])
def test_sparse_products(n, b):
    dense = random(n, n) * (random(n, n, seed=2) > 0.3)
    counts = (dense != 0).sum(1)
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)]).int()
    indices = dense.nonzero()[:, 1].int()
    x = random(n, b, seed=1)

    def call(data, x):
        return spmm_csr(data, indices, indptr, x)

    check_route(call, (dense[dense != 0], x), route="triton", dtype=torch.float32)
