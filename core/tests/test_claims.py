"""Declaring claims, judging them, and the statistics behind the verdicts."""

import math
import random

import numpy as np
import pytest
from icml_core import ClaimSuite
from icml_core.verdicts import Outcome, clopper_pearson, judge, t_interval
from scipy import stats

SEEDS = {"smoke": 1, "small": 4, "full": 4}


def suite_with(**claim):
    suite = ClaimSuite("demo")

    @suite.measure(seeds=SEEDS, ablations=("off",))
    def measure(run, seed):
        return {}

    options = {"of": measure, "figure": "x", "kind": "every", "statement": "s", "paper": "p"} | claim
    suite.claim("claim", **options)
    return suite.claims["claim"]


def outcomes(*values, name="x", **more):
    return [
        Outcome({name: value, **{key: column[i] for key, column in more.items()}})
        for i, value in enumerate(values)
    ]


def test_t_interval_equals_scipys():
    values = [1.2, 0.7, 1.9, 1.1, 0.4]
    mean, low, high = t_interval(values)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean == pytest.approx(np.mean(values))
    assert (low, high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (3, 10), (10, 10), (1, 1), (57, 60)])
def test_clopper_pearson_equals_scipys(successes, trials):
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, trials)[1:] == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("n", [3, 5, 10])
def test_t_intervals_cover_the_mean_as_often_as_they_say(n):
    """10,000 simulated experiments: 95 % coverage within four standard errors of the simulation."""
    rng = np.random.default_rng(n)
    trials = 10_000
    covered = 0
    half = stats.t.ppf(0.975, n - 1) / math.sqrt(n)
    for row in rng.normal(2.0, 3.0, (trials, n)):
        _, low, high = t_interval(row.tolist()) if covered < 50 else (0, *_fast(row, half))
        covered += low <= 2.0 <= high
    assert covered / trials == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / trials))


def _fast(row, half):
    width = half * row.std(ddof=1)
    return row.mean() - width, row.mean() + width


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
def test_clopper_pearson_covers_at_least_as_often_as_it_says(p):
    """Exact, by summing the binomial probabilities of the outcomes whose interval holds p."""
    n = 20
    coverage = sum(
        stats.binom.pmf(k, n, p)
        for k in range(n + 1)
        if clopper_pearson(k, n)[1] <= p <= clopper_pearson(k, n)[2]
    )
    assert coverage >= 0.95


def test_paired_differences_cover_although_seeds_share_noise():
    """A baseline that shares the seed's noise is subtracted seed by seed, not mean by mean."""
    claim = suite_with(kind="mean", baseline="base", at_most=0.0)
    rng = random.Random(0)
    shared = [rng.gauss(0, 100) for _ in range(4)]
    better = outcomes(*(s - 1 - 0.01 * i for i, s in enumerate(shared)), base=shared)
    assert judge(claim, better).word == "holds"


@pytest.mark.parametrize(
    ("bound", "values", "word"),
    [
        ({"at_most": 1.0}, (0.5, 1.0), "holds"),
        ({"at_most": 1.0}, (0.5, 1.01), "fails"),
        ({"at_least": 1.0}, (1.0, 2.0), "holds"),
        ({"at_least": 1.0}, (0.9, 2.0), "fails"),
        ({"between": (0.0, 1.0)}, (0.0, 1.0), "holds"),
        ({"between": (0.0, 1.0)}, (-0.1, 0.5), "fails"),
        ({}, (5.0,), "measured"),
    ],
)
def test_every_value_must_be_inside(bound, values, word):
    assert judge(suite_with(**bound), outcomes(*values)).word == word


def test_every_pools_lists_of_all_seeds():
    claim = suite_with(at_most=1.0)
    assert judge(claim, outcomes([0.1, 0.9], [0.2])).values == (0.1, 0.9, 0.2)
    assert judge(claim, outcomes([0.1, 0.9], [1.2])).word == "fails"


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ((0.1, 0.11, 0.12, 0.1), "holds"),
        ((0.9, 0.91, 0.92, 0.9), "fails"),
        ((0.1, 0.9, 0.4, 0.6), "inconclusive"),
        ((0.1, 0.1), "inconclusive"),
    ],
)
def test_a_mean_is_judged_by_its_interval(values, word):
    assert judge(suite_with(kind="mean", at_most=0.5), outcomes(*values)).word == word


def test_a_ratio_is_judged_on_logarithms():
    claim = suite_with(kind="ratio", baseline="base", at_least=10.0)
    ours, base = [20.0, 22.0, 21.0, 19.0], [1.0, 1.1, 0.9, 1.0]
    verdict = judge(claim, outcomes(*ours, base=base))
    logs = np.log(np.array(ours) / base)
    interval = stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    assert verdict.word == "holds"
    assert verdict.estimate == pytest.approx(math.exp(logs.mean()))
    assert (verdict.low, verdict.high) == pytest.approx((math.exp(interval.low), math.exp(interval.high)))


