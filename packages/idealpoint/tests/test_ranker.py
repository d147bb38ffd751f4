"""The ranker on problems whose order is known, and what today's tools get wrong."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from icml_idealpoint import IdealPointRanker, TimeWarpIdealPoint, kendall_tau, pairwise
from icml_idealpoint.comparisons import as_comparisons
from icml_idealpoint.ideal_point import answer_loss
from icml_idealpoint.next_pairs import propose
from icml_idealpoint.simulation import Bumps, compare
from sklearn.base import clone
from sklearn.exceptions import NotFittedError


def levels(items=8, points=6):
    X = np.linspace(0, 1, items)[:, None] * np.ones(points)
    return X, np.array([[i, j] for i in range(items) for j in range(i)])


def quick(**options):
    return IdealPointRanker(**{"max_iter": 40, "n_starts": 2, **options})


def test_consistent_answers_give_finite_parameters_and_the_right_order():
    X, pairs = levels()
    ranker = quick(max_iter=150).fit(X, np.repeat(pairs, 5, axis=0))
    assert ranker.rank(X).tolist() == list(range(8))[::-1]
    assert np.isfinite(ranker.scale_)
    assert ranker.scale_ > 0
    assert np.isfinite(ranker.ideal_point_).all()
    assert ranker.n_iter_ == 150
    assert np.isfinite(ranker.grad_norm_)
    assert ranker.converged_ == (ranker.grad_norm_ < 1e-2)


@pytest.mark.parametrize("metric", ["soft_twed", "soft_dtw", "twed", "dtw", "euclidean"])
def test_every_metric_ranks_and_scores_new_series(metric):
    X, pairs = levels()
    ranker = quick(metric=metric).fit(X, pairs)
    assert kendall_tau(ranker.scores_, np.arange(8)) == 1.0
    new = np.array([0.05, 0.5, 0.95])[:, None] * np.ones(6)
    assert (np.diff(ranker.predict(new)) > 0).all()


@pytest.mark.parametrize("likelihood", ["logistic", "probit", "hinge"])
def test_every_likelihood_ranks(likelihood):
    X, pairs = levels()
    assert kendall_tau(quick(likelihood=likelihood).fit(X, pairs).scores_, np.arange(8)) == 1.0


def test_severity_grows_with_the_distance_from_a_prototype():
    X, pairs = levels()
    ranker = quick(sign="farthest").fit(X, pairs)
    assert kendall_tau(ranker.scores_, np.arange(8)) == 1.0
    distance = pairwise(ranker.ideal_point_[None], X[:, :, None], "dtw")[0]
    assert distance[0] < distance[-1]


def test_unequal_lengths_channels_and_layouts():
    rng = np.random.default_rng(0)
    X = [np.full((int(rng.integers(4, 9)), 2), k / 7) for k in range(8)]
    _, pairs = levels()
    ranker = quick().fit(X, pairs)
    assert kendall_tau(ranker.scores_, np.arange(8)) == 1.0
    turned = quick(layout="nct").fit([x.T for x in X], pairs)
    assert np.allclose(turned.scores_, ranker.scores_)


def test_an_annotator_who_answers_by_coin_is_found():
    X, _ = levels(12)
    good = compare(np.arange(12.0), 150, seed=0)
    bad = compare(np.arange(12.0), 150, flip=0.5, seed=1)
    pairs = np.concatenate([np.c_[good, np.zeros(150, int)], np.c_[bad, np.ones(150, int)]])
    ranker = quick(max_iter=150).fit(X, pairs)
    assert ranker.reliability_[0] > 0.8
    assert ranker.reliability_[1] < 0.4
    assert kendall_tau(ranker.scores_, np.arange(12)) > 0.9


def test_contradictory_answers_warn():
    X, pairs = levels()
    both = np.concatenate([pairs, pairs[:, ::-1]])
    with pytest.warns(UserWarning, match="contradict any ranking"):
        quick(max_iter=400, gamma=(0.3, 0.3), noise="shared").fit(X, np.repeat(both, 3, axis=0))


def test_groups_without_a_link_warn_with_their_items():
    X, _ = levels()
    with pytest.warns(UserWarning, match=r"2 groups without a link \(\[0, 1, 2\]; \[5, 6\]\)"):
        quick().fit(X, [[1, 0], [2, 1], [6, 5]])


def test_a_draw_is_one_observation():
    """Its loss is the mean of the two answers', at weight 1."""
    near = torch.tensor([0.3, 1.1], dtype=torch.float64)
    scale = torch.tensor(0.7, dtype=torch.float64)
    draw = answer_loss(near, as_comparisons([[0, 1]], 2, outcomes=[0.5]), scale, None)
    won = answer_loss(near, as_comparisons([[0, 1]], 2), scale, None)
    lost = answer_loss(near, as_comparisons([[1, 0]], 2), scale, None)
    assert float(draw) == pytest.approx(float(won + lost) / 2, abs=1e-12)


