"""The Triton kernels of the pair operators, run by Triton's interpreter, against the definitions.

Value, first and second derivative pass through the kernels, in float64 for every case and in float32 for
some. The interpreter is chosen when Triton is imported, hence ``TRITON_INTERPRET=1 pytest tests/interpret``.
"""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels.molecules.pair_cases import every_case, label
from icml_kernels.testing import check_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)

EVERY = [(function, case) for function, case in every_case() if not case.large]
SOME = [
    (f, c)
    for f, c in EVERY
    if c.name in ("width 128", "width 128, hidden 128", "expnorm", "spare places", "shifted")
]


@pytest.mark.parametrize(("function", "case"), EVERY, ids=label)
def test_kernel_equals_the_definition(function, case):
    check_route(case.bind(function), case.arguments(), route="triton")


@pytest.mark.parametrize(("function", "case"), SOME, ids=label)
def test_kernel_equals_the_definition_in_single_precision(function, case):
    check_route(case.bind(function), case.arguments(), route="triton", dtype=torch.float32)


def test_the_kernels_themselves_were_interpreted():
    import triton
    from icml_kernels.molecules.cfconv_table.triton import _forward

    assert not isinstance(_forward, triton.runtime.jit.JITFunction)
