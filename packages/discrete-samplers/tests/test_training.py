"""Off-policy training: what is learned, how the buffer is drawn from, and what a collapsed sampler looks
like.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from icml_discrete_samplers import (
    Ising2D,
    MaskedMLP,
    MaskedSampler,
    OffPolicyOptions,
    OffPolicyTrainer,
    Polynomial,
    ReplayBuffer,
    enumerate_law,
    fit,
    from_callable,
)
from icml_discrete_samplers.exact import sampler_law
from icml_discrete_samplers.metrics import total_variation
from icml_discrete_samplers.training_state import Floor
from oracles import ExactConditionals

SMALL = {"network": {"hidden": 16, "layers": 1}, "batch": 16, "prefill": 1}


def rugged(D: int = 8, seed: int = 0) -> Polynomial:
    g = torch.Generator().manual_seed(seed)
    return Polynomial(
        {(i, j): float(torch.randn((), generator=g)) for i in range(D) for j in range(i)}, beta=0.7
    )


def test_learned_log_z_is_that_of_enumeration():
    """256 states; the loss with replay and exploration, log Z within 0.02."""
    energy = rugged()
    law = enumerate_law(energy)
    sampler = fit(
        energy,
        steps=600,
        k=1,
        seed=1,
        mcmc_every=100,
        lr=3e-3,
        network={"hidden": 32, "layers": 2},
        batch=64,
        anneal=0.3,
        coverage=False,
    )
    assert abs(sampler.log_z_learned - law.log_z) < 0.02
    assert abs(sampler.log_z(4000, seed=2).iwelbo - law.log_z) < 0.02
    assert total_variation(sampler_law(sampler.model), law.log_prob.exp()) < 0.05


@pytest.mark.parametrize("loss", ["lv", "ce", "re_rf", "wdce"])
def test_every_loss_comes_closer_to_the_target(loss):
    energy = rugged(6)
    p = enumerate_law(energy).log_prob.exp()
    options = {"buffer": "iw", "mcmc": "hamming_ball"} if loss == "lv" else {"buffer": None, "mcmc": None}
    trainer = OffPolicyTrainer(
        energy,
        seed=0,
        loss=loss,
        steps=250,
        k=1,
        batch=64,
        lr=3e-3,
        anneal=0.2,
        mcmc_every=50,
        network={"hidden": 32, "layers": 2},
        **options,
    )
    before = total_variation(sampler_law(trainer.model), p)
    after = total_variation(sampler_law(trainer.fit().model), p)
    assert after < 0.35 * before


def test_training_with_several_steps_works_at_any_step_count():
    """One network for k = 1 to 4; on an energy without couplings all of them are exact."""
    energy = Polynomial({(i,): 0.5 * i - 1 for i in range(6)})
    sampler = fit(
        energy,
        steps=300,
        k=(1, 4),
        seed=0,
        lr=1e-2,
        batch=64,
        network={"hidden": 16, "layers": 1},
        coverage=False,
        mcmc_every=100,
    )
    log_z = enumerate_law(energy).log_z
    for k in (1, 2, 6):
        _, log_w = sampler.sample_weighted(2000, k=k, seed=1)
        assert float(log_w.mean()) == pytest.approx(log_z, abs=0.05)


def test_the_rule_of_on_and_off_policy_steps():
    assert [OffPolicyOptions(ratio=2).on_policy(s) for s in range(6)] == [True, False, False] * 2
    assert [OffPolicyOptions(ratio=0.5).on_policy(s) for s in range(6)] == [False, True, True] * 2
    assert all(OffPolicyOptions(buffer=None, mcmc=None).on_policy(s) for s in range(6))
    options = OffPolicyOptions(steps=100, anneal=0.5)
    betas = [options.beta(s) for s in range(100)]
    assert betas[0] == 1 / 51
    assert min(betas) > 0
    assert betas[50:] == [1.0] * 50
    assert np.allclose(np.diff(betas[:51]), 1 / 51)


def test_replay_is_drawn_by_importance_weights_at_the_current_temperature():
    buffer = ReplayBuffer(10, 1)
    log_rho = torch.tensor([0.0, 1.0, -2.0], dtype=torch.float64)
    log_rnd = torch.tensor([0.3, -0.5, 1.0], dtype=torch.float64)
    buffer.add(torch.tensor([[0], [1], [2]]), log_rho, log_rnd)
    for beta in (1.0, 0.25):
        expected = (log_rnd + (beta - 1) * log_rho).softmax(0)
        torch.testing.assert_close(buffer.chances("iw", beta), expected)
        n = 40_000
        drawn = buffer.sample(n, torch.Generator().manual_seed(0), priority="iw", beta=beta)
        share = torch.bincount(drawn[:, 0], minlength=3).double() / n
        assert bool(((share - expected).abs() < 4 * (expected * (1 - expected) / n).sqrt()).all())
    torch.testing.assert_close(buffer.chances("density"), log_rho.softmax(0))
    torch.testing.assert_close(buffer.chances("uniform"), torch.full((3,), 1 / 3, dtype=torch.float64))


def test_the_buffer_is_a_ring_of_copies():
    buffer = ReplayBuffer(4, 2)
    x = torch.arange(12).view(6, 2)
    zero = torch.zeros(6, dtype=torch.float64)
    buffer.add(x, zero, zero)
    x.zero_()
    assert sorted(buffer.x.tolist()) == [[4, 5], [6, 7], [8, 9], [10, 11]]
    buffer.add(torch.tensor([[7, 7]]), zero[:1], zero[:1])
    assert len(buffer) == 4
    assert sorted(buffer.x.tolist()) == [[6, 7], [7, 7], [8, 9], [10, 11]]
    drawn = buffer.sample(3, torch.Generator().manual_seed(0))
    drawn.zero_()
    assert bool((buffer.x != 0).all())


def test_a_collapsed_buffer_warns_once_and_mixes_even_draws_in():
    buffer = ReplayBuffer(500, 1)
    log_rnd = torch.zeros(500, dtype=torch.float64)
    log_rnd[3] = 100.0
    buffer.add(torch.arange(500)[:, None], torch.zeros(500, dtype=torch.float64), log_rnd)
    with pytest.warns(RuntimeWarning, match="have collapsed"):
        chances = buffer.chances("iw")
    assert float(chances[3]) == pytest.approx(0.9 + 0.1 / 500)
    assert float(chances[0]) == pytest.approx(0.1 / 500)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.chances("iw")


def test_buffers_that_cannot_be_drawn_from_are_named():
    buffer = ReplayBuffer(4, 2)
    g = torch.Generator()
    with pytest.raises(RuntimeError, match="buffer is empty"):
        buffer.sample(1, g)
    buffer.add(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, dtype=torch.float64))
    assert buffer.sample(3, g).shape == (3, 2)
    with pytest.raises(ValueError, match="needs log_rnd of every entry"):
        buffer.sample(1, g, priority="iw")
    impossible = ReplayBuffer(4, 2)
    low = torch.full((2,), -math.inf, dtype=torch.float64)
    impossible.add(torch.zeros(2, 2, dtype=torch.int64), low, low)
    with pytest.raises(RuntimeError, match="no feasible state found"):
        impossible.sample(1, g, priority="iw")


def test_impossible_states_are_never_replayed_and_do_not_break_training():
    def log_rho(x):
        return torch.where(x.sum(1) <= 2, 0.3 * x[:, 0], -math.inf)

    energy = from_callable(log_rho, 5, 2)
    sampler = fit(
        energy,
        steps=300,
        k=1,
        seed=0,
        lr=5e-3,
        batch=64,
        anneal=0.0,
        mcmc_every=100,
        network={"hidden": 32, "layers": 2},
        coverage=False,
    )
    assert all(math.isfinite(h["loss"]) for h in sampler.history)
    x = sampler.sample(2000, seed=0)
    assert float((x.sum(1) <= 2).double().mean()) > 0.9
    p = enumerate_law(energy).log_prob.exp()
    assert total_variation(sampler_law(sampler.model), p) < 0.15


@pytest.mark.parametrize("loss", ["tb", "lv"])
def test_a_constant_in_log_rho_changes_no_training(loss):
    """TB with log Z shifted by it. Values are multiples of 1/4, so that the constant rounds nothing."""

    def trained(constant):
        energy = from_callable(
            lambda x: torch.where(x.all(1), -math.inf, 0.25 * x.sum(1).double() + 2.0 * x[:, 0]) + constant,
            5,
            2,
        )
        trainer = OffPolicyTrainer(energy, loss=loss, steps=20, k=1, seed=3, anneal=0.0, **SMALL)
        with torch.no_grad():
            trainer.log_z.fill_(constant)
        trainer.fit()
        return [h["loss"] for h in trainer.history], trainer.history[-1]["log_z"] - constant

    losses, log_z = trained(0.0)
    for constant in (-(2.0**15), 2.0**15):
        shifted, shifted_log_z = trained(constant)
        assert shifted == pytest.approx(losses, rel=1e-4)
        assert shifted_log_z == pytest.approx(log_z, abs=1e-4)


def test_densities_below_minus_ten_thousand_are_told_apart():
    energy = Polynomial({("a",): -2.0, ("b",): 1.0, (): 2e4})
    options = {"loss": "lv", "buffer": None, "mcmc": None, "anneal": 0.0}
    trainer = OffPolicyTrainer(
        energy, steps=150, k=1, seed=0, lr=3e-2, batch=64, network=SMALL["network"], **options
    )
    p = enumerate_law(energy).log_prob.exp()
    assert total_variation(sampler_law(trainer.fit().model), p) < 0.05


def test_impossible_states_stand_below_every_possible_one():
    floor = Floor()
    log_rho = torch.tensor([-3e4, -math.inf, -5e4], dtype=torch.float64)
    assert floor(log_rho).tolist() == [-3e4, -6e4, -5e4]
    # What was seen before counts too, at the temperature of now.
    assert floor(torch.tensor([-1.0, -math.inf], dtype=torch.float64), 0.5).tolist() == [-0.5, -3.5e4]
    nothing = torch.full((2,), -math.inf, dtype=torch.float64)
    assert Floor()(nothing).tolist() == [-1e4, -1e4]


def test_replay_begins_after_the_first_update_without_prefill():
    trainer = OffPolicyTrainer(rugged(4), steps=6, k=1, ratio=0.5, **{**SMALL, "prefill": 0})
    trainer.fit()
    assert [h["on_policy"] for h in trainer.history] == [1, 1, 1, 0, 1, 1]
    assert len(trainer.mcmc_buffer) == 0


def test_a_training_that_diverges_stops_with_its_update():
    trainer = OffPolicyTrainer(rugged(4), steps=6, k=1, lr=1e30, **SMALL)
    with pytest.raises(FloatingPointError, match=r"update \d is (nan|inf)"):
        trainer.fit()
    assert trainer.step_ < 6


def test_a_checkpoint_knows_its_energy(tmp_path):
    options = {"steps": 4, "k": 1, "mcmc": "swendsen_wang", **SMALL}
    trainer = OffPolicyTrainer(Ising2D(2, 0.6), **options)
    trainer.fit(2)
    trainer.save(tmp_path / "c.safetensors")
    again = OffPolicyTrainer(Ising2D(2, 0.6), **options).restore(tmp_path / "c.safetensors")
    assert again.history == trainer.history
    with pytest.raises(ValueError, match="belongs to another energy: log rho of a fixed state was"):
        OffPolicyTrainer(Ising2D(2, 1.2), **options).restore(tmp_path / "c.safetensors")


def test_without_a_possible_state_the_initial_ones_are_asked_for():
    def log_rho(x):
        return torch.where((x == torch.tensor([0, 1] * 10)).all(1), 0.0, -math.inf)

    energy = from_callable(log_rho, 20, 2)
    with pytest.raises(RuntimeError, match=r"no feasible state found; pass initial states"):
        fit(energy, steps=3, k=1, coverage=False, **SMALL)
    wanted = torch.tensor([[0, 1] * 10])
    trainer = OffPolicyTrainer(energy, steps=3, k=1, initial=wanted, **SMALL)
    trainer.fit(3)
    drawn = trainer.buffer.sample(5, torch.Generator(), priority="iw")
    assert torch.equal(drawn, wanted.expand(5, 20))


def test_nan_and_infinite_densities_stop_training_with_the_sample():
    for wrong in (math.nan, math.inf):
        energy = from_callable(lambda x, w=wrong: torch.where(x[:, 0] == 1, w, 0.0), 3, 2)
        with pytest.raises(FloatingPointError, match="for sample"):
            fit(energy, steps=3, coverage=False, k=1, **SMALL)


def two_peaks():
    """All zeros and all ones of six bits, with some width."""

    def log_rho(x):
        ones = x.sum(1).double()
        return torch.logaddexp(-3.0 * ones, -3.0 * (6 - ones))

    return from_callable(log_rho, 6, 2)


def test_a_sampler_that_lacks_a_mode_is_told_from_one_that_has_all():
    energy = two_peaks()
    law = enumerate_law(energy)
    whole = MaskedSampler(ExactConditionals(law.log_prob, 6, 2), energy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert whole.coverage(seed=1).complete
    states = whole.model.states
    half = torch.where(states.sum(1) <= 3, law.log_prob, -60.0)
    collapsed = MaskedSampler(ExactConditionals(half - half.logsumexp(0), 6, 2), energy)
    with pytest.warns(RuntimeWarning, match="modes missing"):
        found = collapsed.coverage(seed=1)
    assert found.share < 0.7
    # The bound from below of the collapsed sampler does not show it: half of Z is only log 2.
    assert collapsed.log_z(1000, seed=0).elbo > law.log_z - 0.8


def test_chains_stuck_in_poor_optima_are_no_missing_modes():
    """A well of e^-12 of the mass, in which a third of the chains end: the exact sampler never draws it."""

    def log_rho(x):
        ones = x.sum(1).double()
        return torch.maximum(-10.0 * ones, -12.0 - 10.0 * (6 - ones))

    energy = from_callable(log_rho, 6, 2)
    sampler = MaskedSampler(ExactConditionals(enumerate_law(energy).log_prob, 6, 2), energy)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = sampler.coverage("single_site_mh", chains=100, n_steps=100, seed=0, n_perm=1)
    assert found.complete
    assert 20 < found.judged < 90


def test_coverage_says_when_it_cannot_be_known():
    energy = from_callable(lambda x: torch.where(x.all(1), 0.0, -math.inf), 12, 2)
    sampler = MaskedSampler(MaskedMLP(12, 2, hidden=4, layers=1), energy)
    with pytest.warns(
        RuntimeWarning, match="coverage is not known: none of 20 Markov chains found a possible"
    ):
        found = sampler.coverage("hamming_ball", chains=20, n_steps=1, seed=1, n_perm=1)
    assert math.isnan(found.share)
    assert not found.complete


def test_log_prob_bounds_are_below_and_close():
    """Exact conditionals know log p whatever the order; an untrained network is bounded from below."""
    law = enumerate_law(Ising2D(2, 0.6))
    exact = MaskedSampler(ExactConditionals(law.log_prob, 4, 2))
    x = law.sample(50, 0)
    from icml_discrete_samplers.exact import index_of

    wanted = law.log_prob[index_of(x, 2)]
    found = exact.log_prob_bounds(x, 3, seed=0)
    torch.testing.assert_close(found.mean, wanted, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(found.tight, wanted, rtol=1e-6, atol=1e-6)
    model = MaskedMLP(4, 2, hidden=8, layers=1, seed=3)
    with torch.no_grad():
        model.weight_out.mul_(8)
    truth = sampler_law(model).log()[index_of(x, 2)]
    bounds = MaskedSampler(model).log_prob_bounds(x, 2000, seed=1)
    assert bool((bounds.mean <= bounds.tight + 1e-9).all())
    assert bool((bounds.mean < truth + 1e-3).all())
    torch.testing.assert_close(bounds.tight, truth, rtol=0, atol=0.1)


def test_best_states_are_the_ground_states_in_order():
    energy = rugged(6, seed=2)
    law = enumerate_law(energy)
    sampler = MaskedSampler(ExactConditionals(law.log_prob, 6, 2), energy)
    x, values = sampler.best(3, draws=6000, seed=0)
    wanted = torch.sort(energy.energy(sampler.model.states)).values[:3]
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-9)
    assert len(x.unique(dim=0)) == 3
    torch.testing.assert_close(values, energy.energy(x))
    plain = from_callable(energy.log_density, 6, 2)
    _, values = MaskedSampler(sampler.model, plain).best(3, draws=6000, seed=0)
    torch.testing.assert_close(values, energy.beta * wanted, rtol=1e-9, atol=1e-9)


def test_a_saved_sampler_draws_the_same(tmp_path):
    energy = rugged(6)
    sampler = fit(energy, steps=10, k=1, coverage=False, **SMALL)
    sampler.save(tmp_path / "s.safetensors")
    again = MaskedSampler.load(tmp_path / "s.safetensors", energy)
    assert torch.equal(sampler.sample(30, seed=4), again.sample(30, seed=4))
    assert again.log_z_learned == sampler.log_z_learned
    with pytest.raises(FileNotFoundError, match="no saved sampler"):
        MaskedSampler.load(tmp_path / "none.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(ValueError, match="is no saved sampler"):
        MaskedSampler.load(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="the energy has D=8"):
        MaskedSampler.load(tmp_path / "s.safetensors", rugged(8))


def test_averaged_weights_are_the_running_mean():
    trainer = OffPolicyTrainer(rugged(4), steps=6, k=1, ema=0.5, seed=0, **SMALL)
    mean = trainer.model.bias_out.detach().clone()
    for _ in range(6):
        trainer.fit(1)
        mean = 0.5 * mean + 0.5 * trainer.model.bias_out.detach()
    torch.testing.assert_close(trainer.sampler().model.bias_out.detach(), mean)


def test_the_same_seed_trains_the_same_sampler():
    runs = [fit(rugged(5), steps=12, k=(1, 2), seed=s, coverage=False, **SMALL).history for s in (3, 3, 4)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_impossible_options_are_named():
    with pytest.raises(ValueError, match="unknown loss 'vi'"):
        OffPolicyOptions(loss="vi")
    with pytest.raises(ValueError, match="unknown buffer 'fifo'"):
        OffPolicyOptions(buffer="fifo")
    with pytest.raises(ValueError, match="own paths alone"):
        OffPolicyOptions(loss="ce")
    with pytest.raises(ValueError, match="explores from the replay buffer"):
        OffPolicyOptions(buffer=None)
    with pytest.raises(ValueError, match="batch=0 must be positive"):
        OffPolicyOptions(batch=0)
    with pytest.raises(ValueError, match="ratio=0"):
        OffPolicyOptions(ratio=0.0)
    with pytest.raises(ValueError, match="unknown kernel"):
        OffPolicyOptions(mcmc="nuts")
    with pytest.raises(ValueError, match="k_min >= 1"):
        OffPolicyTrainer(rugged(4), k=0)
    with pytest.raises(ValueError, match="the model has D=3"):
        OffPolicyTrainer(rugged(4), MaskedMLP(3, 2))
    with pytest.raises(ValueError, match="needs J > 0"):
        fit(Ising2D(2, 0.5, J=-1.0), mcmc="swendsen_wang", steps=3, k=1, coverage=False, **SMALL)
    with pytest.raises(ValueError, match="this needs the energy"):
        MaskedSampler(MaskedMLP(3, 2)).sample_weighted(3)
