"""The loss against its formulas in float64, finite differences with fixed weights, and torch's own."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_idft import IDFTLoss
from icml_idft.arms import arm_loss, exponent
from icml_idft.loss import KINDS
from icml_lm import Head, head_of, hidden_and_head
from small_models import tiny


def case(rows=3, tokens=7, vocab=11, seed=0, ignored=2):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, tokens, vocab, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocab, (rows, tokens), generator=generator)
    labels[0, :ignored] = -100
    labels[-1, -1] = -100
    return logits, labels


def definition(logits, labels, kind, *, beta=1.0, gamma=(0.1, 2.0), share=1.0, start=1.0, z=False):
    """The loss as its formulas read: value, with weights that have no gradient; and the weights."""
    x, y = logits[:, :-1], labels[:, 1:]
    kept = y != -100
    x, y = x[kept], y[kept]
    p = x.softmax(-1).detach()
    every = x.log_softmax(-1)
    logp = every.gather(-1, y[:, None])[:, 0]
    entropy = -(p * p.log()).sum(-1)
    phi = logp.detach() + entropy
    if z:
        phi = phi / ((p * (p.log() + entropy[:, None]) ** 2).sum(-1) + 1e-3).sqrt()
    exponents = torch.exp(-phi / beta).clamp(*gamma)
    exponents = start + share * (exponents - start)
    own = logp.detach().exp()
    w = {
        "sft": torch.ones_like(own),
        "dft": own,
        "idft": own**exponents,
        "reverse": (1 - own) ** exponents,
        "eaft": entropy / math.log(logits.shape[-1]),
        "indomain": 0.1 + 0.9 * torch.sigmoid(-phi),
    }[kind]
    return -(w * logp).sum() / kept.sum(), w


@pytest.mark.parametrize("kind", KINDS)
def test_value_and_gradient_are_those_of_the_formulas(kind):
    logits, labels = case()
    x = logits.clone().requires_grad_()
    loss = IDFTLoss(kind)
    value = loss(x, labels)
    (gradient,) = torch.autograd.grad(value, x)
    y = logits.clone().requires_grad_()
    expected, w = definition(y, labels, kind)
    (expected_gradient,) = torch.autograd.grad(expected, y)
    torch.testing.assert_close(value, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    assert loss.stats["weight_sum"] == pytest.approx(float(w.sum()))
    assert loss.stats["mean_weight"] == pytest.approx(float(w.mean()))


@pytest.mark.parametrize(
    ("options", "formula"),
    [
        ({"beta": 0.5, "gamma": (0.0, 3.0)}, {"beta": 0.5, "gamma": (0.0, 3.0)}),
        ({"standardized": True, "beta": 1.3}, {"z": True, "beta": 1.3}),
        ({"warmup": 0.2, "transition": 0.5, "warmup_kind": "sft"}, {"share": 0.6, "start": 0.0}),
        ({"warmup": 0.2, "transition": 0.5}, {"share": 0.6, "start": 1.0}),
    ],
)
def test_switches_are_those_of_the_formulas(options, formula):
    logits, labels = case()
    value = IDFTLoss("idft", **options)(logits, labels, step=5, total=10)
    torch.testing.assert_close(value, definition(logits, labels, "idft", **formula)[0])


def test_a_logits_gradient_is_the_weight_times_softmax_less_one_hot():
    logits, labels = case(rows=1, tokens=2, ignored=0)
    labels[:] = 3
    x = logits.clone().requires_grad_()
    loss = IDFTLoss()
    (gradient,) = torch.autograd.grad(loss(x, labels), x)
    w = loss.tokens.weight[0, 1]
    expected = w * (logits[0, 0].softmax(0) - F.one_hot(torch.tensor(3), 11))
    torch.testing.assert_close(gradient[0, 0], expected)
    assert torch.equal(gradient[0, 1], torch.zeros(11, dtype=torch.float64))


def test_the_gradient_agrees_with_finite_differences_of_the_loss_with_its_weights_held_fixed():
    """Non-uniform weights; hidden states, head and bias."""
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(2, 4, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    bias = torch.randn(6, generator=generator, dtype=torch.float64)
    labels = torch.randint(6, (2, 4), generator=generator)
    own = torch.rand(2, 4, generator=generator, dtype=torch.float64) + 0.5
    loss = IDFTLoss()
    loss(None, labels, hidden=hidden, head=Head(weight, bias), token_weight=own)
    fixed = own * loss.tokens.weight

    def held(h, w, b):
        return IDFTLoss("sft")(None, labels, hidden=h, head=Head(w, b), token_weight=fixed)

    leaves = [t.clone().requires_grad_() for t in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(held, leaves)
    whole = IDFTLoss()(None, labels, hidden=leaves[0], head=Head(*leaves[1:]), token_weight=own)
    for a, e in zip(
        torch.autograd.grad(whole, leaves), torch.autograd.grad(held(*leaves), leaves), strict=True
    ):
        torch.testing.assert_close(a, e)


@pytest.mark.parametrize("kind", KINDS)
def test_the_plain_nll_is_torchs_cross_entropy_whatever_the_kind(kind):
    logits, labels = case()
    loss = IDFTLoss(kind)
    loss(logits, labels)
    expected = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    assert loss.stats["nll"] == pytest.approx(float(expected), abs=1e-6)
    assert set(loss.stats) >= {"loss", "nll", "mean_weight", "weight_sum", "phi", "suppressed", "tokens"}


def test_gamma_0_is_sft_and_gamma_1_is_dft():
    logits, labels = case()
    for gamma, kind in ((0.0, "sft"), (1.0, "dft")):
        flat = IDFTLoss(gamma=(gamma, gamma))(logits, labels)
        torch.testing.assert_close(flat, IDFTLoss(kind)(logits, labels))


def test_ood_tokens_are_suppressed_and_likely_ones_nearly_kept():
    """The exponents at the far ends are gamma's bounds."""
    x = torch.tensor([[[0.0, 9.0, 0.0], [0.0, 0.0, 0.1]]], dtype=torch.float64)
    loss = IDFTLoss(shift=False)
    loss(x, torch.tensor([[0, 2]]))
    p = x.softmax(-1)
    foreign, typical = loss.tokens.weight[0].tolist()
    assert foreign == pytest.approx(float(p[0, 0, 0]) ** 2)
    phi = float(loss.tokens.phi[0, 1])
    assert typical == pytest.approx(float(p[0, 1, 2]) ** math.exp(-phi))