def test_a_proportion_counts_ones():
    claim = suite_with(kind="proportion", at_least=0.9)
    assert judge(claim, outcomes([1] * 30, [1] * 30)).word == "holds"
    assert judge(claim, outcomes([1, 0] * 30)).word == "fails"
    assert judge(claim, outcomes([1] * 10)).word == "inconclusive"
    assert judge(claim, outcomes([0.5])).word == "error"


@pytest.mark.parametrize(
    ("claim", "given", "text"),
    [
        ({"at_most": 1.0}, [Outcome({"y": 1.0})], "gave no figure 'x'; it gave y"),
        ({"kind": "mean", "at_most": 1.0}, [Outcome({"x": [1.0, 2.0]})], "one number a seed"),
        ({"kind": "ratio", "baseline": "b", "at_most": 1.0}, [Outcome({"x": 0.0, "b": 1.0})], "positive"),
        ({"at_most": 1.0}, [Outcome({"x": 0.0}), Outcome(error="ValueError: no")], "ValueError: no"),
        ({"at_most": 1.0}, [Outcome({"x": []})], "is empty"),
        ({"at_most": 1.0}, [], "not run"),
    ],
)
def test_what_cannot_be_judged_is_an_error(claim, given, text):
    verdict = judge(suite_with(**claim), given)
    assert verdict.word == "error"
    assert text in verdict.note


def test_a_need_is_no_error():
    verdict = judge(suite_with(at_most=1.0), [Outcome(needs="needs cuda")])
    assert verdict.word == "needs"
    assert not verdict.bad


def test_nothing_is_judged_at_smoke_scale():
    assert judge(suite_with(at_most=1.0), outcomes(5.0), judged=False).word == "measured"


def test_teeth_bite_when_the_ablation_fails():
    verdict = judge(suite_with(at_most=1.0, teeth="off"), outcomes(0.1, 0.2), outcomes(3.0, 0.2))
    assert (verdict.word, verdict.teeth) == ("holds", "bites")
    assert not verdict.bad


def test_teeth_bite_when_the_ablation_is_worse_by_a_paired_interval():
    claim = suite_with(kind="mean", at_most=10.0, teeth="off")
    values = [1.0, 5.0, 3.0, 8.0]
    worse = [v + 0.5 + 0.01 * i for i, v in enumerate(values)]
    assert judge(claim, outcomes(*values), outcomes(*worse)).teeth == "bites"
    assert judge(claim, outcomes(*values), outcomes(*[v - 0.5 for v in values])).teeth == "blunt"
    lower_is_worse = suite_with(kind="mean", at_least=0.0, teeth="off")
    assert judge(lower_is_worse, outcomes(*values), outcomes(*[v - 0.5 for v in values])).teeth == "bites"


def test_a_claim_that_does_not_feel_its_ablation_is_blunt():
    verdict = judge(suite_with(at_most=1.0, teeth="off"), outcomes(0.1, 0.2), outcomes(0.1, 0.2))
    assert verdict.teeth == "blunt"
    assert verdict.bad


def test_a_crash_of_the_ablation_is_an_error_not_teeth():
    verdict = judge(suite_with(at_most=1.0, teeth="off"), outcomes(0.1), [Outcome(error="IndexError: 3")])
    assert verdict.teeth == "error"
    assert "IndexError" in verdict.note
    assert verdict.bad


def test_seeds_are_distinct_and_the_cores_choice():
    measure = suite_with(at_most=1.0).measure
    seeds = [measure.seed("demo", i) for i in range(1000)]
    assert len(set(seeds)) == 1000
    assert seeds[:2] == [measure.seed("demo", 0), measure.seed("demo", 1)]
    assert measure.seed("other", 0) != measure.seed("demo", 0)
    assert all(0 <= s < 2**31 for s in seeds)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"kind": "median"}, "none of every, mean"),
        ({"at_most": 1.0, "between": (0, 1)}, "not both"),
        ({"between": (2.0, 1.0)}, "above the upper"),
        ({"kind": "ratio"}, "needs a baseline"),
        ({"kind": "every", "baseline": "b"}, "takes no baseline"),
        ({"teeth": "of", "at_most": 1.0}, "no ablation 'of'"),
        ({"teeth": "off"}, "without a bound"),
        ({"of": print}, "not a measure of this suite"),
    ],
)
def test_a_claim_that_makes_no_sense_is_refused(options, text):
    with pytest.raises(ValueError, match=text):
        suite_with(**options)


def test_a_measure_names_all_scales():
    with pytest.raises(ValueError, match="smoke, small, full"):
        ClaimSuite("demo").measure(seeds={"small": 1})
    with pytest.raises(ValueError, match="at least one seed"):
        ClaimSuite("demo").measure(seeds={"smoke": 0, "small": 1, "full": 1})
