"""Figures by hand, and baselines beside the libraries that people use."""

from __future__ import annotations

import choix
import numpy as np
import pytest
from icml_idealpoint import BradleyTerry, RankingMetrics, RankSVM, SoftBarycenter, kendall_tau
from icml_idealpoint.averaging import resampled
from icml_idealpoint.evaluation import calibration_error, ndcg, pair_accuracy
from icml_idealpoint.ordinal import PrototypeGrades
from icml_idealpoint.simulation import Annotators, Bumps, aeon_series, compare
from sklearn.metrics import ndcg_score


def test_tau_is_corrected_for_ties():
    assert kendall_tau([1, 2, 3, 4], [1, 2, 3, 4]) == 1.0
    concordant, ties = 2, 1  # of the 3 pairs one is tied in the truth
    assert kendall_tau([1, 2, 3], [1, 2, 2]) == pytest.approx(concordant / np.sqrt(3 * (3 - ties)))
    assert kendall_tau([1, 1, 1], [1, 2, 3]) == 0.0


def test_ndcg_equals_scikit_learn():
    rng = np.random.default_rng(0)
    for _ in range(5):
        truth, scores = rng.random(9), rng.normal(size=9).round(1)
        expected = ndcg_score([truth - truth.min()], [scores])
        assert ndcg(scores, truth) == pytest.approx(expected, abs=1e-12)


def test_pair_accuracy_counts_draws_and_ties_half():
    assert pair_accuracy([1.0, 2.0, 2.0], [[1, 0], [0, 1], [1, 2]]) == pytest.approx((1 + 0 + 0.5) / 3)


def test_calibrated_answers_have_a_small_error():
    rng = np.random.default_rng(0)
    quality = rng.normal(size=50)
    honest = compare(quality, 20_000, scale=1.0, seed=1)
    assert calibration_error(quality, honest) < 0.02
    assert calibration_error(3 * quality, honest) > 0.05


def test_metrics_need_something_to_compare_with():
    with pytest.raises(ValueError, match="give a truth, pairs, or both"):
        RankingMetrics().evaluate([1.0, 2.0])


def test_bradley_terry_equals_choix():
    pairs = compare(np.linspace(0, 3, 8), 200, scale=1.0, seed=0)
    expected = choix.opt_pairwise(8, pairs.tolist(), alpha=0.05)
    found = BradleyTerry(penalty=0.05 * 2).fit(8, pairs).scores_
    scale = np.corrcoef(found, expected)[0, 1]
    assert scale > 0.9999
    assert kendall_tau(found, expected) == 1.0


@pytest.mark.parametrize("features", ["values", "summary"])
def test_ranksvm_finds_what_is_linear(features):
    X = np.linspace(0, 1, 30)[:, None] * np.ones(6) + 0.01 * np.random.default_rng(0).normal(size=(30, 6))
    pairs = compare(np.arange(30.0), 200, flip=0.05, seed=0)
    assert kendall_tau(RankSVM(features).fit(X, pairs).predict(X), np.arange(30)) > 0.85


def test_proportional_odds_on_prototypes_learn_from_grades():
    X, severity = Bumps(24, 0.05).items(40, seed=0)
    item, grade, _ = Annotators(noise=0.02, shift=0.02).grades(1 - severity, 300, seed=1)
    model = PrototypeGrades().fit(X, item, grade)
    assert kendall_tau(model.predict(X), 1 - severity) > 0.6
    with pytest.raises(ValueError, match="all grades are the same"):
        PrototypeGrades().fit(X, item, 0 * grade)


def test_the_barycentre_beats_every_member_and_the_plain_mean():
    t = np.arange(20.0)
    X = np.stack([np.exp(-(((t - shift) / 2) ** 2)) for shift in (6, 9, 12)])
    found = SoftBarycenter(gamma=0.05, nu=0.0, lam=0.02, smoothing=1e-3).solve(X)
    found.verify(X)
    assert found.series.max() > 0.9
    assert X.mean(0).max() < 0.75


def test_weights_of_barycentres_are_checked():
    with pytest.raises(ValueError, match="weights must be 2 numbers"):
        SoftBarycenter().solve([[1.0, 2.0], [2.0, 3.0]], weights=[1.0, -1.0])


def test_resampling_is_linear():
    assert resampled(np.array([[0.0], [1.0]]), 3)[:, 0].tolist() == [0.0, 0.5, 1.0]


def test_simulated_answers_follow_the_truth():
    quality = np.arange(10.0)
    pairs = compare(quality, 5000, flip=0.2, seed=0)
    assert (quality[pairs[:, 0]] > quality[pairs[:, 1]]).mean() == pytest.approx(0.8, abs=0.02)


def test_aeons_files_are_read_as_aeon_reads_them():
    from aeon.datasets import load_gunpoint

    expected, labels = load_gunpoint(split="train")
    found, names = aeon_series("GunPoint")
    assert np.allclose(np.stack(found)[:, :, 0], expected[:, 0])
    assert names == labels.tolist()
    with pytest.raises(FileNotFoundError, match="aeon ships no"):
        aeon_series("Nothing")
