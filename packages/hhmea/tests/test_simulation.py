"""Cells in time: gradients, golden traces, failures, independence of calls, bad input."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from icml_hhmea import (
    RGC,
    Cell,
    Channel,
    ElectrodeArray,
    ExtracellularPattern,
    Gate,
    IClamp,
    Rate,
    SimulationError,
    potassium_a,
    retinal_ganglion,
    simulate,
)
from icml_hhmea.channels import CalciumPool, membrane
from icml_hhmea.claim_tasks import current_gap
from icml_hhmea.evaluation import CableSolver, SimulationProblem
from icml_hhmea.importing import renumber
from icml_hhmea.morphology import Section
from icml_hhmea.parameters import Bounds
from icml_hhmea.simulation import _drives


def ball_and_stick(**options) -> Cell:
    soma = np.array([[-10, 0, 0, 10.0], [10, 0, 0, 10.0]])
    stick = np.array([[10, 0, 0, 1.0], [210, 0, 0, 0.5]])
    return Cell.from_sections(
        [Section(soma, region="soma"), Section(stick, 0)], max_len=20, **options
    ).double()


def test_rates_are_the_published_ones():
    """Values written out from the formulas, among them the potassium A channel with an e-fold of 10 mV."""
    a = potassium_a().gates[0].alpha
    assert a(-60.0) == pytest.approx(-0.006 * 30 / (np.exp(-3.0) - 1), rel=1e-12)
    assert a(-60.0) == pytest.approx(0.189, abs=5e-4)
    assert a(-80.0) == pytest.approx(0.095, abs=5e-4)
    na, k, ca, *_ = retinal_ganglion()
    for v in (-80.0, -41.3, -20.0, 10.0):
        assert na.gates[0].alpha(v) == pytest.approx(
            -3.136 * (v + 35) / (np.exp(-0.1 * (v + 35)) - 1), rel=1e-10
        )
        assert na.gates[1].beta(v) == pytest.approx(31.365 / (1 + np.exp(-0.1 * (v + 22))), rel=1e-12)
        assert k.gates[0].beta(v) == pytest.approx(2.191 * np.exp(-(v + 47) / 80), rel=1e-12)
        assert ca.gates[0].alpha(v) == pytest.approx(
            -1.568 * (v + 13) / (np.exp(-0.1 * (v + 13)) - 1), rel=1e-10
        )
    assert na.gates[0].alpha(-35.0) == pytest.approx(31.36)
    table = membrane(retinal_ganglion())
    v = torch.tensor([[-35.0, -37.0, -13.0, -65.0]]).double().T
    steady = table.steady_gates(v)
    for row, gate in zip(steady, [g for c in retinal_ganglion() for g in c.gates], strict=True):
        for level, found in zip(v[:, 0].tolist(), row[:, 0].tolist(), strict=True):
            expected = gate.alpha(level) / (gate.alpha(level) + gate.beta(level))
            assert found == pytest.approx(expected, rel=1e-9)


def test_calcium_rises_as_its_current_says():
    """One compartment of 1 µm2: dCa/dt = 1e4 |i| / (2 F depth), i in mA/cm2."""
    pool = CalciumPool()
    assert pool.rate_times_area == pytest.approx(1e4 * 100 / (2 * 96485.33 * 0.1), rel=1e-6)
    assert pool.nernst_mv == pytest.approx(13.37, abs=0.01)


@pytest.mark.parametrize("seed", range(2))
def test_gradients_of_the_whole_simulation_are_finite_differences(seed):
    cell, array = RGC(axon_length=60.0).double(), ElectrodeArray.hexagon(1)
    start = cell.bounds.sample(1, torch.Generator().manual_seed(seed))
    u = cell.bounds.real(start).clamp(-2, 2).requires_grad_()
    stim = IClamp("soma", 1.5, 0.0, 0.2)

    def value(u):
        found = simulate(cell, cell.bounds.values(u), stim, 0.6, 0.02, electrodes=array, every=5)
        return torch.cat([found.v.flatten(), found.phi.flatten() * 1e-2])

    assert torch.autograd.gradcheck(value, u, rtol=1e-5, atol=1e-6, fast_mode=True)


def test_gradients_by_currents_at_electrodes():
    cell, array = RGC(axon_length=60.0).double(), ElectrodeArray.hexagon(1)
    amplitudes = torch.randn(1, 7, generator=torch.Generator().manual_seed(0)).double().requires_grad_()

    def value(a):
        return simulate(cell, None, ExtracellularPattern(a), 0.3, 0.02, electrodes=array, every=5).v

    assert torch.autograd.gradcheck(value, amplitudes, rtol=1e-5, atol=1e-6)


def test_golden_traces_in_double_precision():
    """Voltages of two cells as they were when the scheme was first compared with NEURON."""
    a = simulate(
        ball_and_stick(), None, IClamp("soma", 0.8, 0.5, 1.0), 4.0, 0.025, record=["soma", "dendrite[-1]"]
    )
    b = simulate(RGC(axon_length=300.0).double(), None, IClamp("soma", 3.0, 0.1, 0.3), 2.0, 0.02)
    for found, expected in ((a.v[0, ::40, 0], GOLDEN_STICK), (b.v[0, ::25, 1], GOLDEN_RGC)):
        torch.testing.assert_close(
            found.detach(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6
        )


def test_user_channels_are_made_of_gates():
    """A leak that is gated with a constant gate of 1/2 is half a leak."""
    half = Gate(Rate("constant", 0.3), Rate("constant", 0.3))
    kinds = [Channel("leak", (half,), -60.0)]
    twice = Cell(ball_and_stick().morphology, kinds, {"leak": 2.0}).double()
    once = Cell(ball_and_stick().morphology, [Channel("leak", (), -60.0)], {"leak": 1.0}).double()
    runs = [simulate(c, None, IClamp("soma", 0.1, 0, 9), 2.0, 0.05).v for c in (twice, once)]
    torch.testing.assert_close(runs[0], runs[1], rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="the compiled loops take two"):
        Channel("x", (half, half), "calcium", gated_by_calcium=True)
    with pytest.raises(ValueError, match="is none of exponential"):
        Rate("cubic", 1.0)


def test_a_lane_that_fails_is_flagged_and_the_others_are_bit_equal():
    cell = RGC(axon_length=60.0).double()
    calm = torch.full((12,), 0.5).double()
    wild = calm.clone()
    wild[5] = 1e7
    clean = simulate(cell, None, IClamp("soma", calm, 0.0, 0.2), 0.5, 0.02)
    found = simulate(cell, None, IClamp("soma", wild, 0.0, 0.2), 0.5, 0.02, on_failure="flag")
    assert found.failed.tolist() == [0 if k == 5 else -1 for k in range(12)]
    others = [k for k in range(12) if k != 5]
    assert torch.equal(found.v[others], clean.v[others])
    with pytest.raises(SimulationError, match="step 0 near compartment .* of cell 5") as caught:
        simulate(cell, None, IClamp("soma", wild, 0.0, 0.2), 0.5, 0.02)
    assert (caught.value.step, caught.value.lane) == (0, 5)


def test_currents_balance_at_every_node_and_a_perturbed_solve_does_not():
    """Capacitance and channels, from the voltages alone, carry what arrives; 1e-6 mV off shows."""
    assert current_gap(0) <= 1e-9
    assert current_gap(0, perturbed=True) > 1e-8


def test_stimulation_and_recording_are_reciprocal_through_the_simulation():
    """phi at an electrode is what its 1 µA would drive, weighted by V: with the axial operator L,
    sum Z (L V) = sum V (L Z)."""
    cell, array = RGC(axon_length=60.0).double(), ElectrodeArray.hexagon(1)
    theta = cell.bounds.sample(3, torch.Generator().manual_seed(2))
    clamp = IClamp("soma", 1.0, 0.0, 0.1)
    with torch.no_grad():
        found = simulate(cell, theta, clamp, 0.4, 0.02, record="all", electrodes=array)
        cable = cell.cable(theta)
        matrix = array.matrix(cell.segments(theta), cell.sigma(theta))
        wave = clamp.waveform.samples(20, 0.02)
        for e in range(7):
            one = torch.zeros(1, 7).double()
            one[0, e] = 1.0
            drive, _ = _drives(cell, cable, [ExtracellularPattern(one)], matrix, theta, 20, 0.02)
            phi = torch.einsum("bsn,nb->bs", found.v, drive[0])
            phi[:, 1:] += 1e3 * matrix[:, e, cell.node("soma"), None] * wave
            torch.testing.assert_close(phi, found.phi[..., e], rtol=1e-9, atol=1e-9)


def test_two_simulators_with_different_steps_do_not_disturb_each_other():
    cell = ball_and_stick()
    stim = IClamp("soma", 0.5, 0.1, 0.5)
    alone = [simulate(cell, None, stim, 1.0, dt).v for dt in (0.01, 0.025)]
    mixed = [simulate(cell, None, stim, 1.0, dt).v for dt in (0.01, 0.025, 0.01, 0.025)]
    for k, v in enumerate(mixed):
        assert torch.equal(v, alone[k % 2])


def test_nothing_waits_for_a_compiler_once_loaded():
    """Another T, batch, recorded site or number of channels' parameters adds less than 0.1 s to a call."""
    cell = ball_and_stick()
    simulate(cell, None, IClamp("soma", 0.5), 0.5, 0.025)
    for T, batch, record in ((0.6, 1, ["soma"]), (0.5, 7, [0, 1, 2]), (1.3, 70, "all")):
        begin = time.perf_counter()
        simulate(cell, None, IClamp("soma", torch.full((batch,), 0.5)), T, 0.025, record=record)
        assert time.perf_counter() - begin < 0.4


