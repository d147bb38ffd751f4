import numpy as np
import pytest
import torch
from icml_flashschnet.compact_chain import BOND, CLOSEST, compact_chain
from icml_flashschnet.conservation import (
    drift_per_degree_of_freedom,
    gradient_errors,
    without_envelope_slope,
)
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig
from icml_flashschnet.units import BOLTZMANN

CONFIG = SchNetConfig(hidden=16, filters=16, n_rbf=16, layers=2, r_cut=9.0, out=(8,))


def model(**changes):
    return FlashSchNet(SchNetConfig(**{**CONFIG.__dict__, **changes}), seed=1, kernel="torch").double()


def test_right_forces_pass_and_forces_without_the_envelopes_derivative_do_not():
    network, (pos, types) = model(), compact_chain(30)
    assert max(gradient_errors(network, pos, types, directions=10)) < 1e-7
    broken = without_envelope_slope(network)
    torch.testing.assert_close(broken.energy_forces(pos, types)[0], network.energy_forces(pos, types)[0])
    assert max(gradient_errors(broken, pos, types, directions=10)) > 1e-2


def test_what_is_left_out_is_the_derivative_of_the_envelope_alone():
    network, (pos, _) = model(filter_cutoff=False), compact_chain(10)
    pos = pos * (4.0 / (pos[:, None] - pos[None]).norm(dim=-1).max())  # every pair well inside the cutoff
    kept = model().interactions[0].filter
    r = torch.tensor([0.5, 3.0, 8.0], dtype=torch.float64)
    values, slopes = without_envelope_slope(model()).interactions[0].filter.with_slope(r)
    torch.testing.assert_close(values, kept.with_slope(r)[0])
    bare, bare_slopes = network.interactions[0].filter.with_slope(r)
    torch.testing.assert_close(slopes / values, bare_slopes / bare)


class Tilted:
    """A potential whose forces are off by a known part."""

    def energy_forces(self, pos, types):
        return 0.5 * pos.square().sum()[None], -pos * 1.25


def test_the_error_is_relative_to_the_forces():
    """Forces a quarter too large give errors of a quarter of F.d over its root mean square, 1.25."""
    pos = torch.ones(4, 3, dtype=torch.float64)
    errors = gradient_errors(Tilted(), pos, torch.zeros(4, dtype=torch.int64), directions=400)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(0.25 / 1.25, rel=1e-6)


def test_drift_is_the_slope_in_kt_per_degree_of_freedom():
    time = np.linspace(0, 4, 50)
    energy = np.stack([7.0 + 0.3 * time, 2.0 - 0.3 * time])
    expected = 0.3 / (3 * 5 * BOLTZMANN * 300)
    assert drift_per_degree_of_freedom(energy, time, 5, 300.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n_beads", [1, 2, 40, 269])
def test_chains_are_connected_and_avoid_themselves(n_beads):
    pos, types = compact_chain(n_beads, n_replicas=2, n_types=7, seed=3)
    assert pos.shape == (2 * n_beads, 3)
    assert types.min() >= 1
    assert types.max() < 7
    assert torch.equal(types[:n_beads], types[n_beads:])
    for chain in pos.view(2, n_beads, 3):
        np.testing.assert_allclose(chain.diff(dim=0).norm(dim=1), BOND, rtol=1e-12)
        distance = torch.cdist(chain, chain) + 1e9 * torch.eye(n_beads)
        assert distance.min() >= CLOSEST * (1 - 1e-12)
        if n_beads == 269:
            assert 45 < (distance < 15).sum(1).double().mean() < 70
    assert n_beads < 3 or not torch.equal(pos[:n_beads], pos[n_beads:])
    assert torch.equal(pos, compact_chain(n_beads, n_replicas=2, n_types=7, seed=3)[0])
