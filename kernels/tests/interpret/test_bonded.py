"""The kernel of the prior energies under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import bonded_energy, bonded_energy_forces
from icml_kernels.molecules.bonded.cases import CASES, arguments
from icml_kernels.testing import check_route, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)
TOLERANCE = {torch.float64: 1e-11, torch.float32: 1e-5}


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float64) for case in CASES), *((case, torch.float32) for case in CASES[1:4])],
    ids=str,
)
def test_triton_equals_the_definition(case, dtype):
    pos, terms, *pairs = case.arguments()
    pos, terms = pos.to(dtype), terms.to(dtype=dtype)
    pairs[1:] = [offset.to(dtype) for offset in pairs[1:]]
    with use_route("reference"):
        expected = bonded_energy_forces(pos, terms, *pairs)
    with use_route("triton"):
        actual = bonded_energy_forces(pos, terms, *pairs)
    for a, e in zip(actual, expected, strict=True):
        scale = float(e.abs().max()) if e.numel() else 0.0
        torch.testing.assert_close(a, e, rtol=0, atol=TOLERANCE[dtype] * scale)


def test_derivatives_equal_the_definition():
    pos, terms, pairs = arguments(1, 5)
    check_route(lambda x: bonded_energy(x, terms, pairs), (pos,), route="triton")


def test_a_lost_bead_is_seen_in_its_replica_alone():
    pos, terms, pairs = arguments(3, 5)
    pos[1, 4] = float("nan")
    with use_route("triton"):
        parts, forces = bonded_energy_forces(pos, terms, pairs)
    assert parts[1].isnan().all()
    assert forces[1, 4].isnan().all()
    assert parts[[0, 2]].isfinite().all()
    assert forces[[0, 2]].isfinite().all()
