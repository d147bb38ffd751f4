"""Token statistics against torch's cross-entropy and distributions, closed forms and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from icml_kernels import token_stats
from icml_kernels.language.cases import head, random, ruled_out, tokens
from icml_kernels.language.every_case import statistics
from icml_kernels.language.token_stats.cases import CAPPED, CASES, arguments
from icml_kernels.memory import peak_bytes
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
)

SMALL = arguments(4, 3, 5, ignored=1)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_blocks_equal_the_definition(case, dtype):
    check_route(case.bind(statistics), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(statistics, SMALL) == {"icml::token_stats", "icml::token_stats_backward"}


@pytest.mark.parametrize("options", [{}, dict(CAPPED)], ids=["plain", "capped"])
def test_derivatives_by_hidden_states_weight_and_bias(options):
    check_derivatives(lambda *a: statistics(*a, **options), SMALL, forward_mode=False)


def test_derivatives_by_logits():
    check_derivatives(statistics, (random(3, 5), torch.tensor([4, -100, 0])), forward_mode=False)


@pytest.mark.parametrize("by", [0, 2, 3])
def test_compiled(by):
    check_compiled(statistics, SMALL, by=by)


def test_forward_mode_is_refused():
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(lambda h: statistics(h, *SMALL[1:])[0], SMALL[:1], SMALL[:1])


def test_log_probability_is_minus_the_cross_entropy():
    hidden, targets, weight, bias = arguments(20, 6, 50, ignored=5)
    logits = F.linear(hidden, weight, bias)
    expected = -F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(token_stats(hidden, targets, weight=weight, bias=bias).logp, expected)
    torch.testing.assert_close(token_stats(logits, targets).logp, expected)


def test_entropy_is_that_of_torch_distributions():
    logits = 3 * random(20, 50)
    expected = torch.distributions.Categorical(logits=logits / 0.7).entropy()
    found = token_stats(logits, tokens(20, 50), temperature=0.7).entropy
    torch.testing.assert_close(found, expected)


def test_varentropy_is_the_variance_of_log_p():
    x = 2 * random(12, 30)
    p = torch.softmax(x, 1)
    logp = p.log()
    expected = (p * logp**2).sum(1) - (p * logp).sum(1) ** 2
    torch.testing.assert_close(token_stats(x, tokens(12, 30)).varentropy, expected)


def test_two_tokens_in_closed_form():
    """p = s(z), 1 - s(z): entropy and varentropy z^2 s(z) s(-z)."""
    z = torch.linspace(-5, 5, 11, dtype=torch.float64)
    logits = torch.stack([z, torch.zeros_like(z)], dim=1)
    s = torch.sigmoid(z)
    found = token_stats(logits, torch.zeros(11, dtype=torch.int64))
    torch.testing.assert_close(found.logp, F.logsigmoid(z))
    torch.testing.assert_close(found.entropy, -(s * s.log() + (1 - s) * (1 - s).log()))
    torch.testing.assert_close(found.varentropy, z**2 * s * (1 - s))


def test_uniform_rows_have_the_entropy_of_a_uniform_distribution():
    found = token_stats(torch.full((3, 49_152), 7.0), torch.tensor([0, 1, 49_151]))
    torch.testing.assert_close(found.entropy, torch.full((3,), math.log(49_152)))
    torch.testing.assert_close(found.logp, -found.entropy)
    assert float(found.varentropy.abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_huge_logits_neither_overflow_nor_cancel(dtype):
    logits = 1e4 * random(6, 70).to(dtype)
    targets = logits.argmax(1)
    leaf = logits.clone().requires_grad_()
    found = token_stats(leaf, targets)
    sum(t.sum() for t in found).backward()
    for actual in found:
        torch.testing.assert_close(actual, torch.zeros(6, dtype=dtype))
    assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_a_narrow_distribution_far_from_its_maximum_keeps_its_varentropy():
    """Sums of squares in one precision would lose it: mean -10 nats, variance about 1e-2."""
    x = 0.1 * random(1, 49_152)
    x[0, 0] = 9.0
    p = torch.softmax(x, 1)
    expected = (p * (p.log() - (p * p.log()).sum()) ** 2).sum(1)
    found = token_stats(x.float(), torch.tensor([0])).varentropy
    torch.testing.assert_close(found.double(), expected, rtol=2e-5, atol=0)


def test_tokens_that_are_ruled_out_count_for_nothing():
    logits = ruled_out(5, 40)
    targets = torch.tensor([0, 3, 6, 9, 12])
    left = logits[1:, torch.isfinite(logits[1])]
    expected = token_stats(left, torch.tensor([2, 4, 6, 8]))
    leaf = logits.clone().requires_grad_()
    found = token_stats(leaf, targets)
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a[1:], e)
        assert float(a[0].detach()) == 0
    sum(t.sum() for t in found).backward()
    assert torch.equal(leaf.grad[:, 1::3], torch.zeros(5, 13, dtype=torch.float64))
    assert torch.isfinite(leaf.grad).all()


def test_a_target_that_is_ruled_out_has_log_probability_minus_infinity():
    logits = ruled_out(2, 6)
    assert token_stats(logits, torch.tensor([1, 1])).logp.tolist() == [-math.inf, -math.inf]


def test_nan_is_seen():
    logits = random(3, 40)
    logits[1, 17] = math.nan
    for actual in token_stats(logits, torch.tensor([0, 1, 2])):
        assert torch.isnan(actual).tolist() == [False, True, False]


def test_ignored_rows_are_zero_and_give_no_gradient():
    hidden, targets, weight, bias = arguments(9, 4, 20, ignored=4)
    results = derivatives(statistics, (hidden, targets, weight, bias), order=1)
    kept = derivatives(statistics, (hidden[4:], targets[4:], weight, bias), order=1)
    for whole, part in zip(results[:3], kept[:3], strict=True):
        assert not whole[:4].any()
        torch.testing.assert_close(whole[4:], part)
    assert not results[3][:4].any()
    other = statistics(hidden, torch.where(targets == -100, -1, targets), weight, bias, ignore_index=-1)
    for a, e in zip(other, results[:3], strict=True):
        assert torch.equal(a, e)


def test_scale_and_cap_are_those_of_plain_torch():
    hidden, targets, weight, bias = arguments(8, 5, 30, spread=2.0)
    z = 0.0625 * F.linear(hidden, weight, bias)
    x = 30 * torch.tanh(z / 30) / 0.8
    options = {"logit_scale": 0.0625, "softcap": 30.0, "temperature": 0.8}
    found = token_stats(hidden, targets, weight=weight, bias=bias, **options)
    torch.testing.assert_close(found.logp, -F.cross_entropy(x, targets, reduction="none"))
    torch.testing.assert_close(found.entropy, torch.distributions.Categorical(logits=x).entropy())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_inputs_are_computed_with_in_single_precision(dtype):
    inputs = cast(arguments(12, 8, 300), dtype)
    leaves = [t.clone().requires_grad_() if t.is_floating_point() else t for t in inputs]
    found = statistics(*leaves)
    (found[0].sum() + found[1].sum()).backward()
    wide = [t.float().requires_grad_() if t.is_floating_point() else t for t in inputs]
    expected = statistics(*wide)
    (expected[0].sum() + expected[1].sum()).backward()
    for a, e in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, e)
    for k in (0, 2, 3):
        assert leaves[k].grad.dtype == dtype
        assert torch.equal(leaves[k].grad, wide[k].grad.to(dtype))


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_many_blocks_equal_one_for_any_number_of_threads(monkeypatch, threads):
    inputs = cast(arguments(23, 6, 700, ignored=2), torch.float32)
    expected = derivatives(statistics, cast(inputs, torch.float64), order=1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 4)
    monkeypatch.setattr("icml_kernels.language.rows_cpu.threads", lambda: threads)
    for a, e in zip(derivatives(statistics, inputs, order=1), expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


def test_bad_arguments_are_named():
    hidden, targets, weight, bias = SMALL
    with pytest.raises(
        ValueError, match=r"targets\[2\] = 5 is neither a token, 0 to 4, nor ignore_index=-100"
    ):
        token_stats(hidden, torch.tensor([0, 1, 5, 2]), weight=weight)
    with pytest.raises(ValueError, match=r"targets\[0\] = -1 is neither a token"):
        token_stats(hidden, torch.tensor([-1, 1, 4, 2]), weight=weight)
    with pytest.raises(TypeError, match=r"targets has dtype torch.float64; expected torch.int64"):
        token_stats(hidden, targets.double(), weight=weight)
    with pytest.raises(ValueError, match=r"targets has shape \[3\]; expected \[4\]"):
        token_stats(hidden, targets[1:], weight=weight)
    with pytest.raises(ValueError, match=r"weight has shape \[3, 5\]; expected \[any, 3\]"):
        token_stats(hidden, targets, weight=weight.T)
    with pytest.raises(ValueError, match="bias was given without weight"):
        token_stats(hidden, targets, bias=bias)
    with pytest.raises(TypeError, match="weight has dtype torch.float32 but hidden has torch.float64"):
        token_stats(hidden, targets, weight=weight.float())
    with pytest.raises(TypeError, match="logits has dtype torch.int64"):
        token_stats(targets[:, None], targets)
    with pytest.raises(ValueError, match="temperature=0.0 is not a positive number"):
        token_stats(hidden, targets, weight=weight, temperature=0.0)
    with pytest.raises(ValueError, match="softcap=-1.0 is not a positive number"):
        token_stats(hidden, targets, weight=weight, softcap=-1.0)
    with pytest.raises(ValueError, match="the vocabulary is empty"):
        token_stats(torch.zeros(2, 0), targets[:2])


def test_memory_is_a_fraction_of_one_set_of_logits(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 16)
    hidden, weight, _ = head(512, 16, 4000, with_bias=False)
    targets = tokens(512, 4000)
    leaves = hidden.float().requires_grad_(), weight.float().requires_grad_()
    one_set = 4 * 512 * 4000

    def ours():
        found = token_stats(leaves[0], targets, weight=leaves[1])
        torch.autograd.grad(found.logp.sum() + found.entropy.sum(), leaves)

    def plain():
        p = torch.distributions.Categorical(logits=leaves[0] @ leaves[1].T)
        torch.autograd.grad(p.log_prob(targets).sum() + p.entropy().sum(), leaves)

    assert peak_bytes(plain) > 3 * one_set
    assert 0 < peak_bytes(ours) < 0.2 * one_set
