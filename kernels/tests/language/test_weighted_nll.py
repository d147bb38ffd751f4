"""The weighted loss against torch's cross-entropy, its rules in plain torch, and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from icml_kernels import weighted_nll
from icml_kernels.language.cases import head, random, ruled_out, tokens
from icml_kernels.language.every_case import weighted
from icml_kernels.language.weighted_nll.cases import CAPPED, CASES, IDFT, arguments
from icml_kernels.memory import peak_bytes
from icml_kernels.testing import cast, check_compiled, check_raw_ops, check_route, derivatives, use_route

SMALL = arguments(4, 3, 5, ignored=1)


def loss_by_head(token_weight, **options):
    """The loss as a function of hidden, weight and bias."""
    targets = SMALL[2]
    return lambda h, w, b: weighted_nll(h, w, targets, token_weight=token_weight, bias=b, **options).loss


def in_plain_torch(logits, targets, kind, beta=1.0, low=0.1, high=2.0, normalizer=None):
    """The published formulas on logits of all rows, with their weights detached."""
    kept = targets != -100
    logp_all = torch.log_softmax(logits, 1)
    logp = logp_all[torch.arange(len(targets)), targets.clamp(min=0)]
    p, entropy = logp.exp(), -(logp_all.exp() * logp_all).sum(1)
    phi = logp + entropy
    exponent = torch.exp(-phi / beta).clamp(low, high)
    w = {
        "sft": torch.ones_like(p),
        "dft": p,
        "idft": p**exponent,
        "reverse": (1 - p) ** exponent,
        "eaft": entropy / math.log(logits.shape[1]),
        "indomain": 0.1 + 0.9 / (1 + torch.exp(phi)),
    }[kind].detach()
    return -(w * logp)[kept].sum() / (kept.sum() if normalizer is None else normalizer)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_cpu_blocks_equal_the_definition(case, dtype):
    check_route(case.bind(weighted), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(weighted, SMALL) == {"icml::weighted_nll"}


@pytest.mark.parametrize("options", [{}, {"softcap": 3.0, "logit_scale": 0.6, "temperature": 0.7}])
def test_derivatives_with_unequal_weights_are_finite_differences(options):
    """Weights differ from row to row and are fixed, so that finite differences see what the gradient says."""
    leaves = [SMALL[k].clone().requires_grad_() for k in (0, 1, 4)]
    loss = loss_by_head(torch.tensor([0.3, 1.7, 0.0, 0.9], dtype=torch.float64), **options)
    assert torch.autograd.gradcheck(loss, leaves)
    assert torch.autograd.gradgradcheck(loss, leaves)


@pytest.mark.parametrize("kind", ["sft", "dft", "idft", "reverse", "eaft", "indomain"])
def test_values_and_gradients_are_those_of_plain_torch(kind):
    hidden, weight, targets, _, bias = arguments(20, 6, 50, ignored=5)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    found = weighted_nll(leaves[0], leaves[1], targets, bias=leaves[2], kind=kind)
    expected = in_plain_torch(F.linear(leaves[0], leaves[1], leaves[2]), targets, kind)
    torch.testing.assert_close(found.loss, expected)
    for a, e in zip(
        torch.autograd.grad(found.loss, leaves), torch.autograd.grad(expected, leaves), strict=True
    ):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("kind", ["sft", "dft", "idft", "reverse", "eaft", "indomain"])
def test_second_derivatives_hold_the_weights_fixed_as_plain_torch_does(kind):
    hidden, weight, targets, _, bias = SMALL
    results = []
    for loss in (
        lambda h, w: weighted_nll(h, w, targets, bias=bias, kind=kind).loss,
        lambda h, w: in_plain_torch(F.linear(h, w, bias), targets, kind),
    ):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
        first = torch.autograd.grad(loss(*leaves), leaves, create_graph=True)
        results.append(torch.autograd.grad(sum((g**2).sum() for g in first), leaves))
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e)


def test_weight_one_is_torch_cross_entropy():
    hidden, weight, targets, _, bias = arguments(30, 6, 70, ignored=9)
    logits = F.linear(hidden, weight, bias)
    expected = F.cross_entropy(logits, targets)
    torch.testing.assert_close(weighted_nll(hidden, weight, targets, bias=bias).loss, expected)
    torch.testing.assert_close(weighted_nll(logits, None, targets).loss, expected)
    for kind in ("dft", "idft", "eaft"):
        found = weighted_nll(logits, None, targets, kind=kind)
        torch.testing.assert_close(-found.logp[9:].mean(), expected)


def test_exponents_zero_and_one_are_sft_and_dft():
    inputs = arguments(12, 5, 40)[:3]
    sft = weighted_nll(*inputs, kind="sft").loss
    dft = weighted_nll(*inputs, kind="dft").loss
    torch.testing.assert_close(weighted_nll(*inputs, kind="idft", gamma=(0.0, 0.0)).loss, sft)
    torch.testing.assert_close(weighted_nll(*inputs, kind="idft", gamma=(1.0, 1.0)).loss, dft)
    torch.testing.assert_close(weighted_nll(*inputs, kind="idft", mix=0.0).loss, dft)
    torch.testing.assert_close(weighted_nll(*inputs, kind="idft", mix=0.0, gamma_start=0.0).loss, sft)


def test_parts_of_a_batch_with_its_normalizer_add_up_to_the_batch():
    hidden, weight, targets, _, _ = arguments(20, 6, 50, ignored=5)
    whole = hidden.clone().requires_grad_()
    expected = weighted_nll(whole, weight, targets, kind="idft").loss
    (gradient,) = torch.autograd.grad(expected, whole)
    leaf = hidden.clone().requires_grad_()
    count = (targets != -100).sum()
    parts = [slice(0, 4), slice(4, 11), slice(11, 20)]  # the first has no supervised token
    losses = [
        weighted_nll(leaf[p], weight, targets[p], kind="idft", normalizer=n).loss
        for p, n in zip(parts, (count, 15, 15.0), strict=True)
    ]
    sum(losses).backward()
    torch.testing.assert_close(sum(losses).detach(), expected.detach())
    torch.testing.assert_close(leaf.grad, gradient)


def test_no_supervised_token_gives_zero_with_a_gradient_of_zero():
    hidden, weight, _, _, bias = SMALL
    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    found = weighted_nll(leaves[0], leaves[1], torch.full((4,), -100), bias=leaves[2], kind="idft")
    assert float(found.loss.detach()) == 0
    found.loss.backward()
    for leaf in leaves:
        assert torch.equal(leaf.grad, torch.zeros_like(leaf))


def test_a_target_of_probability_zero_has_weight_zero_and_no_gradient():
    logits = ruled_out(4, 40).requires_grad_()
    found = weighted_nll(logits, None, torch.tensor([0, 1, 3, 4]), kind="idft")
    found.loss.backward()
    assert torch.isfinite(found.loss)
    assert found.weight[[1, 3]].tolist() == [0, 0]
    assert found.logp[[1, 3]].tolist() == [-math.inf, -math.inf]
    assert not logits.grad[[1, 3]].any()
    assert logits.grad[2].any()


@pytest.mark.parametrize("kind", ["sft", "idft"])
def test_huge_logits_neither_overflow_nor_give_nan(kind):
    logits = (1e4 * random(6, 70)).float()
    leaf = logits.clone().requires_grad_()
    found = weighted_nll(leaf, None, tokens(6, 70), kind=kind)
    found.loss.backward()
    assert torch.isfinite(found.loss)
    assert torch.isfinite(leaf.grad).all()
    if kind == "sft":
        torch.testing.assert_close(found.loss, F.cross_entropy(logits, tokens(6, 70)))


def test_a_callable_gives_the_weights():
    hidden, weight, targets, token_weight, bias = arguments(12, 5, 40, ignored=3)
    leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
    results = []
    for kind in ("idft", lambda logp, h, var: logp.exp() ** torch.exp(-logp - h).clamp(0.1, 2.0)):
        found = weighted_nll(*leaves, targets, kind=kind, token_weight=token_weight, bias=bias)
        results.append([*found, *torch.autograd.grad(found.loss, leaves)])
    for a, e in zip(*results, strict=True):
        torch.testing.assert_close(a, e)


def test_standardized_exponents_divide_by_the_deviation_of_the_row():
    hidden, weight, targets, _, _ = arguments(12, 5, 40)
    found = weighted_nll(hidden, weight, targets, kind="idft", standardized=True, beta=0.8)
    logp_all = torch.log_softmax(hidden @ weight.T, 1)
    p = logp_all.exp()
    entropy = -(p * logp_all).sum(1)
    deviation = ((p * (logp_all + entropy[:, None]) ** 2).sum(1) + 1e-3).sqrt()
    logp = logp_all[torch.arange(12), targets]
    exponent = torch.exp(-(logp + entropy) / (0.8 * deviation)).clamp(0.1, 2.0)
    torch.testing.assert_close(found.weight, logp.exp() ** exponent)


@pytest.mark.parametrize("by", [0, 1, 4])
def test_compiled(by):
    check_compiled(lambda *a: weighted(*a, kind="idft")[0], SMALL, by=by)


def test_transforms_of_torch_func_agree_with_autograd():
    hidden, weight, targets, token_weight, bias = SMALL

    def loss(h):
        return weighted_nll(h, weight, targets, token_weight=token_weight, bias=bias, kind="idft").loss

    batch = torch.stack([hidden, 0.5 * hidden])
    leaf = batch.clone().requires_grad_()
    expected = torch.autograd.grad(sum(loss(h) for h in leaf), leaf)[0]
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(batch), expected)
    torch.testing.assert_close(torch.func.grad(lambda b: torch.func.vmap(loss)(b).sum())(batch), expected)


def test_without_gradients_none_are_made_and_the_value_is_the_same():
    hidden, weight, targets, _, _ = arguments(12, 5, 40)
    with torch.no_grad():
        value = weighted_nll(hidden.requires_grad_(), weight, targets, kind="idft").loss
    assert not value.requires_grad
    torch.testing.assert_close(weighted_nll(hidden, weight, targets, kind="idft").loss.detach(), value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit_inputs_are_computed_with_in_single_precision(dtype):
    inputs = cast(arguments(12, 8, 300), dtype)
    leaves = [t.clone().requires_grad_() if k in (0, 1, 4) else t for k, t in enumerate(inputs)]
    wide = [t.float().requires_grad_() if k in (0, 1, 4) else t for k, t in enumerate(inputs)]
    found, expected = weighted(*leaves, kind="idft"), weighted(*wide, kind="idft")
    found[0].backward()
    expected[0].backward()
    for a, e in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, e)
    for k in (0, 1, 4):
        assert torch.equal(leaves[k].grad, wide[k].grad.to(dtype))


@pytest.mark.parametrize("threads", [1, 3])
def test_many_blocks_equal_one(monkeypatch, threads):
    inputs = cast(arguments(23, 6, 700, ignored=2), torch.float32)

    def loss(*a):
        return weighted(*a, **dict(IDFT))

    with use_route("reference"):
        expected = derivatives(loss, cast(inputs, torch.float64), order=1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 4)
    monkeypatch.setattr("icml_kernels.language.rows_cpu.threads", lambda: threads)
    for a, e in zip(derivatives(loss, inputs, order=1), expected, strict=True):
        torch.testing.assert_close(a.double(), e, rtol=1e-5, atol=1e-5)


def test_memory_is_a_fraction_of_one_set_of_logits(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.row_blocks.BUFFER", 1)
    monkeypatch.setattr("icml_kernels.language.row_blocks.MIN_ROWS", 16)
    hidden, weight, _ = head(512, 16, 4000, with_bias=False)
    targets = tokens(512, 4000)
    leaves = hidden.float().requires_grad_(), weight.float().requires_grad_()
    one_set = 4 * 512 * 4000

    def ours():
        torch.autograd.grad(weighted_nll(*leaves, targets, kind="idft").loss, leaves)

    def plain():
        torch.autograd.grad(in_plain_torch(leaves[0] @ leaves[1].T, targets, "idft"), leaves)

    assert peak_bytes(plain) > 3 * one_set
    assert 0 < peak_bytes(ours) < 0.2 * one_set


def test_capped_and_scaled_logits_are_those_of_plain_torch():
    hidden, weight, targets, _, bias = arguments(12, 5, 40, spread=3.0)
    options = dict(CAPPED)
    logits = 3.0 * torch.tanh(0.6 * F.linear(hidden, weight, bias) / 3.0) / 0.7
    found = weighted_nll(hidden, weight, targets, bias=bias, **options).loss
    torch.testing.assert_close(found, in_plain_torch(logits, targets, "idft"))


def test_bad_arguments_are_named():
    hidden, weight, targets, token_weight, _ = SMALL
    inputs = (hidden, weight, targets)
    for options, message in (
        ({"kind": "dpo"}, "kind='dpo' is not one of sft, dft, idft"),
        ({"beta": 0.0}, "beta=0.0 is not positive"),
        ({"gamma": (2.0, 0.1)}, r"gamma=\(2.0, 0.1\) is no pair of bounds"),
        ({"gamma": (-0.1, 0.1)}, r"gamma=\(-0.1, 0.1\) is no pair of bounds"),
        ({"mix": 1.5}, "mix=1.5 does not lie in 0..1"),
        ({"gamma_start": -1.0}, "gamma_start=-1.0 is negative"),
        ({"weight_range": (1.0, 0.5)}, r"weight_range=\(1.0, 0.5\) is no pair of bounds"),
        ({"width": 0.0}, "width=0.0 is not positive"),
        ({"threshold": math.nan}, "threshold=nan is not a finite number"),
        ({"normalizer": 0}, "normalizer=0 is not positive"),
        ({"normalizer": torch.ones(2)}, r"normalizer has shape \[2\]; expected one number"),
        ({"token_weight": token_weight[1:]}, r"token_weight has shape \[3\]; expected \[4\]"),
        ({"token_weight": token_weight.clone().requires_grad_()}, "token_weight wants a gradient"),
        ({"kind": lambda logp, h, var: logp[:2]}, r"kind gave weights of shape \[2\]; expected \[4\]"),
        ({"temperature": -1.0}, "temperature=-1.0 is not a positive number"),
    ):
        with pytest.raises(ValueError, match=message):
            weighted_nll(*inputs, **options)
    with pytest.raises(TypeError, match="token_weight has dtype torch.int64"):
        weighted_nll(*inputs, token_weight=targets)
    with pytest.raises(ValueError, match=r"targets\[3\] = 9 is neither a token, 0 to 4"):
        weighted_nll(hidden, weight, torch.tensor([0, 1, 2, 9]))
