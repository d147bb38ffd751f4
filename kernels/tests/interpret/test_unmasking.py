"""The kernels of unmasking samplers under Triton's interpreter, against the definitions."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import prefix_embed_cumsum, unmask_step
from icml_kernels.testing import check_route, use_route
from icml_kernels.unmasking.prefix_embed_cumsum.cases import CASES as PREFIXES
from icml_kernels.unmasking.unmask_step.cases import CASES as STEPS

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", [c for c in PREFIXES if not c.large], ids=str)
def test_prefix_sums_and_gradients_equal_the_definition(case, dtype):
    check_route(case.bind(prefix_embed_cumsum), case.arguments(), route="triton", dtype=dtype, order=1)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", STEPS, ids=str)
def test_draws_equal_the_definition(case):
    with use_route("reference"):
        expected = unmask_step(*case.arguments())
    with use_route("triton"):
        found = unmask_step(*case.arguments())
    assert torch.equal(found.symbol, expected.symbol)
    torch.testing.assert_close(found.logp, expected.logp, rtol=1e-12, atol=1e-12)
