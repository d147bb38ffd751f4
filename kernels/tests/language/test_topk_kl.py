"""The divergence from listed tokens against torch's kl_div, with a bucket and without, and differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from icml_kernels import topk_kl, topk_logprobs
from icml_kernels.language.cases import head, random
from icml_kernels.language.every_case import divergence
from icml_kernels.language.topk_kl.cases import CAPPED, CASES, arguments, teacher
from icml_kernels.memory import peak_bytes
from icml_kernels.testing import cast, check_compiled, check_derivatives, check_raw_ops, check_route

SMALL = arguments(4, 3, 6, 2)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_blocks_equal_the_definition(case, dtype):
    check_route(case.bind(divergence), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(divergence, SMALL) == {"icml::topk_kl", "icml::topk_kl_backward"}


@pytest.mark.parametrize("options", [{}, {"mode": "paper"}, dict(CAPPED)], ids=["bucket", "paper", "capped"])
def test_derivatives_by_hidden_states_weight_and_bias(options):
    check_derivatives(lambda *a: divergence(*a, **options), SMALL, by=(0, 1, 5), forward_mode=False)


@pytest.mark.parametrize("by", [0, 1, 5])
def test_compiled(by):
    check_compiled(divergence, SMALL, by=by)


@pytest.mark.parametrize("mode", ["bucket", "paper"])
def test_the_whole_vocabulary_is_torch_kl_div(mode):
    hidden, weight, _, _, _, bias = arguments(12, 5, 30, 4)
    target = torch.log_softmax(2 * random(12, 30, seed=7), 1)
    idx, logp, tail = topk_logprobs(2 * random(12, 30, seed=7), None, 30)
    results = []
    for loss in (
        lambda h, w: topk_kl(h, w, idx, logp, tail, bias=bias, mode=mode, temperature=1.5),
        lambda h, w: F.kl_div(
            torch.log_softmax(F.linear(h, w, bias) / 1.5, 1), target, reduction="none", log_target=True
        ).sum(1),
    ):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
        value = loss(*leaves)
        weights = torch.linspace(0.2, 2, 12, dtype=torch.float64)
        results.append([value.detach(), *torch.autograd.grad((value * weights).sum(), leaves)])
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e)


def test_bucket_form_is_torch_kl_div_of_distributions_with_a_bucket():
    x, y = random(10, 40, seed=7), random(10, 40, seed=8)
    idx, logp, tail = topk_logprobs(y, None, 6)
    q = torch.softmax(x, 1)
    rest = 1 - q.gather(1, idx).sum(1)
    bucketed = torch.cat([q.gather(1, idx), rest[:, None]], 1).log()
    target = torch.cat([logp.exp(), tail[:, None]], 1)
    expected = F.kl_div(bucketed, target, reduction="none").sum(1)
    torch.testing.assert_close(topk_kl(x, None, idx, logp, tail), expected)


def test_bucket_form_is_never_negative_and_grows_with_the_list():
    x, y = (2 * random(50, 60, seed=s) for s in (7, 8))
    whole = F.kl_div(torch.log_softmax(x, 1), torch.softmax(y, 1), reduction="none").sum(1)
    before = torch.zeros(50, dtype=torch.float64)
    for k in (1, 3, 10, 30, 60):
        found = topk_kl(x, None, *topk_logprobs(y, None, k))
        assert (found >= before - 1e-12).all()
        before = found
    torch.testing.assert_close(before, whole)


def test_the_form_without_a_tail_can_be_negative():
    teacher_x = torch.tensor([[2.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    student = torch.tensor([[3.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    listed = topk_logprobs(teacher_x, None, 1)
    p, q = (math.exp(z) / (math.exp(z) + 3) for z in (2.0, 3.0))
    assert float(topk_kl(student, None, *listed, mode="paper")) == pytest.approx(p * math.log(p / q))
    assert p * math.log(p / q) < 0
    expected = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert float(topk_kl(student, None, *listed)) == pytest.approx(expected)


def test_a_student_that_equals_its_teacher_has_no_divergence_and_no_gradient():
    hidden, weight, bias = cast(head(8, 5, 300), torch.float32)
    listed = topk_logprobs(hidden, weight, 20, bias=bias)
    leaf = hidden.clone().requires_grad_()
    loss = topk_kl(leaf, weight, *listed, bias=bias)
    loss.sum().backward()
    assert float(loss.detach().abs().max()) < 2e-6
    assert float(leaf.grad.abs().max()) < 2e-6


def test_an_almost_empty_rest_keeps_its_gradient():
    """q(rest) = e^-200 underflows in single precision; the teacher's tail still pulls the rest up."""
    x = torch.zeros(1, 5)
    x[0, 0] = 200.0
    leaf = x.requires_grad_()
    listed = torch.tensor([[0]]), torch.tensor([[math.log(0.9)]]), torch.tensor([0.1])
    loss = topk_kl(leaf, None, *listed)
    loss.sum().backward()
    expected = 0.9 * math.log(0.9) + 0.1 * (math.log(0.1) + 200 - math.log(4))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(leaf.grad, torch.tensor([[0.1, -0.025, -0.025, -0.025, -0.025]]))


