"""The Triton kernels of the pair operators, compiled ahead of time without a GPU: they fit, none spills."""

from __future__ import annotations

import importlib
import os
import re

import pytest
from icml_kernels.ahead_of_time import GFX942, SM_80, SM_90, TARGETS, Specialization, compile_ahead

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="the interpreter replaces the compiler in this process"
)

# The smallest of the targets' limits on one program's shared memory (sm_120: 99 KiB; gfx942: 64 KiB).
SHARED_LIMIT = {GFX942: 64 * 1024}
DEFAULT_SHARED_LIMIT = 99 * 1024


def everything() -> list:
    if os.environ.get("TRITON_INTERPRET") == "1" or importlib.util.find_spec("triton") is None:
        return [pytest.param(None, None, marks=pytest.mark.skip(reason="needs Triton's compiler"))]
    found = []
    for name in ("cfconv_table", "cfconv_mlp", "pair_geometry", "segment_sum_csr"):
        module = importlib.import_module(f"icml_kernels.molecules.{name}.triton")
        for target in TARGETS:
            options = {"hip": target == GFX942} if name == "cfconv_mlp" else {}
            specializations = module.specializations(**options)
            if target not in (SM_80, SM_90):
                # Where registers are not judged, one of each kernel and precision will do.
                specializations = {
                    (s.kernel, "*fp64" in s.signature.values()): s for s in specializations
                }.values()
            found += [pytest.param(s, target, id=f"{name}-{s}-{target}") for s in specializations]
    return found


@pytest.mark.parametrize(("specialization", "target"), everything())
def test_kernel_fits(specialization: Specialization, target: str) -> None:
    report = compile_ahead(specialization, target)
    assert report.shared_bytes <= SHARED_LIMIT.get(target, DEFAULT_SHARED_LIMIT)
    assert report.fused
    if target in (SM_80, SM_90):
        assert report.spilled_bytes == 0
        assert 0 < report.registers <= 255


def test_constants_keep_double_precision():
    """An argument would be rounded to float32, hence cutoffs and spacings are constants of the kernels."""
    from icml_kernels.molecules.cfconv_table.triton import specializations

    double = next(s for s in specializations() if "*fp64" in s.signature.values())
    constants = re.findall(r"dense<([-+.0-9eE]+)> : tensor<\w+xf64>", compile_ahead(double, SM_90).ttir)
    assert 1024 / 15.0 in [float(c) for c in constants]


def test_unknown_target_is_named():
    from icml_kernels.molecules.segment_sum_csr.triton import specializations

    with pytest.raises(ValueError, match="target 'sm_75' is not one of sm_80"):
        compile_ahead(specializations()[0], "sm_75")
