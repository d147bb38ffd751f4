"""Simulated fields against linear theory, conservation laws, and refinement of the time step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_irno import gray_scott, kolmogorov_flow, kuramoto_sivashinsky
from icml_irno.simulators import _etdrk4


def test_coefficients_of_etdrk4_equal_their_closed_forms():
    linear, dt = np.array([-30.0, -3.0, 2.0]), 0.1
    z = dt * linear
    e, e2, q, f1, f2, f3 = _etdrk4(linear, dt)
    np.testing.assert_allclose(e, np.exp(z))
    np.testing.assert_allclose(e2, np.exp(z / 2))
    np.testing.assert_allclose(q, dt * (np.exp(z / 2) - 1) / z, rtol=1e-10)
    np.testing.assert_allclose(f1, dt * (-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3, rtol=1e-9)
    np.testing.assert_allclose(f2, dt * (2 + z + np.exp(z) * (z - 2)) / z**3, rtol=1e-9)
    np.testing.assert_allclose(f3, dt * (-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3, rtol=1e-9)


def test_kuramoto_sivashinsky_is_of_fourth_order_in_time():
    def run(halvings: int) -> torch.Tensor:
        n = 2**halvings
        return kuramoto_sivashinsky(2, 0, steps=(0, 20 * n), dt=0.1 / n, burn_in=10 * n, points=64)[:, 1]

    coarse, fine, finer = run(0), run(1), run(2)
    gap, smaller = float((coarse - fine).abs().max()), float((fine - finer).abs().max())
    assert gap < 1e-2 * float(fine.abs().max())
    assert smaller < gap / 10  # a factor of 16 in the limit


def test_kuramoto_sivashinsky_keeps_its_mean_and_reaches_the_attractor():
    u = kuramoto_sivashinsky(8, 1, steps=(0, 60))
    assert u.shape == (8, 2, 128)
    assert float(u.mean(-1).abs().max()) < 1e-12
    assert 1.0 < float(u.std()) < 1.7  # 1.3 in long runs
    again = kuramoto_sivashinsky(8, 1, steps=(0, 60))
    assert torch.equal(u, again)
    assert not torch.equal(u, kuramoto_sivashinsky(8, 2, steps=(0, 60)))


def test_kolmogorov_flow_decays_as_linear_theory_says_without_product():
    # One wave is an exact solution of the unforced equation up to the forcing, which acts on (4, 4) alone.
    w = kolmogorov_flow(2, 0, points=24, burn_in=0, steps=(0, 50), dt=0.01)
    assert float(w.mean((-2, -1)).abs().max()) < 1e-10
    halved = kolmogorov_flow(2, 0, points=24, burn_in=0, steps=(0, 100), dt=0.005)
    gap = (w[:, 1] - halved[:, 1]).abs().max() / halved[:, 1].abs().max()
    finer = kolmogorov_flow(2, 0, points=24, burn_in=0, steps=(0, 200), dt=0.0025)
    smaller = (halved[:, 1] - finer[:, 1]).abs().max() / halved[:, 1].abs().max()
    assert float(smaller) < 0.4 * float(gap) < 0.04  # second order


def test_kolmogorov_flow_moves_by_its_equation():
    """The right side by a sum over pairs of waves p + q = k, without any transform of a product."""
    n, dt, viscosity, drag = 16, 1e-6, 0.02, 0.3
    w = kolmogorov_flow(1, 0, points=n, burn_in=0, steps=(0, 1), dt=dt, viscosity=viscosity, drag=drag)[
        0
    ].numpy()
    change = np.fft.fft2((w[1] - w[0]) / dt) / n**2
    waves = [(a, b) for a in range(-5, 6) for b in range(-5, 6)]  # below 16 / 3
    c = np.fft.fft2(w[0]) / n**2
    expected = {}
    for k in waves:
        # u = (psi_y, -psi_x), psi_p = w_p / |p|^2: u . grad w at k is the sum of (p x q) w_p w_q / |p|^2.
        advected = 0j
        for p in waves:
            q = (k[0] - p[0], k[1] - p[1])
            if p != (0, 0) and max(map(abs, q)) <= 5:
                cross = p[0] * q[1] - p[1] * q[0]
                advected += cross * c[p] * c[q] / (p[0] ** 2 + p[1] ** 2)
        force = {(4, 4): -0.25j, (-4, -4): 0.25j}.get(k, 0)  # 0.5 sin(4 (x + y))
        linear = viscosity * (k[0] ** 2 + k[1] ** 2) + drag
        expected[k] = -advected - linear * c[k] + force
    scale = max(map(abs, expected.values()))
    assert max(abs(change[k] - v) for k, v in expected.items()) < 1e-4 * scale
    inside = np.zeros((n, n), dtype=bool)
    for k in waves:
        inside[k] = True
    assert float(np.abs(change[~inside]).max()) < 1e-6 * scale  # nothing beyond the dealiased waves


def test_gray_scott_stays_between_nothing_and_all():
    f = gray_scott(2, 0, points=24, burn_in=200, steps=(0, 20))
    assert f.shape == (2, 2, 2, 24, 24)
    a, b = f[:, :, 0], f[:, :, 1]
    assert float(a.min()) >= 0
    assert float(a.max()) < 1.1
    assert 0 <= float(b.min()) < float(b.max()) < 1
    assert float(b.std()) > 0.01


@pytest.mark.parametrize("simulator", [kuramoto_sivashinsky, kolmogorov_flow, gray_scott])
def test_times_must_rise(simulator):
    for options in ({"steps": (3, 1)}, {"steps": (-1, 2)}, {"points": 4}):
        with pytest.raises(ValueError, match="expected rising times"):
            simulator(1, 0, **options)
