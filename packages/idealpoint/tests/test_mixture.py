"""Groups of annotators: populations that were planted are found, and the likelihood is what it should be."""

from __future__ import annotations

import csv
from itertools import product
from math import prod

import numpy as np
import pytest
import torch
from icml_core import Run
from icml_idealpoint import IdealPointMixture, IdealPointRanker, kendall_tau
from icml_idealpoint import mixture as mixture_module
from icml_idealpoint.jobs import rank
from icml_idealpoint.mixture import annotator_loglik, responsibilities
from icml_idealpoint.simulation import Bumps, compare
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

QUICK = {"max_iter": 40, "n_starts": 2, "em_iter": 6, "em_steps": 10}


def quick(groups, **options):
    return IdealPointMixture(groups, **{**QUICK, **options})


def asked(qualities, answers, *, flip=0.1, seed=0):
    """Answers of one annotator for each quality."""
    tables = [compare(q, answers, flip=flip, seed=seed + who) for who, q in enumerate(qualities)]
    return np.concatenate([np.c_[table, np.full(answers, who)] for who, table in enumerate(tables)])


def two_channels(items=36, points=5, seed=0):
    """Series whose channels are level, at heights that have nothing to do with each other."""
    heights = np.random.default_rng(seed).random((items, 2))
    return heights[:, None] * np.ones((1, points, 1)), heights


@pytest.fixture(scope="module")
def opposite():
    """Bumps, six annotators to whom mild is good and four to whom severe is, and a fit with two groups."""
    X, severity = Bumps(24, 0.03).items(80, seed=0)
    mild = np.array([True, False, True, True, False, True, False, True, True, False])
    pairs = asked([-severity[:40] if m else severity[:40] for m in mild], 40)
    return X, severity, mild, pairs, quick(2).fit(X[:40], pairs)


def test_opposite_populations_are_told_apart_and_each_is_ranked(opposite):
    """Unseen items, as well as by a ranker who is told the population and sees its answers alone."""
    X, severity, mild, pairs, mixture = opposite
    assert (mixture.groups_.argmax(1) == np.where(mild, 0, 1)).all()
    assert np.allclose(mixture.groups_.sum(1), 1)
    assert np.allclose(mixture.weights_, [0.6, 0.4], atol=0.01)
    single = IdealPointRanker(max_iter=40, n_starts=2).fit(X[:40], pairs).predict(X[40:])
    for group, truth in enumerate((-severity[40:], severity[40:])):
        tau = kendall_tau(mixture.predict(X[40:], group), truth)
        assert tau > kendall_tau(single, truth)
        told = pairs[mild[pairs[:, 2]] == (group == 0)]
        alone = IdealPointRanker(max_iter=40, n_starts=2).fit(X[:40], told).predict(X[40:])
        assert tau > kendall_tau(alone, truth) - 0.1


@pytest.mark.parametrize("noise", ["shared", "per_annotator", None])
def test_populations_that_look_at_different_channels_are_told_apart(noise):
    X, heights = two_channels()
    first = np.array([1, 0, 1, 0, 0, 1, 0, 0], dtype=bool)
    pairs = asked([heights[:24, 0 if f else 1] for f in first], 40)
    mixture = quick(2, noise=noise).fit(X[:24], pairs)
    assert (mixture.groups_.argmax(1) == np.where(first, 1, 0)).all()
    single = IdealPointRanker(max_iter=40, n_starts=2, noise=noise).fit(X[:24], pairs).predict(X[24:])
    for group, truth in enumerate((heights[24:, 1], heights[24:, 0])):
        assert kendall_tau(mixture.predict(X[24:], group), truth) > kendall_tau(single, truth)


@pytest.mark.parametrize("noise", ["shared", "per_annotator"])
def test_one_group_is_the_ranker(noise):
    """Before any round the same scores and likelihood; afterwards no worse a likelihood."""
    X, heights = two_channels(16)
    pairs = asked([heights[:, 0]] * 3, 30)
    ranker = IdealPointRanker(max_iter=40, n_starts=3, noise=noise).fit(X, pairs)
    win, lose, who = pairs.T
    flip = (1 - ranker.reliability_[who]) / 2
    p = 1 / (1 + np.exp(ranker.scores_[lose] - ranker.scores_[win]))
    expected = np.log((1 - 2 * flip) * p + flip).sum()
    starts = [quick(1, n_starts=n, noise=noise, em_iter=0).fit(X, pairs) for n in (1, 3)]
    same = max(starts, key=lambda mixture: mixture.loglik_)
    assert same.loglik_ >= expected - 1e-9
    # The ranker keeps the least penalised loss, the mixture the highest likelihood.
    assert same.loglik_ == pytest.approx(expected, rel=0.02)
    alone = IdealPointRanker(max_iter=40, n_starts=1, noise=noise).fit(X, pairs)
    assert np.allclose(starts[0].scores_[:, 0], alone.scores_, atol=1e-9)
    assert np.allclose(starts[0].reliability_, alone.reliability_, atol=1e-9)
    assert quick(1, n_starts=3, noise=noise).fit(X, pairs).loglik_ >= same.loglik_


