"""The geometric mixture against its formula, exact probabilities, and draws from p and q alone."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_kernels import geometric_mix_sample
from icml_kernels.language.cases import random
from icml_kernels.language.every_case import mixed
from icml_kernels.language.geometric_mix_sample.cases import CASES, arguments, uniforms
from icml_kernels.testing import cast, check_raw_ops, check_route, use_route
from scipy.stats import chisquare


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_equals_the_definition(case, dtype):
    check_route(case.bind(mixed), case.arguments(), dtype=dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_cpu_draws_the_definitions_tokens(case):
    *inputs, share = (*case.arguments(), None)[:4]
    options = dict(case.options)
    with use_route("reference"):
        expected = geometric_mix_sample(*inputs, share=share, **options).token
    assert torch.equal(geometric_mix_sample(*inputs, share=share, **options).token, expected)


def test_raw_operators_are_well_formed():
    function = CASES[0].bind(mixed)
    assert check_raw_ops(function, CASES[0].arguments()) == {"icml::geometric_mix_sample"}


def exact(p, q, lam, top_p, temperature):
    """Probabilities of one row, by enumeration."""
    m = p.log_softmax(0) * (1 - lam) + q.log_softmax(0) * lam
    probability = m.softmax(0)
    order = sorted(range(len(p)), key=lambda v: -float(probability[v]))
    kept, mass = [], 0.0
    for v in order:
        if mass >= top_p:
            break
        kept.append(v)
        mass += float(probability[v])
    weights = torch.zeros_like(p)
    weights[kept] = probability[kept] ** (1 / temperature)
    return weights / weights.sum()


@pytest.mark.parametrize(
    ("beta", "top_p", "temperature"), [(0.8, 0.95, 0.7), (0.8, 1.0, 1.0), (0.4, 0.6, 1.5)]
)
def test_draws_have_the_probabilities_of_the_mixture(beta, top_p, temperature):
    draws, vocabulary = 200_000, 6
    p, q = random(vocabulary), random(vocabulary, seed=9)
    found = geometric_mix_sample(
        p.expand(draws, -1).contiguous(),
        q.expand(draws, -1).contiguous(),
        uniforms(draws),
        beta=beta,
        top_p=top_p,
        temperature=temperature,
    )
    entropy = -(p.softmax(0) * p.log_softmax(0)).sum()
    lam = float((beta * entropy / math.log(vocabulary)).clamp(0, 1))
    assert found.share.tolist() == pytest.approx([lam] * draws, rel=1e-12)
    expected = exact(p, q, lam, top_p, temperature)
    counts = torch.bincount(found.token, minlength=vocabulary).double()
    possible = expected > 0
    assert counts[~possible].sum() == 0
    assert chisquare(counts[possible], expected[possible] * draws).pvalue > 1e-4


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_shares_of_0_and_1_draw_from_p_and_q_bit_for_bit(route, top_p):
    p, q, u = arguments(500, 30)
    options = {"top_p": top_p, "temperature": 0.6}
    with use_route(route):
        of_p = geometric_mix_sample(p, q, u, share=torch.zeros(500), **options)
        of_q = geometric_mix_sample(p, q, u, share=torch.ones(500), **options)
        p_alone = geometric_mix_sample(p, p, u, share=torch.zeros(500), **options)
        q_alone = geometric_mix_sample(q, q, u, share=torch.zeros(500), **options)
    assert torch.equal(of_p.token, p_alone.token)
    assert torch.equal(of_q.token, q_alone.token)


def test_figures_are_those_of_q_and_p():
    p, q, u = arguments(20, 15)
    found = geometric_mix_sample(p, q, u)
    log_q = q.log_softmax(1)
    torch.testing.assert_close(found.draft_logp, log_q.gather(1, found.token[:, None])[:, 0])
    torch.testing.assert_close(found.draft_entropy, -(log_q.exp() * log_q).sum(1))
    torch.testing.assert_close(found.target_entropy, -(p.softmax(1) * p.log_softmax(1)).sum(1))


def test_the_three_rules_of_the_share():
    p, q, u = arguments(40, 12, spread=1.5)
    h = -(p.softmax(1) * p.log_softmax(1)).sum(1) / math.log(12)
    rules = {
        "linear": (2.0 * h).clamp(0, 1),
        "sigmoid": 1 / (1 + torch.exp(-2.0 * (h - 0.5))),
        "piecewise": ((h - 0.3) / 0.4).clamp(0, 1),
    }
    for mode, expected in rules.items():
        found = geometric_mix_sample(p, q, u, beta=2.0, mode=mode)
        torch.testing.assert_close(found.share, expected)
    padded = geometric_mix_sample(p, q, u, beta=1.0, log_vocabulary=math.log(64))
    torch.testing.assert_close(padded.share, h * math.log(12) / math.log(64))


def test_the_nucleus_is_taken_before_the_temperature():
    """A high temperature would let the third token in if it came first."""
    p = torch.tensor([[0.6, 0.3, 0.1]], dtype=torch.float64).log().expand(1000, -1).contiguous()
    found = geometric_mix_sample(p, p, uniforms(1000), top_p=0.85, temperature=50.0)
    assert set(found.token.tolist()) == {0, 1}


def by_sorting(m, u, top_p, temperature):
    """The draw from one row of log-probabilities by its words (sort, cut, cumulate), and the nucleus."""
    mass = m.exp() / m.exp().sum()
    ordered = sorted(range(len(m)), key=lambda v: -m[v].item())
    kept, before = [], 0.0
    for v in ordered:
        if before >= top_p:
            break
        kept.append(v)
        before += mass[v].item()
    weights = [math.exp((m[v] - m[ordered[0]]).item() / temperature) for v in kept]
    threshold, cumulated = u * math.fsum(weights), 0.0
    for v, w in zip(kept, weights, strict=True):
        cumulated += w
        if cumulated > threshold:
            return v, kept
    return kept[-1], kept


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 40, 700]),
    st.sampled_from([0.0, 0.05, 1.0, 20.0]),
    st.sampled_from([0.0517, 0.333, 0.7071, 0.951, 0.99993]),
    st.floats(0.02, 8.0),
    st.sampled_from([None, 4]),
)
def test_the_draw_is_that_of_a_sorted_row(seed, vocabulary, spread, top_p, temperature, steps):
    """Whatever bins a row's numbers fall into, with and without ties."""
    p = spread * random(4, vocabulary, seed=seed)
    if steps is not None:
        p = (steps * p).round() / steps
    u = torch.cat((uniforms(2, seed), torch.tensor([0.0, 1 - 2**-53], dtype=torch.float64)))
    found = geometric_mix_sample(p, p, u, share=torch.zeros(4), top_p=top_p, temperature=temperature).token
    rows = zip(p.log_softmax(1), u.tolist(), strict=True)
    expected, kept = zip(*(by_sorting(m, x, top_p, temperature) for m, x in rows), strict=True)
    assert found[:3].tolist() == list(expected[:3])
    # The largest number below 1 asks for the end of the cumulated weights, where rounding decides.
    assert found[3] in kept[3]


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 0.99), st.floats(0.1, 3.0))
def test_a_token_lies_in_the_nucleus(seed, top_p, temperature):
    p, q = random(3, 50, seed=seed), random(3, 50, seed=seed + 1)
    found = geometric_mix_sample(p, q, uniforms(3, seed), beta=0.9, top_p=top_p, temperature=temperature)
    m = (1 - found.share)[:, None] * p.log_softmax(1) + found.share[:, None] * q.log_softmax(1)
    probability = m.softmax(1)
    own = probability.gather(1, found.token[:, None])
    above = torch.where(probability > own, probability, 0).sum(1)
    assert bool((above < top_p).all())


