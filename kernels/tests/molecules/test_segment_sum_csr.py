"""Segment sums against NumPy's reduceat and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import segment_sum_csr
from icml_kernels.molecules.segment_sum_csr.cases import CASES, arguments
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
)

SMALL = arguments((3, 0, 2, 1), 2, spare=2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(segment_sum_csr), case.arguments(), dtype=dtype)


def test_equals_numpy_reduceat():
    values, ptr = arguments((3, 5, 1, 4), 6)
    expected = np.add.reduceat(values.numpy(), ptr.numpy()[:-1], axis=0)
    np.testing.assert_allclose(segment_sum_csr(values, ptr).numpy(), expected, rtol=1e-14)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(lambda v, p: segment_sum_csr(v, p) ** 2, SMALL) == {
        "icml::segment_sum_csr",
        "icml::segment_gather_csr",
    }


def test_derivatives():
    check_derivatives(segment_sum_csr, SMALL)


def test_compiled():
    check_compiled(segment_sum_csr, SMALL)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    inputs = cast(arguments((30, 2, 0, 17, 9, 1, 40), 9), torch.float32)
    results = []
    for shares in (1, 2, 5):
        monkeypatch.setattr(
            "icml_kernels.molecules.segment_sum_csr.cpu.threads", lambda shares=shares: shares
        )
        results.append(derivatives(segment_sum_csr, inputs, order=1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments_are_named():
    values, ptr = SMALL
    with pytest.raises(TypeError, match=r"ptr has dtype torch.int64; expected torch.int32"):
        segment_sum_csr(values, ptr.long())
    with pytest.raises(ValueError, match=r"values has shape \[1, 8, 2\]"):
        segment_sum_csr(values[None], ptr)
    with pytest.raises(ValueError, match="ptr is empty"):
        segment_sum_csr(values, ptr[:0])
    with pytest.raises(TypeError, match=r"values has dtype torch.int64"):
        segment_sum_csr(values.long(), ptr)
