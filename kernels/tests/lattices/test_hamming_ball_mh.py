"""Hamming-ball chains against enumeration; sparse differences against full evaluations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from icml_kernels import hamming_ball_mh, sparse_terms
from icml_kernels.lattices.hamming_ball_mh.cases import CASES, arguments, random_terms
from icml_kernels.testing import check_raw_ops, use_route
from scipy.stats import chisquare


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_takes_the_steps_of_the_definition(case):
    with use_route("reference"):
        expected = hamming_ball_mh(*case.arguments())
    found = hamming_ball_mh(*case.arguments())
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.moved, expected.moved)
    torch.testing.assert_close(found.gained, expected.gained, rtol=1e-11, atol=1e-11)


def test_raw_operators_are_well_formed():
    def run(x, beta):
        return hamming_ball_mh(x, beta, random_terms(6, 2, 9, 2), 1, 4, 0)

    with torch.no_grad():
        assert check_raw_ops(run, CASES[0].arguments()[:2], order=0) == {"icml::hamming_ball_mh"}


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("symbols", [2, 3])
def test_gains_are_differences_of_full_evaluations(symbols, equal):
    terms = random_terms(12, symbols, 30, 4, equal=equal)
    x, beta, *_ = arguments(50, terms, 3, 40)
    found = hamming_ball_mh(x, beta, terms, 3, 40, seed=2)
    torch.testing.assert_close(found.gained, terms.log_density(found.x) - terms.log_density(x))


@pytest.mark.parametrize(("symbols", "radius", "beta"), [(2, 1, 1.0), (2, 5, 1.0), (3, 2, 0.6)])
def test_visited_states_have_the_frequencies_of_the_density(symbols, radius, beta):
    sites = 4
    terms = random_terms(sites, symbols, 7, 3)
    states = torch.tensor(list(itertools.product(range(symbols), repeat=sites)))
    expected = torch.softmax(beta * terms.log_density(states), 0)
    chains = 30_000
    start = torch.zeros(chains, sites, dtype=torch.int64)
    betas = torch.full((chains,), beta, dtype=torch.float64)
    end = hamming_ball_mh(start, betas, terms, radius, 150, seed=radius).x
    index = (end * symbols ** torch.arange(sites - 1, -1, -1)).sum(1)
    counts = torch.bincount(index, minlength=len(states)).double()
    assert chisquare(counts, chains * expected).pvalue > 1e-4


def test_moves_that_come_back_are_not_counted():
    """One site of two symbols, changed twice: every proposal is the state itself."""
    terms = sparse_terms(1, [[0]], torch.tensor([0.3]), torch.tensor([0.0, 1.0]))
    x, beta = torch.zeros(20, 1, dtype=torch.int64), torch.ones(20, dtype=torch.float64)
    found = hamming_ball_mh(x, beta, terms, 2, 50, seed=0)
    assert found.moved.sum() == 0
    assert torch.equal(found.x, x)


def test_a_spin_in_a_field_flips_at_metropolis_rate():
    """From up to down with probability exp(-2 beta h), within 4 standard errors."""
    h, n = 0.7, 200_000
    terms = sparse_terms(1, [[0]], torch.tensor([h]), torch.tensor([-1.0, 1.0]))
    for beta in (0.5, 1.0, 2.0):
        up = torch.ones(n, 1, dtype=torch.int64)
        moved = hamming_ball_mh(up, torch.full((n,), beta, dtype=torch.float64), terms, 1, 1, seed=3).moved
        rate, wanted = float(moved.double().mean()), math.exp(-2 * beta * h)
        assert abs(rate - wanted) < 4 * math.sqrt(wanted * (1 - wanted) / n)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    given = arguments(9, random_terms(8, 2, 12, 3), 2, 30)
    results = []
    for shares in (1, 2, 4):
        monkeypatch.setattr("icml_kernels.lattices.hamming_ball_mh.cpu.threads", lambda shares=shares: shares)
        results.append(hamming_ball_mh(*given))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments_are_named():
    x, beta, terms, *_ = arguments(3, random_terms(4, 2, 5, 2), 1, 1)
    with pytest.raises(TypeError, match="x has dtype torch.int32"):
        hamming_ball_mh(x.int(), beta, terms, 1, 1, 0)
    with pytest.raises(ValueError, match="radius=0 must be positive"):
        hamming_ball_mh(x, beta, terms, 0, 1, 0)
    with pytest.raises(ValueError, match="x has symbols 0 to 2"):
        hamming_ball_mh(torch.tensor([[0, 1, 2, 0]] * 3), beta, terms, 1, 1, 0)
    with pytest.raises(ValueError, match="beta must be finite"):
        hamming_ball_mh(x, -beta, terms, 1, 1, 0)
    with pytest.raises(ValueError, match=r"term \[1, 1\] must have 1 or more different sites"):
        sparse_terms(4, [[1, 1]], torch.ones(1), torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="there must be as many"):
        sparse_terms(4, [[1]], torch.ones(2), torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match="not finite"):
        sparse_terms(4, [[1]], torch.tensor([math.nan]), torch.tensor([0.0, 1.0]))
