"""Paths of masked diffusion: weights that average to Z, all prefixes at once, and losses that vanish where
they should.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_discrete_samplers import Ising2D, MaskedMLP, MaskedViT, Potts2D, enumerate_law, losses
from icml_discrete_samplers.exact import sampler_law
from icml_discrete_samplers.masked import (
    Path,
    path_log_prob,
    path_log_prob_step_by_step,
    random_order,
    roll_back,
    rollout,
    schedule,
)
from icml_discrete_samplers.networks import AnyMasked, MaskedModel, build_masked
from icml_discrete_samplers.sampler import MaskedSampler
from oracles import ExactConditionals, all_states, standard_error


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def models(D: int = 9, V: int = 3) -> dict[str, MaskedModel]:
    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(V + 1, D * V, dtype=torch.float64)

        def forward(self, x):
            return self.table(x).sum(1).view(len(x), D, V)

    return {
        "mlp": MaskedMLP(D, V, hidden=16, layers=3, seed=1).double(),
        "vit": MaskedViT(3, V, dim=16, blocks=2, heads=2, seed=1).double(),
        "own": AnyMasked(Own(), D, V),
    }


@pytest.mark.parametrize("k", [1, 4, (1, 3), [2, 2, 5]], ids=str)
@pytest.mark.parametrize("name", ["mlp", "vit", "own"])
def test_all_prefixes_at_once_give_what_a_loop_over_steps_gives(name, k):
    """Values and gradients, in float64."""
    model = models()[name]
    x = torch.randint(0, 3, (7, 9), generator=generator())
    path = roll_back(x, k, generator(1))
    at_once, step_by_step = path_log_prob(model, path), path_log_prob_step_by_step(model, path)
    torch.testing.assert_close(at_once, step_by_step, rtol=1e-12, atol=1e-12)
    parameters = list(model.parameters())
    first, second = (
        torch.autograd.grad(v.square().sum(), parameters, allow_unused=True) for v in (at_once, step_by_step)
    )
    for a, b in zip(first, second, strict=True):
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_parts_of_a_path_that_is_too_large_for_one_call(monkeypatch):
    model = models()["vit"]
    path = roll_back(torch.randint(0, 3, (5, 9), generator=generator()), 1, generator(1))
    whole = path_log_prob(model, path)
    gradient = torch.autograd.grad(whole.sum(), model.head.weight)[0]
    monkeypatch.setattr("icml_discrete_samplers.networks.ROWS", 12)
    parts = path_log_prob(model, path)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), model.head.weight)[0], gradient)


@pytest.mark.parametrize("k", [1, 2, (1, 4)], ids=str)
@pytest.mark.parametrize("name", ["mlp", "vit", "own"])
def test_rollouts_know_their_own_probability(name, k):
    model = models()[name]
    sizes = schedule(9, k, generator(3))
    path, log_prob = rollout(model, 20, sizes, generator(4))
    assert not log_prob.requires_grad
    torch.testing.assert_close(log_prob, path_log_prob(model, path).detach(), rtol=1e-10, atol=1e-10)


def test_ends_of_rollouts_have_the_law_of_the_sampler():
    """Against masses that flow over all partly masked states."""
    model = MaskedMLP(4, 3, hidden=8, layers=2, seed=5)
    with torch.no_grad():
        model.weight_out.mul_(6)
    law = sampler_law(model)
    assert float(law.sum()) == pytest.approx(1.0, abs=1e-6)
    n = 60_000
    path, _ = rollout(model, n, schedule(4, 1, generator()), generator(2))
    counts = torch.bincount((path.x * 3 ** torch.arange(3, -1, -1)).sum(1), minlength=81).double()
    error = (law * (1 - law) / n).sqrt()
    assert bool(((counts / n - law).abs() < 5 * error + 1e-9).all())


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("energy", [Ising2D(2, 0.5, h=0.2), Potts2D(2, 3, 0.7)], ids=["ising", "potts"])
def test_weights_of_any_sampler_average_to_z(energy, k):
    """E[exp(log_rnd)] = Z, also where several sites are revealed at once; mean log_rnd is below log Z."""
    sampler = MaskedSampler(MaskedMLP(4, energy.V, hidden=8, layers=1, seed=2), energy)
    _, log_w = sampler.sample_weighted(40_000, k=k, seed=1)
    log_z = enumerate_law(energy).log_z
    ratio = (log_w - log_z).exp()
    assert abs(float(ratio.mean()) - 1) < 4 * standard_error(ratio)
    assert float(log_w.mean()) < log_z


def test_bounds_bracket_log_z():
    energy = Ising2D(3, 0.4)
    law = enumerate_law(energy)
    sampler = MaskedSampler(MaskedMLP(9, 2, hidden=8, layers=1, seed=2), energy)
    bounds = sampler.log_z(8000, seed=1, truth=law.sample(8000, 0))
    assert bounds.from_truth
    assert bounds.elbo + 3 * bounds.elbo_se < law.log_z < bounds.eubo - 3 * bounds.eubo_se
    assert bounds.elbo < bounds.iwelbo
    assert 0 < bounds.ess < 1
    own = sampler.log_z(8000, seed=1)
    assert not own.from_truth
    assert own.elbo < own.iwelbo < own.eubo


@pytest.mark.parametrize("k", [1, [1, 1, 2], [2, 2]], ids=str)
@pytest.mark.parametrize("behaviour", ["random", "half explored", "stale"])
def test_loss_is_zero_with_exact_conditionals_on_paths_of_any_behaviour(behaviour, k):
    """Independent sites within a step let k > 1 be exact too; else one site a step."""
    D = 4
    g = generator(7)
    energy = Ising2D(2, 0.7, J=1.0 if k == 1 else 0.0, h=0.3)
    law = enumerate_law(energy)
    model = ExactConditionals(law.log_prob, D, 2)
    x = {
        "random": torch.randint(0, 2, (200, D), generator=g),
        "half explored": torch.where(
            torch.rand(200, D, generator=g) < 0.5,
            torch.randint(0, 2, (200, D), generator=g),
            law.sample(200, 1),
        ),
        "stale": rollout(MaskedMLP(D, 2, hidden=8, seed=9), 200, schedule(D, 1, g), g)[0].x,
    }[behaviour]
    log_rnd = energy.log_density(x) - path_log_prob(model, roll_back(x, k, g)).detach()
    log_z = torch.tensor(law.log_z, dtype=torch.float64)
    assert float(losses.trajectory_balance(log_rnd, log_z)) < 1e-6
    assert float(losses.log_variance(log_rnd)) < 1e-6


def test_on_policy_gradients_are_those_of_reverse_kl():
    """Expectations over all paths, by enumeration: grad LV = 2 grad KL, grad TB = 2 grad KL, grad of re_rf =
    grad KL.
    """
    energy = Ising2D(2, 0.6, h=0.1)
    model = MaskedMLP(4, 2, hidden=6, layers=1, seed=3).double()
    import itertools

    orders = torch.tensor(list(itertools.permutations(range(4))))
    states = all_states(4, 2)
    x = states.repeat_interleave(24, 0)
    path = Path(x, orders.repeat(16, 1), torch.arange(4))
    log_f = path_log_prob(model, path)
    weight = log_f.exp() / 24
    log_rnd = energy.log_density(x) - log_f
    kl = -(weight * log_rnd).sum()
    parameters = list(model.parameters())
    wanted = torch.autograd.grad(kl, parameters, retain_graph=True)
    fixed = weight.detach()
    mean = (fixed * log_rnd).sum().detach()
    lv = (fixed * (log_rnd - mean).square()).sum()
    tb = (fixed * (log_rnd - 1.7).square()).sum()
    rf = (fixed * (log_rnd.detach() - mean) * log_rnd).sum()
    for loss, factor in ((lv, 2.0), (tb, 2.0), (rf, 1.0)):
        found = torch.autograd.grad(loss, parameters, retain_graph=True)
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a, factor * b, rtol=1e-8, atol=1e-10)


def test_batch_losses_are_their_formulas():
    log_rnd = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64, requires_grad=True)
    w = torch.softmax(log_rnd.detach(), 0)
    assert float(losses.log_variance(log_rnd)) == pytest.approx(14 / 9)
    assert float(losses.trajectory_balance(log_rnd, torch.tensor(2.0))) == pytest.approx(5 / 3)
    gradient = torch.autograd.grad(losses.cross_entropy(log_rnd), log_rnd)[0]
    torch.testing.assert_close(gradient, w)
    pairs = torch.tensor([1.0, 3.0, 10.0, 10.0])
    assert float(losses.grouped_log_variance(pairs, 2)) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="groups of 3 do not divide"):
        losses.grouped_log_variance(pairs, 3)


def test_weighted_denoising_is_minus_the_log_probability_on_average():
    """Of one state, with weight 1: E over lambda and masks is sum over orders' steps, so E_order[-log F]."""
    model = MaskedMLP(3, 2, hidden=6, layers=1, seed=1).double()
    x = torch.tensor([[1, 0, 1]])
    import itertools

    orders = torch.tensor(list(itertools.permutations(range(3))))
    with torch.no_grad():
        wanted = -path_log_prob(model, Path(x.repeat(6, 1), orders, torch.arange(3))).mean()
        values = torch.stack(
            [losses.weighted_denoising(model, x, torch.ones(1), generator(s), 500) for s in range(60)]
        )
    assert abs(float(values.mean() - wanted)) < 4 * standard_error(values) + 0.01


