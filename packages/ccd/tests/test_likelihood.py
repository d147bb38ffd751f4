"""Likelihood bounds against enumeration."""

from __future__ import annotations

import math

import pytest
import torch
from icml_ccd import ExactDenoiser, HiddenMarkovDenoiser, MDMConfig, TinyMDM, exact_bound, loglik

EMPTY = torch.empty(0, dtype=torch.int64)
MODEL = HiddenMarkovDenoiser.random(3, 4, seed=3)


class Biased:
    """The exact denoiser with logits that are too flat, so that the bound is not tight."""

    mask_id, shift_logits = MODEL.mask_id, False

    def __call__(self, ids):
        return 0.4 * MODEL(ids)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_of_an_exact_denoiser_is_the_likelihood(seed):
    answer = MODEL.sample(1, 6, seed=seed)[0]
    expected = float(MODEL.log_probability(answer[None]))
    assert exact_bound(MODEL, EMPTY, answer).value == pytest.approx(expected, abs=1e-4)
    order = loglik(MODEL, EMPTY, answer, n_orders=3, generator=seed)
    assert order.value == pytest.approx(expected, abs=1e-4)
    assert order.standard_error < 1e-4
    assert order.n_forward == 18
    assert order.perplexity == pytest.approx(math.exp(-expected / 6), rel=1e-3)


@pytest.mark.parametrize("stratified", [True, False])
def test_estimates_lie_within_three_standard_errors_of_the_enumeration(stratified):
    answer = MODEL.sample(1, 6, seed=9)[0]
    prompt = MODEL.sample(1, 3, seed=8)[0]
    exact = exact_bound(Biased(), prompt, answer).value
    outside = 0
    for seed in range(10):
        found = loglik(Biased(), prompt, answer, 120, stratified, generator=seed)
        outside += abs(found.value - exact) > 3 * found.standard_error
    assert outside <= 1
    orders = loglik(Biased(), prompt, answer, n_orders=200, generator=1)
    assert abs(orders.value - exact) < 3 * orders.standard_error


def test_stratified_copies_vary_less():
    answer = MODEL.sample(1, 8, seed=9)[0]
    errors = [
        loglik(Biased(), EMPTY, answer, 160, stratified, generator=1).standard_error
        for stratified in (True, False)
    ]
    assert errors[0] < 0.8 * errors[1]


def test_a_shifted_model_is_scored_at_its_own_alignment():
    plain = ExactDenoiser([[0, 1, 2], [2, 1, 0]])
    shifted = ExactDenoiser([[0, 1, 2], [2, 1, 0]], shift_logits=True)
    prompt, answer = torch.tensor([0]), torch.tensor([1, 2])
    assert loglik(plain, prompt, answer, n_orders=1).value == pytest.approx(0.0, abs=1e-6)
    assert loglik(shifted, prompt, answer, n_orders=1).value == pytest.approx(0.0, abs=1e-6)


def test_bad_input_is_named():
    answer = torch.tensor([1, 2])
    with pytest.raises(ValueError, match="the answer holds the mask id 4"):
        loglik(MODEL, EMPTY, torch.tensor([4]))
    with pytest.raises(ValueError, match="the answer not empty"):
        loglik(MODEL, EMPTY, EMPTY)
    with pytest.raises(ValueError, match="n_mc=1; at least 2"):
        loglik(MODEL, EMPTY, answer, 1)
    with pytest.raises(ValueError, match="n_orders=0"):
        loglik(MODEL, EMPTY, answer, n_orders=0)
    with pytest.raises(ValueError, match="say shift_logits"):
        loglik(lambda ids: ids, EMPTY, answer, mask_id=4)
    with pytest.raises(ValueError, match="no mask token id"):
        loglik(lambda ids: ids, EMPTY, answer)
    with pytest.raises(ValueError, match="2\\^17"):
        exact_bound(MODEL, EMPTY, torch.zeros(17, dtype=torch.int64))


def test_an_untrained_model_is_as_good_as_a_guess():
    model = TinyMDM(MDMConfig(9, 8, d=16, layers=1, heads=2, initializer_range=0.02), seed=0)
    found = loglik(model, torch.tensor([1]), torch.tensor([2, 3, 4]), 32)
    assert found.perplexity == pytest.approx(9, rel=0.05)
