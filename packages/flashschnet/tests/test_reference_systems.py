import numpy as np
import pytest
import torch
from icml_flashschnet.reference_systems import (
    HarmonicDimer,
    TrappedCluster,
    equilibrium_samples,
    standard_score,
)
from icml_flashschnet.units import BOLTZMANN
from scipy import integrate, stats


@pytest.mark.parametrize("system", [HarmonicDimer(), TrappedCluster()])
def test_forces_are_minus_the_gradient(system):
    beads = system.molecule().n_beads
    generator = torch.Generator().manual_seed(0)
    start = torch.as_tensor(np.tile(system.molecule().pos, (3, 1)))
    pos = (start + 0.3 * torch.randn(start.shape, generator=generator)).requires_grad_()
    energy, forces = system.energy_forces(pos, None, n_replicas=3)
    assert energy.shape == (3,)
    assert forces.shape == (3 * beads, 3)
    (gradient,) = torch.autograd.grad(energy.sum(), pos)
    torch.testing.assert_close(forces, -gradient, rtol=1e-10, atol=1e-10)


def test_moments_of_the_bond_are_the_integrals():
    dimer, kt = HarmonicDimer(k=5.0, r0=2.0), BOLTZMANN * 400
    z, first, second = (
        integrate.quad(
            lambda r, n=n: r ** (2 + n) * np.exp(-5.0 * (r - 2.0) ** 2 / kt), 0, 8, points=[2.0], limit=200
        )[0]
        for n in (0, 1, 2)
    )
    mean, variance = dimer.length_moments(400.0)
    assert mean == pytest.approx(first / z, rel=1e-8)
    assert variance == pytest.approx(second / z - (first / z) ** 2, rel=1e-6)


def test_the_virial_of_exact_samples_of_a_trap_alone_is_3nkt():
    cluster = TrappedCluster(n_beads=2, depth=0.0)
    spread = np.sqrt(BOLTZMANN * 300 / cluster.trap)
    pos = spread * np.random.default_rng(1).standard_normal((64, 50, 2, 3))
    assert cluster.virial_score(pos, 300.0) < 3
    assert cluster.virial_score(pos * 1.05, 300.0) > 5


def test_the_score_is_a_t_statistic():
    values = np.random.default_rng(0).standard_normal(64) + 0.2
    expected = abs(stats.ttest_1samp(values, 0.1).statistic)
    assert standard_score(values, 0.1) == pytest.approx(expected, rel=1e-12)


def test_baoab_samples_the_bond_and_euler_does_not():
    dimer = HarmonicDimer()
    options = {"steps": 1500, "seed": 3, "temperature": 300.0}
    pos, temperature = equilibrium_samples(dimer, **options)
    assert pos.shape == (64, 150, 2, 3)
    assert max(*dimer.scores(pos, 300.0), standard_score(temperature.mean(1), 300.0)) < 4
    wrong, too_hot = equilibrium_samples(dimer, euler=True, **options)
    assert dimer.scores(wrong, 300.0)[1] > 10
    assert too_hot.mean() > 1.15 * temperature.mean()
