"""Claims about predicted responses to unseen patterns, on hidden neurons of the synthetic retina."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

TABLE = (
    "37 cells of 7 macaque retinas, 512 electrodes: gradient descent on the ablated features 0.906, on "
    "all 0.895, SBI 0.878, MLP 0.859, independent electrodes 0.858, superposition 0.849."
)


def responses(run: Run, seed: int) -> dict[str, float]:
    """One hidden neuron, fitted by gradient descent to its image and curves at five electrodes; 60 triplets
    that no fit has seen, and what cheaper ways make of them."""
    from icml_hhmea.claim_tasks import score_responses

    return score_responses(run, seed)


def few_curves(run: Run, seed: int) -> dict[str, float]:
    """Accuracy with thresholds of 0, 2, 5 and 10 electrodes, beside a logistic model of the neuron's own
    responses to 500 patterns."""
    from icml_hhmea.claim_tasks import score_few_curves

    return score_few_curves(run, seed)


def feature_sets(run: Run, seed: int) -> dict[str, float]:
    """A neuron whose channels are 1.2 times as fast as the model's, fitted to few features and to all."""
    from icml_hhmea.claim_tasks import score_feature_sets

    return score_feature_sets(run, seed)


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    main = suite.measure(seeds={"smoke": 1, "small": 6, "full": 50}, ablations=("unfitted",))(responses)
    for name, bound, what in (
        ("accuracy", 0.88, "Unseen triplets are predicted with a mean accuracy of 88 % a cell or more."),
        ("accuracy-lower-bound", 0.85, "The lower 95 % bound over cells is 85 % or more."),
    ):
        suite.claim(
            name,
            of=main,
            figure="gd",
            kind="mean",
            at_least=bound,
            statement=what,
            paper=TABLE,
            teeth="unfitted",
        )
    for name, figure in (
        ("ceiling", "ceiling"),
        ("balanced-accuracy", "gd_balanced"),
        ("accuracy-near-threshold", "gd_near"),
    ):
        suite.claim(
            name,
            of=main,
            figure=figure,
            kind="mean",
            statement={
                "ceiling": "What somebody who knows the truth would reach, given the noise of single trials.",
                "gd_balanced": "Mean of the accuracies on patterns that fire and that do not.",
                "gd_near": "Accuracy on patterns within 20 % of their true threshold.",
            }[figure],
            paper=TABLE,
        )
    for rival, margin, what in (
        ("independent", 0.03, "independent electrodes"),
        ("superposition", 0.03, "the sum of threshold fractions"),
        ("multi_site", 0.04, "piecewise-linear summation at several sites"),
        ("mlp", 0.02, "a network trained on 20 other neurons' responses"),
        ("prior_mean", 0.10, "the model without a fit"),
        ("majority", 0.25, "the more frequent answer"),
    ):
        suite.claim(
            f"beats-{rival.replace('_', '-')}",
            of=main,
            figure="gd",
            baseline=rival,
            kind="mean",
            at_least=margin,
            statement=f"Accuracy is at least {100 * margin:g} points above that of {what}.",
            paper=TABLE,
            teeth="unfitted",
        )
    suite.claim(
        "minutes-instead-of-hours",
        of=main,
        figure="fit_minutes",
        kind="every",
        at_most=10.0,
        statement="A cell is fitted in less than ten minutes on one core.",
        paper="Minutes of recording instead of hours of stimulation.",
        unit="min",
    )
    curves = suite.measure(seeds={"smoke": 1, "small": 3, "full": 20})(few_curves)
    suite.claim(
        "five-curves-are-enough",
        of=curves,
        figure="curves_5",
        baseline="logistic_500",
        kind="mean",
        at_least=-0.02,
        statement="With five activation curves accuracy is within 2 points of a logistic model trained on "
        "500 measured patterns of the neuron.",
        paper="Minutes of recording instead of hours of stimulation.",
    )
    for count in (0, 2, 10):
        suite.claim(
            f"accuracy-with-{count}-curves",
            of=curves,
            figure=f"curves_{count}",
            kind="mean",
            statement=f"Accuracy with thresholds of {count} electrodes.",
            paper="Not in the paper.",
        )
    sets = suite.measure(seeds={"smoke": 1, "small": 3, "full": 50}, ablations=("right-kinetics",))(
        feature_sets
    )
    suite.claim(
        "few-features-suffice",
        of=sets,
        figure="few",
        baseline="all",
        kind="mean",
        at_least=0.0,
        statement="Where the kinetics are misspecified, amplitudes and thresholds alone predict no worse "
        "than all features.",
        paper=TABLE,
    )
    suite.claim(
        "misspecification-shows-in-times",
        of=sets,
        figure="chi2_times",
        baseline="chi2_amplitudes",
        kind="mean",
        at_least=0.0,
        statement="Durations and delays fit worse, in units of their errors, than amplitudes.",
        paper="Durations and delays are misspecified on real tissue.",
        teeth="right-kinetics",
    )
