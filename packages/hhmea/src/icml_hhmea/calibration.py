"""Is an amortised posterior calibrated? Simulation-based calibration: ranks of true parameters are uniform.

(S. Talts et al., arXiv 1804.06788.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import chi2
from torch import Tensor

from icml_hhmea.npe import AmortisedPosterior

BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Of each parameter.

    Attributes:
        ranks: how many of the draws lie below the truth, [cases, parameters].
        p: of a chi-square test of uniform ranks, [parameters].
        coverage: share of truths inside the central 90 % interval, [parameters].
    """

    ranks: Int[Tensor, "cases parameters"]
    p: Float[Tensor, " parameters"]
    coverage: Float[Tensor, " parameters"]
    names: tuple[str, ...]


def calibrate(
    model: AmortisedPosterior,
    theta: Float[Tensor, "cases parameters"],
    features: Float[Tensor, "cases features"],
    *,
    draws: int = 99,
    seed: int = 0,
) -> Calibration:
    """Ranks of true parameters among draws of their posteriors; cases whose features are not finite are left
    out.

    Raises:
        ValueError: fewer than ten cases.
    """
    good = torch.isfinite(features).all(1)
    theta, features = theta[good], features[good]
    if len(theta) < BINS:
        raise ValueError(f"{len(theta)} usable cases; at least {BINS} are needed")
    ranks = []
    for k in range(len(theta)):
        drawn = model.sample(draws, seed=seed + k, features=features[k])
        ranks.append((drawn < theta[k]).sum(0))
    found = torch.stack(ranks)
    return Calibration(found, uniform_p(found, draws), coverage(found, draws), model.bounds.names)


def uniform_p(ranks: Int[Tensor, "cases parameters"], draws: int) -> Float[Tensor, " parameters"]:
    """p-values of chi-square tests of ranks in ten equal bins."""
    share = (draws + 1) / BINS
    p = []
    for column in ranks.T.numpy():
        counts = np.bincount(np.minimum((column / share).astype(int), BINS - 1), minlength=BINS)
        expected = len(column) / BINS
        p.append(float(chi2.sf(((counts - expected) ** 2 / expected).sum(), BINS - 1)))
    return torch.tensor(p, dtype=torch.float64)


def coverage(
    ranks: Int[Tensor, "cases parameters"], draws: int, level: float = 0.9
) -> Float[Tensor, " parameters"]:
    """Share of ranks inside the central interval."""
    edge = (1 - level) / 2 * (draws + 1)
    return ((ranks >= edge) & (ranks < draws + 1 - edge)).double().mean(0)
