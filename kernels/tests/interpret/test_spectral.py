"""The kernels of spectral losses and convolutions under Triton's interpreter, against the definitions."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import mode_product, radial_spectral_loss
from icml_kernels.spectral.mode_product.cases import CASES as PRODUCTS
from icml_kernels.spectral.radial_spectral_loss.cases import CASES as LOSSES
from icml_kernels.testing import check_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", [c for c in LOSSES if not c.large], ids=str)
def test_loss_and_gradient_equal_the_definition(case, dtype):
    tolerance = 1e-4 if dtype == torch.float32 else None
    options = {"route": "triton", "dtype": dtype, "order": 1, "tolerance": tolerance}
    check_route(case.bind(radial_spectral_loss), case.arguments(), **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", [c for c in PRODUCTS if not c.large], ids=str)
def test_products_and_gradients_equal_the_definition(case, dtype):
    check_route(case.bind(mode_product), case.arguments(), route="triton", dtype=dtype, order=1)
