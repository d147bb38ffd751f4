"""The kernels of the neighbour list, compiled for GPUs that need not be there."""

from __future__ import annotations

import pytest
from icml_kernels.ahead_of_time import SM_80, SM_90, TARGETS, compile_ahead
from icml_kernels.molecules.radius_pairs.triton import specializations


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("what", specializations(), ids=str)
def test_kernels_compile_and_nothing_is_spilled(what, target):
    report = compile_ahead(what, target)
    assert report.shared_bytes <= 1024
    if target in (SM_80, SM_90):
        assert report.spilled_bytes == 0
        assert report.registers <= 64
