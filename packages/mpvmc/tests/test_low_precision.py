"""What a low precision may not do in silence: vanish, overflow, or be escalated to where it overflows too."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_mpvmc import RBM, VMC, AmplitudePhase, Metropolis, bounds, exact, local_energies, log_derivatives
from icml_mpvmc.hamiltonian import state_numbers
from icml_mpvmc.hamiltonians import TFIM
from icml_mpvmc.lowered import LogDensity, RoundEverything


@pytest.mark.parametrize("correction", ["reweight", "delayed"])
def test_corrected_compiled_chains_have_all_probabilities(correction):
    """bf16, float32 sums, the compiled loop: all 64 states against enumeration, where plain bf16 is off."""
    model = RBM(6, 2, std=0.3, seed=2)
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():  # six units far from zero, whose large weights the visible biases cancel
        model.weight[:, :6] = 4 * torch.randn(6, 6, generator=g, dtype=torch.float64)
        model.hidden_bias[:6] = 100.0
        model.visible_bias -= model.weight[:, :6].sum(1)
    states, p = exact.distribution(model, 6)
    chains = 4000
    off = {}
    for used in (None, correction):
        sampler = Metropolis(
            model, 6, n_chains=chains, dtype="bf16", correction=used, block=6, sweep=18, seed=1
        )
        assert sampler.walks_incrementally
        samples = sampler.sample(chains * 10, discard=10)
        numbers = state_numbers(samples.x)
        order = state_numbers(states)
        off[used] = []
        for state, expected in zip(order, p.tolist(), strict=True):
            found = samples.mean((numbers == state).astype(float))
            off[used].append((found.mean - expected) / max(found.error, 1e-9) if expected > 1e-3 else 0.0)
    assert samples.sigma > 0.1
    assert max(np.abs(off[correction])) < 4.5
    assert max(np.abs(off[None])) > 5


@pytest.mark.parametrize("way", ["item", "add", "index", "out", "view", "outer"])
def test_what_is_written_in_place_is_there(way):
    """A buffer that is filled gives what an expression gives, rounded at every step."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outer = torch.zeros(50, dtype=torch.float64)

    def filled(v):
        out = torch.zeros(len(v))
        square = (v**2).sum(1)
        if way == "item":
            out[:] = square
        elif way == "add":
            out.add_(square)
        elif way == "index":
            out.index_add_(0, torch.arange(len(v)), square)
        elif way == "out":
            torch.mul(square, 1.0, out=out)
        elif way == "view":
            out.view(-1, 1)[:, 0].copy_(square)
        else:
            out = outer.zero_()
            out.view(-1).copy_(square)
        return out

    assert torch.equal(LogDensity(filled, "bf16")(x), LogDensity(lambda v: (v**2).sum(1), "bf16")(x))
    with RoundEverything(torch.bfloat16):
        assert torch.zeros(2).dtype == torch.bfloat16


def test_an_underflow_is_no_zero_of_the_wavefunction():
    with pytest.raises(FloatingPointError, match=r"log π overflows float16: .value. up to 1e\+05"):
        LogDensity(lambda v: -1e5 * v[:, 0].abs(), "f16")(torch.ones(2, 1))
    half = LogDensity(lambda v: torch.where(v[:, 0] > 0, 0.0, -torch.inf), "f16")
    assert half(torch.tensor([[1.0], [-1.0]])).tolist() == [0.0, -np.inf]