def test_more_sites_a_step_lower_the_elbo_of_a_coupled_target():
    energy = Ising2D(2, 0.8)
    law = enumerate_law(energy)
    sampler = MaskedSampler(ExactConditionals(law.log_prob, 4, 2), energy)
    one, two = (sampler.sample_weighted(4000, k=k, seed=1)[1].mean() for k in (1, 2))
    assert float(one) == pytest.approx(law.log_z, abs=1e-6)
    assert float(two) < law.log_z - 0.1


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 6), st.integers(0, 4), st.integers(0, 10**6))
def test_schedules_reveal_every_site_once(D, low, more, seed):
    sizes = schedule(D, (low, low + more), generator(seed))
    steps = torch.diff(torch.cat([sizes, torch.tensor([D])]))
    assert int(sizes[0]) == 0
    assert bool((steps >= 1).all())
    assert bool((steps[:-1] >= low).all())
    assert int(steps.max()) <= low + more


def test_backward_rolls_take_a_fresh_order_and_leave_the_states():
    x = torch.randint(0, 2, (500, 6), generator=generator())
    before = x.clone()
    g = generator(1)
    first, second = roll_back(x, 1, g), roll_back(x, 1, g)
    assert torch.equal(x, before)
    assert first.x.data_ptr() != x.data_ptr()
    assert not torch.equal(first.order, second.order)
    assert torch.equal(first.order.sort(1).values, torch.arange(6).expand(500, 6))
    counts = torch.bincount(random_order(60_000, 3, g) @ torch.tensor([9, 3, 1]))
    counts = counts[counts > 0].double()
    assert len(counts) == 6
    assert bool(((counts - 10_000).abs() < 5 * math.sqrt(10_000)).all())


