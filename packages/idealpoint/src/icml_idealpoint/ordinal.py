"""What grades are worth: proportional odds on elastic distances from prototypes, the rival of pairwise
comparisons.

P(grade > k | x) = sigmoid( w . f(x) - theta_k ), theta_0 < theta_1 < …; f are soft TWED distances from a few
items.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from icml_kernels import soft_elastic
from jaxtyping import Float
from scipy.optimize import minimize

from icml_idealpoint.series import as_series

PENALTIES = (0.01, 0.1, 1.0, 10.0)
FOLDS = 4


class PrototypeGrades:
    """Ordinal regression on the distances from prototypes; the penalty is chosen by cross-validation over
    grades.

    Args:
        prototypes: items taken as prototypes, spread over the grades' means.
        nu, lam, gamma: of the distance, for data of unit deviation.
    """

    def __init__(
        self, prototypes: int = 8, *, nu: float = 0.003, lam: float = 0.1, gamma: float = 0.1
    ) -> None:
        self.prototypes, self.nu, self.lam, self.gamma = prototypes, nu, lam, gamma

    def fit(self, X: Any, item: np.ndarray, grade: np.ndarray) -> PrototypeGrades:
        """Learn from grades of items.

        Raises:
            ValueError: fewer than two different grades.
        """
        if len(np.unique(grade)) < 2:
            raise ValueError("all grades are the same; nothing can be learned from them")
        items = as_series(X)
        self._center, self._spread = float(items.values.mean()), float(items.values.std()) or 1.0
        graded = np.unique(item)
        mean = np.array([grade[item == k].mean() for k in graded])
        places = np.linspace(0, len(graded) - 1, min(self.prototypes, len(graded))).round().astype(int)
        self._prototypes = items.values[graded[np.argsort(mean, kind="stable")[places]]]
        features = self._features(X)
        self._mean, self._deviation = features.mean(0), features.std(0) + 1e-9
        rows = (features - self._mean) / self._deviation
        levels = int(grade.max()) + 1
        fold = np.arange(len(item)) % FOLDS
        losses = []
        for penalty in PENALTIES:
            total = 0.0
            for held in range(FOLDS):
                inside = fold != held
                parameters = _fit(rows[item[inside]], grade[inside], levels, penalty)
                total += _loss(parameters, rows[item[~inside]], grade[~inside], levels, 0.0)[0]
            losses.append(total)
        best = PENALTIES[int(np.argmin(losses))]
        self.coef_ = _fit(rows[item], grade, levels, best)[: rows.shape[1]]
        return self

    def predict(self, X: Any) -> Float[np.ndarray, " items"]:
        """Scores: larger means higher grades."""
        return ((self._features(X) - self._mean) / self._deviation) @ self.coef_

    def _features(self, X: Any) -> np.ndarray:
        values = (as_series(X).values - self._center) / self._spread
        prototypes = (self._prototypes - self._center) / self._spread
        columns = [
            soft_elastic(values, p[None], "twed", gamma=self.gamma, nu=self.nu, lam=self.lam)
            for p in prototypes
        ]
        return torch.stack(columns, dim=1).numpy()


def _fit(rows: np.ndarray, grade: np.ndarray, levels: int, penalty: float) -> np.ndarray:
    first = np.concatenate([np.zeros(rows.shape[1]), [-1.0], np.zeros(max(levels - 2, 0))])
    return minimize(_loss, first, (rows, grade, levels, penalty), jac=True, method="L-BFGS-B").x


def _loss(
    parameters: np.ndarray, rows: np.ndarray, grade: np.ndarray, levels: int, penalty: float
) -> tuple[float, np.ndarray]:
    leaf = torch.from_numpy(np.asarray(parameters)).clone().requires_grad_()
    weights, free = leaf[: rows.shape[1]], leaf[rows.shape[1] :]
    # The thresholds rise: the first is free, the others follow at positive steps.
    cuts = torch.cat([free[:1], free[:1] + torch.cumsum(torch.exp(free[1:]), 0)])
    score = torch.from_numpy(rows) @ weights
    above = torch.sigmoid(score[:, None] - cuts)
    bounds = torch.cat([torch.ones(len(score), 1), above, torch.zeros(len(score), 1)], dim=1)
    chance = (bounds[:, :-1] - bounds[:, 1:]).gather(1, torch.from_numpy(grade.astype(np.int64))[:, None])
    loss = -torch.log(chance.clamp(min=1e-12)).sum() + penalty * (weights**2).sum()
    (gradient,) = torch.autograd.grad(loss, leaf)
    return float(loss.detach()), gradient.numpy()
