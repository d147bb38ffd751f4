"""The Triton kernel of the geometric mixture, compiled ahead of time without a GPU: no spills."""

from __future__ import annotations

import importlib.util
import os

import pytest
from icml_kernels.ahead_of_time import SM_80, SM_90, TARGETS, Specialization, compile_ahead

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter replaces the compiler in this process"
)


def everything() -> list:
    if os.environ.get("TRITON_INTERPRET") == "1" or importlib.util.find_spec("triton") is None:
        return [pytest.param(None, None, marks=pytest.mark.skip(reason="needs Triton's compiler"))]
    from icml_kernels.language.geometric_mix_sample.triton import specializations

    return [
        pytest.param(s, target, id=f"{s}-{number}-{target}")
        for target in TARGETS
        for number, s in enumerate(specializations())
    ]


@pytest.mark.parametrize(("specialization", "target"), everything())
def test_kernel_fits(specialization: Specialization, target: str) -> None:
    report = compile_ahead(specialization, target)
    assert report.shared_bytes <= 4096
    assert report.fused
    if target in (SM_80, SM_90):
        assert report.spilled_bytes == 0
        assert 0 < report.registers <= 128
