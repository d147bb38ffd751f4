"""Baselines against closed forms and scikit-dimension; probes and profiles against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_loes import RidgeProbe, ScalarMix, layer_profile, matrix_entropies, two_nn_dimension
from icml_loes.baselines import (
    best_single_layers,
    curvature_layers,
    dimension_layers,
    entropy_layers,
    every_subset,
    last_layers,
    random_layers,
)
from icml_loes.probe import PENALTIES
from icml_loes.synthetic import layers_like_a_transformer
from sklearn.linear_model import Ridge
from sklearn.model_selection import LeaveOneOut, cross_val_predict


def test_entropy_of_known_spectra():
    g = torch.Generator().manual_seed(0)
    one = torch.randn(1, 6, generator=g).expand(5, 6)
    assert matrix_entropies([torch.eye(5), one]) == pytest.approx([math.log(5), 0.0], abs=1e-6)
    assert matrix_entropies([torch.eye(5), one], order=2.0) == pytest.approx([math.log(5), 0.0], abs=1e-6)
    x = torch.randn(12, 4, generator=g, dtype=torch.float64)
    unit = (x / x.norm(dim=1, keepdim=True)).numpy()
    p = np.linalg.eigvalsh(unit @ unit.T) / 12
    p = p[p > 1e-12]
    assert matrix_entropies([x]) == pytest.approx([-(p * np.log(p)).sum()])
    with pytest.raises(ValueError, match="order=3"):
        matrix_entropies([x], order=3)


def test_dimension_of_known_sets_and_of_scikit_dimension():
    rng = np.random.default_rng(0)
    plane = rng.uniform(size=(1000, 2)) @ rng.normal(size=(2, 9))
    assert two_nn_dimension(plane) == pytest.approx(2.0, rel=0.1)
    skdim = pytest.importorskip("skdim")
    ball = rng.normal(size=(400, 5))
    assert two_nn_dimension(ball) == pytest.approx(skdim.id.TwoNN().fit(ball).dimension_, rel=0.03)
    assert two_nn_dimension(np.repeat(ball, 2, axis=0)) == pytest.approx(two_nn_dimension(ball))
    with pytest.raises(ValueError, match="2 different points"):
        two_nn_dimension(np.repeat(ball[:2], 3, axis=0))


def test_which_layers_each_takes():
    assert last_layers(6, 3) == [5, 4, 3]
    assert sorted(random_layers(6, 6, 0)) == list(range(6))
    assert random_layers(9, 3, 1) == random_layers(9, 3, 1) != random_layers(9, 3, 2)
    assert every_subset(6, 2)[-1] == (4, 5)
    assert len(every_subset(6, 2)) == 15
    bends = np.array([[3.0, 1.0, np.nan], [3.0, 1.0, 2.0]])
    assert curvature_layers(bends, 2) == [1, 2]
    layers, labels = layers_like_a_transformer(80, [8] * 4)
    layers[1] = layers[1] + 4 * torch.nn.functional.one_hot(labels, 8)
    assert best_single_layers(layers, labels) == [1]
    values = matrix_entropies(layers)
    assert entropy_layers(layers, 1) == [int(np.argmax(values))]
    assert entropy_layers(layers, 1, highest=False) == [int(np.argmin(values))]
    found = [two_nn_dimension(v.numpy()) for v in layers]
    assert dimension_layers(layers, 1) == [int(np.argmax(found))]
    with pytest.raises(ValueError, match="k=7 of 6"):
        last_layers(6, 7)


def test_a_scalar_mix_finds_the_layer_that_knows():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = rng.normal(size=(90, 4, 6))
    x[:, 2, :3] += 3 * np.eye(3)[y]
    mix = ScalarMix().fit(x, y)
    assert mix.mixture_.argmax() == 2
    assert mix.mixture_.sum() == pytest.approx(1)
    assert (mix.predict(x) == y).mean() > 0.95


@pytest.mark.parametrize("shape", [(40, 12), (20, 50)])
def test_probe_is_scikit_learns_ridge_at_the_penalty_of_least_left_out_error(shape):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=shape) * rng.uniform(0.5, 2, shape[1]), np.arange(shape[0]) % 3
    x[:, :3] += np.eye(3)[y]
    probe = RidgeProbe().fit(x, y)
    z = (x - x.mean(0)) / x.std(0)
    ridge = Ridge(alpha=probe.penalty_).fit(z, np.eye(3)[y])
    new = rng.normal(size=(30, shape[1]))
    assert (probe.predict(new) == ridge.predict((new - x.mean(0)) / x.std(0)).argmax(1)).all()
    mean = (z**2).sum() / len(z)
    errors = {}
    for relative in PENALTIES:
        left_out = cross_val_predict(Ridge(alpha=relative * mean), z, np.eye(3)[y], cv=LeaveOneOut())
        errors[relative * mean] = ((left_out - np.eye(3)[y]) ** 2).mean()
    assert probe.penalty_ == pytest.approx(min(errors, key=errors.get))
    with pytest.raises(ValueError, match="rows of features"):
        probe.fit(x, y[:5])


def test_near_duplicates_do_not_drive_the_penalty_to_zero():
    rng = np.random.default_rng(0)
    half, y = rng.normal(size=(40, 200)), rng.integers(0, 3, 40)
    x = np.repeat(half, 2, axis=0) + 1e-5 * rng.normal(size=(80, 200))
    x[2:, 0] += 0.5 * rng.normal(size=78)
    probe = RidgeProbe().fit(x, np.repeat(y, 2))
    assert np.isfinite(probe.penalty_)
    assert (probe.predict(x) == np.repeat(y, 2)).mean() > 0.9


def test_a_profile_finds_where_each_factor_lives():
    rng = np.random.default_rng(0)
    early, late = rng.integers(0, 3, 120), rng.normal(size=120)
    x = rng.normal(size=(120, 6, 8))
    x[:, 1, :3] += 3 * np.eye(3)[early]
    x[:, 4, 0] = late
    found = layer_profile(x, {"early": early, "late": late})
    assert (found.best("early"), found.best("late")) == (1, 4)
    assert found.depth("early") < found.depth("late")
    assert found.score["late"][4] > 0.99
    assert found.score["early"][1] > 0.9
    assert np.array(found.redundancy).shape == (6, 6)
    assert len(found.table()) == 6
    with pytest.raises(KeyError):
        found.depth("colour")


def test_profile_of_awkward_layers():
    x = np.random.default_rng(0).normal(size=(20, 3, 4))
    x[:, 1] = 2.0
    found = layer_profile(x, {"y": np.arange(20) % 2}, curvatures=np.ones((20, 3)))
    assert found.score["y"][1] == 0.0
    assert found.dimension[1] == 0.0
    assert found.curvature == [1.0, 1.0, 1.0]
    assert layer_profile(x).loss == {}