def test_token_weights_multiply_rows_and_zero_leaves_a_row_out():
    hidden, weight, idx, logp, tail, bias = arguments(6, 4, 20, 3)
    w = torch.tensor([0.0, 0.5, 1.0, 2.0, 0.0, 3.0], dtype=torch.float64)
    results = []
    for loss in (
        lambda h, m: topk_kl(h, m, idx, logp, tail, bias=bias, token_weight=w),
        lambda h, m: w * topk_kl(h, m, idx, logp, tail, bias=bias),
    ):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
        value = loss(*leaves)
        results.append([value.detach(), *torch.autograd.grad(value.sum(), leaves)])
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_inputs_are_computed_with_in_single_precision(dtype):
    inputs = cast(arguments(6, 8, 300, 10), dtype)
    leaves = [t.clone().requires_grad_() if k in (0, 1) else t for k, t in enumerate(inputs)]
    wide = [
        t.float().requires_grad_() if k in (0, 1) else t.float() if k != 2 else t
        for k, t in enumerate(inputs)
    ]
    found, expected = divergence(*leaves), divergence(*wide)
    found.sum().backward()
    expected.sum().backward()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    for k in (0, 1):
        assert torch.equal(leaves[k].grad, wide[k].grad.to(dtype))


@pytest.mark.parametrize("threads", [1, 3])
def test_many_blocks_equal_one(monkeypatch, threads):
    hidden, weight, *listed, bias = arguments(23, 6, 700, 12)
    one = topk_kl(hidden, weight, *listed, bias=bias)
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 4)
    monkeypatch.setattr("icml_kernels.language.rows_cpu.threads", lambda: threads)
    torch.testing.assert_close(topk_kl(hidden, weight, *listed, bias=bias), one)


def test_memory_is_a_fraction_of_one_set_of_logits(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 16)
    hidden, weight, _ = cast(head(512, 16, 4000, with_bias=False), torch.float32)
    listed = cast(teacher(512, 4000, 8), torch.float32)
    leaves = hidden.requires_grad_(), weight.requires_grad_()

    def ours():
        torch.autograd.grad(topk_kl(*leaves, *listed).sum(), leaves)

    assert 0 < peak_bytes(ours) < 0.2 * 4 * 512 * 4000


def test_bad_arguments_are_named():
    hidden, weight, idx, logp, tail, _ = SMALL
    for given, message in (
        ((idx + 5, logp, tail), r"idx\[0\] = \[.*\] lists tokens outside 0..5"),
        ((idx - 5, logp, tail), r"idx\[0\] = \[.*\] lists tokens outside 0..5"),
        ((torch.zeros_like(idx), logp, tail), r"idx\[0\] = \[0, 0\] lists a token twice"),
        ((idx[:2], logp, tail), r"idx has shape \[2, 2\]; expected \[4, any\]"),
        ((idx[:, :0], logp, tail), "idx lists 0 tokens a row; expected 1 to 6"),
        ((idx, logp[:, :1], tail), r"logp has shape \[4, 1\]; expected \[4, 2\]"),
        ((idx, logp, tail[1:]), r"tail has shape \[3\]; expected \[4\]"),
        ((idx, logp.clone().requires_grad_(), tail), "logp wants a gradient"),
    ):
        with pytest.raises(ValueError, match=message):
            topk_kl(hidden, weight, *given)
    with pytest.raises(ValueError, match="mode='full' is not one of bucket, paper"):
        topk_kl(hidden, weight, idx, logp, tail, mode="full")
    with pytest.raises(TypeError, match="idx has dtype torch.float64"):
        topk_kl(hidden, weight, logp, logp, tail)
    with pytest.raises(TypeError, match="tail has dtype torch.int64"):
        topk_kl(hidden, weight, idx, logp, idx[:, 0])