@pytest.mark.parametrize(("step", "share"), [(0, 0.0), (19, 0.0), (20, 0.0), (25, 0.5), (30, 1.0), (99, 1.0)])
def test_the_warm_up_rises_linearly(step, share):
    assert IDFTLoss(warmup=0.2, transition=0.1).share(step, 100) == pytest.approx(share)
    assert IDFTLoss(warmup=0.2).share(step, 100) == float(step >= 20)
    assert IDFTLoss().share() == 1.0


def test_hidden_states_and_head_give_the_loss_of_logits():
    model = tiny(40)
    ids = torch.randint(40, (3, 9), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :4] = -100
    loss = IDFTLoss()
    plain = loss(model(ids).logits, labels)
    fused = loss.of_model(model, {"input_ids": ids, "labels": labels})
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-7)
    gradients = [torch.autograd.grad(x, model.parameters(), retain_graph=True) for x in (plain, fused)]
    for a, e in zip(*gradients, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("family", ["cohere", "gemma2", "phi"])
def test_scaled_capped_and_biased_heads_are_read_from_the_configuration(family):
    """One tiny model of each kind of head: scale (Cohere), soft cap (Gemma 2), bias (Phi)."""
    import transformers as hf

    common = {
        "vocab_size": 50,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    made = {
        "cohere": lambda: hf.CohereForCausalLM(hf.CohereConfig(**common, logit_scale=0.0625)),
        "gemma2": lambda: hf.Gemma2ForCausalLM(
            hf.Gemma2Config(**common, head_dim=8, final_logit_softcapping=0.3)
        ),
        "phi": lambda: hf.PhiForCausalLM(hf.PhiConfig(**common)),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = made[family]().eval()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(0.3 * torch.randn_like(p))
    head = head_of(model)
    assert (head.logit_scale, head.softcap, head.bias is None) == {
        "cohere": (0.0625, None, True),
        "gemma2": (1.0, 0.3, True),
        "phi": (1.0, None, False),
    }[family]
    ids = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))
    loss = IDFTLoss()
    fused = loss.of_model(model, {"input_ids": ids, "labels": ids})
    hidden, _, _ = hidden_and_head(model, ids)
    assert hidden is not None
    plain = loss(model(input_ids=ids).logits, ids)
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-6)


def test_a_batch_without_supervised_tokens_is_0_and_attached():
    logits, labels = case()
    x = logits.clone().requires_grad_()
    value = IDFTLoss()(x, torch.full_like(labels, -100))
    assert float(value) == 0.0
    (gradient,) = torch.autograd.grad(value, x)
    assert not gradient.any()
    assert float(IDFTLoss()(logits, torch.full_like(labels, -100), num_items=0)) == 0.0


def test_micro_batches_add_up_to_the_batch():
    logits, labels = case(rows=4)
    loss = IDFTLoss()
    whole = loss(logits, labels)
    items = int((labels[:, 1:] != -100).sum())
    parts = [loss(logits[i : i + 1], labels[i : i + 1], num_items=items) for i in range(4)]
    torch.testing.assert_close(sum(parts), whole)
    counted = loss(logits[:1], labels[:1], num_items=torch.tensor(items))
    torch.testing.assert_close(counted, parts[0])


