"""The compiled Triton kernels of the pair operators on a device, against the definitions on the CPU."""

from __future__ import annotations

import pytest
import torch
from icml_kernels import cfconv_table
from icml_kernels.molecules.cfconv_table import cases as table
from icml_kernels.molecules.pair_cases import every_case, label
from icml_kernels.testing import cast, check_route, derivatives, move

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("function", "case"), every_case(), ids=label)
def test_kernel_equals_the_definition(function, case, dtype):
    check_route(case.bind(function), case.arguments(), dtype=dtype, device="cuda")


def test_two_runs_have_the_same_bits():
    inputs = move(cast(table.arguments((40, 30), 128), torch.float32), "cuda")
    x, r, pairs, *rest = inputs
    runs = [derivatives(lambda x, r: cfconv_table(x, r, pairs, *rest), (x, r), order=1) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
