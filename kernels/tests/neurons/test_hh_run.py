"""Cells in time against the definition, closed forms, an ODE solver, and finite differences."""

from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from icml_kernels import Membrane, hh_run, hh_step
from icml_kernels.neurons.hh_run import cpu, reference
from icml_kernels.neurons.hh_run.cases import arguments, membrane
from icml_kernels.testing import check_raw_ops, use_route
from scipy.integrate import solve_ivp

KINDS = ["squid", "calcium", "current", "passive"]
LEAVES = (1, 2, 3, 4, 5, 7, 8, 9)  # positions of what has a gradient


def all_nodes(n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32)


def run(given, table, record=None, **options):
    nodes = all_nodes(len(given[0])) if record is None else record
    return hh_run(*given, table.to(dtype=given[1].dtype, device="cpu"), nodes, **{"dt": 0.025, **options})


def weights(shape, dtype) -> torch.Tensor:
    return torch.cos(torch.arange(math.prod(shape), dtype=torch.float64)).reshape(shape).to(dtype)


def size(t) -> float:
    """The largest entry, at least 1."""
    return max(1.0, float(t.abs().max())) if t.numel() else 1.0


def gradients(given, table, **options) -> list[torch.Tensor]:
    """Gradients of a fixed combination of everything that comes out."""
    given = list(given)
    for k in LEAVES:
        given[k] = given[k].clone().requires_grad_()
    found = run(given, table, **options)
    total = sum((weights(t.shape, t.dtype) * t).sum() for t in (found.trace, found.v, found.gates))
    total = total + 1e4 * (weights(found.calcium.shape, found.calcium.dtype) * found.calcium).sum()
    return list(torch.autograd.grad(total, [given[k] for k in LEAVES], materialize_grads=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("nodes", "batch", "every"), [(1, 1, 1), (6, 3, 2), (9, 70, 3)])
def test_numba_equals_the_definition(kind, nodes, batch, every):
    given, table = arguments(kind, nodes, batch, 40), membrane(kind)
    record = torch.tensor([nodes - 1, 0, 0], dtype=torch.int32)
    with use_route("reference"):
        expected = run(given, table, record, every=every)
    found = run(given, table, record, every=every)
    assert found.trace.shape == (40 // every + 1, 3, batch)
    for a, e in zip(vars(found).values(), vars(expected).values(), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [None, 1, 7, 100])
def test_the_adjoint_equals_the_definition_for_every_spacing_of_states(kind, block):
    given, table = arguments(kind, 6, 9, 40), membrane(kind)
    with use_route("reference"):
        expected = gradients(given, table, every=3)
    for a, e in zip(gradients(given, table, every=3, block=block), expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-9 * size(e))


@pytest.mark.parametrize("kind", KINDS)
def test_the_adjoint_equals_autograd_through_the_definition(kind):
    """The formulas of the reverse sweep against torch's own differentiation of the steps."""
    given, table = list(arguments(kind, 5, 3, 30)), membrane(kind)
    expected_of = [given[k].clone().requires_grad_() for k in LEAVES]
    leaves = dict(zip(LEAVES, expected_of, strict=True))
    inputs = [leaves.get(k, t) for k, t in enumerate(given)]
    tables = (table.channels, table.rates, table.reversal, table.pool, all_nodes(5))
    trace, v, gates, calcium, _, _ = reference.forward(*inputs, *tables, 0.025, 2, 0)
    total = sum((weights(t.shape, t.dtype) * t).sum() for t in (trace, v, gates))
    total = total + 1e4 * (weights(calcium.shape, calcium.dtype) * calcium).sum()
    expected = torch.autograd.grad(total, expected_of, materialize_grads=True)
    for a, e in zip(gradients(given, table, every=2), expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-9 * size(e))


@pytest.mark.parametrize("kind", ["squid", "calcium"])
def test_gradients_are_finite_differences_on_twenty_nodes_and_fifty_steps(kind):
    given, table = list(arguments(kind, 20, 2, 50)), membrane(kind)

    def value(*leaves):
        inputs = list(given)
        for k, leaf in zip(LEAVES, leaves, strict=True):
            # In units of its size: finite differences of 1e-6 fit all of them.
            inputs[k] = given[k] + leaf * given[k].abs().mean()
        return run(inputs, table, torch.tensor([3, 19], dtype=torch.int32), every=10).trace[1:]

    zeros = [torch.zeros_like(given[k]).requires_grad_() for k in LEAVES]
    assert torch.autograd.gradcheck(value, zeros, rtol=1e-5, atol=1e-5, fast_mode=True)


def test_a_passive_compartment_relaxes_as_implicit_euler_does():
    given = list(arguments("passive", 1, 2, 25))
    given[5] = torch.zeros_like(given[5])
    _, capacitance, _, gmax, *_ = given
    v = run(given, membrane("passive")).trace[:, 0]
    rate = 0.025 * gmax[0, 0] / capacitance[0]
    expected = -65 + (given[7][0] + 65) * (1 + rate) ** -torch.arange(26.0).double()[:, None]
    torch.testing.assert_close(v, expected, rtol=1e-12, atol=1e-12)


def test_the_squid_axon_converges_to_an_ode_solver_with_order_one():
    """One compartment of 1 cm2 equivalents with 10 uA/cm2; rates written out here a second time."""

    def ratio(x):
        return x / (1 - math.exp(-x)) if abs(x) > 1e-7 else 1 + x / 2

    def slopes(t, y):
        v, m, h, n = y
        am, bm = ratio((v + 40) / 10), 4 * math.exp(-(v + 65) / 18)
        ah, bh = 0.07 * math.exp(-(v + 65) / 20), 1 / (1 + math.exp(-(v + 35) / 10))
        an, bn = 0.1 * ratio((v + 55) / 10), 0.125 * math.exp(-(v + 65) / 80)
        current = 120 * m**3 * h * (v - 50) + 36 * n**4 * (v + 77) + 0.3 * (v + 54.3)
        return [10 - current, am * (1 - m) - bm * m, ah * (1 - h) - bh * h, an * (1 - n) - bn * n]

    table, v0 = membrane(), torch.full((1, 1), -65.0, dtype=torch.float64)
    gates0 = table.steady_gates(v0)
    exact = solve_ivp(
        slopes, (0, 8), [-65.0, *gates0[:, 0, 0].tolist()], rtol=1e-10, atol=1e-10, dense_output=True
    )
    one = torch.ones(1, 1, dtype=torch.float64)
    gmax = torch.tensor([120.0, 36.0, 0.3]).double()[:, None, None]
    errors = []
    for dt in (0.02, 0.01, 0.005):
        wave = torch.ones(1, round(8 / dt)).double()
        given = (
            torch.tensor([-1], dtype=torch.int32),
            one,
            one,
            gmax,
            0 * one,
            10 * one[None],
            wave,
            v0,
            gates0,
        )
        v = hh_run(*given, one, table, all_nodes(1), dt=dt).trace[:, 0, 0].numpy()
        errors.append(np.abs(v - exact.sol(np.arange(len(v)) * dt)[0]).max())
    assert errors[-1] < 1.5
    assert 1.7 < errors[0] / errors[1] < 2.4
    assert 1.7 < errors[1] / errors[2] < 2.4


def test_one_step_at_a_time_is_the_run():
    given, table = arguments("calcium", 6, 3, 12), membrane("calcium")
    whole = run(given, table)
    v, gates, calcium = given[7:]
    for t in range(12):
        current = (given[5] * given[6][:, t, None, None]).sum(0)
        found = hh_step(*given[:5], current, v, gates, calcium, table, dt=0.025)
        v, gates, calcium = found.v, found.gates, found.calcium
        torch.testing.assert_close(v, whole.trace[t + 1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(calcium, whole.calcium, rtol=1e-12, atol=0)


def test_a_lane_that_fails_is_frozen_and_the_others_keep_their_bits():
    given, table = list(arguments("squid", 6, 12, 60)), membrane()
    whole, clean = run(given, table), gradients(given, table)
    given[5] = given[5].clone()
    given[5][0, 2, 4] = 1e6
    given[3] = given[3].clone()
    given[3][0, 1, 7] = math.nan
    found, slopes = run(given, table), gradients(given, table)
    assert found.failed.tolist() == [0 if k in (4, 7) else -1 for k in range(12)]
    others = [k for k in range(12) if k not in (4, 7)]
    assert torch.equal(found.trace[..., others], whole.trace[..., others])
    assert bool(torch.isfinite(found.trace).all())
    for a, e in zip(slopes, clean, strict=True):
        assert bool((a[..., [4, 7]] == 0).all())
        assert bool(torch.isfinite(a).all())
        assert torch.equal(a[..., others], e[..., others])


@pytest.mark.parametrize("route", ["reference", "numba"])
def test_the_limit_is_the_callers(route):
    """A clamp that charges a passive compartment to 400 mV fails at 200 mV, not at 500, gradients alike."""
    given = list(arguments("passive", 1, 2, 40))
    given[5] = torch.zeros_like(given[5])
    given[5][0, 0, 1] = float(465 * given[3][0, 0, 1])
    given[1], given[6] = 0.1 * given[3][0], torch.ones_like(given[6])
    given[5] = given[5].requires_grad_()
    with use_route("reference") if route == "reference" else nullcontext():
        low, high = (run(given, membrane("passive"), limit=limit) for limit in (200.0, 500.0))
        (slope,) = torch.autograd.grad(high.v.sum(), given[5])
    assert low.failed.tolist()[0] == -1
    assert low.failed.tolist()[1] > 0
    assert high.failed.tolist() == [-1, -1]
    assert float(high.v.detach()[0, 1]) == pytest.approx(400, abs=1)
    assert bool((slope[0] > 0).all())
    with pytest.raises(ValueError, match="limit=0 mV must be positive"):
        run(given, membrane("passive"), limit=0)


def test_narrow_rates_do_not_overflow_in_single_precision():
    """A sigmoid of 1 mV width, 60 mV to both sides of its centre: as in double precision."""
    base = membrane("squid")
    rates = base.rates.clone()
    for side, slope in ((0, 1.0), (1, -1.0)):
        rates[:, side] = torch.tensor([1.0, -65.0, slope, 1.0, 0.0, 0.0, 1.0]).double()
    table = Membrane(base.channels, rates, base.reversal, base.pool)
    given = list(arguments("squid", 2, 2, 4))
    given[3] = torch.zeros_like(given[3])
    given[5] = torch.zeros_like(given[5])
    given[2] = 1e-12 * given[2]
    given[7] = torch.tensor([[-125.0, -5.0], [-125.0, -5.0]]).double()
    single = [t.float() if t.is_floating_point() else t for t in given]
    torch.testing.assert_close(
        run(single, table).gates.double(), run(given, table).gates, rtol=1e-5, atol=1e-6
    )


def test_threads_do_not_change_bits(monkeypatch):
    given, table = arguments("calcium", 5, 200, 20), membrane("calcium")
    expected = [run(given, table).trace, *gradients(given, table)]
    monkeypatch.setattr(cpu, "threads", lambda: 3)
    for a, e in zip([run(given, table).trace, *gradients(given, table)], expected, strict=True):
        assert torch.equal(a, e)


@pytest.mark.parametrize("kind", ["squid", "calcium"])
def test_single_precision_follows_double(kind):
    given, table = arguments(kind, 6, 9, 60), membrane(kind)
    exact = run(given, table)
    single = run([t.float() if t.is_floating_point() else t for t in given], table)
    assert single.trace.dtype == torch.float32
    torch.testing.assert_close(single.trace.double(), exact.trace, rtol=0, atol=2e-2)
    slopes = gradients([t.float() if t.is_floating_point() else t for t in given], table)
    for a, e in zip(slopes, gradients(given, table), strict=True):
        assert float((a.double() - e).abs().max()) <= 5e-3 * max(float(e.abs().max()), 1e-6)


def test_memory_grows_with_the_root_of_the_steps():
    given, table = arguments("squid", 6, 3, 400), membrane()
    leaf = given[5].clone().requires_grad_()
    inputs = (*given[:5], leaf, *given[6:])
    found = run(inputs, table, torch.tensor([0], dtype=torch.int32), every=400)
    saved = found.trace.grad_fn.saved_tensors
    assert max(t.numel() for t in saved) == 20 * 5 * 6 * 3  # 20 states of V, three gates and calcium


def test_raw_operators_are_well_formed():
    given, table = arguments("calcium", 4, 3, 6), membrane("calcium")

    def call(capacitance, axial, gmax):
        return run((given[0], capacitance, axial, gmax, *given[4:]), table).trace

    assert check_raw_ops(call, given[1:4], order=1) == {"icml::hh_run", "icml::hh_run_backward"}


def test_second_derivatives_are_refused():
    given, table = list(arguments("squid", 2, 1, 5)), membrane()
    given[5] = given[5].clone().requires_grad_()
    (slope,) = torch.autograd.grad((run(given, table).trace ** 2).sum(), given[5], create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        slope.sum().backward()


def test_bad_arguments_are_named():
    given, table = list(arguments("squid", 4, 2, 5)), membrane()
    with pytest.raises(ValueError, match=r"dt=0 and every=1 must be positive"):
        run(given, table, dt=0)
    with pytest.raises(ValueError, match="names nodes beyond 0 to 3"):
        run(given, table, torch.tensor([4], dtype=torch.int32))
    rows = table.channels.clone()
    rows[0, 1] = 5
    broken = Membrane(rows, table.rates, table.reversal, table.pool)
    with pytest.raises(ValueError, match="gate 0 with power 5"):
        run(given, broken)
    with pytest.raises(ValueError, match=r"gmax has shape \[2, 4, 2\]; expected \[3, 4, 2\]"):
        run([*given[:3], given[3][:2], *given[4:]], table)
    with pytest.raises(TypeError, match="drive has dtype torch.float32"):
        run([*given[:5], given[5].float(), *given[6:]], table)
