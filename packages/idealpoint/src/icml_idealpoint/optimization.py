"""Fitting ideal points: many starts in one batch, an annealed soft minimum, and a polish by hard
subgradients.

Starts are rows of one batch: the i-th ideal series, scale and flip rates never meet another start's. Units
are those of standardised data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml_idealpoint.comparisons import Comparisons
from icml_idealpoint.ideal_point import (
    Distance,
    Likelihood,
    Sign,
    answer_loss,
    flip_logit,
    flip_rates,
)
from icml_idealpoint.series import SeriesSet

LEARNING_RATE = 0.05
FIRST_FLIP = 0.1
SCALE_FLOOR = 1e-3  # of the first scale: consistent answers would send it to 0
_ANNEAL = 0.6  # share of the steps in which the temperature falls

Report = Callable[[int, float], None]


@dataclass(frozen=True)
class Objective:
    """What is minimised.

    Attributes:
        series: the items.
        answers: their comparisons.
        distance: from the ideal point.
        likelihood, sign: of an answer.
        noise: ``"per_annotator"``, ``"shared"`` or None.
        rough: mu_1, the weight of the ideal series' mean squared step.
        large: mu_2, the weight of its mean square.
        unit: mean distance of two points of the data; temperatures are in this unit.
    """

    series: SeriesSet
    answers: Comparisons
    distance: Distance
    likelihood: Likelihood
    sign: Sign
    noise: str | None
    rough: float
    large: float
    unit: float

    def flips(self, logits: Tensor) -> Tensor | None:
        """The rate of each annotator, or None without noise."""
        if self.noise is None:
            return None
        count = self.answers.n_annotators
        return flip_rates(logits).expand(*logits.shape[:-1], count)

    def __call__(
        self,
        ideal: Float[Tensor, "starts length channels"],
        log_scale: Float[Tensor, " starts"],
        logits: Float[Tensor, "starts rates"],
        gamma: float,
        weight: Tensor | None = None,
    ) -> Float[Tensor, " starts"]:
        """The penalised loss of every start."""
        near = self.distance(self.series, ideal, gamma * self.unit)
        loss = answer_loss(
            near, self.answers, log_scale.exp(), self.flips(logits), self.likelihood, self.sign, weight
        )
        if ideal.shape[1] > 1:
            loss = loss + self.rough * ((ideal[:, 1:] - ideal[:, :-1]) ** 2).sum(2).mean(1)
        return loss + self.large * (ideal**2).sum(2).mean(1)


@dataclass
class Fit:
    """Where a fit has come to, for every start.

    Attributes:
        ideal, log_scale, logits: the best parameters.
        loss: at them.
        grad_norm: of the loss by the ideal series.
        history: the least loss over starts after each step.
        steps: how many were taken.
    """

    ideal: Tensor
    log_scale: Tensor
    logits: Tensor
    loss: Tensor
    grad_norm: Tensor
    history: list[float]
    steps: int


def temperature(step: int, steps: int, gamma: tuple[float, float]) -> float:
    """Falls geometrically from the first to the second, and stays there for the last steps."""
    falling = max(1, int(_ANNEAL * steps))
    share = min(1.0, step / falling)
    return float(gamma[0] * (gamma[1] / gamma[0]) ** share)


def first_scale(objective: Objective, ideal: Tensor, gamma: float) -> Tensor:
    """The standard deviation of the items' distances."""
    with torch.no_grad():
        near = objective.distance(objective.series, ideal, gamma * objective.unit)
    return near.std(1, correction=0).clamp(min=1e-3)


def anneal(
    objective: Objective,
    ideal: Tensor,
    *,
    steps: int,
    gamma: tuple[float, float],
    log_scale: Tensor | None = None,
    logits: Tensor | None = None,
    weight: Tensor | None = None,
    learning_rate: float = LEARNING_RATE,
    report: Report | None = None,
) -> Fit:
    """Adam on all starts while the minimum hardens; the best parameters at the last temperature are kept."""
    ideal = ideal.clone().requires_grad_()
    if log_scale is None:
        log_scale = first_scale(objective, ideal.detach(), gamma[0]).log()
    floor = log_scale + float(np.log(SCALE_FLOOR))
    log_scale = log_scale.clone().requires_grad_()
    rates = objective.answers.n_annotators if objective.noise == "per_annotator" else 1
    if logits is None:
        logits = torch.full(
            (ideal.shape[0], rates), flip_logit(FIRST_FLIP), dtype=ideal.dtype, device=ideal.device
        )
    logits = logits.clone().requires_grad_()
    leaves = [ideal, log_scale]
    if objective.noise is not None and objective.likelihood != "hinge":
        leaves.append(logits)
    adam = torch.optim.Adam(leaves, lr=learning_rate)
    first = (t.detach().clone() for t in (ideal, log_scale, logits))
    unknown = (torch.full_like(log_scale.detach(), torch.inf) for _ in range(2))
    best = Fit(*first, *unknown, history=[], steps=0)
    for step in range(steps + 1):
        now = temperature(step, steps, gamma)
        losses = objective(ideal, log_scale, logits, now, weight)
        gradients = torch.autograd.grad(losses.sum(), leaves)
        with torch.no_grad():
            if step >= int(_ANNEAL * steps):
                better = losses < best.loss
                norm = gradients[0].flatten(1).norm(dim=1)
                best.loss = torch.where(better, losses, best.loss)
                best.grad_norm = torch.where(better, norm, best.grad_norm)
                best.ideal = torch.where(better[:, None, None], ideal, best.ideal)
                best.log_scale = torch.where(better, log_scale, best.log_scale)
                best.logits = torch.where(better[:, None], logits, best.logits)
        best.history.append(float(losses.detach().min()))
        if report is not None:
            report(step, best.history[-1])
        if step == steps:
            break
        for leaf, gradient in zip(leaves, gradients, strict=True):
            leaf.grad = gradient
        adam.step()
        with torch.no_grad():
            log_scale.copy_(torch.maximum(log_scale, floor))
    best.steps = steps
    return best


def polish(objective: Objective, fit: Fit, *, steps: int, step_size: float = 0.1) -> Fit:
    """Subgradient steps c / sqrt(k) on a hard distance, best iterate kept; the scale and rates stay."""
    ideal = fit.ideal.clone()
    best, best_loss = ideal.clone(), None
    for k in range(steps + 1):
        leaf = ideal.clone().requires_grad_()
        losses = objective(leaf, fit.log_scale, fit.logits, 1.0)
        (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        losses = losses.detach()
        better = losses < best_loss if best_loss is not None else torch.ones_like(losses, dtype=torch.bool)
        best = torch.where(better[:, None, None], ideal, best)
        best_loss = losses if best_loss is None else torch.minimum(losses, best_loss)
        norm = gradient.flatten(1).norm(dim=1).clamp(min=1e-12)
        ideal = ideal - step_size / (k + 1) ** 0.5 * gradient / norm[:, None, None]
    return Fit(best, fit.log_scale, fit.logits, best_loss, fit.grad_norm, fit.history, fit.steps + steps)
