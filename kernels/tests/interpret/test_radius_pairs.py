"""The kernels of the neighbour list under Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import radius_pairs
from icml_kernels.molecules.radius_pairs.cases import CASES, rows_of
from icml_kernels.testing import cast, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


@pytest.mark.parametrize(
    ("case", "dtype"),
    [*((case, torch.float64) for case in CASES), (CASES[0], torch.float32)],
    ids=str,
)
def test_triton_gives_the_pairs_of_the_definition(case, dtype):
    find, arguments = case.bind(radius_pairs), cast(case.arguments(), dtype)
    with use_route("reference"):
        expected, expected_shift = find(*arguments)
    with use_route("triton"):
        pairs, shift = find(*arguments)
    assert rows_of(pairs, shift) == rows_of(expected, expected_shift)
    assert pairs.capacity == expected.capacity
    n = int(pairs.ptr[-1])
    assert int(pairs.idx[n:].abs().sum()) == 0
    for a, e in zip(pairs.tensors(), expected.tensors(), strict=True):
        assert a.dtype == torch.int32
        assert torch.equal(a[:n], e[:n])
