"""Rank time series from pairwise comparisons: the estimator."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator
from torch import Tensor

from icml_idealpoint.averaging import resampled
from icml_idealpoint.comparisons import Comparisons, as_comparisons, from_grades, warn_if_disconnected
from icml_idealpoint.ideal_point import FLIP_CAP, Distance, IdealMetric, Likelihood, Sign, device_of
from icml_idealpoint.next_pairs import propose
from icml_idealpoint.optimization import Fit, Objective, Report, anneal, polish
from icml_idealpoint.series import Gaps, Layout, SeriesSet, as_series

STATIONARY = (
    1e-2  # norm of the loss' gradient by the standardised ideal series below which a fit has converged
)
COIN = 2e-3  # loss below log 2 from which on answers say something


@dataclass(frozen=True)
class IdealPointResult:
    """A ranking and what explains it.

    Attributes:
        scores: of the items, larger is better.
        ideal: the ideal series, in the units of the data.
        scale: distance that makes odds of e to 1.
        history: the loss after each step.
        model: the fitted ranker.
    """

    scores: Float[np.ndarray, " items"]
    ideal: Float[np.ndarray, "length channels"]
    scale: float
    history: tuple[float, ...]
    model: IdealPointRanker

    def verify(self, problem: Any) -> None:
        """Check the scores against the ideal series, and that they explain the answers no worse than coin
        flips.

        Args:
            problem: (series, pairs) as the ranker got them.

        Raises:
            ValueError: scores that are not minus the distances, or a likelihood below that of coin flips.
        """
        series, pairs = problem[0], problem[1]
        expected = self.model.predict(series)
        if self.scores.shape != expected.shape or not np.allclose(
            self.scores, expected, rtol=1e-6, atol=1e-8
        ):
            raise ValueError("the scores are not those of the ideal series")
        answers = as_comparisons(pairs, len(self.scores))
        p = self.model.predict_proba_pairs(series, np.stack([answers.winner, answers.loser], axis=1))
        decided = answers.outcome == 1
        if decided.any() and float(np.mean(np.log(np.clip(p[decided], 1e-12, 1)))) < np.log(0.5) - 1e-9:
            raise ValueError("coin flips explain the answers better than these scores do")


class IdealPointRanker(BaseEstimator):
    """Learn an ideal series from comparisons; score any series by its elastic distance from it.

    Data are standardised (one mean and deviation for each channel), so that ``nu``, ``lam`` and temperatures
    are in units of a standard deviation.

    Args:
        metric: ``"soft_twed"``, ``"soft_dtw"``, ``"twed"``, ``"dtw"`` (trained by subgradients), or
            ``"euclidean"`` for series of one length.
        nu, lam: stiffness and cost of a deletion of TWED.
        gamma: first and last temperature, in units of the mean distance of two points.
        length: points of the ideal series; the median length by default.
        noise: flip rates ``"per_annotator"``, one ``"shared"`` by all, or None.
        likelihood: ``"logistic"``, ``"probit"`` or ``"hinge"``.
        sign: ``"nearest"``: winners are near to the ideal series; ``"farthest"``: far from it, as from a
            healthy prototype.
        rough, large: weights of the ideal series' mean squared step, and of its mean square.
        n_starts: the best item by Borda count, the mean of the top tenth, then random items.
        max_iter: steps of Adam.
        polish_iter: for hard metrics, subgradient steps c / sqrt(k) after them, of which the best is kept.
        window: as in :func:`~icml_idealpoint.distances.pairwise`.
        layout, nan: as in :func:`~icml_idealpoint.series.as_series`.
        dtype: ``"float32"`` or ``"float64"``.
        device: of the fit; the CPU by default.
        random_state: an integer or ``torch.Generator``.

    Attributes:
        ideal_point_: [length, channels], in the units of the data.
        scale_: distance (of standardised data) that makes odds of e to 1.
        scores_: of the items of ``fit``.
        reliability_: of each annotator, 1 - 2 eps: 1 always answers by the model, 0 by a coin.
        loss_, history_: at the end, and after each step.
        grad_norm_, converged_, n_iter_: how stationary the fit is.
        score_interval_: [items, 2], after :meth:`bootstrap`.

    Example:
        >>> import numpy as np
        >>> X = np.linspace(0, 1, 6)[:, None] * np.ones(8)
        >>> pairs = [[i, j] for i in range(6) for j in range(i)]
        >>> IdealPointRanker(max_iter=40).fit(X, pairs).rank(X).tolist()
        [5, 4, 3, 2, 1, 0]
    """

    def __init__(
        self,
        metric: IdealMetric = "soft_twed",
        *,
        nu: float = 0.003,
        lam: float = 0.1,
        gamma: tuple[float, float] = (1.0, 0.3),
        length: int | None = None,
        noise: str | None = "per_annotator",
        likelihood: Likelihood = "logistic",
        sign: Sign = "nearest",
        rough: float = 1e-3,
        large: float = 1e-3,
        n_starts: int = 4,
        max_iter: int = 150,
        polish_iter: int = 20,
        window: float | int | None = None,
        layout: Layout = "ntc",
        nan: Gaps = "raise",
        dtype: str = "float64",
        device: Any = None,
        random_state: Any = 0,
    ) -> None:
        self.metric = metric
        self.nu = nu
        self.lam = lam
        self.gamma = gamma
        self.length = length
        self.noise = noise
        self.likelihood = likelihood
        self.sign = sign
        self.rough = rough
        self.large = large
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.polish_iter = polish_iter
        self.window = window
        self.layout = layout
        self.nan = nan
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def fit(
        self,
        X: Any,
        pairs: Any = None,
        *,
        y: Any = None,
        annotators: Any = None,
        weights: Any = None,
        outcomes: Any = None,
        times: Any = None,
        report: Report | None = None,
    ) -> IdealPointRanker:
        """Learn from comparisons, or from grades.

        Args:
            X: the items, in any form of :func:`~icml_idealpoint.series.as_series`.
            pairs: [answers, 2] (winner, loser) or [answers, 3] with the annotator.
            y: grades of the items instead of pairs; they become pairs within each annotator.
            annotators: who gave each grade.
            weights, outcomes: of the pairs; outcome 0.5 is a draw.
            times: of the points.
            report: told the step and the loss.

        Raises:
            TypeError, ValueError: bad series, comparisons or options, with what was expected.
        """
        answers = self._prepare(X, pairs, y, annotators, weights, outcomes, times)
        items = self._objective.series
        warn_if_disconnected(answers, len(items))
        starts = self._starts(items, answers)
        fit = anneal(self._objective, starts, steps=self.max_iter, gamma=self.gamma, report=report)
        if self.polish_iter and self.metric in ("twed", "dtw"):
            fit = polish(self._objective, fit, steps=self.polish_iter)
        self._keep(fit, answers)
        self.scores_ = self._scores(items)
        return self

    def _prepare(
        self, X: Any, pairs: Any, y: Any, annotators: Any, weights: Any, outcomes: Any, times: Any
    ) -> Comparisons:
        """Check everything, standardise the items, and state the objective."""
        self._check_options()
        kind = {"float32": torch.float32, "float64": torch.float64}[self.dtype]
        raw = as_series(X, layout=self.layout, times=times, nan=self.nan, dtype=kind).to(
            device_of(self.device)
        )
        if (pairs is None) == (y is None):
            raise ValueError("give either pairs, or grades as y")
        answers = (
            as_comparisons(from_grades(y, annotators), len(raw))
            if pairs is None
            else as_comparisons(pairs, len(raw), weights=weights, outcomes=outcomes)
        )
        inside = raw.inside()
        points = raw.values[inside]
        self._center = torch.nanmean(points, dim=0)
        spread = torch.nanmean((points - self._center) ** 2, dim=0).sqrt()
        self._spread = torch.where(spread > 1e-12, spread, torch.ones_like(spread))
        items = self._standard(raw)
        self._seed = (
            self.random_state.initial_seed()
            if isinstance(self.random_state, torch.Generator)
            else int(self.random_state)
        )
        self._objective = Objective(
            items,
            answers,
            Distance(self.metric, self.nu, self.lam, self.window),
            self.likelihood,
            self.sign,
            self.noise,
            self.rough,
            self.large,
            self._unit(items),
        )
        return answers

    def _generator(self, purpose: int) -> torch.Generator:
        """Random numbers of one purpose: what is drawn for one changes nothing of another."""
        return torch.Generator().manual_seed(2 * self._seed + purpose)

    def _check_options(self) -> None:
        Distance(self.metric)
        for name in ("nu", "lam", "rough", "large"):
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name}={value} must be finite and at least 0")
        if len(self.gamma) != 2 or not all(np.isfinite(g) and g > 0 for g in self.gamma):
            raise ValueError(
                f"gamma={self.gamma!r}; expected the first and the last temperature, both positive"
            )
        for name, least in (("n_starts", 1), ("max_iter", 1), ("polish_iter", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)} must be at least {least}")
        if self.noise not in ("per_annotator", "shared", None):
            raise ValueError(f"noise={self.noise!r} is none of 'per_annotator', 'shared', None")
        if self.sign not in ("nearest", "farthest"):
            raise ValueError(f"sign={self.sign!r} is neither 'nearest' nor 'farthest'")
        if self.likelihood not in ("logistic", "probit", "hinge"):
            raise ValueError(f"likelihood={self.likelihood!r} is none of 'logistic', 'probit', 'hinge'")
        if self.dtype not in ("float32", "float64"):
            raise ValueError(f"dtype={self.dtype!r} is neither 'float32' nor 'float64'")
        if self.length is not None and self.length < 1:
            raise ValueError(f"length={self.length} must be at least 1")

    def _standard(self, raw: SeriesSet) -> SeriesSet:
        values = (raw.values - self._center) / self._spread
        values = torch.where(raw.inside()[:, :, None], values, torch.zeros_like(values))
        return SeriesSet(values, raw.lengths, raw.times, raw.masked)

    def _unit(self, items: SeriesSet) -> float:
        """The mean distance of two points of the data."""
        points = torch.nan_to_num(items.values[items.inside()])
        one, other = torch.randint(len(points), (2, 2000), generator=torch.Generator().manual_seed(0))
        return max(float((points[one] - points[other]).norm(dim=1).mean()), 1e-3)

    def _starts(self, items: SeriesSet, answers: Comparisons) -> Tensor:
        length = self.length or int(items.lengths.median())
        sample = np.stack([resampled(items.points(k).cpu().numpy(), length) for k in range(len(items))])
        won = np.zeros(len(items))
        seen = np.zeros(len(items))
        gain = answers.weight * (2 * answers.outcome - 1)
        for index, sign in ((answers.winner, 1), (answers.loser, -1)):
            np.add.at(won, index, sign * gain)
            np.add.at(seen, index, answers.weight)
        borda = np.where(seen > 0, won / (seen + 2), -np.inf)
        order = np.argsort(
            -borda if self.sign == "nearest" else np.where(np.isinf(borda), np.inf, borda), kind="stable"
        )
        known = [k for k in order.tolist() if np.isfinite(borda[k])]
        top = known[: max(2, len(known) // 10)]
        chosen = [sample[known[0]], sample[top].mean(0)]
        picks = torch.randint(len(known), (max(0, self.n_starts - 2),), generator=self._generator(0))
        chosen += [sample[known[k]] for k in picks.tolist()]
        return torch.from_numpy(np.stack(chosen[: self.n_starts])).to(items.values)

    def _keep(self, fit: Fit, answers: Comparisons) -> None:
        k = int(fit.loss.argmin())
        self._ideal, self._log_scale, self._logits = (
            fit.ideal[k : k + 1],
            fit.log_scale[k : k + 1],
            fit.logits[k : k + 1],
        )
        self.ideal_point_ = (self._ideal[0] * self._spread + self._center).cpu().numpy()
        self.scale_ = float(self._log_scale.exp())
        flips = self._objective.flips(self._logits)
        rates = np.zeros(answers.n_annotators) if flips is None else flips[0].cpu().numpy()
        self.reliability_ = 1 - 2 * rates
        self.loss_, self.grad_norm_ = float(fit.loss[k]), float(fit.grad_norm[k])
        self.history_, self.n_iter_ = tuple(fit.history), fit.steps
        self.converged_ = self.grad_norm_ < STATIONARY
        self.n_features_in_ = int(self._ideal.shape[2])
        blind = self.likelihood != "hinge" and self.loss_ > np.log(2) - COIN
        if blind or float(rates.max()) > 0.98 * FLIP_CAP:
            worst = [int(a) for a in np.flatnonzero(rates >= rates.max())[:8]]
            warnings.warn(
                f"the answers (annotators {worst}) contradict any ranking: the model explains them no better "
                "than coin flips; check what was asked",
                UserWarning,
                stacklevel=3,
            )

    def _distances(self, items: SeriesSet, ideal: Tensor | None = None) -> Tensor:
        gamma = self.gamma[1] * self._objective.unit
        with torch.no_grad():
            return self._objective.distance(items, self._ideal if ideal is None else ideal, gamma)

    def _scores(self, items: SeriesSet) -> np.ndarray:
        near = self._distances(items)[0].cpu().numpy()
        return (-near if self.sign == "nearest" else near) / self.scale_

    def predict(self, X: Any, *, times: Any = None) -> Float[np.ndarray, " items"]:
        """The score of each series, in units in which a difference of 1 makes odds of e to 1.

        Raises:
            ValueError: bad series, or channels that differ from those of ``fit``.
            sklearn.exceptions.NotFittedError: before ``fit``.
        """
        return self._scores(self._items(X, times))

    def _items(self, X: Any, times: Any = None) -> SeriesSet:
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self, "ideal_point_")
        return self._new_items(X, times)

    def _new_items(self, X: Any, times: Any) -> SeriesSet:
        """Series in the units of those of ``fit``."""
        raw = as_series(X, layout=self.layout, times=times, nan=self.nan, dtype=self._center.dtype)
        if raw.channels != len(self._center):
            raise ValueError(
                f"X has {raw.channels} channels, but the ranker was fitted with {len(self._center)}"
            )
        return self._standard(raw.to(self._center.device))

    def rank(self, X: Any, *, times: Any = None) -> Int[np.ndarray, " items"]:
        """The items' numbers, best first."""
        return np.argsort(-self.predict(X, times=times), kind="stable")

    def predict_proba_pairs(self, X: Any, pairs: Any) -> Float[np.ndarray, " pairs"]:
        """P(first beats second) by the model, without flips.

        Raises:
            ValueError: bad series or pairs.
        """
        scores = self.predict(X)
        ends = as_comparisons(pairs, len(scores))
        apart = scores[ends.winner] - scores[ends.loser]
        return 1 / (1 + np.exp(-apart))

    def score(self, X: Any, pairs: Any) -> float:
        """The share of answers that agree with the scores; draws count half either way."""
        scores = self.predict(X)
        answers = as_comparisons(pairs, len(scores))
        right = np.where(scores[answers.winner] > scores[answers.loser], answers.outcome, 1 - answers.outcome)
        return float(np.average(right, weights=answers.weight))

    def solve(self, problem: Any, **options: Any) -> IdealPointResult:
        """Fit (series, pairs), and give the ranking as one object."""
        series, pairs = problem[0], problem[1]
        self.fit(series, pairs, **options)
        return IdealPointResult(self.scores_, self.ideal_point_, self.scale_, self.history_, self)

    def bootstrap(self, n_resamples: int = 60, *, level: float = 0.9, max_iter: int = 40) -> IdealPointRanker:
        """Intervals of the scores: comparisons are drawn anew within annotators, and the fit goes on from its
        end.

        Scores are centred at their mean first, since only differences mean something. Items that nobody
        compared get the interval that their series implies.

        Raises:
            ValueError: fewer than two resamples, or a level outside 0 to 1.
        """
        if n_resamples < 2 or not 0 < level < 1:
            raise ValueError(
                f"n_resamples={n_resamples} must be at least 2 and level={level} between 0 and 1"
            )
        answers, generator = self._objective.answers, self._generator(1)
        counts = np.zeros((n_resamples, len(answers)))
        for person in range(answers.n_annotators):
            mine = np.flatnonzero(answers.annotator == person)
            if len(mine) == 0:
                continue
            draws = torch.randint(len(mine), (n_resamples, len(mine)), generator=generator).numpy()
            for k in range(n_resamples):
                counts[k, mine] = np.bincount(draws[k], minlength=len(mine))
        weight = torch.from_numpy(counts * answers.weight).to(self._ideal)
        last = self.gamma[1]
        fit = anneal(
            self._objective,
            self._ideal.expand(n_resamples, -1, -1),
            steps=max_iter,
            gamma=(last, last),
            log_scale=self._log_scale.expand(n_resamples),
            logits=self._logits.expand(n_resamples, -1),
            weight=weight,
            learning_rate=0.02,
        )
        near = self._distances(self._objective.series, fit.ideal) / fit.log_scale.exp()[:, None]
        draws = (-near if self.sign == "nearest" else near).cpu().numpy()
        draws = draws - draws.mean(1, keepdims=True)
        self._score_draws = draws
        centre = self.scores_ - self.scores_.mean()
        low, high = np.quantile(draws - draws.mean(0), [(1 - level) / 2, (1 + level) / 2], axis=0)
        self.score_interval_ = np.stack([centre + low, centre + high], axis=1)
        return self

    def next_pairs(
        self, X: Any = None, k: int = 10, *, max_repeat: int = 2, seen: Any = None
    ) -> Int[np.ndarray, "k 2"]:
        """The k pairs whose answers are least certain, spread over the items; unseen pairs first.

        Args:
            X: the items; those of ``fit`` by default.
            k: how many.
            max_repeat: how often an item may occur, as long as there are others.
            seen: pairs that were asked; those of ``fit`` by default (where X is not given).
        """
        scores = self.scores_ if X is None else self.predict(X)
        if seen is None:
            answers = self._objective.answers
            seen = (
                np.stack([answers.winner, answers.loser], axis=1) if X is None else np.zeros((0, 2), np.int64)
            )
        return propose(scores, np.asarray(seen)[:, :2], k, max_repeat=max_repeat)
