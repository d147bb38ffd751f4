"""The kernels of the Langevin steps under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import baoab_drift, philox_normal
from icml_kernels.molecules.langevin_baoab.cases import CASES, state, steps
from icml_kernels.testing import use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_triton_equals_the_definition(case, dtype):
    with use_route("reference"):
        expected = steps(dtype, *case.arguments())
    with use_route("triton"):
        actual = steps(dtype, *case.arguments())
    # Float32 normals are drawn in float32: near 0 the root of the logarithm magnifies its rounding.
    tolerance = {torch.float64: 1e-13, torch.float32: 2e-5}[dtype]
    for a, e in zip(actual, expected, strict=True):
        assert a.dtype == e.dtype
        torch.testing.assert_close(a, e, rtol=tolerance, atol=tolerance)


def test_noise_depends_on_nothing_but_its_key():
    with use_route("triton"):
        together = philox_normal(9, torch.tensor([4, 0, 2**31 + 5]), 12, 200)
        alone = philox_normal(9, torch.tensor([2**31 + 5]), torch.tensor(12), 130)
    assert torch.equal(together[[2], :130], alone)


def test_frozen_replicas_stay_whatever_their_force():
    s = state()
    s["force"][1] = float("nan")
    frozen = torch.tensor([False, True, False])
    temperature = torch.full((3,), 300.0, dtype=torch.float64)
    with use_route("triton"):
        pos, vel = baoab_drift(
            **s, temperature=temperature, friction=1.0, dt=0.01, seed=1, step=0, frozen=frozen
        )
    assert torch.equal(pos[1], s["pos"][1])
    assert torch.equal(vel[1], s["vel"][1])
    assert pos.isfinite().all()
    assert not torch.equal(pos[0], s["pos"][0])
