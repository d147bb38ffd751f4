"""Draws of one unmasking step: exact probabilities, rare symbols, and equal routes."""

from __future__ import annotations

import math

import pytest
import torch
from icml_kernels import unmask_step
from icml_kernels.testing import cast, check_raw_ops, use_route
from icml_kernels.unmasking.unmask_step.cases import CASES, arguments
from scipy.stats import chisquare


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_draws_what_the_definition_draws(case, dtype):
    logits, uniform = case.arguments()
    logits = logits.to(dtype)
    with use_route("reference"):
        expected = unmask_step(logits, uniform)
    found = unmask_step(logits, uniform)
    assert torch.equal(found.symbol, expected.symbol)
    torch.testing.assert_close(found.logp, expected.logp, rtol=1e-12, atol=1e-12)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(unmask_step, CASES[0].arguments()) == {"icml::unmask_step"}


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_log_probabilities_are_those_of_the_softmax(route):
    logits, uniform = arguments(30, 4, 5)
    with use_route(route):
        found = unmask_step(logits, uniform)
    expected = logits.log_softmax(-1).gather(-1, found.symbol[..., None])[..., 0].sum(1)
    torch.testing.assert_close(found.logp, expected)


@pytest.mark.parametrize("shared", [True, False])
def test_frequencies_are_the_probabilities(shared):
    logits = torch.tensor([[[0.3, -1.0, 1.2, -math.inf, 0.0]]], dtype=torch.float64)
    draws = 200_000
    g = torch.Generator().manual_seed(1)
    uniform = torch.rand(draws, 1, generator=g, dtype=torch.float64)
    given = logits if shared else logits.expand(draws, 1, 5)
    counts = torch.bincount(unmask_step(given, uniform).symbol[:, 0], minlength=5).double()
    expected = draws * logits[0, 0].softmax(0)
    assert counts[3] == 0
    kept = expected > 0
    assert chisquare(counts[kept], expected[kept]).pvalue > 1e-4


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("at", [0, 2000, 4095])
def test_symbols_20_nats_below_the_first_are_drawn_as_often_as_they_should(at, dtype):
    """4,095 symbols of probability e^-20 each, 10^7 draws: 84 expected; single-precision noise gives one or
    two.
    """
    draws = 10_000_000
    logits = torch.full((1, 1, 4096), -20.0, dtype=dtype)
    logits[0, 0, at] = 0.0
    g = torch.Generator().manual_seed(at)
    uniform = torch.rand(draws, 1, generator=g, dtype=torch.float64)
    rare = int((unmask_step(logits, uniform).symbol != at).sum())
    expected = draws * 4095 * math.exp(-20.0) / (1 + 4095 * math.exp(-20.0))
    assert 84 <= round(expected) <= 85
    assert abs(rare - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_the_ends_of_the_unit_interval_give_possible_symbols(route):
    logits = torch.tensor([[[-math.inf, 0.0, 0.0, -math.inf]]], dtype=torch.float64).expand(2, 1, 4)
    uniform = torch.tensor([[0.0], [1 - 2**-53]], dtype=torch.float64)
    with use_route(route):
        assert unmask_step(logits, uniform).symbol.tolist() == [[1], [2]]


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("wrong", [math.nan, -math.inf], ids=str)
def test_a_row_that_is_no_distribution_is_seen_in_its_log_probability(route, wrong):
    logits, uniform = arguments(3, 2, 4)
    logits[1, 0, :] = wrong
    with use_route(route):
        found = unmask_step(logits, uniform)
    assert torch.isnan(found.logp).tolist() == [False, True, False]


def test_bad_arguments_are_named():
    logits, uniform = arguments(3, 2, 4)
    with pytest.raises(TypeError, match="53 bits"):
        unmask_step(logits, uniform.float())
    with pytest.raises(TypeError, match="logits has dtype torch.float16"):
        unmask_step(*cast((logits,), torch.float16), uniform)
    with pytest.raises(ValueError, match=r"logits has shape \[2, 2, 4\]"):
        unmask_step(logits[:2], uniform)
    with pytest.raises(ValueError, match="no symbols"):
        unmask_step(logits[:, :, :0], uniform)
