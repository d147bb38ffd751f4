"""The kernels of neurons under Triton's interpreter, against the definition."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import hh_run, hines_solve
from icml_kernels.neurons.hh_run.cases import arguments, membrane
from icml_kernels.neurons.hines_solve.cases import CASES
from icml_kernels.testing import check_route, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("case", [c for c in CASES if not c.large], ids=str)
def test_solves_equal_the_definition(case):
    check_route(case.bind(hines_solve), case.arguments(), route="triton", order=1)


@pytest.mark.parametrize("kind", ["squid", "calcium", "current", "passive"])
def test_trajectories_and_gradients_equal_the_definition(kind):
    given, table = list(arguments(kind, 4, 3, 5)), membrane(kind)
    given[5] = given[5].clone()
    given[5][0, 2, 1] = 1e6  # a lane that fails
    record = torch.tensor([3, 0], dtype=torch.int32)

    def run() -> list[torch.Tensor]:
        inputs = [
            t.clone().requires_grad_() if k in (1, 2, 3, 4, 5, 7, 8, 9) else t for k, t in enumerate(given)
        ]
        leaves = [t for t in inputs if t.requires_grad]
        found = hh_run(*inputs, table, record, dt=0.025, every=2)
        ends = (found.trace, found.v, found.gates, 1e4 * found.calcium)
        total = sum((torch.cos(torch.arange(t.numel()).double()).reshape(t.shape) * t).sum() for t in ends)
        slopes = torch.autograd.grad(total, leaves, materialize_grads=True)
        return [found.trace, found.v, found.gates, found.calcium, found.failed, *slopes]

    with use_route("reference"):
        expected = run()
    with use_route("triton"):
        found = run()
    assert found[4].tolist() == [-1, 0, -1]
    for a, e in zip(found, expected, strict=True):
        size = max(1.0, float(e.abs().max())) if e.numel() else 1.0
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-9 * size)
