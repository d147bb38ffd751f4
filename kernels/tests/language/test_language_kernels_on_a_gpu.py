"""The compiled Triton kernels of the language family on a device, against the definitions on the CPU."""

from __future__ import annotations

import pytest
import torch
from icml_kernels.language.every_case import every_case, weighted
from icml_kernels.language.weighted_nll.cases import arguments
from icml_kernels.molecules.pair_cases import label
from icml_kernels.testing import cast, check_route, move

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("function", "case"), every_case(), ids=label)
def test_kernel_equals_the_definition(function, case, dtype):
    check_route(case.bind(function), case.arguments(), dtype=dtype, device="cuda")


def test_products_in_16_bits_are_summed_in_single_precision():
    wide = cast(cast(arguments(40, 64, 500), torch.bfloat16), torch.float32)
    expected = weighted(*wide, kind="idft")
    found = weighted(*move(cast(wide, torch.bfloat16), "cuda"), kind="idft")
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-4)