def test_loss_is_the_likelihood_with_flips():
    near = torch.tensor([0.3, 1.1, 0.2], dtype=torch.float64)
    answers = as_comparisons([[0, 1, 0], [1, 2, 1]], 3)
    flips = torch.tensor([0.1, 0.3], dtype=torch.float64)
    z = np.array([(1.1 - 0.3) / 0.5, (0.2 - 1.1) / 0.5])
    p = (1 - 2 * flips.numpy()) / (1 + np.exp(-z)) + flips.numpy()
    found = answer_loss(near, answers, torch.tensor(0.5, dtype=torch.float64), flips)
    assert float(found) == pytest.approx(-np.log(p).mean(), abs=1e-12)


def test_unrelated_items_leave_the_others_order_unchanged():
    X, pairs = levels(8)
    ranker = quick().fit(X, pairs)
    rng = np.random.default_rng(0)
    more = np.concatenate([X, 0.5 + 0.1 * rng.normal(size=(3, 6))])
    extended = quick().fit(more, pairs)
    assert kendall_tau(extended.scores_[:8], ranker.scores_) == 1.0


def test_bootstrap_intervals_contain_the_fit_and_shrink_with_answers():
    X, _ = levels(10)
    widths = []
    for answers in (60, 600):
        pairs = compare(np.arange(10.0), answers, scale=2.0, seed=3)
        ranker = quick().fit(X, pairs).bootstrap(30)
        centre = ranker.scores_ - ranker.scores_.mean()
        low, high = ranker.score_interval_.T
        assert (low <= centre).mean() > 0.7
        assert (high >= centre).mean() > 0.7
        widths.append((high - low).mean())
    assert widths[1] < widths[0]


def test_intervals_cover_a_simulated_truth():
    """90 % intervals over five truths inside the model, with penalties that bias little."""
    inside = []
    for seed in range(5):
        X, severity = Bumps(8, 0.05).items(20, seed=seed)
        options = {"noise": None, "length": 8, "rough": 1e-4, "large": 1e-4}
        first = compare(-severity, 300, scale=0.3, seed=seed)
        truth = IdealPointRanker(**options, n_starts=1, max_iter=60).fit(X, first).scores_
        truth = 1.5 * (truth - truth.mean()) / truth.std()
        answers = compare(truth, 600, scale=1.0, seed=seed + 1)
        ranker = IdealPointRanker(**options, n_starts=2, max_iter=100).fit(X, answers)
        low, high = ranker.bootstrap(40, max_iter=60).score_interval_.T
        inside.append((low <= truth) & (truth <= high))
    assert 0.85 <= np.mean(inside) <= 0.95


def test_probabilities_follow_from_scores():
    X, pairs = levels()
    ranker = quick().fit(X, pairs)
    p = ranker.predict_proba_pairs(X, [[7, 0], [0, 7]])
    assert p.sum() == pytest.approx(1.0)
    assert p[0] > 0.5
    assert ranker.score(X, pairs) == 1.0


def test_grades_are_taken_as_pairs():
    X, _ = levels()
    assert kendall_tau(quick().fit(X, y=np.arange(8)).scores_, np.arange(8)) == 1.0


def test_no_pair_repeats_while_unseen_ones_remain():
    seen = np.array([[0, 1], [2, 3], [3, 2]])
    found = propose(np.linspace(0, 1, 6), seen, 13, max_repeat=2)
    pairs = {tuple(sorted(p)) for p in found.tolist()}
    assert len(pairs) == 13
    assert not pairs & {(0, 1), (2, 3)}
    few = propose(np.linspace(0, 1, 10), np.zeros((0, 2), int), 5, max_repeat=1)
    assert len(set(few.ravel().tolist())) == 10
    assert len(propose(np.zeros(3), np.array([[0, 1], [0, 2], [1, 2]]), 2)) == 2


