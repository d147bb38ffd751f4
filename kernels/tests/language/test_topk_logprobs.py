"""The most probable tokens against torch's softmax and sorting."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from icml_kernels import topk_logprobs
from icml_kernels.language import rows_cpu
from icml_kernels.language.cases import head, random, ruled_out
from icml_kernels.language.every_case import listed
from icml_kernels.language.topk_logprobs.cases import CASES, arguments
from icml_kernels.memory import peak_bytes
from icml_kernels.testing import cast, check_raw_ops, check_route


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_blocks_equal_the_definition(case, dtype):
    check_route(case.bind(listed), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    function = CASES[0].bind(listed)
    assert check_raw_ops(function, CASES[0].arguments()) == {"icml::topk_logprobs"}


def test_tokens_and_probabilities_are_those_of_a_full_sort():
    hidden, weight, bias = arguments(20, 6, 50)
    order = torch.sort(torch.softmax(F.linear(hidden, weight, bias) / 1.3, 1), dim=1, descending=True)
    found = topk_logprobs(hidden, weight, 8, temperature=1.3, bias=bias)
    assert torch.equal(found.idx, order.indices[:, :8])
    torch.testing.assert_close(found.logp.exp(), order.values[:, :8])
    torch.testing.assert_close(found.tail, order.values[:, 8:].sum(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (63, 5), (64, 64), (130, 2), (1000, 15), (1000, 16), (900, 900)]
)
def test_selection_is_torch_topk_with_ties_and_without(dtype, n, k):
    """Rows shorter and longer than k strides of the loop; each token is listed once."""
    x = 3 * random(4, n).to(dtype)
    with_ties = x.round()
    with_ties[:, ::2] = -math.inf
    for rows in (x, x.round(), with_ties):
        values, idx = rows_cpu.topk(rows, k)
        assert torch.equal(values, rows.topk(k, dim=1).values)
        assert torch.equal(rows.gather(1, idx), values)
        assert all(len(set(row)) == k for row in idx.tolist())


def test_nan_is_seen():
    x = random(3, 500)
    x[1, 300] = math.nan
    found = topk_logprobs(x, None, 4)
    assert torch.isnan(found.tail).tolist() == [False, True, False]
    assert torch.isnan(found.logp).all(1).tolist() == [False, True, False]


def test_probabilities_and_tail_add_up_to_one():
    found = topk_logprobs(*cast(arguments(20, 6, 50)[:2], torch.float32), 8)
    torch.testing.assert_close(found.logp.exp().sum(1) + found.tail, torch.ones(20))


def test_a_small_tail_keeps_its_digits_in_single_precision():
    x = torch.zeros(1, 1000, dtype=torch.float64)
    x[0, 3] = 40.0
    found = topk_logprobs(x.float(), None, 1)
    expected = 999 * math.exp(-40) / (1 + 999 * math.exp(-40))
    assert float(found.tail) == pytest.approx(expected, rel=1e-5)


def test_tokens_that_are_ruled_out_come_last_and_leave_no_tail():
    found = topk_logprobs(ruled_out(3, 9), None, 8)
    assert found.logp[0].tolist() == [0.0, *[-math.inf] * 7]
    assert found.tail.tolist() == [0.0, 0.0, 0.0]
    assert torch.isfinite(found.logp[1:, :6]).all()


def test_huge_logits_neither_overflow_nor_give_nan():
    found = topk_logprobs((1e4 * random(5, 60)).float(), None, 3)
    assert torch.equal(found.logp[:, 0], torch.zeros(5))
    assert torch.equal(found.tail, torch.zeros(5))


def test_results_have_no_gradient():
    hidden, weight, _ = arguments(4, 3, 9)
    found = topk_logprobs(hidden.requires_grad_(), weight.requires_grad_(), 2)
    assert not any(t.requires_grad for t in found)


def test_16_bit_inputs_are_computed_with_in_single_precision():
    inputs = cast(arguments(6, 8, 300), torch.bfloat16)
    found = topk_logprobs(*inputs[:2], 5)
    expected = topk_logprobs(*cast(inputs, torch.float32)[:2], 5)
    assert torch.equal(found.idx, expected.idx)
    assert torch.equal(found.logp, expected.logp)


def test_compiled():
    hidden, weight, bias = arguments(4, 3, 9)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda h: topk_logprobs(h, weight, 3, bias=bias), fullgraph=True, backend="aot_eager"
    )
    for a, e in zip(compiled(hidden), topk_logprobs(hidden, weight, 3, bias=bias), strict=True):
        assert torch.equal(a, e)


def test_memory_is_a_tenth_of_softmax_and_topk(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 16)
    hidden, weight, _ = cast(head(512, 16, 4000, with_bias=False), torch.float32)
    plain = peak_bytes(lambda: torch.log_softmax(hidden @ weight.T, 1).topk(8))
    assert plain >= 2 * 4 * 512 * 4000
    assert 0 < peak_bytes(lambda: topk_logprobs(hidden, weight, 8)) < 0.1 * plain


def test_bad_arguments_are_named():
    hidden, weight, _ = arguments(4, 3, 9)
    for k in (0, 10):
        with pytest.raises(ValueError, match=f"k={k} is not one of 1 to 9, the size of the vocabulary"):
            topk_logprobs(hidden, weight, k)
    with pytest.raises(ValueError, match="temperature=0.0 is not a positive number"):
        topk_logprobs(hidden, weight, 2, temperature=0.0)
