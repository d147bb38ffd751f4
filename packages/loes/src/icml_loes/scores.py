"""Scores of predictions; accuracy alone misleads where classes are unbalanced, so three are given
together."""

from __future__ import annotations

import math

import numpy as np


def classification_scores(truth: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Accuracy, balanced accuracy (mean recall of the classes that occur), Matthews correlation.

    The correlation is Gorodkin's (2004) of C classes, 0 for a constant prediction.

    Raises:
        ValueError: lengths that differ, or no example.

    Example:
        >>> classification_scores(np.array([0] * 9 + [1]), np.zeros(10, int))
        {'accuracy': 0.9, 'balanced_accuracy': 0.5, 'mcc': 0.0}
    """
    truth, predicted = np.asarray(truth), np.asarray(predicted)
    if truth.shape != predicted.shape or truth.ndim != 1 or not len(truth):
        raise ValueError(
            f"truth has shape {truth.shape} and prediction {predicted.shape}; expected [n] twice"
        )
    classes, numbers = np.unique(np.concatenate([truth, predicted]), return_inverse=True)
    t, p = numbers[: len(truth)], numbers[len(truth) :]
    table = np.zeros((len(classes), len(classes)))
    np.add.at(table, (t, p), 1)
    by_truth, by_prediction, n = table.sum(1), table.sum(0), len(truth)
    hits = np.trace(table)
    occurring = by_truth > 0
    recall = np.diag(table)[occurring] / by_truth[occurring]
    covariance = hits * n - by_truth @ by_prediction
    spread = (n**2 - by_prediction @ by_prediction) * (n**2 - by_truth @ by_truth)
    return {
        "accuracy": float(hits / n),
        "balanced_accuracy": float(recall.mean()),
        "mcc": float(covariance / math.sqrt(spread)) if spread > 0 else 0.0,
    }
