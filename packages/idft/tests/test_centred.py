"""The centred log-likelihood on models that can be enumerated, and on a TinyLM beside its logits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_idft import CentredLogLikelihood, TabularLM, cll
from icml_idft.separation import auc, discriminability, world
from small_models import tiny


@settings(deadline=None)
@given(st.integers(0, 10**6), st.floats(0.3, 3.0))
def test_the_mean_of_phi_is_0_and_its_variance_the_varentropy_in_every_context(seed, temperature):
    """By enumeration: each token in each context, weighted by its probability."""
    model = TabularLM.random(8, seed=seed)
    contexts = torch.arange(8).repeat_interleave(8)
    ids = torch.stack((contexts, torch.arange(8).repeat(8)), 1)
    found = cll(model, ids, temperature=temperature)
    p = (model.table.detach() / temperature).softmax(1).flatten()
    phi, variance = (t[:, 1].double() for t in (found.phi, found.varentropy))
    for context in range(8):
        own = contexts == context
        assert float((p * phi)[own].sum()) == pytest.approx(0, abs=1e-12)
        assert float((p * phi**2)[own].sum()) == pytest.approx(float(variance[own][0]), abs=1e-12)


def test_figures_of_texts_are_their_definitions():
    model = tiny(20, spread=4.0).double()
    ids = torch.randint(20, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[:, :3] = 0
    found = cll(model, ids, mask, temperature=1.3)
    every = (model(ids).logits / 1.3).log_softmax(-1)[:, 2:-1]
    logp = every.gather(-1, ids[:, 3:, None])[..., 0]
    entropy = -(every.exp() * every).sum(-1)
    variance = (every.exp() * (every + entropy[..., None]) ** 2).sum(-1)
    torch.testing.assert_close(found.phi[:, 3:], logp + entropy)
    assert not found.phi[:, :3].any()
    torch.testing.assert_close(found.sum, (logp + entropy).sum(1))
    torch.testing.assert_close(found.mean, (logp + entropy).mean(1))
    z = (logp + entropy).sum(1) / variance.sum(1).sqrt()
    torch.testing.assert_close(found.z, z)
    torch.testing.assert_close(found.pvalue, torch.erfc(z.abs() / math.sqrt(2)))
    for alternative, sign in (("less", 1), ("greater", -1)):
        one_sided = cll(model, ids, mask, temperature=1.3, alternative=alternative).pvalue
        torch.testing.assert_close(one_sided, torch.special.ndtr(sign * z))


def test_padding_on_either_side_changes_nothing():
    model = tiny(20, spread=4.0).double()
    ids = torch.randint(20, (1, 6), generator=torch.Generator().manual_seed(0))
    alone = cll(model, ids)
    filler = torch.zeros(1, 3, dtype=torch.long)
    for whole in (torch.cat((filler, ids), 1), torch.cat((ids, filler), 1)):
        first = 3 if whole[0, 0] == 0 and bool((whole[0, :3] == 0).all()) else 0
        seen = torch.zeros_like(whole)
        seen[:, first : first + 6] = 1
        found = cll(model, whole, attention_mask=seen)
        torch.testing.assert_close(found.sum, alone.sum)
        torch.testing.assert_close(found.z, alone.z)
        assert int(found.scored.sum()) == 5


def test_a_model_takes_its_own_texts_and_refuses_anothers():
    model, other = (TabularLM.random(30, seed=s) for s in (0, 1))
    evaluator = CentredLogLikelihood()
    own = evaluator.evaluate(model, model.sample(800, 20, seed=0), reference_model=other)
    foreign = evaluator.evaluate(model, other.sample(800, 20, seed=0), reference_model=other)
    assert own["refused"] == pytest.approx(0.05, abs=0.025)
    assert own["z_sd"] == pytest.approx(1, abs=0.08)
    assert foreign["refused"] > 0.9
    assert own["log_ratio"] > 0 > foreign["log_ratio"]
    assert foreign["refused_by_ratio"] > 0.99


def test_the_log_ratio_is_centred_too():
    """Less KL(p || r) and over its standard deviation, it is about standard normal under p."""
    model = TabularLM.random(30, seed=0)
    reference = TabularLM(model.table.detach() + 0.3)  # the same distributions
    shifted = TabularLM(
        model.table.detach()
        + 0.5 * torch.randn(30, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    )
    ids = model.sample(2000, 12, seed=1)
    same = cll(model, ids, reference_model=reference)
    assert float(same.log_ratio.abs().max()) < 1e-5
    found = cll(model, ids, reference_model=shifted)
    assert float(found.ratio_z.mean()) == pytest.approx(0, abs=4 / math.sqrt(2000))
    assert float(found.ratio_z.std()) == pytest.approx(1, abs=0.08)
    p, q = (m.table.detach().log_softmax(1) for m in (model, shifted))
    own = (p - q)[ids[:, :-1], ids[:, 1:]]
    torch.testing.assert_close(found.log_ratio[:, 1:].double(), own, rtol=1e-4, atol=1e-5)


def test_tokens_that_are_ruled_out_are_impossible():
    table = torch.zeros(3, 3, dtype=torch.float64)
    table[0, 2] = -math.inf
    model = TabularLM(table)
    found = cll(model, torch.tensor([[0, 2], [0, 1]]))
    assert found.phi[0, 1] == -math.inf
    assert found.z[0] == -math.inf
    assert found.pvalue[0] == 0
    assert float(found.entropy[1, 1]) == pytest.approx(math.log(2))
    assert float(found.z[1]) == 0.0


def test_the_discriminability_is_largest_without_spread_between_contexts():
    """With the model's own standard deviation a = 1 is best in every world: that is the theorem."""
    for seed in range(5):
        found = discriminability(*world(50, 20, seed=seed), [0.0, 0.5, 0.9, 1.0, 1.1, 1.5], 10, pooled=False)
        assert int(found.argmax()) == 3


