"""The Triton kernels of the language family, run by Triton's interpreter, against the definitions.

Value, first and second derivative, in float64 for every case and in float32 for some. The interpreter is
chosen when Triton is imported, hence ``TRITON_INTERPRET=1 pytest tests/interpret``.
"""

from __future__ import annotations

import math
import os

import pytest
import torch
from icml_kernels import token_stats
from icml_kernels.language.cases import random, ruled_out
from icml_kernels.language.every_case import every_case
from icml_kernels.molecules.pair_cases import label
from icml_kernels.testing import check_route, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)

EVERY = every_case()
SOME = [(f, c) for f, c in EVERY if c.name in ("several rows", "capped", "idft", "several runs of a row")]


@pytest.mark.parametrize(("function", "case"), EVERY, ids=label)
def test_kernel_equals_the_definition(function, case):
    check_route(case.bind(function), case.arguments(), route="triton")


@pytest.mark.parametrize(("function", "case"), SOME, ids=label)
def test_kernel_equals_the_definition_in_single_precision(function, case):
    check_route(case.bind(function), case.arguments(), route="triton", dtype=torch.float32)


def test_several_blocks_of_a_row(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.rows_triton.BLOCK", 64)
    for function, case in EVERY:
        if case.name == "several runs of a row":
            check_route(case.bind(function), case.arguments(), route="triton")


def test_nan_and_rows_that_are_ruled_out_are_seen():
    x = ruled_out(3, 40)
    x[1, 6] = math.nan
    x[2] = -math.inf
    with use_route("triton"):
        found = token_stats(x, torch.tensor([0, 3, 6]))
    for result in found:
        assert torch.isnan(result).tolist() == [False, True, True]


def test_a_narrow_distribution_far_from_its_maximum_keeps_its_varentropy():
    x = 0.1 * random(1, 49_152)
    x[0, 0] = 9.0
    p = torch.softmax(x, 1)
    expected = (p * (p.log() - (p * p.log()).sum()) ** 2).sum(1)
    with use_route("triton"):
        found = token_stats(x.float(), torch.tensor([0])).varentropy
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=0)


def test_the_kernels_themselves_were_interpreted():
    import triton
    from icml_kernels.language.rows_triton import _gradient, _statistics

    assert not isinstance(_statistics, triton.runtime.jit.JITFunction)
    assert not isinstance(_gradient, triton.runtime.jit.JITFunction)
