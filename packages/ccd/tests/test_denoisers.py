"""The oracles themselves, and the exact distributions of decoders against them."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch
from icml_ccd import ExactDenoiser, HiddenMarkovDenoiser, decode, decoder_distribution, forced_logp
from icml_ccd.sequence_distribution import total_variation
from icml_ccd.small_languages import balanced_brackets, latin_squares, sudoku_grids, valid_sudoku


def test_languages_have_their_known_sizes():
    assert len(sudoku_grids()) == 288
    assert valid_sudoku(sudoku_grids()).all()
    assert [len(latin_squares(n)) for n in (1, 2, 3, 4)] == [1, 2, 12, 576]
    assert [len(balanced_brackets(n)) for n in (1, 2, 3, 4)] == [1, 2, 5, 14]
    wrong = sudoku_grids()[0].clone()
    wrong[0] = 3 - wrong[0]
    assert not valid_sudoku(wrong[None])
    assert not valid_sudoku(torch.full((1, 16), 4))


def test_posterior_is_that_of_counting():
    denoiser = ExactDenoiser(balanced_brackets(3))
    ids = torch.tensor([[0, 2, 2, 1, 2, 2], [2, 2, 2, 2, 2, 2]])
    strings = balanced_brackets(3).tolist()
    for row, found in zip(ids.tolist(), denoiser.posterior(ids), strict=True):
        agree = [s for s in strings if all(a in (b, 2) for a, b in zip(row, s, strict=True))]
        expected = [sum(s[i] == 1 for s in agree) / len(agree) for i in range(6)]
        torch.testing.assert_close(found[:, 1], torch.tensor(expected, dtype=torch.float64))


def test_noise_is_normal_and_a_function_of_context_and_seed():
    denoiser = ExactDenoiser(sudoku_grids(), 1.5, 3, vocab=4, floor=0.01)
    quiet = ExactDenoiser(sudoku_grids(), 0.0, 3, vocab=4, floor=0.01)
    ids = torch.randint(5, (400, 16), generator=torch.Generator().manual_seed(0))
    noise = (denoiser(ids) - quiet(ids)).double() / 1.5
    assert abs(float(noise.mean())) < 0.02
    assert abs(float(noise.std()) - 1) < 0.02
    assert abs(float((noise**4).mean()) - 3) < 0.2
    torch.testing.assert_close(denoiser(ids[7:9]), denoiser(ids)[7:9])
    other = ExactDenoiser(sudoku_grids(), 1.5, 4, vocab=4, floor=0.01)
    assert (
        abs(float(torch.corrcoef(torch.stack(((other(ids) - quiet(ids)).flatten(), noise.flatten())))[0, 1]))
        < 0.02
    )
    near = ids.clone()
    near[:, 0] = (near[:, 0] + 1) % 5
    change = (denoiser(near) - quiet(near)).double() / 1.5
    assert abs(float(torch.corrcoef(torch.stack((change.flatten(), noise.flatten())))[0, 1])) < 0.02


def test_a_context_without_a_sequence_has_no_opinion():
    denoiser = ExactDenoiser([[0, 1], [1, 0]], vocab=2)
    assert denoiser(torch.tensor([[0, 0]]))[0, 1].tolist() == pytest.approx([math.log(0.5)] * 2)


def test_forward_and_backward_messages_are_an_enumeration():
    model = HiddenMarkovDenoiser.random(3, 3, seed=1)
    every = torch.tensor(list(product(range(3), repeat=4)))
    listed = ExactDenoiser(every, weights=model.log_probability(every).exp(), vocab=3)
    assert float(model.log_probability(every).exp().sum()) == pytest.approx(1)
    ids = torch.tensor([[3, 3, 3, 3], [0, 3, 2, 3], [3, 1, 3, 3], [2, 2, 2, 2]])
    torch.testing.assert_close(model.posterior(ids), listed.posterior(ids))


def test_samples_follow_the_model():
    model = HiddenMarkovDenoiser.random(2, 3, seed=2)
    drawn = model.sample(20_000, 3, seed=1)
    every = torch.tensor(list(product(range(3), repeat=3)))
    counts = torch.bincount((drawn * torch.tensor([9, 3, 1])).sum(1), minlength=27) / 20_000
    assert total_variation(counts, model.log_probability(every).exp()) < 0.03
    assert model.sample(0, 3).shape == (0, 3)


@pytest.mark.parametrize("rule", ["neg_entropy", "confidence", "margin", "random", "left_to_right"])
def test_one_token_a_step_gives_the_true_distribution(rule):
    """The chain rule holds in any order, also in one that depends on the tokens so far."""
    model = HiddenMarkovDenoiser.random(3, 3, seed=4)
    every, p = decoder_distribution(model, 5, 3, rule, budget=1)
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert total_variation(p, model.log_probability(every).exp()) < 1e-5


@pytest.mark.parametrize("rule", ["neg_entropy", "ccd", "ccd_plus"])
def test_several_tokens_a_step_do_not_and_the_distribution_is_still_one(rule):
    model = ExactDenoiser(balanced_brackets(3))
    every, p = decoder_distribution(model, 6, 2, rule, budget=3)
    assert float(p.sum()) == pytest.approx(1, abs=1e-5)
    assert total_variation(p, model.log_probability(every).exp()) > 0.05


def test_the_enumerated_distribution_is_that_of_samples():
    model = HiddenMarkovDenoiser.random(2, 2, seed=6)
    _, p = decoder_distribution(model, 5, 2, "ccd", budget=2)
    start = torch.empty(1, 0, dtype=torch.int64)
    out = decode(model, start, 5, rule="ccd", budget=2, temperature=1.0, num_return_sequences=8000)
    key = (out.sequences * 2 ** torch.arange(4, -1, -1)).sum(1)
    counts = torch.bincount(key, minlength=32) / 8000
    assert total_variation(counts, p) < 0.04
    expected = p[key].log()
    torch.testing.assert_close(out.logp, expected, rtol=1e-4, atol=1e-4)


def test_at_temperature_0_a_response_is_certain_or_impossible():
    model = ExactDenoiser(balanced_brackets(2))
    start = torch.empty(2, 0, dtype=torch.int64)
    best = decode(model, start[:1], 4, rule="ccd").sequences
    other = 1 - best
    found = forced_logp(model, start, torch.cat((best, other)), "ccd", temperature=0.0)
    assert found.tolist() == [0.0, -math.inf]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sequences": [[0, 1], [1]]}, "one length each"),
        ({"sequences": []}, "expected \\[number, length\\]"),
        ({"noise": -1.0}, "noise=-1.0 must not be negative"),
        ({"floor": 1.0}, "floor=1.0 lies in"),
        ({"weights": [1.0]}, "weights must be 2 numbers"),
        ({"vocab": 1}, "in a vocabulary of 1"),
        ({"mask_id": 1}, "the mask id 1 occurs"),
    ],
)
def test_bad_languages_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ExactDenoiser(**{"sequences": [[0, 1], [1, 0]], **change})


def test_bad_tables_and_too_long_responses_are_refused():
    half = torch.full((2, 2), 0.5)
    with pytest.raises(ValueError, match="transition does not hold probabilities"):
        HiddenMarkovDenoiser(half[0], half + 0.1, half)
    with pytest.raises(ValueError, match="do not fit together"):
        HiddenMarkovDenoiser(half[0], half, torch.ones(3, 2) / 2)
    with pytest.raises(ValueError, match="cannot be listed"):
        decoder_distribution(ExactDenoiser([[0, 1]]), 30, 2)
    with pytest.raises(ValueError, match="this language has 2 positions"):
        ExactDenoiser([[0, 1]])(torch.zeros(1, 3, dtype=torch.int64))
