"""A cheap head for comparing features: ridge classifier with its penalty by leave-one-out error.

Generalised cross-validation, which averages the leverages, was tried first, on development splits: with more
columns than rows it took the smallest penalty offered, whatever the layers. Leave-one-out with each row's own
leverage costs the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

PENALTIES = tuple(10.0**e for e in np.arange(-4.0, 3.01, 0.5))
"""Relative to the mean eigenvalue of the Gram matrix."""


class RidgeProbe:
    """Ridge regression on one-hot classes; columns are standardised.

    The ridge minimises mean (r_i / (1 - h_ii))^2, the exact leave-one-out error.
    """

    def fit(self, features: Float[np.ndarray, "n p"], labels: Any) -> RidgeProbe:
        """Learn; returns itself.

        Raises:
            ValueError: lengths that differ.
        """
        x = np.asarray(features, dtype=np.float64)
        self.classes_, numbers = np.unique(np.asarray(labels), return_inverse=True)
        if len(x) != len(numbers):
            raise ValueError(f"{len(x)} rows of features and {len(numbers)} labels")
        self._mean, deviation = x.mean(0), x.std(0)
        self._scale = np.where(deviation > 0, deviation, 1.0)
        z = (x - self._mean) / self._scale
        y = np.eye(len(self.classes_))[numbers]
        self._offset = y.mean(0)
        y = y - self._offset
        n = len(z)
        # Left singular vectors by the smaller Gram matrix.
        values, vectors = np.linalg.eigh(z @ z.T if n <= z.shape[1] else z.T @ z)
        kept = values > values[-1] * max(z.shape) * np.finfo(float).eps
        values, vectors = values[kept], vectors[:, kept]
        u = vectors if n <= z.shape[1] else z @ vectors / np.sqrt(values)
        uy, mean = u.T @ y, values.sum() / n
        best = (np.inf, PENALTIES[-1])
        for relative in PENALTIES:
            share = values / (values + relative * mean)
            leverage = np.minimum(1 / n + (u**2) @ share, 1 - np.finfo(float).eps)
            left_out = (y - u @ (share[:, None] * uy)) / (1 - leverage)[:, None]
            best = min(best, (float((left_out**2).mean()), relative))
        self.penalty_ = best[1] * mean
        self._w = z.T @ (u @ (uy / (values + self.penalty_)[:, None]))
        return self

    def predict(self, features: Float[np.ndarray, "n p"]) -> np.ndarray:
        """Classes of new rows."""
        z = (np.asarray(features, dtype=np.float64) - self._mean) / self._scale
        return np.asarray(self.classes_[(z @ self._w + self._offset).argmax(1)])
