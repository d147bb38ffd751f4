"""The Triton kernels of the pair operators, run by Triton's interpreter, against the definitions.

Value, first and second derivative pass through the kernels, in float64 for every case and in float32 for
some. The interpreter is chosen when Triton is imported, hence ``TRITON_INTERPRET=1 pytest tests/interpret``.
"""

from __future__ import annotations

import os

import icml_kernels
import pytest
import torch
from icml_kernels.molecules.cfconv_mlp import cases as mlp
from icml_kernels.molecules.cfconv_table import cases as table
from icml_kernels.molecules.pair_geometry import cases as geometry
from icml_kernels.molecules.segment_sum_csr import cases as segments
from icml_kernels.testing import Case, check_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)


def filter_network(x, r, pairs, w1, b1, w2, b2, centers, widths, **options):
    return icml_kernels.cfconv_mlp(
        x, r, pairs, w1, b1, w2, b2, centers=centers, widths=widths, cutoff=mlp.CUTOFF, **options
    )


EVERY = [
    (function, case)
    for function, module in (
        (icml_kernels.cfconv_table, table),
        (filter_network, mlp),
        (icml_kernels.pair_geometry, geometry),
        (icml_kernels.segment_sum_csr, segments),
    )
    for case in module.CASES
    if not case.large
]
SOME = [
    (f, c)
    for f, c in EVERY
    if c.name in ("width 128", "width 128, hidden 128", "expnorm", "spare places", "shifted")
]


def label(value: object) -> str:
    return value.name if isinstance(value, Case) else value.__name__


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