def test_rare_symbols_are_drawn():
    """A symbol of probability e^-14 is seen in 10^7 draws, which float32 noise would miss in half of them."""
    model = MaskedMLP(1, 2, hidden=2, layers=1)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.bias_out[0, 0] = 14.0
    x = MaskedSampler(model).sample(4_000_000, seed=0)
    expected = 4_000_000 * math.exp(-14) / (1 + math.exp(-14))
    assert abs(int(x.sum()) - expected) < 4 * math.sqrt(expected)


def test_bad_schedules_and_models_are_named():
    g = generator()
    with pytest.raises(ValueError, match=r"schedule \[2, 2\] must be of positive steps that add up to D=5"):
        schedule(5, [2, 2], g)
    with pytest.raises(ValueError, match="k_min >= 1"):
        schedule(5, 0, g)
    with pytest.raises(ValueError, match="k_min >= 1"):
        schedule(5, (3, 2), g)
    with pytest.raises(ValueError, match="V=1: a site needs two symbols"):
        MaskedMLP(3, 1)
    with pytest.raises(ValueError, match="D=0"):
        MaskedMLP(0, 2)
    with pytest.raises(ValueError, match="unknown model 'mlp'"):
        build_masked("mlp", 3, 2)
    with pytest.raises(ValueError, match="D=5 is no square"):
        build_masked("masked_vit", 5, 2)
    with pytest.raises(TypeError, match="model is a int"):
        build_masked(3, 5, 2)
    with pytest.raises(ValueError, match="the module gave shape"):
        AnyMasked(torch.nn.Embedding(3, 4), 3, 2)(torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="expected 0..2"):
        MaskedMLP(3, 2)(torch.full((1, 3), 3))