def test_impossible_tokens_have_no_weight_and_no_gradient_and_are_counted():
    logits, labels = case(rows=1, tokens=3, ignored=0)
    logits[0, 0, 4] = -math.inf
    labels[0] = torch.tensor([0, 4, 2])
    x = logits.clone().requires_grad_()
    loss = IDFTLoss()
    value = loss(x, labels)
    (gradient,) = torch.autograd.grad(value, x)
    assert torch.isfinite(value)
    assert loss.stats["impossible"] == 1
    assert not gradient[0, 0].any()
    assert gradient[0, 1].any()
    assert loss.tokens.phi[0, 1] == -math.inf


def test_16_bit_logits_are_weighed_in_single_precision():
    logits, labels = case()
    loss = IDFTLoss()
    found = loss(logits.bfloat16(), labels)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, loss(logits.bfloat16().float(), labels))


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.2, 3.0), st.floats(-8, 8))
def test_adding_a_number_to_all_logits_changes_nothing(seed, beta, offset):
    logits, labels = case(seed=seed)
    loss = IDFTLoss(beta=beta)
    torch.testing.assert_close(loss(logits, labels), loss(logits + offset, labels))


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_weights_lie_between_0_and_1_and_rise_with_p_within_a_row(seed):
    generator = torch.Generator().manual_seed(seed)
    x = 3 * torch.randn(9, generator=generator, dtype=torch.float64)
    loss = IDFTLoss(shift=False)
    loss(x.expand(1, 9, 9), torch.arange(9)[None])
    w = loss.tokens.weight[0]
    assert bool(((w >= 0) & (w <= 1)).all())
    assert w[x.argsort()].tolist() == sorted(w.tolist())


def test_data_that_the_model_would_never_have_said_are_warned_of_once():
    x = torch.zeros(1, 2, 5)
    x[..., 0] = 30.0
    loss = IDFTLoss(shift=False)
    loss(x, torch.tensor([[1, 2]]))
    with pytest.warns(UserWarning, match="rewrite it with icml_idft.realign"):
        assert loss.stats["suppressed"] == 1.0
    assert loss.stats["mean_weight"] < 1e-3


@pytest.mark.parametrize(
    "loss",
    [
        IDFTLoss("sft"),
        IDFTLoss("dft"),
        IDFTLoss(),
        IDFTLoss(standardized=True, beta=0.7),
        IDFTLoss(warmup=0.5, transition=0.5, warmup_kind="sft"),
    ],
    ids=repr,
)
def test_arms_that_train_together_have_the_same_loss(loss):
    model = tiny(30, spread=3.0)
    ids = torch.randint(30, (4, 6), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    labels[:, :2] = -100
    rule = torch.tensor([*exponent(loss, 8, 10), loss.beta, *loss.gamma, float(loss.standardized)])
    found = arm_loss(model, {"input_ids": ids, "labels": labels, "rule": rule})
    torch.testing.assert_close(found, loss(model(ids).logits, labels, step=8, total=10))


def test_bad_settings_are_named():
    for options, text in (
        ({"kind": "cft"}, "kind='cft' is not one of sft, dft"),
        ({"beta": 0.0}, "beta=0.0 must be a positive number"),
        ({"gamma": (2.0, 0.1)}, r"gamma=\(2.0, 0.1\) must be bounds"),
        ({"gamma": (-0.1, 1.0)}, r"gamma=\(-0.1, 1.0\)"),
        ({"temperature": 0.0}, "temperature=0.0 must be a positive number"),
        ({"warmup": 0.8, "transition": 0.3}, "at most 1 together"),
        ({"warmup_kind": "eaft"}, "neither 'dft' nor 'sft'"),
        ({"weight_range": (1.0, 0.1)}, "weight_range"),
        ({"width": 0.0}, "width=0.0 must be a positive number"),
    ):
        with pytest.raises(ValueError, match=text):
            IDFTLoss(**options)


def test_bad_arguments_are_named():
    logits, labels = case()
    loss = IDFTLoss()
    with pytest.raises(ValueError, match=r"targets\[\d+\] = 11 is neither a token, 0 to 10"):
        loss(logits, labels.clamp(min=0) * 0 + 11)
    with pytest.raises(ValueError, match="labels of shape"):
        loss(logits, labels[:, 1:])
    with pytest.raises(ValueError, match="neither logits nor hidden="):
        loss(None, labels)
    with pytest.raises(ValueError, match="needs head="):
        loss(None, labels, hidden=logits)
    with pytest.raises(ValueError, match="need step= and total= at every call"):
        IDFTLoss(warmup=0.1)(logits, labels)
    with pytest.raises(ValueError, match="num_items=-1"):
        loss(logits, labels, num_items=-1)
    with pytest.raises(ValueError, match="no statistics before the first call"):
        _ = IDFTLoss().stats
    with pytest.raises(ValueError, match="token_weight has shape"):
        loss(logits, labels, token_weight=torch.ones(2))
