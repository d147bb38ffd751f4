"""Segment log-sum-exp against torch.logsumexp, closed forms and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from icml_kernels import segment_logsumexp
from icml_kernels.flows.segment_logsumexp.cases import CASES, arguments
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
    use_route,
)

SMALL = arguments((3, 1, 2), spare=2, scale=1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(segment_logsumexp), case.arguments(), dtype=dtype)


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_equals_torch_row_by_row(route):
    counts = (3, 5, 1, 4, 30)
    values, ptr = arguments(counts, scale=100.0)
    expected = torch.stack([part.logsumexp(0) for part in values.split(counts)])
    with use_route(route):
        torch.testing.assert_close(segment_logsumexp(values, ptr), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("route", ["auto", "reference"])
def test_rows_that_hold_nothing_are_minus_infinity_and_pass_no_gradient(route, dtype):
    low = -math.inf
    values = torch.tensor([low, low, 1.0, low], dtype=dtype, requires_grad=True)
    ptr = torch.tensor([0, 0, 2, 4, 4], dtype=torch.int32)
    with use_route(route):
        out = segment_logsumexp(values, ptr)
        assert out.tolist() == [low, low, 1.0, low]
        (gradient,) = torch.autograd.grad(out[2] + torch.logaddexp(out[1], out[2] * 0), values)
    assert gradient.tolist() == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_nan_and_infinity_are_seen_and_large_values_do_not_overflow(route):
    values = torch.tensor([math.nan, 1.0, math.inf, 1.0, 1e300, 1e300, -1e300, math.nan, -math.inf])
    ptr = torch.tensor([0, 2, 4, 6, 7, 9], dtype=torch.int32)
    with use_route(route):
        out = segment_logsumexp(values.double(), ptr)
    assert math.isnan(out[0])
    assert out[1] == math.inf
    assert math.isnan(out[4])
    huge = torch.tensor([1e300, 1e300, -1e300], dtype=torch.float64)
    with use_route(route):
        found = segment_logsumexp(huge, torch.tensor([0, 2, 3], dtype=torch.int32))
    assert found.tolist() == [1e300, -1e300]


def test_raw_operators_are_well_formed():
    assert check_raw_ops(segment_logsumexp, SMALL, order=1) == {
        "icml::segment_logsumexp",
        "icml::segment_logsumexp_backward",
    }


def test_derivatives():
    check_derivatives(segment_logsumexp, SMALL)


def test_compiled():
    check_compiled(segment_logsumexp, SMALL)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    inputs = cast(arguments((30, 2, 0, 17, 9, 1, 40)), torch.float32)
    monkeypatch.setattr("icml_kernels.flows.segment_logsumexp.cpu.ALONE", 0)
    results = []
    for shares in (1, 2, 5):
        monkeypatch.setattr("icml_kernels.flows.segment_logsumexp.cpu.threads", lambda shares=shares: shares)
        results.append(derivatives(lambda v, p: segment_logsumexp(v, p)[:2], inputs, order=1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments_are_named():
    values, ptr = SMALL
    with pytest.raises(TypeError, match=r"ptr has dtype torch.int64; expected torch.int32"):
        segment_logsumexp(values, ptr.long())
    with pytest.raises(ValueError, match=r"values has shape \[8, 1\]"):
        segment_logsumexp(values[:, None], ptr)
    with pytest.raises(ValueError, match="ptr is empty"):
        segment_logsumexp(values, ptr[:0])
    with pytest.raises(TypeError, match=r"values has dtype torch.int64"):
        segment_logsumexp(values.long(), ptr)