def test_a_flat_row_is_cut_at_the_right_place():
    """All numbers fall into one counter, and equal ones count in the vocabulary's order."""
    p = torch.zeros(100, 40, dtype=torch.float64)
    found = geometric_mix_sample(p, p, torch.linspace(0, 0.999, 100), top_p=0.5, temperature=1.0)
    assert set(found.token.tolist()) == set(range(20))
    assert found.token.tolist() == sorted(found.token.tolist())


def test_where_p_and_q_exclude_each_other_p_is_followed():
    p = torch.tensor([[0.0, -math.inf, 1.0]])
    q = torch.tensor([[-math.inf, 0.0, -math.inf]])
    found = geometric_mix_sample(p, q, torch.tensor([0.9]), share=torch.tensor([0.5]), temperature=1.0)
    assert found.share.tolist() == [0.0]
    assert int(found.token) in (0, 2)
    assert found.draft_logp.tolist() == [-math.inf]


def test_16_bit_inputs_are_computed_with_in_single_precision():
    p, q, u = arguments(50, 300)
    p, q = cast((p, q), torch.bfloat16)
    found = geometric_mix_sample(p, q, u)
    expected = geometric_mix_sample(p.float(), q.float(), u)
    assert all(torch.equal(a, e) for a, e in zip(found, expected, strict=True))


