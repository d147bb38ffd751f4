"""The kernels of segment log-sum-exp under Triton's interpreter, against the definition."""

from __future__ import annotations

import math
import os

import pytest
import torch
from icml_kernels import segment_logsumexp
from icml_kernels.flows.segment_logsumexp.cases import CASES
from icml_kernels.testing import check_route, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", [c for c in CASES if not c.large], ids=str)
def test_values_and_gradients_equal_the_definition(case, dtype):
    check_route(case.bind(segment_logsumexp), case.arguments(), route="triton", dtype=dtype, order=1)


@pytest.mark.filterwarnings("ignore:invalid value|divide by zero|overflow:RuntimeWarning")
def test_empty_rows_nan_and_infinity():
    low, high = -math.inf, math.inf
    values = torch.tensor([low, low, 1.0, low, math.nan, 2.0, high, 0.0], dtype=torch.float64)
    ptr = torch.tensor([0, 0, 2, 4, 6, 8], dtype=torch.int32)
    with use_route("triton"):
        out = segment_logsumexp(values, ptr).tolist()
    assert out[:3] == [low, low, 1.0]
    assert math.isnan(out[3])
    assert out[4] == high
    leaf = values[:4].clone().requires_grad_()
    with use_route("triton"):
        (gradient,) = torch.autograd.grad(segment_logsumexp(leaf, ptr[:4])[2], leaf)
    assert gradient.tolist() == [0.0, 0.0, 1.0, 0.0]