def test_chosen_pairs_teach_no_less_than_random_ones():
    """After 300 answers about 24 items, mean tau over ten seeds."""
    chosen, random = [], []
    for seed in range(10):
        X, severity = Bumps(12, 0.05).items(24, seed=seed)
        truth, rng = -severity, np.random.default_rng(seed)
        pairs = compare(truth, 60, flip=0.1, seed=seed)
        everything = compare(truth, 300, flip=0.1, seed=seed)
        options = {"n_starts": 1, "max_iter": 40, "dtype": "float32"}
        for _ in range(4):
            asked = IdealPointRanker(**options).fit(X, pairs).next_pairs(k=60, max_repeat=6)
            wins = (truth[asked[:, 0]] > truth[asked[:, 1]]) ^ (rng.random(60) < 0.1)
            pairs = np.concatenate([pairs, np.where(wins[:, None], asked, asked[:, ::-1])])
        for found, answers in ((chosen, pairs), (random, everything)):
            found.append(kendall_tau(IdealPointRanker(**options).fit(X, answers).scores_, truth))
    assert np.mean(chosen) >= np.mean(random)


def test_the_seed_decides_everything():
    X, severity = Bumps(16).items(12, seed=0)
    pairs = compare(-severity, 60, flip=0.1, seed=0)
    first, again = (quick(n_starts=4, random_state=3).fit(X, pairs).scores_ for _ in range(2))
    assert np.array_equal(first, again)


def test_scikit_learn_conventions():
    ranker = IdealPointRanker(nu=0.5, n_starts=3)
    assert clone(ranker).get_params() == ranker.get_params()
    with pytest.raises(NotFittedError):
        ranker.predict([[1.0, 2.0]])


def test_series_of_one_point_and_constant_series():
    X = np.arange(5.0)[:, None]
    pairs = [[i, j] for i in range(5) for j in range(i)]
    assert kendall_tau(quick().fit(X, pairs).scores_, np.arange(5)) == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same = quick().fit(np.ones((4, 5)), [[0, 1], [2, 3]])
    assert np.isfinite(same.scores_).all()


def test_missing_values_and_irregular_times():
    X, pairs = levels()
    gaps = X.copy()
    gaps[2, 3] = gaps[5, 0] = np.nan
    assert kendall_tau(quick(nan="drop").fit(gaps, pairs).scores_, np.arange(8)) == 1.0
    two = np.stack([X, X], axis=2)
    two[1, 2, 0] = np.nan
    assert kendall_tau(quick(nan="mask").fit(two, pairs).scores_, np.arange(8)) == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nu": -1.0}, "nu=-1.0"),
        ({"lam": float("nan")}, "lam=nan"),
        ({"gamma": (1.0, 0.0)}, "gamma="),
        ({"metric": "msm"}, "metric='msm'"),
        ({"noise": "some"}, "noise='some'"),
        ({"n_starts": 0}, "n_starts=0"),
        ({"sign": "up"}, "sign='up'"),
        ({"length": 0}, "length=0"),
    ],
)
def test_bad_options_are_named(options, message):
    X, pairs = levels()
    with pytest.raises(ValueError, match=message):
        quick(**options).fit(X, pairs)


def test_other_channels_are_refused():
    X, pairs = levels()
    with pytest.raises(ValueError, match="X has 2 channels, but the ranker was fitted with 1"):
        quick().fit(X, pairs).predict(np.ones((2, 5, 2)))


def test_the_module_trains_inside_another_network():
    generator = torch.Generator().manual_seed(0)
    x = torch.linspace(0, 1, 6)[:, None, None] * torch.ones(6, 5, 1)
    encoder = torch.nn.Linear(1, 2)
    module = TimeWarpIdealPoint(2, 4, generator=generator)
    answers = as_comparisons([[i, j] for i in range(6) for j in range(i)], 6)
    adam = torch.optim.Adam([*encoder.parameters(), *module.parameters()], lr=0.05)
    losses = []
    for _ in range(60):
        adam.zero_grad()
        loss = module.loss(module(encoder(x)), answers)
        loss.backward()
        adam.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
