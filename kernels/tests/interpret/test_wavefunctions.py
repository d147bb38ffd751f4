"""The kernels of Metropolis chains under Triton's interpreter, against the definition."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import metropolis_draws, rbm_log_ratios, rbm_metropolis
from icml_kernels.testing import use_route
from icml_kernels.wavefunctions.cases import RATIOS, WALKS

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("case", [c for c in WALKS if not c.large], ids=str)
def test_chains_equal_the_definition(case):
    arguments, options = case.arguments()
    options["n_steps"] = min(options["n_steps"], 16)
    with use_route("reference"):
        expected = rbm_metropolis(*arguments, **options)
    with use_route("triton"):
        found = rbm_metropolis(*arguments, **options)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[2], expected[2])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", RATIOS[:4], ids=str)
def test_ratios_equal_the_definition(case, dtype):
    arguments = [a.to(dtype) if a.is_floating_point() else a for a in case.arguments()]
    with use_route("reference"):
        expected = rbm_log_ratios(*arguments)
    with use_route("triton"):
        found = rbm_log_ratios(*arguments)
    tolerance = 1e-12 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_draws_equal_the_definition():
    options = {"seed": 2**61 + 5, "step": 2**40 + 1, "n_steps": 50, "n_moves": 10, "stream": 7}
    chain = torch.tensor([0, 5, 2**32 - 1])
    with use_route("reference"):
        expected = metropolis_draws(chain, **options)
    with use_route("triton"):
        found = metropolis_draws(chain, **options)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-14, atol=0)
