"""Cheaper ways to predict responses to patterns, from the same thresholds of single electrodes.

Each gives the log of the scale at which a pattern should fire (0 is just at threshold), or, for the
classifier, log odds against firing; a spike is predicted below 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

Thresholds = Mapping[int, tuple[float, float]]


def fractions(
    patterns: Float[Tensor, "patterns electrodes"], thresholds: Thresholds
) -> Float[Tensor, "patterns electrodes"]:
    """Each amplitude as a share of its electrode's own threshold of that sign, positive for anodic and
    negative for cathodic currents; 0 where there is no threshold."""
    out = torch.zeros_like(patterns)
    for e, (positive, negative) in thresholds.items():
        a = patterns[:, e]
        up = a / positive if not math.isnan(positive) else torch.zeros_like(a)
        down = a / abs(negative) if not math.isnan(negative) else torch.zeros_like(a)
        out[:, e] = torch.where(a > 0, up, down)
    return out


def independent(patterns: Tensor, thresholds: Thresholds) -> Float[Tensor, " patterns"]:
    """Fires where any amplitude alone passes its threshold."""
    return -fractions(patterns, thresholds).abs().max(1).values.clamp(min=1e-9).log()


def superposition(patterns: Tensor, thresholds: Thresholds) -> Float[Tensor, " patterns"]:
    """Fires where the signed shares of thresholds, cathodic ones counted positive, sum to 1 or more; anodic
    currents work against them, or for themselves where they sum to more."""
    share = fractions(patterns, thresholds)
    return -share.sum(1).abs().clamp(min=1e-9).log()


def multi_site(
    patterns: Tensor, thresholds: Thresholds, xy: np.ndarray, *, reach: float = 45.0
) -> Float[Tensor, " patterns"]:
    """Piecewise-linear summation at several sites (Jepson et al., J. Neurosci. 34 (2014) 4871) without any
    measured pair: every electrode is a site, currents at distance d add with the weight exp(-(d / reach)^2),
        and
    the site with the largest sum decides."""
    share = fractions(patterns, thresholds)
    electrodes = list(thresholds)
    best = torch.full((len(patterns),), 1e-9, dtype=patterns.dtype)
    for site in electrodes:
        distance = np.linalg.norm(xy[electrodes, :2] - xy[site, :2], axis=1)
        weight = torch.as_tensor(np.exp(-((distance / reach) ** 2)), dtype=patterns.dtype)
        total = (share[:, electrodes] * weight).sum(1)
        best = torch.maximum(best, total.abs())
    return -best.log()


def logistic(
    patterns: Tensor, fired: Tensor, test: Tensor, electrodes: Sequence[int], thresholds: Thresholds
) -> Tensor:
    """Logistic regression on a neuron's own measured patterns: shares of thresholds, their positive and
    negative parts, and products of pairs; ridge 1. Gives minus the log odds of a spike for the test
    patterns."""

    def rows(p: Tensor) -> Tensor:
        share = fractions(p, thresholds)[:, list(electrodes)]
        pairs = [share[:, i] * share[:, j] for i in range(share.shape[1]) for j in range(i + 1)]
        return torch.stack([torch.ones(len(p), dtype=p.dtype), *share.T, *share.abs().T, *pairs], 1)

    x, y = rows(patterns), fired.to(patterns.dtype)
    w = torch.zeros(x.shape[1], dtype=x.dtype)
    penalty = torch.eye(len(w), dtype=x.dtype) * 1.0
    penalty[0, 0] = 1e-6
    for _ in range(50):
        p = torch.sigmoid(x @ w)
        slope = x.T @ (p - y) + penalty @ w
        step = torch.linalg.solve(x.T @ (x * (p * (1 - p))[:, None]) + penalty, slope)
        w = w - step
        if float(step.abs().max()) < 1e-9:
            break
    return -(rows(test) @ w)


class PatternMLP:
    """A network trained on other neurons' responses.

    Its inputs describe a pattern by what is known of any neuron: for its strongest electrodes the shares of
    thresholds, troughs (log µV) and places along and across the line from the pattern's middle, and the
    shares' sums; three electrodes in order of strength.
    """

    def __init__(self, *, hidden: int = 64, epochs: int = 150, seed: int = 0) -> None:
        with seeded(seed):
            self.net = nn.Sequential(
                nn.Linear(18, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
            ).double()
        self.epochs, self.seed = epochs, seed
        self.shift, self.scale = torch.zeros(18), torch.ones(18)

    @staticmethod
    def rows(
        patterns: Tensor, thresholds: Thresholds, ei: np.ndarray, xy: np.ndarray
    ) -> Float[Tensor, "patterns 18"]:
        """Inputs of a neuron's patterns."""
        share = fractions(patterns, thresholds)
        trough = torch.as_tensor(np.log(np.maximum(-ei.min(1), 1e-3)))
        place = torch.as_tensor(xy[:, :2]).to(share)
        order = share.abs().argsort(dim=1, descending=True)[:, :3]
        own = share.gather(1, order)
        where = place[order]
        gap = torch.stack(
            [(where[:, a] - where[:, b]).norm(dim=1) / 100 for a, b in ((0, 1), (0, 2), (1, 2))], 1
        )
        columns = [
            own,
            own.abs(),
            trough[order],
            gap,
            share.sum(1, keepdim=True),
            share.abs().sum(1, keepdim=True),
        ]
        columns += [share.abs().max(1, keepdim=True).values, own.clamp(min=0).sum(1, keepdim=True)]
        columns += [own.clamp(max=0).sum(1, keepdim=True), (share**2).sum(1, keepdim=True)]
        return torch.cat(columns, 1)

    def fit(self, x: Tensor, fired: Tensor) -> PatternMLP:
        """Train by Adam with weight decay."""
        self.shift, self.scale = x.mean(0), x.std(0).clamp(min=1e-6)
        z, y = (x - self.shift) / self.scale, fired.double()
        generator = torch.Generator().manual_seed(self.seed)
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=3e-3, weight_decay=1e-2)
        for _ in range(self.epochs):
            for part in torch.randperm(len(z), generator=generator).split(128):
                loss = nn.functional.binary_cross_entropy_with_logits(self.net(z[part])[:, 0], y[part])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return self

    def score(self, x: Tensor) -> Float[Tensor, " patterns"]:
        """Minus the log odds of a spike."""
        with torch.no_grad():
            return -self.net((x - self.shift) / self.scale)[:, 0]