def test_responsibilities_are_those_of_enumeration(opposite):
    """Over all ways to put annotators into groups, with every probability written out."""
    X, _, _, pairs, _ = opposite
    few = pairs[np.isin(pairs[:, 2], (0, 1, 2))]
    few = np.concatenate([few[few[:, 2] == who][:20] for who in range(3)])
    fitted = IdealPointMixture(2, max_iter=5, n_starts=1, em_iter=2, em_steps=3).fit(X[:40], few)
    flips = (0.45 / (1 + torch.exp(-fitted._logits))).numpy()[:, 0]
    answer = np.empty((2, len(few)))
    for group in range(2):
        score = fitted.predict(X[:40], group)
        z = score[few[:, 0]] - score[few[:, 1]]
        answer[group] = (1 - 2 * flips[group]) / (1 + np.exp(-z)) + flips[group]
    joint = {
        groups: prod(
            fitted.weights_[g] * prod(answer[g, few[:, 2] == who].tolist()) for who, g in enumerate(groups)
        )
        for groups in product(range(2), repeat=3)
    }
    everything = sum(joint.values())
    assert fitted.loglik_ == pytest.approx(np.log(everything), abs=1e-9)
    for who in range(3):
        expected = sum(p for groups, p in joint.items() if groups[who] == 1) / everything
        assert fitted.groups_[who, 1] == pytest.approx(expected, abs=1e-9)


def test_draws_and_weights_count_as_in_the_loss():
    """An answer of weight 2 is two answers, and a draw half of either."""
    X, _ = two_channels(4)
    pairs = np.array([[0, 1, 0], [2, 3, 1], [1, 2, 1]])
    mixture = quick(2, em_iter=1, max_iter=5).fit(X, pairs, weights=[2.0, 1.0, 1.0], outcomes=[1.0, 0.5, 1.0])
    found = annotator_loglik(
        mixture._objective,
        torch.from_numpy(-mixture.scores_.T * mixture.scales_[:, None]),
        mixture._log_scale,
        mixture._logits,
    ).numpy()
    flip = (0.45 / (1 + torch.exp(-mixture._logits))).numpy()

    def log_p(i, j):
        z = mixture.scores_[i] - mixture.scores_[j]
        return np.log((1 - 2 * flip[:, 0]) / (1 + np.exp(-z)) + flip[:, 0])

    assert np.allclose(found[:, 0], 2 * log_p(0, 1))
    assert np.allclose(found[:, 1], (log_p(2, 3) + log_p(3, 2)) / 2 + log_p(1, 2))


def test_a_group_that_nobody_can_belong_to_has_no_share():
    shares, total = responsibilities(torch.tensor([1.0, 0.0]), torch.tensor([[-800.0], [-1.0]]))
    assert shares[:, 0].tolist() == [1.0, 0.0]
    assert float(total) == -800.0


@pytest.mark.parametrize("metric", ["soft_dtw", "twed", "euclidean"])
def test_the_likelihood_never_falls(metric):
    X, heights = two_channels(12)
    pairs = asked([*[heights[:, 0]] * 3, *[heights[:, 1]] * 2, 1 - heights[:, 0]], 15, flip=0.2)
    mixture = quick(3, metric=metric, max_iter=4, em_iter=8, em_steps=5).fit(X, pairs)
    assert (np.diff(mixture.history_) >= -1e-9).all()
    assert mixture.history_[-1] > mixture.history_[0] + 1
    assert mixture.loglik_ == mixture.history_[-1]
    assert mixture.n_iter_ == len(mixture.history_) - 1 <= 8


def test_refits_that_overshoot_are_not_taken(monkeypatch):
    """Steps of Adam a hundred times too long spoil most refits; the likelihood stays where it was."""
    monkeypatch.setattr(mixture_module, "REFIT_RATE", 2.0)
    X, heights = two_channels(12)
    pairs = asked([*[heights[:, 0]] * 3, *[heights[:, 1]] * 2], 20)
    mixture = quick(2, em_steps=3).fit(X, pairs)
    assert (np.diff(mixture.history_) >= -1e-9).all()
    assert (mixture.groups_.argmax(1) == [0, 0, 0, 1, 1]).all()