def test_an_empty_environment_is_enough():
    """No display, no compiler, no home: the package simulates from a bare interpreter."""
    code = (
        "from icml_hhmea import RGC, IClamp, simulate\n"
        "v = simulate(RGC(axon_length=50.0), None, IClamp('soma', 0.5), 0.1, 0.02).v\n"
        "assert v.shape[1] == 6"
    )
    keep = {k: os.environ[k] for k in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME") if k in os.environ}
    done = subprocess.run([sys.executable, "-c", code], env=keep, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_voltages_do_not_depend_on_the_order_of_nodes():
    cell = ball_and_stick()
    n = cell.nodes
    other = Cell(renumber(cell.morphology, np.arange(n))).double()
    assert other.morphology.fingerprint() == cell.morphology.fingerprint()
    rng = np.random.default_rng(0)
    left = set(range(n))
    order: list[int] = []
    while left:
        ready = [i for i in left if cell.morphology.parent[i] in (*order, -1)]
        order.append(int(rng.choice(ready)))
        left.remove(order[-1])
    mixed = Cell(renumber(cell.morphology, np.array(order))).double()
    stim = IClamp(0, 0.7, 0.1, 0.5)
    a, b = (simulate(c, None, stim, 2.0, 0.025, record="all").v[0] for c in (cell, mixed))
    torch.testing.assert_close(b, a[:, order], rtol=0, atol=1e-9)


def test_named_parameters_scale_and_are_checked():
    cell = ball_and_stick(free={"na.soma": (60.0, 240.0), "ra": (20.0, 200.0), "na": (0.5, 2.0)})
    theta = cell.batch({"na.soma": torch.tensor([60.0, 240.0]).double(), "ra": 50.0})
    cable = cell.cable(theta)
    soma = cell.region == cell.regions.index("soma")
    ratio = cable.gmax[0, soma][:, 1] / cable.gmax[0, soma][:, 0]
    torch.testing.assert_close(ratio, torch.full_like(ratio, 4.0))
    with pytest.raises(ValueError, match="no parameter 'gk'; there are na.soma"):
        simulate(cell, {"gk": 1.0})
    with pytest.raises(ValueError, match="ra = 500 lies outside the bounds 20 to 200"):
        simulate(cell, {"ra": 500.0})
    with pytest.raises(ValueError, match="theta has 2 parameters; expected 3"):
        simulate(cell, torch.ones(4, 2))
    with pytest.raises(ValueError, match="outside the bounds"):
        simulate(cell, torch.full((1, 3), torch.nan))


def test_bounds_go_there_and_back():
    bounds = RGC().bounds
    theta = bounds.sample(50, torch.Generator().manual_seed(0))
    torch.testing.assert_close(bounds.values(bounds.real(theta)), theta, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(bounds.from_unit(bounds.to_unit(theta)), theta, rtol=1e-12, atol=1e-12)
    u = torch.randn(3, len(bounds)).double().requires_grad_()
    assert torch.autograd.gradcheck(bounds.values, u)
    with pytest.raises(ValueError, match="bounds 2.0 to 1.0 are empty"):
        Bounds(("a",), (2.0,), (1.0,), (False,))


def test_bad_calls_are_named():
    cell = ball_and_stick()
    for options, match in (
        ({"dt": 0.06}, "dt=0.06 ms is above 0.05"),
        ({"T": -1.0}, "must be positive"),
        ({"record": ["axon"]}, "expected a node's number or a region"),
        ({"record": ["soma[9]"]}, "the region has 1 nodes"),
        ({"record": [500]}, "node 500"),
        ({"on_failure": "ignore"}, "neither 'raise' nor 'flag'"),
        ({"stim": ExtracellularPattern(torch.ones(3))}, "needs electrodes="),
        ({"stim": [IClamp(0, torch.ones(2)), IClamp(0, torch.ones(3))]}, "do not fit"),
    ):
        with pytest.raises(ValueError, match=match):
            simulate(cell, None, **options)
    simulate(cell, None, None, 0.2, 0.1, force=True)
    with pytest.raises(ValueError, match="7 electrodes|amplitudes for"):
        simulate(cell, None, ExtracellularPattern(torch.ones(3)), 0.2, electrodes=ElectrodeArray.hexagon(1))
    with pytest.raises(ValueError, match="axon_length=-1"):
        RGC(axon_length=-1)


def test_a_solution_of_another_problem_is_refused():
    cell = ball_and_stick()
    problem = SimulationProblem(cell, IClamp("soma", 0.5, 0.0, 0.5), T=0.5, dt=0.025)
    found = CableSolver().solve(problem)
    found.verify(problem)
    with pytest.raises(ValueError, match="voltages are not those of this problem"):
        found.verify(SimulationProblem(cell, IClamp("soma", 0.6, 0.0, 0.5), T=0.5, dt=0.025))


GOLDEN_STICK = [-65.0, -46.62547059, 30.74304847, -18.21814201, -69.58378602]
GOLDEN_RGC = [-65.0, -65.02732308, -13.48097693, -68.49045768, -70.26015946]
