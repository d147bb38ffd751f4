"""Refine posterior samples by gradient descent through the simulator, and weigh them by exact features."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from scipy.stats import genpareto
from torch import Tensor

from icml_hhmea.cell import CellModel
from icml_hhmea.descent import CURRENT_SPREAD, DescentOptions, GradientDescent, Report
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.recordings import Observation

REFINE = DescentOptions(steps=50, lr=0.02, prior=1.0, screen=1)
LEAST_TAIL = 5  # weights, for a fit of the tail
TINY = 1e-12  # of the largest weight
TAIL = 0.2  # share of the largest weights to which a Pareto distribution is fitted


class Refinement:
    """Adam on the same loss minus the log prior, from given samples.

    After it each sample is weighted by the prior times exp(-chi2 / (2 c)), chi2 being the sum of squares over
    hard features and thresholds and c its least value for each of them, or 1: where the model itself is
    wrong, the errors are widened by that.

    Args:
        samples: theta [samples, parameters], such as 32 draws of the amortised posterior.
    """

    def __init__(
        self,
        cell: CellModel,
        observation: Observation,
        samples: Float[Tensor, "samples parameters"],
        options: DescentOptions | None = None,
    ) -> None:
        self.descent = GradientDescent(cell, observation, options or REFINE, start=samples)

    @property
    def rows(self) -> list[dict[str, float]]:
        """Step and least loss."""
        return self.descent.rows

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        report: Report | None = None,
    ) -> NeuronPosterior:
        """Refine; see :class:`GradientDescent`."""
        found = self.descent.fit(until=until, checkpoint=checkpoint, resume=resume, report=report)
        chi2, count = self.descent.chi2(found.theta, found.log_current)
        scale = max(1.0, float(chi2.min()) / count)
        currents = found.log_current[:, self.descent.channels] / CURRENT_SPREAD
        log_prior = found.cell.bounds.log_prior(found.cell.bounds.real(found.theta))
        log_weight = -0.5 * (chi2 - chi2.min()) / scale - 0.5 * (currents**2).sum(1) + log_prior
        weights = torch.softmax(log_weight, 0)
        figures = dict(found.diagnostics)
        figures |= {
            "pareto_k": pareto_k(log_weight.numpy()),
            "effective": float(1 / (weights**2).sum()),
            "reduced_chi2": float(chi2.min()) / count,
        }
        return replace(found, weights=weights, method="npe+refine", diagnostics=figures)


def pareto_k(log_weight: np.ndarray) -> float:
    """Shape of a generalised Pareto distribution fitted to the largest weights; above 0.7 few samples carry
    all. inf where fewer than five weights stand out and carry most, NaN where there are too few to tell.

    (A. Vehtari et al., Pareto smoothed importance sampling, JMLR 25 (2024).)
    """
    weight = np.sort(np.exp(log_weight - log_weight.max()))
    tail = min(max(5, math.ceil(TAIL * len(weight))), len(weight) - 1)
    if tail < 1 or weight[-1] == weight[0]:
        return 0.0 if len(weight) > LEAST_TAIL else math.nan
    excess = weight[-tail:] - weight[-tail - 1]
    # Below the shape that can be fitted, one or a few weights carry all, or there are too few to tell.
    if (excess > TINY).sum() < LEAST_TAIL:
        effective = weight.sum() ** 2 / (weight**2).sum()
        return math.inf if effective < 0.5 * len(weight) else math.nan
    return float(genpareto.fit(excess[excess > TINY], floc=0)[0])
