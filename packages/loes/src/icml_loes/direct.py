"""The algorithm as published, in columns and with eigenvalues: slow, and written without the reformulations.

It is what the dual and primal forms are tested and timed against, and what ``LoesResult.verify`` computes
scores by.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_loes.isotropy import EPSILON, FULL_SPECTRUM


def ridge_prediction(
    x: Float[Tensor, "n dim"], targets: Float[Tensor, "n outputs"], reg: float
) -> Float[Tensor, "n outputs"]:
    """X W + b with W = (Xbar^T Xbar + lam I)^-1 Xbar^T Tbar and b = mean(T) - mean(X) W."""
    mean_x, mean_t = x.mean(0), targets.mean(0)
    centred = x - mean_x
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    w = torch.linalg.solve(centred.T @ centred + reg * identity, centred.T @ (targets - mean_t))
    return x @ w + (mean_t - mean_x @ w)


def isotropy_by_eigenvalues(x: Float[Tensor, "n dim"], definition: str = "paper") -> float:
    """mean(ev) / (std(ev) + 1e-6) of the covariance's eigenvalues; beyond D = 512 of squared singular
    values."""
    n, dim = x.shape
    centred = x - x.mean(0)
    if dim <= FULL_SPECTRUM or definition == "dimension":
        values = torch.linalg.eigvalsh(centred.T @ centred / n)
    else:
        values = torch.linalg.svdvals(centred) ** 2 / n
    if definition == "dimension":  # in units of the mean eigenvalue
        return 1 / (float(values.std(correction=0) / values.mean()) + EPSILON)
    return float(values.mean() / (values.std(correction=0) + EPSILON))


def redundancy_by_products(x: Float[Tensor, "n dim"], chosen: Sequence[Tensor]) -> float:
    """max over the chosen of ||X^T X_j||_F / (||X||_F ||X_j||_F); 0 without any."""
    return max((float((x.T @ z).norm() / (x.norm() * z.norm())) for z in chosen), default=0.0)


def orthogonal_complement(
    x: Float[Tensor, "n dim"], chosen: Float[Tensor, "n columns"], orth_reg: float
) -> Float[Tensor, "n dim"]:
    """Xbar - S (S^T S + eps I)^-1 S^T Xbar, S the centred chosen columns."""
    s, centred = chosen - chosen.mean(0), x - x.mean(0)
    identity = torch.eye(s.shape[1], dtype=s.dtype, device=s.device)
    return centred - s @ torch.linalg.solve(s.T @ s + orth_reg * identity, s.T @ centred)


def mean_triangle_area(
    x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], triples: Int[Tensor, "triples 3"]
) -> float:
    """Mean area over triples of class centroids, from the centroids themselves."""
    if len(triples) == 0:
        return 0.0
    centroids = torch.stack([x[labels == c].mean(0) for c in range(int(labels.max()) + 1)])
    a, b, c = (centroids[triples[:, i]] for i in range(3))
    ab, ac = b - a, c - a
    square = ab.square().sum(1) * ac.square().sum(1) - (ab * ac).sum(1).square()
    return float(0.5 * square.clamp_min(0).sqrt().mean())


def direct_selection(
    layers: Sequence[Float[Tensor, "n dim"]],
    targets: Float[Tensor, "n outputs"] | None,
    labels: Int[Tensor, " n"] | None,
    k: int,
    *,
    reg: float = 1e-3,
    alpha: float = 1.0,
    gamma: float = 0.5,
    eta: float = 0.1,
    orth_reg: float = 1e-6,
    triples: Sequence[Int[Tensor, "triples 3"]] | None = None,
    forced: Sequence[int] | None = None,
) -> tuple[list[int], list[dict[str, Any]]]:
    """The paper's greedy selection, computed as it is written, in the layers' own precision.

    Args:
        layers: X_l.
        targets: Y; None for the label-free mode.
        labels: hard classes, for the triangles.
        k: how many.
        reg, alpha, gamma, eta, orth_reg: as in ``Weights``.
        triples: of classes, for each step but the first.
        forced: take these layers whatever the scores, which are recorded all the same.

    Returns:
        The chosen layers, and candidates and scores of each step.
    """
    chosen: list[int] = []
    trace: list[dict[str, Any]] = []
    prediction = None if targets is None else torch.zeros_like(targets)
    for step in range(k):
        candidates = [i for i in range(len(layers)) if i not in chosen]
        stack = torch.cat([layers[i] for i in chosen], 1) if chosen else None
        scores = []
        for i in candidates:
            x = layers[i] if stack is None else orthogonal_complement(layers[i], stack, orth_reg)
            score = alpha * (1 - isotropy_by_eigenvalues(layers[i]))
            if targets is not None and prediction is not None:
                left = targets - prediction
                score += float((ridge_prediction(x, left, reg) - left).square().mean())
            if chosen:
                score += gamma * redundancy_by_products(layers[i], [layers[j] for j in chosen])
                if labels is not None and triples is not None:
                    score -= eta * mean_triangle_area(x, labels, triples[step])
            scores.append(score)
        best = min(range(len(candidates)), key=scores.__getitem__)
        layer = candidates[best] if forced is None else forced[step]
        if targets is not None and prediction is not None:
            x = layers[layer] if stack is None else orthogonal_complement(layers[layer], stack, orth_reg)
            prediction = prediction + ridge_prediction(x, targets - prediction, reg)
        trace.append({"candidates": candidates, "score": scores})
        chosen.append(layer)
    return chosen, trace
