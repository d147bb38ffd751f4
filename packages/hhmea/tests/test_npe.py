"""The amortised posterior against a Gaussian whose posterior is known, and at its edges."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from icml_hhmea import RGC, AmortisedPosterior, ElectrodeArray, NPEOptions, Simulator, calibrate
from icml_hhmea.calibration import coverage, uniform_p
from icml_hhmea.npe import bounds_of_prior
from icml_hhmea.parameters import Bounds

BOX = Bounds(("a", "b"), (-4.0, 0.1), (4.0, 10.0), (False, True))
FEW = NPEOptions(transforms=2, hidden=24, epochs=40, lr=2e-3)


@pytest.fixture(scope="module")
def trained() -> AmortisedPosterior:
    g = torch.Generator().manual_seed(0)
    theta = BOX.sample(3000, g)
    x = torch.stack([theta[:, 0], theta[:, 1].log()], 1) + 0.4 * torch.randn(3000, 2, generator=g).double()
    return AmortisedPosterior(BOX, 2, FEW, ("first", "second")).train(theta, x)


def test_draws_have_the_moments_of_the_exact_posterior(trained):
    """With a flat prior the posterior of a is normal around the observation, of log b too."""
    drawn = trained.sample(3000, seed=1, features=torch.tensor([0.5, 0.3]))
    assert float(drawn[:, 0].mean()) == pytest.approx(0.5, abs=0.12)
    assert float(drawn[:, 0].std()) == pytest.approx(0.4, rel=0.3)
    assert float(drawn[:, 1].log().mean()) == pytest.approx(0.3, abs=0.12)
    assert float(drawn[:, 1].log().std()) == pytest.approx(0.4, rel=0.3)
    BOX.require(drawn)


def test_log_densities_integrate_to_one(trained):
    a = torch.linspace(-3.99, 3.99, 160).double()
    b = torch.linspace(math.log(0.101), math.log(9.99), 160).double()
    grid = torch.stack(torch.meshgrid(a, b.exp(), indexing="ij"), -1).reshape(-1, 2)
    density = trained.log_prob(grid, torch.tensor([0.5, 0.3])).exp() * grid[:, 1]
    total = float(density.sum() * (a[1] - a[0]) * (b[1] - b[0]))
    assert total == pytest.approx(1.0, abs=0.02)


def test_calibration_accepts_the_trained_and_refuses_the_wrong(trained):
    g = torch.Generator().manual_seed(3)
    theta = BOX.sample(120, g)
    x = torch.stack([theta[:, 0], theta[:, 1].log()], 1) + 0.4 * torch.randn(120, 2, generator=g).double()
    found = calibrate(trained, theta, x)
    assert float(found.p.min()) > 1e-4
    assert float(found.coverage.min()) > 0.8
    wrong = calibrate(trained, theta, x + 0.5)
    assert float(wrong.p.max()) < 1e-4


def test_uniform_ranks_have_uniform_p():
    ranks = torch.arange(1000).remainder(100)[:, None]
    assert float(uniform_p(ranks, 99)) == pytest.approx(1.0)
    assert float(coverage(ranks, 99)) == pytest.approx(0.9)
    assert float(uniform_p(ranks // 2, 99)) < 1e-10


def test_an_observation_far_outside_warns_and_returns_in_time(trained):
    with pytest.warns(UserWarning, match=r"outside the simulations .* furthest: first \(\+\d+"):
        trained.condition(torch.tensor([120.0, 0.0]))
    drawn = trained.sample(10, seed=0, max_seconds=20)
    assert drawn.shape == (10, 2)
    trained.observation = None
    with pytest.raises(ValueError, match="no observation"):
        trained.sample(1, seed=0)


def test_invalid_simulations_restrict_the_prior_and_sampling_stops_in_time():
    g = torch.Generator().manual_seed(0)
    theta = BOX.sample(1000, g)
    x = torch.randn(1000, 2, generator=g).double()
    x[theta[:, 0] > 0] = torch.nan
    model = AmortisedPosterior(BOX, 2, NPEOptions(transforms=1, hidden=8, epochs=3)).train(theta, x)
    drawn = model.sample(300, seed=0, features=torch.zeros(2))
    assert float((drawn[:, 0] < 0.4).double().mean()) > 0.95
    # Of valid parameters that training has not seen nearly none is cut off.
    fresh = BOX.sample(4000, g)
    fresh = fresh[fresh[:, 0] <= 0]
    density = model.log_prob(fresh, torch.zeros(2))
    assert float(torch.isfinite(density).double().mean()) >= 0.998
    with torch.no_grad():
        model.validity[2].bias.fill_(-1e6)
    with pytest.raises(TimeoutError, match="the acceptance rate is 0"):
        model.sample(5, seed=0, features=torch.zeros(2), max_seconds=0.2)
    with pytest.raises(ValueError, match="0 of 20 simulations are valid"):
        AmortisedPosterior(BOX, 2, FEW).train(theta[:20], x[:20] * torch.nan)


def test_densities_inside_the_cut_integrate_to_one():
    g = torch.Generator().manual_seed(0)
    theta = BOX.sample(1500, g)
    x = torch.randn(1500, 2, generator=g).double()
    x[theta[:, 0] > 0] = torch.nan
    model = AmortisedPosterior(BOX, 2, NPEOptions(transforms=1, hidden=8, epochs=2)).train(theta, x)
    a = torch.linspace(-3.99, 3.99, 200).double()
    b = torch.linspace(math.log(0.101), math.log(9.99), 120).double()
    grid = torch.stack(torch.meshgrid(a, b.exp(), indexing="ij"), -1).reshape(-1, 2)
    density = model.log_prob(grid, torch.zeros(2)).exp() * grid[:, 1]
    assert float(density.sum() * (a[1] - a[0]) * (b[1] - b[0])) == pytest.approx(1.0, abs=0.06)
    assert math.isfinite(model.held_out)


def test_a_loss_that_is_not_finite_is_an_error():
    theta = BOX.sample(60, torch.Generator().manual_seed(0))
    model = AmortisedPosterior(BOX, 2, NPEOptions(transforms=1, hidden=8, epochs=3, lr=1e30))
    with pytest.raises(ValueError, match="use an lr below"):
        model.train(theta, torch.randn(60, 2).double())


def test_somata_are_drawn_under_the_whole_array_around_its_middle():
    """Hidden neurons lie 45 to 75 µm off the middle of four rings; so do some that train the flow."""
    places = ElectrodeArray.hexagon(4).xyz[:, :2] + torch.tensor([500.0, -300.0])
    middle, half = Simulator(RGC(), ElectrodeArray(places)).square
    torch.testing.assert_close(middle, torch.tensor([500.0, -300.0]).double())
    assert half == pytest.approx(120.0)
    assert Simulator(RGC(), ElectrodeArray(places), spot=10.0).square[1] == 10.0


def test_flows_are_saved_without_pickles(trained, tmp_path):
    trained.save(tmp_path / "flow.safetensors")
    again = AmortisedPosterior(BOX, 2, FEW, ("first", "second")).load(tmp_path / "flow.safetensors")
    x = torch.tensor([0.1, 0.2])
    assert torch.equal(again.sample(5, seed=2, features=x), trained.sample(5, seed=2, features=x))
    with pytest.raises(ValueError, match="belongs to another"):
        AmortisedPosterior(BOX, 2, NPEOptions(), ("first", "second")).load(tmp_path / "flow.safetensors")


def test_priors_in_the_form_of_sbi_are_read():
    box = torch.distributions.Independent(torch.distributions.Uniform(torch.zeros(3), torch.ones(3)), 1)
    assert bounds_of_prior(box).high == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="has no low and high"):
        bounds_of_prior(torch.distributions.Normal(0.0, 1.0))


def test_simulated_features_are_finite_where_cells_fire_and_the_same_for_the_same_seed():
    simulator = Simulator(RGC(axon_length=200.0), ElectrodeArray.hexagon(2), count=2, window=1.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theta, features = simulator.draw(12, 3)
        again = simulator.draw(12, 3)[1]
    assert torch.equal(features.nan_to_num(), again.nan_to_num())
    good = torch.isfinite(features).all(1)
    assert 2 <= int(good.sum()) <= 12
    assert bool((torch.isnan(features).any(1) == ~good).all())
    assert features.shape[1] == len(simulator.names) == 65 + 4 + 6 + 1
    simulator.bounds.require(theta)
