"""Bridges: exact conditionals close the loss, fitting reaches the energy, transport is the Schrödinger
coupling's.
"""

from __future__ import annotations

import math

import pytest
import torch
from icml_discrete_samplers import (
    Bridge,
    BridgeOptions,
    BridgeTrainer,
    MaskedMLP,
    MaskedSampler,
    Polynomial,
    UniformMLP,
    enumerate_law,
    fit_bridge,
    from_callable,
)
from icml_discrete_samplers.bridge import path_log_prob, roll
from icml_discrete_samplers.exact import bridge_kernel, schroedinger_coupling
from icml_discrete_samplers.metrics import total_variation
from oracles import all_states

ENERGY = Polynomial({(0,): -1.5, (0, 1): 2.0, (2,): 1.0, (1, 2): -1.0})
STAY = 3.5  # the paper's on-policy value; a site of the reference then flips with probability 0.11 in 4 steps
TINY = {
    "updates": 3,
    "batch": 8,
    "hidden": 8,
    "layers": 1,
    "chains": 8,
    "mcmc_steps": 2,
    "steps": 2,
    "rounds": 2,
}


def net(seed: int = 0, D: int = 3) -> UniformMLP:
    model = UniformMLP(D, 2, hidden=8, layers=2, stay=1.0, seed=seed).double()
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(seed))
    return model


@pytest.mark.parametrize("backward", [False, True])
def test_path_probabilities_are_products_over_steps(backward):
    model, steps = net(), 4
    g = torch.Generator().manual_seed(1)
    path = roll(model, torch.randint(0, 2, (6, 3), generator=g), steps, g, backward=backward)
    total = torch.zeros(6, dtype=torch.float64)
    for n in range(steps):
        seen, next_, time = (
            (path[n + 1], path[n], (n + 1) / steps) if backward else (path[n], path[n + 1], n / steps)
        )
        logp = model(seen, torch.full((6, 1), time)).log_softmax(-1)
        total += logp.gather(-1, next_[..., None])[..., 0].sum(1)
    torch.testing.assert_close(path_log_prob(model, path, backward=backward), total)


@pytest.mark.parametrize("backward", [False, True])
def test_rolled_ends_have_the_exact_kernels_law(backward):
    model, n = net(2), 40_000
    start = torch.tensor([[1, 0, 1]]).repeat(n, 1)
    path = roll(model, start, 3, torch.Generator().manual_seed(0), backward=backward)
    end = path[0] if backward else path[-1]
    law = bridge_kernel(model, 3, backward=backward)[5]
    share = torch.bincount(end @ torch.tensor([4, 2, 1]), minlength=8).double() / n
    assert bool(((share - law).abs() < 5 * (law * (1 - law) / n).sqrt() + 1e-9).all())


@pytest.mark.parametrize("off_policy", [True, False])
def test_fitting_reaches_the_energy_at_the_couplings_cost(off_policy):
    """Eight states: exact law of the end, and exact mean Hamming cost beside Sinkhorn's on the reference's
    kernel.
    """
    p0 = torch.tensor([0.7, 0, 0, 0.1, 0, 0, 0.2, 0], dtype=torch.float64)
    states = all_states(3, 2)
    g = torch.Generator().manual_seed(0)

    def data(n):
        return states[torch.multinomial(p0, n, replacement=True, generator=g)]

    bridge = fit_bridge(
        data,
        ENERGY,
        steps=4,
        rounds=3,
        off_policy=off_policy,
        updates=100,
        batch=64,
        hidden=32,
        layers=1,
        stay=STAY,
        lr_forward=5e-3,
        lr_backward=5e-3,
        chains=64,
        mcmc_steps=5,
        seed=1,
    )
    kernel = bridge_kernel(bridge.forward_model, 4)
    p1 = enumerate_law(ENERGY).log_prob.exp()
    reference = bridge_kernel(UniformMLP(3, 2, 8, 1, STAY), 4)
    # Independent sites within a step leave an error at four steps; an untrained bridge is at 0.54.
    assert total_variation(p0 @ kernel, p1) < 0.45 * total_variation(p0 @ reference, p1)
    apart = torch.cdist(states.double(), states.double(), p=0)
    coupling = schroedinger_coupling(reference, p0 + 1e-12, p1)
    plans = (coupling, p0[:, None] * kernel, p0[:, None] * reference, p0[:, None] * p1)
    wanted, found, untrained, independent = (float((plan * apart).sum()) for plan in plans)
    assert found == pytest.approx(wanted, rel=0.15)
    # What knows nothing of the target, or nothing of where it came from, is far outside.
    assert untrained < 0.5 * wanted
    assert independent > 1.3 * wanted
    back = p1 @ bridge_kernel(bridge.backward_model, 4, backward=True)
    assert total_variation(back, p0) < 0.3


