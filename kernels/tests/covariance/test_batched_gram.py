"""Gram matrices of layers against NumPy, across strides, precisions and routes, with their derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import batched_gram
from icml_kernels.covariance.batched_gram import cpu
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 0.5


def by_numpy(embeddings: torch.Tensor, center: bool = True) -> np.ndarray:
    layers = embeddings.double().numpy().transpose(1, 0, 2)
    if center:
        layers = layers - layers.mean(1, keepdims=True)
    return np.einsum("lid,ljd->lij", layers, layers)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 3, 5), (20, 2, 6), (200, 2, 9)], ids=str)
def test_equals_numpy(shape, center):
    found = batched_gram(random(*shape), center=center)
    np.testing.assert_allclose(found.numpy(), by_numpy(random(*shape), center), rtol=1e-12, atol=1e-11)
    torch.testing.assert_close(found, found.mT, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("rows", [cpu.LEAST_ROWS - 1, cpu.LEAST_ROWS])
def test_both_routes_of_blas_agree(rows):
    x = random(rows, 2, 11)
    np.testing.assert_allclose(batched_gram(x).numpy(), by_numpy(x), rtol=1e-12, atol=1e-11)


def test_any_strides_are_read_where_they_lie():
    base = random(4, 30, 8)  # [dim, examples, layers] seen from the side
    view = base.permute(1, 2, 0)
    np.testing.assert_allclose(batched_gram(view).numpy(), by_numpy(view), rtol=1e-12, atol=1e-12)
    skipped = random(60, 4, 10)[::2, 1::2, ::3]
    np.testing.assert_allclose(batched_gram(skipped).numpy(), by_numpy(skipped), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_precisions(dtype):
    x = random(40, 3, 16).to(dtype)
    natural, wide = batched_gram(x), batched_gram(x, out_dtype=torch.float64)
    assert (natural.dtype, wide.dtype) == (torch.float32, torch.float64)
    np.testing.assert_allclose(wide.numpy(), by_numpy(x), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(natural.numpy(), by_numpy(x), rtol=1e-5, atol=1e-4)


def test_a_large_mean_does_not_cost_digits():
    x = random(50, 2, 8)
    found = batched_gram(x + 1e6)
    np.testing.assert_allclose(found.numpy(), by_numpy(x), rtol=1e-7, atol=1e-6)


@pytest.mark.parametrize("center", [True, False])
def test_routes_and_derivatives(center):
    def gram(x: torch.Tensor) -> torch.Tensor:
        return batched_gram(x, center=center)

    check_route(gram, (random(6, 2, 4),))
    check_route(gram, (random(6, 2, 4),), dtype=torch.float32)
    check_derivatives(gram, (random(4, 2, 3),))


def test_gradient_by_embeddings_of_half_precision_keeps_their_type():
    x = random(5, 2, 4).to(torch.bfloat16).requires_grad_()
    batched_gram(x).square().sum().backward()
    assert x.grad.dtype == torch.bfloat16


def test_raw_operator_is_well_formed():
    assert check_raw_ops(batched_gram, (random(5, 2, 3),)) == {"icml::batched_gram"}


def test_compiled():
    check_compiled(batched_gram, (random(5, 2, 3),))


@pytest.mark.parametrize(
    ("bad", "error", "match"),
    [
        ("text", TypeError, "is str"),
        (torch.ones(2, 2, 2, dtype=torch.int64), TypeError, "int64"),
        (torch.ones(2, 2), ValueError, r"\[2, 2\]"),
        (torch.ones(2, 0, 2), ValueError, r"\[2, 0, 2\]"),
        (torch.ones(2, 2, 2, 2), ValueError, r"\[2, 2, 2, 2\]"),
    ],
)
def test_bad_input(bad, error, match):
    with pytest.raises(error, match=match):
        batched_gram(bad)


def test_precision_that_would_be_lost_is_refused():
    with pytest.raises(TypeError, match="float32 does not suit"):
        batched_gram(random(3, 2, 2), out_dtype=torch.float32)
    with pytest.raises(TypeError, match="float16"):
        batched_gram(random(3, 2, 2).float(), out_dtype=torch.float16)
