"""Intervals and tests against SciPy, exact enumeration and their own error rates."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_lm.stats import SequentialTest, holm, mcnemar, paired_bootstrap, wilson
from scipy import stats as scipy_stats


def test_the_bootstrap_agrees_with_scipys():
    generator = np.random.default_rng(0)
    a, b = generator.normal(0.3, 1, 80), generator.normal(0, 1, 80)
    ours = paired_bootstrap(a, b, seed=1, draws=20_000)
    theirs = scipy_stats.bootstrap(
        (a - b,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.estimate == pytest.approx(float(np.mean(a - b)))
    assert ours.low == pytest.approx(theirs.low, abs=0.01)
    assert ours.high == pytest.approx(theirs.high, abs=0.01)


def test_intervals_of_groups_cover_and_those_of_items_do_not():
    """20 groups of 10 items that share an effect: only drawing groups covers the mean 95 times in 100."""
    generator = np.random.default_rng(3)
    groups = np.repeat(np.arange(20), 10)
    covered = {"groups": 0, "items": 0}
    for trial in range(300):
        outcome = generator.normal(size=20)[groups] + 0.3 * generator.normal(size=200)
        zero = np.zeros(200)
        whole = paired_bootstrap(outcome, zero, seed=trial, groups=list(groups), draws=400)
        single = paired_bootstrap(outcome, zero, seed=trial, draws=400)
        covered["groups"] += not whole.excludes(0.0)
        covered["items"] += not single.excludes(0.0)
    assert 0.88 < covered["groups"] / 300 <= 1.0
    assert covered["items"] / 300 < 0.6


def test_groups_of_unequal_sizes_weigh_by_their_items():
    interval = paired_bootstrap([1, 1, 1, 0], [0, 0, 0, 0], seed=0, groups=["x", "x", "x", "y"])
    assert interval.estimate == 0.75
    assert (interval.low, interval.high) == (0.0, 1.0)


def test_the_same_seed_gives_the_same_interval():
    a, b = np.arange(9.0), np.arange(9.0)[::-1]
    assert paired_bootstrap(a, b, seed=5) == paired_bootstrap(a, b, seed=5)
    assert paired_bootstrap(a, b, seed=5) != paired_bootstrap(a, b, seed=6)


@pytest.mark.parametrize(
    ("a", "b", "options", "says"),
    [
        ([1, 2], [1], {}, "pairs of the same items"),
        ([], [], {}, "shape"),
        ([1, math.nan], [0, 0], {}, "not finite"),
        ([1.0], [0.0], {}, "at least two"),
        ([1, 2], [0, 0], {"groups": ["g", "g"]}, "at least two"),
        ([1, 2], [0, 0], {"groups": ["g"]}, "one for each"),
        ([1, 2], [0, 0], {"draws": 0}, "draws"),
        ([1, 2], [0, 0], {"level": 1.0}, "level"),
    ],
)
def test_outcomes_that_cannot_be_compared(a, b, options, says):
    with pytest.raises(ValueError, match=says):
        paired_bootstrap(a, b, seed=0, **options)


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (81, 263)])
def test_wilson_is_its_formula(successes, trials):
    z = 1.959963984540054
    p = successes / trials
    centre = (p + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(p * (1 - p) / trials + z * z / (4 * trials**2))
    interval = wilson(successes, trials)
    assert interval.low == pytest.approx(max(0.0, centre - half), abs=1e-12)
    assert interval.high == pytest.approx(min(1.0, centre + half), abs=1e-12)


def test_wilson_refuses_impossible_counts():
    for successes, trials in ((-1, 5), (6, 5), (0, 0)):
        with pytest.raises(ValueError, match="successes"):
            wilson(successes, trials)


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 0), (1, 0), (5, 1), (3, 3), (0, 9)])
def test_mcnemar_is_the_sum_over_all_signs(only_a, only_b):
    n = only_a + only_b
    extreme = abs(only_a - only_b)
    signs = itertools.product((1, -1), repeat=n)
    exact = sum(abs(sum(s)) >= extreme for s in signs) / 2**n
    a = [1] * only_a + [0] * only_b + [1, 0]
    b = [0] * only_a + [1] * only_b + [1, 0]
    assert mcnemar(a, b) == pytest.approx(exact)


def test_mcnemar_refuses_other_outcomes():
    with pytest.raises(ValueError, match="0 and 1"):
        mcnemar([0.5, 1], [0, 1])
    with pytest.raises(ValueError, match="pairs"):
        mcnemar([1, 0], [1])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_the_closed_test_over_all_subsets(p):
    """By the closure principle the adjusted value is the largest Bonferroni value of a subset with p."""
    adjusted = holm(p)
    for i in range(len(p)):
        others = [j for j in range(len(p)) if j != i]
        wanted = max(
            min(1.0, (size + 1) * min(p[i], *(p[j] for j in chosen), 1.0))
            for size in range(len(p))
            for chosen in itertools.combinations(others, size)
        )
        assert adjusted[i] == pytest.approx(wanted, abs=1e-12)


def test_holm_refuses_what_is_no_probability():
    for bad in ([0.5, 1.5], [math.nan]):
        with pytest.raises(ValueError, match="outside"):
            holm(bad)


@pytest.mark.parametrize(("rate", "wrong"), [(0.5, "high"), (0.8, "low")])
def test_the_sequential_test_errs_as_rarely_as_promised(rate, wrong):
    generator = np.random.default_rng(4)
    verdicts, trials = [], []
    for _ in range(2000):
        test = SequentialTest(0.5, 0.8, alpha=0.05, beta=0.05)
        while test.verdict is None:
            test.update(bool(generator.random() < rate))
        verdicts.append(test.verdict)
        trials.append(test.trials)
    assert verdicts.count(wrong) / 2000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 2000)
    assert np.mean(trials) < 28  # a test of fixed size with these errors takes 28 trials


def test_a_verdict_stays():
    test = SequentialTest(0.1, 0.9)
    assert test.update(True) is None
    assert test.update(True) == "high"
    assert test.update(False) == "high"
    assert test.trials == 2


@pytest.mark.parametrize("settings", [(0.5, 0.5), (0.0, 0.5), (0.5, 1.0)])
def test_the_sequential_test_refuses_impossible_rates(settings):
    with pytest.raises(ValueError, match="low"):
        SequentialTest(*settings)
    with pytest.raises(ValueError, match="alpha"):
        SequentialTest(0.1, 0.9, alpha=0.6)