def test_a_checkpoint_of_a_bridge_knows_its_energy_and_data(tmp_path):
    data = torch.randint(0, 2, (40, 3), generator=torch.Generator().manual_seed(0))
    trainer = BridgeTrainer(data, ENERGY, **TINY)
    trainer.fit(1)
    trainer.save(tmp_path / "c.safetensors")
    BridgeTrainer(data, ENERGY, **TINY).restore(tmp_path / "c.safetensors")
    other = Polynomial({(0,): -1.5, (0, 1): 2.0, (2,): 1.0, (1, 2): -1.1})
    with pytest.raises(ValueError, match="belongs to another energy"):
        BridgeTrainer(data, other, **TINY).restore(tmp_path / "c.safetensors")
    with pytest.raises(ValueError, match="data was"):
        BridgeTrainer(1 - data, ENERGY, **TINY).restore(tmp_path / "c.safetensors")


def test_a_constant_in_the_energy_changes_no_bridge():
    """Below log rho = -10^4 as above it; an impossible state stays below all possible ones."""
    data = torch.zeros(4, 3, dtype=torch.int64)

    def histories(constant):
        energy = from_callable(
            lambda x: torch.where(x[:, 2] == 1, -math.inf, x[:, 0].double() - 0.5 * x[:, 1]) + constant, 3, 2
        )
        return [h["variance_forward"] for h in fit_bridge(data, energy, **TINY).history]

    plain = histories(0.0)
    assert histories(-(2.0**15)) == pytest.approx(plain, rel=1e-6)
    assert histories(2.0**15) == pytest.approx(plain, rel=1e-6)


def test_a_bridge_that_diverges_stops():
    data = torch.zeros(4, 3, dtype=torch.int64)
    with pytest.raises(FloatingPointError, match="in round 1 a loss is"):
        fit_bridge(data, ENERGY, **TINY, lr_backward=1e30)


def test_a_saved_bridge_transports_the_same(tmp_path):
    data = torch.randint(0, 2, (40, 3), generator=torch.Generator().manual_seed(0))
    bridge = fit_bridge(data, ENERGY, **TINY)
    bridge.save(tmp_path / "b.safetensors")
    again = Bridge.load(tmp_path / "b.safetensors")
    assert torch.equal(bridge.transport(data, 1), again.transport(data, 1))
    assert torch.equal(bridge.reverse(data, 1), again.reverse(data, 1))
    assert bridge.sample(5, seed=1).shape == (5, 3)
    double = Bridge(bridge.forward_model.double(), bridge.backward_model.double(), 2)
    double.save(tmp_path / "d.safetensors")
    assert next(Bridge.load(tmp_path / "d.safetensors").forward_model.parameters()).dtype == torch.float64
    MaskedSampler(MaskedMLP(3, 2, hidden=4, layers=1)).save(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="bridge"):
        Bridge.load(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="give the data to transport"):
        again.sample(5, seed=1)


def test_alpha_rises_over_the_rounds_and_the_backward_net_begins_anew():
    options = BridgeOptions(rounds=50)
    assert [options.alpha(r) for r in (0, 4, 5, 9, 10, 14, 15, 49)] == [
        0.4,
        0.4,
        0.6,
        0.6,
        0.8,
        0.8,
        1.0,
        1.0,
    ]
    assert BridgeOptions().bias == 2.0
    assert BridgeOptions(off_policy=False).bias == 3.5
    trainer = BridgeTrainer(torch.zeros(4, 3, dtype=torch.int64), ENERGY, **TINY)
    trainer.fit(1)
    before = trainer.backward
    trainer.fit(1)
    assert trainer.backward is not before


def test_bad_bridges_are_named():
    data = torch.zeros(4, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="group=3 must be 2 or more and divide batch=8"):
        fit_bridge(data, ENERGY, **{**TINY, "group": 3})
    with pytest.raises(ValueError, match=r"symbol 2 at site 0 outside 0\.\.1"):
        fit_bridge(data + 2, ENERGY, **TINY)
    with pytest.raises(ValueError, match="the data are empty"):
        fit_bridge(data[:0], ENERGY, **TINY)
    with pytest.raises(ValueError, match=r"p0\(1\) gave 4 states"):
        fit_bridge(lambda n: data, ENERGY, **TINY)
    with pytest.raises(ValueError, match="rounds=0 must be positive"):
        fit_bridge(data, ENERGY, **{**TINY, "rounds": 0})
    with pytest.raises(ValueError, match="end with alpha 1"):
        fit_bridge(data, ENERGY, **TINY, alphas=((0.0, 0.4),))
    with pytest.raises(ValueError, match=r"shape \[4, 2\]"):
        fit_bridge(data[:, :2], ENERGY, **TINY)
