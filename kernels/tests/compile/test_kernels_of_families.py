"""The Triton kernels of most families, compiled ahead of time without a GPU: they fit, none spills."""

from __future__ import annotations

import importlib
import os

import pytest
from icml_kernels.ahead_of_time import SM_80, SM_90, TARGETS, Specialization, compile_ahead

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = pytest.mark.skipif(INTERPRETED, reason="the interpreter replaces the compiler in this process")

OPS = {
    "covariance": ("batched_gram",),
    "lattices": ("hamming_ball_mh", "swendsen_wang"),
    "matrices": ("ns_syrk", "retract_axpy", "rank1_load", "small_eigh"),
    "neurons": ("hh_run", "hines_solve"),
    "series": ("elastic_cross", "soft_elastic"),
    "spectral": ("radial_spectral_loss", "mode_product"),
    "subspaces": ("moment_accumulate", "spmm_csr"),
    "unmasking": ("prefix_embed_cumsum", "unmask_step"),
    "wavefunctions": ("metropolis_draws", "rbm_log_ratios", "rbm_metropolis"),
}


def everything() -> list:
    if INTERPRETED or importlib.util.find_spec("triton") is None:
        return [pytest.param(None, None, marks=pytest.mark.skip(reason="needs Triton's compiler"))]
    return [
        pytest.param(what, target, id=f"{family}-{what}-{number}-{target}")
        for family, ops in OPS.items()
        for op in ops
        for number, what in enumerate(
            importlib.import_module(f"icml_kernels.{family}.{op}.triton").specializations()
        )
        for target in TARGETS
    ]


@pytest.mark.parametrize(("what", "target"), everything())
def test_kernel_fits(what: Specialization, target: str) -> None:
    report = compile_ahead(what, target)
    assert report.shared_bytes <= 64 * 1024
    if target in (SM_80, SM_90):
        assert report.spilled_bytes == 0
        assert 0 < report.registers <= 255
