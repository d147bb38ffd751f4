"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from icml_core import Example


def model(seed: int) -> Example:
    """Scores of three short series; far from the ideal series is worse."""
    import torch

    from icml_idealpoint.ideal_point import TimeWarpIdealPoint

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(3, 6, 2, generator=generator)

    def check(scores):
        assert scores.shape == (3,)
        assert bool(torch.isfinite(scores).all())

    return Example(
        build=lambda: TimeWarpIdealPoint(2, 5, generator=torch.Generator().manual_seed(seed)),
        inputs=lambda: x.clone(),
        call=lambda module, given: module(given),
        check=check,
        bad=lambda: torch.full((3, 6, 2), float("nan")),
    )


def soft_twed_loss(seed: int) -> Example:
    """The loss between two small batches is above that of a batch with itself."""
    return _loss(seed, "twed")


def soft_dtw_loss(seed: int) -> Example:
    """The loss between two small batches is above that of a batch with itself."""
    return _loss(seed, "dtw")


def _loss(seed: int, metric: str) -> Example:
    import torch

    from icml_idealpoint.distances import soft_dtw_loss, soft_twed_loss

    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 5, 1, generator=generator)
    y = torch.randn(2, 4, 1, generator=generator)
    make = soft_twed_loss if metric == "twed" else soft_dtw_loss

    def check(value):
        assert float(value) > float(make(0.1)(x, x))

    return Example(
        build=lambda: make(0.1),
        inputs=lambda: (x.clone(), y.clone()),
        call=lambda loss, given: loss(*given),
        check=check,
        bad=lambda: (x, y[:, :, :0]),
    )


def bumps(seed: int) -> Example:
    """Four simulated series with their severities."""
    from icml_idealpoint.simulation import Bumps

    def check(drawn):
        assert len(drawn) == 4
        assert all(len(series) == 12 and 0 <= severity <= 1 for series, severity in drawn)

    return Example(
        build=lambda: Bumps(points=12),
        inputs=lambda: seed,
        call=lambda sampler, start: sampler.sample(4, seed=start),
        check=check,
    )


def _levels():
    """Six constant series, and all their comparisons: the higher one wins."""
    import numpy as np

    X = np.linspace(0, 1, 6)[:, None] * np.ones(6)
    return X, np.array([[i, j] for i in range(6) for j in range(i)])


def rank(seed: int) -> Example:
    """Six levels in order."""
    from dataclasses import replace

    from icml_idealpoint.ranker import IdealPointRanker

    def check(result):
        assert (result.scores[1:] > result.scores[:-1]).all()

    return Example(
        build=lambda: IdealPointRanker(max_iter=30, n_starts=2, random_state=seed),
        inputs=_levels,
        call=lambda solver, problem: solver.solve(problem),
        check=check,
        corrupt=lambda result: replace(result, scores=result.scores[::-1].copy()),
        bad=lambda: (_levels()[0], [[0, 0]]),
    )


def barycenter(seed: int) -> Example:
    """The barycentre of shifted copies of a bump lies closer to them than any of them."""
    from dataclasses import replace

    import numpy as np

    from icml_idealpoint.averaging import SoftBarycenter

    t = np.arange(10.0)
    X = np.stack([np.exp(-((t - shift - seed % 2) ** 2)) for shift in (3, 4, 5)])

    def check(result):
        assert result.series.shape == (10, 1)
        assert result.series.max() > 0.5

    return Example(
        build=lambda: SoftBarycenter(max_iter=20),
        inputs=lambda: X.copy(),
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=lambda result: replace(result, series=result.series + 1.0),
        bad=lambda: np.full((2, 4), np.nan),
    )


def metrics(seed: int) -> Example:
    """A perfect ranking of four items."""
    from icml_idealpoint.evaluation import RankingMetrics

    def check(figures):
        assert figures["kendall_tau"] == figures["ndcg"] == figures["pair_accuracy"] == 1.0

    return Example(
        build=RankingMetrics,
        inputs=lambda: [0.1, 0.2, 0.3, 0.4],
        call=lambda evaluator, scores: evaluator.evaluate(
            scores, truth=list(range(len(scores))), pairs=[[3, 0], [2, 1]]
        ),
        check=check,
        bad=lambda: [0.1, float("nan"), 0.3, 0.4],
    )
