"""What people use today, tuned as carefully as the method: Bradley-Terry, and RankSVM on values or summary
features."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from icml_idealpoint.averaging import resampled
from icml_idealpoint.comparisons import as_comparisons
from icml_idealpoint.series import as_series

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
FOLDS = 5


class BradleyTerry(BaseEstimator):
    """Strengths of the compared items, by maximum a posteriori: logistic regression without features.

    It cannot score new items.

    Args:
        penalty: weight of the squared strengths; keeps those of items that always win finite.
    """

    def __init__(self, penalty: float = 0.1) -> None:
        self.penalty = penalty

    def fit(self, n_items: int, pairs: Any) -> BradleyTerry:
        """Strengths as ``scores_``, with mean 0.

        Raises:
            ValueError: bad comparisons.
        """
        answers = as_comparisons(pairs, n_items)
        rows = np.zeros((len(answers), n_items))
        rows[np.arange(len(answers)), answers.winner] = 1
        rows[np.arange(len(answers)), answers.loser] = -1
        design = np.concatenate([rows, -rows])
        label = np.repeat([1, 0], len(answers))
        weight = np.concatenate([answers.weight * answers.outcome, answers.weight * answers.outcome]) / 2
        draw = answers.outcome < 1
        if draw.any():
            design = np.concatenate([design, rows[draw], -rows[draw]])
            label = np.concatenate([label, np.zeros(draw.sum()), np.ones(draw.sum())])
            weight = np.concatenate([weight, np.tile(answers.weight[draw] * 0.25, 2)])
        model = LogisticRegression(C=1 / self.penalty, fit_intercept=False, max_iter=1000, tol=1e-8)
        strengths = model.fit(design, label, sample_weight=weight).coef_[0]
        self.scores_ = strengths - strengths.mean()
        return self


class RankSVM(BaseEstimator):
    """A linear score of features, by a support vector machine on differences of the pairs (Joachims 2002).

    The penalty is chosen by cross-validation over comparisons.

    Args:
        features: ``"values"``: the series itself, resampled to one length; ``"summary"``: eight figures a
            channel.
        random_state: of the folds.
    """

    def __init__(self, features: Literal["values", "summary"] = "values", random_state: int = 0) -> None:
        self.features = features
        self.random_state = random_state

    def fit(self, X: Any, pairs: Any) -> RankSVM:
        """Learn from comparisons.

        Raises:
            ValueError: bad series or comparisons.
        """
        items = as_series(X)
        self._length = int(items.lengths.median())
        features = self._features(X)
        self._mean, self._spread = features.mean(0), features.std(0) + 1e-9
        rows = (features - self._mean) / self._spread
        answers = as_comparisons(pairs, len(rows))
        apart = rows[answers.winner] - rows[answers.loser]
        fold = np.random.default_rng(self.random_state).integers(FOLDS, size=len(apart))
        right = np.zeros(len(PENALTIES))
        for k, penalty in enumerate(PENALTIES):
            for held in range(FOLDS):
                if (fold == held).any() and (fold != held).any():
                    weights = _svm(apart[fold != held], penalty, self.random_state)
                    right[k] += ((apart[fold == held] @ weights) > 0).sum()
        self.penalty_ = PENALTIES[int(right.argmax())]
        self.coef_ = _svm(apart, self.penalty_, self.random_state)
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " items"]:
        """Scores, larger is better."""
        return ((self._features(X) - self._mean) / self._spread) @ self.coef_

    def _features(self, X: Any) -> np.ndarray:
        items = as_series(X)
        series = [items.points(k).to(torch.float64).numpy() for k in range(len(items))]
        if self.features == "values":
            return np.stack([resampled(s, self._length).ravel() for s in series])
        return np.stack([summary_features(s) for s in series])


def summary_features(series: Float[np.ndarray, "points channels"]) -> Float[np.ndarray, " features"]:
    """Mean, deviation, least, largest, their places, mean absolute step, and skewness, of each channel."""
    figures = []
    for x in series.T:
        spread = x.std() + 1e-9
        steps = np.abs(np.diff(x)).mean() if len(x) > 1 else 0.0
        places = x.argmin() / len(x), x.argmax() / len(x)
        figures += [
            x.mean(),
            spread,
            x.min(),
            x.max(),
            *places,
            steps,
            (((x - x.mean()) / spread) ** 3).mean(),
        ]
    return np.array(figures)


def _svm(apart: np.ndarray, penalty: float, seed: int) -> np.ndarray:
    # Differences are stated both ways, so that the machine has no offset to learn.
    design = np.concatenate([apart, -apart])
    label = np.repeat([1, -1], len(apart))
    model = LinearSVC(C=penalty, fit_intercept=False, random_state=seed, max_iter=20_000)
    return model.fit(design, label).coef_[0]