def test_the_discriminability_is_that_of_samples():
    logp, logq = world(20, 15, seed=0)
    (exact,) = discriminability(logp, logq, [0.5], 4).tolist()
    generator = torch.Generator().manual_seed(0)
    entropy = -(logp.exp() * logp).sum(1)
    sums = []
    for source in (logp, logq):
        contexts = torch.randint(20, (100_000,), generator=generator)
        drawn = torch.multinomial(source.exp()[contexts], 1, generator=generator)[:, 0]
        sums.append((logp[contexts, drawn] + 0.5 * entropy[contexts]).view(-1, 4).sum(1))
    pooled = ((sums[0].var() + sums[1].var()) / 2).sqrt()
    assert exact == pytest.approx(float((sums[1].mean() - sums[0].mean()).abs() / pooled), rel=0.05)


def test_the_auc_counts_pairs():
    a, b = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([2.0, 0.0])
    pairs = [float(x > y) + 0.5 * float(x == y) for x in a for y in b]
    assert auc(a, b) == pytest.approx(sum(pairs) / 6)


def test_bad_arguments_are_named():
    model = TabularLM.random(4, seed=0)
    ids = torch.tensor([[0, 1, 2]])
    with pytest.raises(ValueError, match="temperature=0.0 must be a positive number"):
        cll(model, ids, temperature=0.0)
    with pytest.raises(ValueError, match="row 0 has no scored token"):
        cll(model, ids, torch.zeros_like(ids))
    with pytest.raises(ValueError, match="mask has shape"):
        cll(model, ids, torch.ones(1, 2))
    with pytest.raises(ValueError, match="alternative='both'"):
        cll(model, ids, alternative="both")
    with pytest.raises(ValueError, match="whole numbers"):
        cll(model, torch.zeros(3))
    with pytest.raises(ValueError, match="share one vocabulary"):
        cll(model, ids, reference_model=TabularLM.random(5, seed=0))
    with pytest.raises(ValueError, match="level=2"):
        CentredLogLikelihood(level=2)
    with pytest.raises(ValueError, match="square"):
        TabularLM(torch.zeros(2, 3))
