"""Scores of chosen rows of logits against SciPy, torch's softmax and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_kernels import masked_entropy_argmax, token_stats
from icml_kernels.language.cases import random, ruled_out
from icml_kernels.language.every_case import scored
from icml_kernels.language.masked_entropy_argmax import without_derivatives
from icml_kernels.language.masked_entropy_argmax.cases import CASES, arguments
from icml_kernels.language.masked_entropy_argmax.cpu import SERIAL, shares_of
from icml_kernels.memory import peak_bytes
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route
from scipy.stats import entropy as scipy_entropy

SMALL = arguments(4, 7, (2, 0, 2))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(scored), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    found = check_raw_ops(scored, SMALL)
    assert found == {"icml::masked_entropy_argmax", "icml::masked_entropy_argmax_backward"}


def test_derivatives():
    check_derivatives(scored, SMALL, by=(0,), forward_mode=False)


def test_compiled():
    check_compiled(scored, SMALL)


def test_entropy_is_that_of_scipy_and_the_token_that_of_a_sort():
    logits, rows = arguments(30, 700, tuple(range(0, 30, 3)), spread=3.0)
    found = masked_entropy_argmax(logits, rows, 0.7)
    p = np.exp(logits.numpy()[::3] / 0.7)
    p /= p.sum(1, keepdims=True)
    np.testing.assert_allclose(-found.neg_entropy.numpy(), scipy_entropy(p, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.maxprob.numpy(), p.max(1), rtol=1e-12)
    assert found.argmax.tolist() == p.argmax(1).tolist()


@pytest.mark.parametrize("vocabulary", [3, 511, 512, 513, 5000])
def test_a_rising_row_is_rescaled_from_run_to_run(vocabulary):
    """Every run of the loop brings a larger logit than all before, by far or by little."""
    for step in (1e-3, 0.1, 3.0):
        logits = torch.arange(vocabulary, dtype=torch.float64)[None] * step
        found = masked_entropy_argmax(logits, torch.tensor([0]))
        expected = token_stats(logits, torch.tensor([vocabulary - 1]))
        torch.testing.assert_close(-found.neg_entropy, expected.entropy, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.maxprob.log(), expected.logp, rtol=1e-10, atol=1e-12)
        assert found.argmax.item() == vocabulary - 1


def test_of_equal_logits_the_first_token_is_taken():
    logits = torch.zeros(2, 1200)
    logits[1, 700] = logits[1, 900] = 1.0
    assert masked_entropy_argmax(logits, torch.tensor([0, 1])).argmax.tolist() == [0, 700]


def test_nan_and_rows_that_are_ruled_out_are_seen_in_their_row_alone():
    logits = ruled_out(4, 1300)
    logits[1, 6], logits[2] = math.nan, -math.inf
    found = masked_entropy_argmax(logits, torch.arange(4))
    for result in (found.neg_entropy, found.maxprob):
        assert torch.isnan(result).tolist() == [False, True, True, False]
    assert (found.neg_entropy[0].item(), found.maxprob[0].item()) == (0.0, 1.0)


def test_huge_logits_neither_overflow_nor_give_nan():
    logits = (1e4 * random(5, 60)).float()
    found = masked_entropy_argmax(logits, torch.arange(5))
    p = torch.softmax(logits.double(), 1)
    torch.testing.assert_close(found.maxprob.double(), p.max(1).values, rtol=1e-6, atol=0)
    torch.testing.assert_close(found.neg_entropy.double(), (p * (p + 1e-300).log()).sum(1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_logits_are_computed_with_in_single_precision(dtype):
    logits = random(6, 900).to(dtype)
    rows = torch.tensor([4, 1, 5])
    found = masked_entropy_argmax(logits, rows)
    for a, e in zip(found, masked_entropy_argmax(logits.float(), rows), strict=True):
        assert torch.equal(a, e)


def test_other_layouts_are_read_as_they_are():
    logits = random(40, 9).T
    rows = torch.tensor([3, 8], dtype=torch.int32)
    for a, e in zip(
        masked_entropy_argmax(logits, rows), masked_entropy_argmax(logits.contiguous(), rows), strict=True
    ):
        assert torch.equal(a, e)


def test_no_tensor_of_the_size_of_the_logits_is_made():
    logits, rows = random(64, 4000).float(), torch.arange(0, 64, 2)
    assert peak_bytes(lambda: masked_entropy_argmax(logits, rows)) < 4 * 4000


@pytest.mark.parametrize("exclude", [0, 511, 700, 1199])
def test_an_excluded_token_is_one_with_a_logit_of_minus_infinity(exclude):
    logits = random(3, 1200)
    logits[:, exclude] = 50.0
    without = logits.clone()
    without[:, exclude] = -math.inf
    for a, e in zip(
        masked_entropy_argmax(logits, torch.arange(3), exclude=exclude),
        masked_entropy_argmax(without, torch.arange(3)),
        strict=True,
    ):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shares", [2, 3])
def test_threads_change_nothing(monkeypatch, shares):
    logits, rows = arguments(9, 1300, (8, 0, 3, 3, 5, 1, 2), spread=4.0)
    alone = masked_entropy_argmax(logits, rows, 0.7, 5)
    monkeypatch.setattr("icml_kernels.language.masked_entropy_argmax.cpu.shares_of", lambda *_: shares)
    for a, e in zip(masked_entropy_argmax(logits, rows, 0.7, 5), alone, strict=True):
        assert torch.equal(a, e)


def test_small_calls_start_no_threads(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.masked_entropy_argmax.cpu.threads", lambda: 4)
    assert [shares_of(*size) for size in ((256, SERIAL - 1), (256, SERIAL), (3, SERIAL))] == [1, 4, 3]


def test_without_gradients_the_values_are_the_same_and_transforms_still_work():
    logits, rows = SMALL
    expected = masked_entropy_argmax(logits, rows)
    assert not without_derivatives()
    with torch.no_grad():
        assert without_derivatives()
        found = masked_entropy_argmax(logits.clone().requires_grad_(), rows)
        batch = torch.func.vmap(lambda x: masked_entropy_argmax(x, rows))(torch.stack([logits, 2 * logits]))
        compiled = torch.compile(masked_entropy_argmax, fullgraph=True, backend="aot_eager")(logits, rows)
        # A tangent must not be lost in silence.
        with pytest.raises(RuntimeError):
            torch.func.jvp(lambda x: masked_entropy_argmax(x, rows).lse, (logits,), (logits,))
        with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError):
            masked_entropy_argmax(torch.autograd.forward_ad.make_dual(logits, logits), rows)
    for several in (found, compiled, [x[0] for x in batch]):
        for a, e in zip(several, expected, strict=True):
            assert torch.equal(a, e)
            assert not a.requires_grad


def test_bad_arguments_are_named():
    logits, rows = SMALL
    with pytest.raises(ValueError, match="exclude=7 is none of the tokens 0 to 6"):
        masked_entropy_argmax(logits, rows, exclude=7)
    with pytest.raises(ValueError, match="rows holds 0 to 4, but logits has the rows 0 to 3"):
        masked_entropy_argmax(logits, torch.tensor([4, 0]))
    with pytest.raises(ValueError, match="temperature=0.0 is not a positive number"):
        masked_entropy_argmax(logits, rows, 0.0)
    with pytest.raises(TypeError, match="rows has dtype torch.float64"):
        masked_entropy_argmax(logits, rows.double())
    with pytest.raises(TypeError, match="logits has dtype torch.int64"):
        masked_entropy_argmax(logits.long(), rows)
    with pytest.raises(ValueError, match="the vocabulary is empty"):
        masked_entropy_argmax(torch.zeros(3, 0), rows)