def test_escalation_passes_by_what_overflows_and_says_so(monkeypatch):
    """From bf16 by f16, which cannot hold log ψ near 5e4 twice, to f32."""
    steps = ("bf16", "f16", "f32", "f64")
    monkeypatch.setattr("icml_mpvmc.metropolis.ladder", lambda device: steps)
    monkeypatch.setattr("icml_mpvmc.vmc.ladder", lambda device: steps)
    monkeypatch.setattr("icml_mpvmc.metropolis.check_precision", lambda *a, **k: None)

    class Large(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Parameter(0.3 * torch.ones(6, dtype=torch.float64))

        def forward(self, x):
            return (x * self.a).sum(1) + 1e5

    H, model = TFIM(6), Large()
    sampler = Metropolis(model, 6, n_chains=100, dtype="auto", seed=2)
    assert sampler.dtype == "bf16"
    vmc = VMC(H, model, sampler, lr=1e-6, n_samples=1000)
    assert vmc._escalate("a test")
    assert sampler.dtype == "f32"
    assert "from bf16 to f32" in vmc.history.events[0]
    assert "f16 was left out: log ψ overflows float16" in vmc.history.events[0]
    with pytest.raises(FloatingPointError):
        sampler.set_precision("f16")
    assert sampler.dtype == "f32"
    sampler.sample(100)
    machine = RBM(6, 1, std=0.1)
    with torch.no_grad():
        machine.weight[0, 0] = 1e5
    with pytest.raises(FloatingPointError, match="a parameter overflows torch.float16"):
        Metropolis(machine, 6, n_chains=4, dtype="f16", force=True)
    with torch.no_grad():
        machine.weight[0, 0] = 0.0
        machine.visible_bias[0] = torch.inf
    with pytest.raises(FloatingPointError):
        Metropolis(machine, 6, n_chains=4, dtype="f32")


def test_the_automatic_policy_on_any_processor(monkeypatch):
    steps = ("bf16", "f32", "f64")
    monkeypatch.setattr("icml_mpvmc.metropolis.ladder", lambda device: steps)
    monkeypatch.setattr("icml_mpvmc.vmc.ladder", lambda device: steps)
    H, model = TFIM(6), RBM(6, 2, std=0.5, seed=1)
    sampler = Metropolis.for_hamiltonian(H, model, n_chains=1000, dtype="auto", seed=2)
    vmc = VMC(H, model, sampler, lr=1e-6, n_samples=10_000)
    vmc.run(2)
    assert vmc.history.dtype == ["bf16", "f32"]


def test_chains_cache_what_they_would_see_again():
    for model, options in ((RBM(6, 2, std=0.3), {}), (RBM(6, 2, std=0.3), {"incremental": False})):
        sampler = Metropolis(model, 6, n_chains=32, dtype="bf16", **options)
        sampler.sample(64)
        assert torch.equal(sampler._log_p, sampler.log_density(sampler.x))


def test_exact_values_are_evaluated_once_a_block():
    calls = []

    class Spy(RBM):
        def forward(self, x):
            if x.dtype == torch.float64:
                calls.append(len(x))
            return super().forward(x)

    sampler = Metropolis(Spy(6, 1, std=0.2), 6, n_chains=8, dtype="f32", correction="delayed", block=3)
    calls.clear()
    sampler.sample(80, discard=0)  # 10 sweeps of two blocks
    assert len(calls) == 1 + 20 + 1


def test_distances_keep_their_digits():
    """δ of 1e-7, against sums of 50 digits."""
    from mpmath import mp, mpf

    mp.dps = 50
    rng = np.random.default_rng(0)
    log_p, delta = rng.normal(size=200), 1e-7 * rng.normal(size=200)
    p = [mp.exp(mpf(v)) for v in log_p]
    q = [a * mp.exp(mpf(d)) for a, d in zip(p, delta, strict=True)]
    p, q = [a / sum(p) for a in p], [b / sum(q) for b in q]
    divergence = sum(a * mp.log(a / b) for a, b in zip(p, q, strict=True))
    variation = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    found = bounds.distances(log_p, delta)
    assert found[1] == pytest.approx(float(divergence), rel=1e-8)
    assert found[0] == pytest.approx(float(variation), rel=1e-8)
    assert bounds.distances(log_p, np.where(log_p > 1, -np.inf, 0.0))[1] == np.inf


def test_spins_are_looked_at_where_they_enter():
    H, model = TFIM(3), RBM(3, 1, std=0.2)
    bits = torch.tensor([[0, 1, 1]], dtype=torch.int8)
    sampler = Metropolis(model, 3, n_chains=1, dtype="f64")
    for call in (
        lambda: local_energies(model, H, bits),
        lambda: log_derivatives(model, bits),
        lambda: sampler.log_density(bits),
        lambda: setattr(sampler, "x", bits),
    ):
        with pytest.raises(ValueError, match="must be \\+1 or -1"):
            call()
    x = torch.tensor([[1, -1, 1], [1, 1, 1]])
    kinds = (torch.int8, torch.int64, torch.float32, torch.float64)
    for compiled in (True, False):
        found = [local_energies(model, H, x.to(k), compiled=compiled) for k in kinds]
        assert all(torch.equal(f, found[0]) for f in found)
    rows = [log_derivatives(AmplitudePhase(model, model), x.to(k)) for k in kinds]
    assert all(torch.equal(r, rows[0]) for r in rows)


def test_frozen_parameters_stay_and_complex_models_are_refused():
    H, model = TFIM(4), RBM(4, 1, std=0.2)
    model.hidden_bias.requires_grad_(False)
    before = model.hidden_bias.clone(), model.weight.detach().clone()
    sampler = Metropolis(model, 4, n_chains=20, dtype="f64")
    VMC(H, model, sampler, lr=0.1, n_samples=100).run(2)
    assert torch.equal(model.hidden_bias, before[0])
    assert not torch.equal(model.weight, before[1])
    assert log_derivatives(model, sampler.x).shape == (20, 20)

    class Complex(RBM):
        log_derivatives = None

        def forward(self, x):
            return torch.complex(super().forward(x), x[:, 0])

    model = Complex(4, 1)
    with pytest.raises(ValueError, match="AmplitudePhase"):
        VMC(H, model, Metropolis(model, 4, n_chains=4, dtype="f64"), n_samples=4)


def test_checkpoints_know_their_run(tmp_path):
    def training(h=1.0, dtype="f32", lr=0.05, **options):
        model = RBM(4, 1, std=0.2)
        sampler = Metropolis(model, 4, n_chains=8, dtype=dtype, **options)
        return VMC(TFIM(4, h=h), model, sampler, solver="adam", lr=lr, n_samples=16)

    first = training()
    first.run(2)
    first.save(tmp_path / "a.safetensors")
    for other, what in (
        (training(h=3.0), "hamiltonian"),
        (training(sweep=9), "sweep"),
        (training(rule="flip:2"), "rule"),
        (training(correction="delayed"), "correction"),
    ):
        with pytest.raises(ValueError, match=what):
            other.load(tmp_path / "a.safetensors")
    other = training(dtype="f64", lr=0.01)
    with pytest.warns(UserWarning, match="stored in f32 and f64 is asked for"):
        other.load(tmp_path / "a.safetensors")
    assert other.sampler.dtype == "f64"
    assert other._adam.param_groups[0]["lr"] == 0.01
