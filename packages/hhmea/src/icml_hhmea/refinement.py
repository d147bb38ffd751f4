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
from icml_hhmea.descent import DescentOptions, GradientDescent, Report
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.recordings import Observation

REFINE = DescentOptions(steps=50, lr=0.02, prior=1.0, screen=1)
TAIL = 0.2  # share of the largest weights to which a Pareto distribution is fitted


class Refinement:
    """Adam on the same loss minus the log prior, from given samples.

    After it each sample is weighted by exp(-chi2 / (2 c)), chi2 being the sum of squares over hard features
    and
    c its least value a feature, or 1: where the model itself is wrong, the errors are widened by that.

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
        with torch.no_grad():
            hard, _ = self.descent.losses(found.theta, found.log_current, hard=True)
        count = self.descent._count()
        scale = max(1.0, float(hard.min()))
        log_weight = -0.5 * count * (hard - hard.min()) / scale
        weights = torch.softmax(log_weight, 0)
        figures = dict(found.diagnostics)
        figures |= {
            "pareto_k": pareto_k(log_weight.numpy()),
            "effective": float(1 / (weights**2).sum()),
            "hard_loss": float(hard.min()),
        }
        return replace(found, weights=weights, method="npe+refine", diagnostics=figures)


def pareto_k(log_weight: np.ndarray) -> float:
    """Shape of a generalised Pareto distribution fitted to the largest weights; above 0.7 few samples carry
    all.

    (A. Vehtari et al., Pareto smoothed importance sampling, JMLR 25 (2024).)
    """
    weight = np.sort(np.exp(log_weight - log_weight.max()))
    tail = max(5, math.ceil(TAIL * len(weight)))
    if len(weight) <= tail or weight[-1] == weight[-tail - 1]:
        return 0.0
    excess = weight[-tail:] - weight[-tail - 1]
    return float(genpareto.fit(excess[excess > 0], floc=0)[0])
