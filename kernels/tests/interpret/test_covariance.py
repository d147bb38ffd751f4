"""The kernels of covariances under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import batched_gram, spectrum_moments
from icml_kernels.testing import use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def assert_same(call, tolerance: float = 2e-5) -> None:
    with use_route("reference"):
        expected = call()
    with use_route("triton"):
        found = call()
    for a, e in zip(found, expected, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance * float(e.abs().max()))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("shape", [(5, 2, 7), (64, 1, 33), (130, 2, 40)], ids=str)
def test_gram_matrices(shape, center):
    assert_same(lambda: [batched_gram(random(*shape), center=center)])
    # Layers that lie elsewhere in memory than in their order.
    assert_same(lambda: [batched_gram(random(*shape[::-1]).permute(2, 1, 0), center=center)])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype):
    assert_same(lambda: [batched_gram(random(70, 2, 20).to(dtype))])


@pytest.mark.parametrize("shape", [(9, 20), (70, 33)], ids=str)
def test_moments_and_their_gradient(shape):
    def both():
        x = random(*shape).requires_grad_()
        found = spectrum_moments(x)
        (gradient,) = torch.autograd.grad(found.trace + 0.1 * found.square, x)
        return found.trace.detach(), found.square.detach(), gradient

    assert_same(both)