def test_results_have_no_gradient():
    p, q, u = arguments(4, 9)
    found = geometric_mix_sample(p.requires_grad_(), q.requires_grad_(), u)
    assert not any(t.requires_grad for t in found)


def test_inputs_stay_as_they_were():
    p, q, u = arguments(4, 9)
    share = torch.full((4,), math.nan, dtype=torch.float64)
    before = [t.clone() for t in (p, q, u, share)]
    geometric_mix_sample(p, q, u, share=share)
    for t, b in zip((p, q, u, share), before, strict=True):
        assert torch.equal(t.nan_to_num(9), b.nan_to_num(9))


def test_vmapped_and_compiled():
    p, q, u = arguments(6, 9)
    rows = geometric_mix_sample(p, q, u).token
    batched = torch.vmap(lambda a, b, c: geometric_mix_sample(a, b, c).token)
    assert torch.equal(batched(p.view(2, 3, 9), q.view(2, 3, 9), u.view(2, 3)).flatten(), rows)
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda a: geometric_mix_sample(a, q, u).token, fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(p), rows)


def test_bad_arguments_are_named():
    p, q, u = arguments(4, 9)
    with pytest.raises(ValueError, match="p and q have vocabularies of 9 and 8 tokens"):
        geometric_mix_sample(p, q[:, :8], u)
    with pytest.raises(ValueError, match="beta=-1 is not a number of at least 0"):
        geometric_mix_sample(p, q, u, beta=-1)
    with pytest.raises(ValueError, match="mode='cubic' is not one of linear, sigmoid, piecewise"):
        geometric_mix_sample(p, q, u, mode="cubic")
    with pytest.raises(ValueError, match=r"top_p=0 does not lie in \(0, 1\]"):
        geometric_mix_sample(p, q, u, top_p=0)
    with pytest.raises(ValueError, match="temperature=-0.1 is not"):
        geometric_mix_sample(p, q, u, temperature=-0.1)
    with pytest.raises(ValueError, match="log_vocabulary=0 is not a positive number"):
        geometric_mix_sample(p, q, u, log_vocabulary=0)
    with pytest.raises(ValueError, match="uniform"):
        geometric_mix_sample(p, q, u[:2])
    with pytest.raises(TypeError, match="logq has torch.float32"):
        geometric_mix_sample(p, q.float(), u)
    with pytest.raises(TypeError, match="share has dtype torch.int64"):
        geometric_mix_sample(p, q, u, share=torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf], ids=str)
def test_a_row_that_is_no_distribution_is_named(route, wrong):
    p, q, u = arguments(4, 9)
    q[2, slice(None) if wrong == -math.inf else 3] = wrong
    with use_route(route), pytest.raises(ValueError, match="row 2 of logq is no distribution"):
        geometric_mix_sample(p, q, u)