def test_the_criterion_finds_how_many_groups_there_are(opposite):
    X, severity, _, pairs, two = opposite
    assert two.bic() < quick(1).fit(X[:40], pairs).bic()
    alike = asked([-severity[:40]] * 6, 40)
    one, spare = (quick(groups).fit(X[:40], alike) for groups in (1, 2))
    assert one.bic() < spare.bic()
    parameters = 2 * (24 + 1) + 2 + 1
    assert two.bic() == pytest.approx(parameters * np.log(400) - 2 * two.loglik_)
    own = quick(2, noise="per_annotator", max_iter=2, em_iter=0).fit(X[:40], pairs)
    parameters = 2 * (24 + 1) + 10 + 1
    assert own.bic() == pytest.approx(parameters * np.log(400) - 2 * own.loglik_)


def test_numbers_without_answers_get_the_prior_probabilities():
    X, heights = two_channels(12)
    pairs = asked([heights[:, 0], heights[:, 1]], 20)
    pairs[:, 2] *= 3
    mixture = quick(2).fit(X, pairs)
    assert mixture.groups_.shape == (4, 2)
    assert np.allclose(mixture.groups_[1:3], mixture.weights_)


def test_the_seed_decides_everything_and_options_are_kept():
    X, heights = two_channels(10)
    pairs = asked([heights[:, 0], heights[:, 1]], 15)
    first, again = (quick(2, random_state=7, max_iter=8).fit(X, pairs) for _ in range(2))
    assert np.array_equal(first.scores_, again.scores_)
    assert clone(first).get_params() == first.get_params()
    assert np.allclose(first.predict(X), first.scores_)
    assert first.ideal_points_.shape == (2, 5, 2)


def test_bad_input_is_named():
    X, heights = two_channels(6)
    pairs = asked([heights[:, 0], heights[:, 1]], 8)
    with pytest.raises(ValueError, match="n_groups=0 must be at least 1"):
        quick(0).fit(X, pairs)
    with pytest.raises(ValueError, match="2 annotators gave answers, fewer than n_groups=3"):
        quick(3).fit(X, pairs)
    with pytest.raises(ValueError, match=r"shape \[16, 2\]; groups of annotators need"):
        quick(2).fit(X, pairs[:, :2])
    with pytest.raises(ValueError, match="likelihood='hinge'"):
        quick(2, likelihood="hinge").fit(X, pairs)
    with pytest.raises(ValueError, match="em_steps=0"):
        quick(2, em_steps=0).fit(X, pairs)
    with pytest.raises(ValueError, match="nu=-1"):
        quick(2, nu=-1.0).fit(X, pairs)
    with pytest.raises(NotFittedError):
        quick(2).predict(X)
    fitted = quick(2, max_iter=2, em_iter=0).fit(X, pairs)
    with pytest.raises(ValueError, match="group=2, but groups are 0 to 1"):
        fitted.predict(X, 2)
    with pytest.raises(ValueError, match="X has 1 channels"):
        fitted.predict(X[:, :, :1])


def test_the_job_writes_a_ranking_of_each_group(tmp_path):
    folder = tmp_path / "series"
    folder.mkdir()
    for k in range(6):
        (folder / f"r{k}.csv").write_text("\n".join([str(k / 5)] * 5) + "\n")
    up = [f"r{i},r{j},{who}" for who in "abc" for i in range(6) for j in range(i)]
    down = [f"r{j},r{i},{who}" for who in "de" for i in range(6) for j in range(i)]
    answers = tmp_path / "pairs.csv"
    answers.write_text("winner,loser,annotator\n" + "\n".join(up + down) + "\n")
    run = Run(tmp_path / "run", seed=0, quiet=True)
    summary = rank(run=run, series=folder, pairs=answers, new=folder, steps=30, starts=2, groups=2)

    def rows(name):
        with run.file(name).open(newline="") as stream:
            return list(csv.DictReader(stream))

    order = [row["item"] for row in rows("ranking.csv")]
    assert order == [f"r{k}" for k in (5, 4, 3, 2, 1, 0, 0, 1, 2, 3, 4, 5)]
    assert [row["group"] for row in rows("annotators.csv")] == ["0", "0", "0", "1", "1"]
    assert [float(row["score_0"]) for row in rows("new.csv")] == sorted(
        float(row["score_0"]) for row in rows("new.csv")
    )
    assert {row["group"] for row in rows("ideal.csv")} == {"0", "1"}
    assert run.file("ranking_1.png").is_file()
    assert summary["agreement"] == 1.0
    assert summary["weights"] == pytest.approx([0.6, 0.4], abs=0.01)
