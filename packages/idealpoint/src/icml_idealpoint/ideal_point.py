"""The ideal point model: an item's score is minus its elastic distance from an ideal series.

    score(x) = -D(x, u) / s        P(i beats j) = sigmoid( score(x_i) - score(x_j) )

An annotator flips an answer with probability eps, so that an answer has probability (1 - 2 eps) P + eps.
Distances
are needed once an item and not once a comparison: a step costs as many dynamic programmes as there are items.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_kernels import soft_elastic
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from icml_idealpoint.comparisons import Comparisons
from icml_idealpoint.series import SeriesSet

IdealMetric = Literal["soft_twed", "soft_dtw", "twed", "dtw", "euclidean"]
Likelihood = Literal["logistic", "probit", "hinge"]
Sign = Literal["nearest", "farthest"]

METRICS = ("soft_twed", "soft_dtw", "twed", "dtw", "euclidean")
FLIP_CAP = 0.45  # beyond that an annotator's answers would say the opposite
_HARD = 1e-6  # temperature at which the soft minimum picks one way, in units of the values


@dataclass(frozen=True)
class Distance:
    """Which distance an ideal point has from series, and its constants.

    Attributes:
        metric: of ``METRICS``.
        nu, lam: stiffness and cost of a deletion of TWED.
        window: as in ``pairwise``.
        smoothing: of norms.
    """

    metric: IdealMetric = "soft_twed"
    nu: float = 0.01
    lam: float = 1.0
    window: float | int | None = None
    smoothing: float = 1e-2

    def __post_init__(self) -> None:
        if self.metric not in METRICS:
            raise ValueError(f"metric={self.metric!r} is not one of {', '.join(METRICS)}")

    def __call__(
        self, series: SeriesSet, ideal: Float[Tensor, "ideals length channels"], gamma: float
    ) -> Float[Tensor, "ideals series"]:
        """The distance of every series from every ideal series, differentiable by the latter."""
        ideals, items = ideal.shape[0], len(series)
        if self.metric == "euclidean":
            return self._euclidean(series, ideal)
        times = None if series.times is None else series.times.repeat(ideals, 1)
        spread = ideal[:, None].expand(-1, items, -1, -1).reshape(ideals * items, *ideal.shape[1:])
        found = soft_elastic(
            series.values.repeat(ideals, 1, 1),
            spread,
            self.metric.removeprefix("soft_"),
            gamma=gamma if self.metric.startswith("soft_") else _HARD,
            nu=self.nu,
            lam=self.lam,
            smoothing=self.smoothing,
            x_lengths=series.lengths.repeat(ideals),
            x_times=times,
            window=self.window,
            masked=series.masked,
        )
        return found.reshape(ideals, items)

    def _euclidean(self, series: SeriesSet, ideal: Tensor) -> Tensor:
        if bool((series.lengths != ideal.shape[1]).any()) or series.masked:
            raise ValueError(
                f"the Euclidean distance needs complete series of {ideal.shape[1]} points; got lengths "
                f"{sorted(set(series.lengths.tolist()))}"
            )
        squares = ((series.values[None] - ideal[:, None]) ** 2).sum((2, 3))
        return (squares + self.smoothing**2).sqrt()


def answer_loss(
    distances: Float[Tensor, "*ideals items"],
    answers: Comparisons,
    scale: Float[Tensor, " *ideals"],
    flips: Float[Tensor, "*ideals annotators"] | None,
    likelihood: Likelihood = "logistic",
    sign: Sign = "nearest",
    weight: Float[Tensor, "*ideals answers"] | None = None,
) -> Float[Tensor, " *ideals"]:
    """The mean of :func:`answer_losses`, with the answers' own weights or those given.

    Raises:
        ValueError: an unknown likelihood.
    """
    losses = answer_losses(distances, answers, scale, flips, likelihood, sign)
    if weight is None:
        weight = torch.from_numpy(answers.weight).to(losses)
    return (losses * weight).sum(-1) / weight.sum(-1)


def answer_losses(
    distances: Float[Tensor, "*ideals items"],
    answers: Comparisons,
    scale: Float[Tensor, " *ideals"],
    flips: Float[Tensor, "*ideals annotators"] | None,
    likelihood: Likelihood = "logistic",
    sign: Sign = "nearest",
) -> Float[Tensor, "*ideals answers"]:
    """-log P(answer) of every answer, or the hinge max(0, 1 - z).

    z = (D(loser) - D(winner)) / scale, negated for ``sign="farthest"``; a draw is half of either answer.

    Args:
        distances: of the items from an ideal point.
        answers: the comparisons.
        scale: of distances.
        flips: the rate at which each annotator's answers are flipped, or None for 0.
        likelihood: ``"logistic"``, ``"probit"`` or ``"hinge"``.
        sign: whether winners are near to the ideal point or far from it.

    Raises:
        ValueError: an unknown likelihood.
    """
    winner, loser = (
        torch.from_numpy(index).to(distances.device) for index in (answers.winner, answers.loser)
    )
    apart = distances[..., loser] - distances[..., winner]
    z = (apart if sign == "nearest" else -apart) / scale[..., None]
    outcome = torch.from_numpy(answers.outcome).to(z)
    if likelihood == "hinge":
        return outcome * (1 - z).clamp(min=0) + (1 - outcome) * (1 + z).clamp(min=0)
    if likelihood not in ("logistic", "probit"):
        raise ValueError(f"likelihood={likelihood!r} is none of 'logistic', 'probit', 'hinge'")
    losses = -(outcome * _log_answer(z, flips, answers, likelihood))
    if bool((outcome < 1).any()):
        losses = losses - (1 - outcome) * _log_answer(-z, flips, answers, likelihood)
    return losses


def _log_answer(z: Tensor, flips: Tensor | None, answers: Comparisons, likelihood: str) -> Tensor:
    if flips is None:
        return functional.logsigmoid(z) if likelihood == "logistic" else torch.special.log_ndtr(z)
    rate = flips[..., torch.from_numpy(answers.annotator).to(flips.device)]
    p = torch.sigmoid(z) if likelihood == "logistic" else torch.special.ndtr(z)
    return torch.log((1 - 2 * rate) * p + rate)


def flip_rates(logits: Tensor) -> Tensor:
    """Rates between 0 and ``FLIP_CAP`` from unbounded numbers."""
    return FLIP_CAP * torch.sigmoid(logits)


def flip_logit(rate: float) -> float:
    """The inverse of :func:`flip_rates`."""
    return math.log(rate / (FLIP_CAP - rate))


class TimeWarpIdealPoint(torch.nn.Module):
    """Scores of series by their elastic distance from a learned ideal series; also on top of other networks.

    Args:
        n_channels: numbers a point.
        length: points of the ideal series.
        metric: of ``METRICS``.
        nu, lam, window, smoothing: of the distance.
        gamma: temperature of soft metrics.
        sign: ``"nearest"``: near is good; ``"farthest"``: far is good.
        generator: from which the first ideal series is drawn.

    Raises:
        ValueError: sizes below 1 or unknown options.
    """

    def __init__(
        self,
        n_channels: int,
        length: int,
        metric: IdealMetric = "soft_twed",
        *,
        nu: float = 0.01,
        lam: float = 1.0,
        gamma: float = 0.1,
        window: float | int | None = None,
        smoothing: float = 1e-2,
        sign: Sign = "nearest",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if n_channels < 1 or length < 1:
            raise ValueError(f"n_channels={n_channels} and length={length} must be at least 1")
        if sign not in ("nearest", "farthest"):
            raise ValueError(f"sign={sign!r} is neither 'nearest' nor 'farthest'")
        self.distance = Distance(metric, nu, lam, window, smoothing)
        self.gamma, self.sign = gamma, sign
        generator = generator or torch.Generator().manual_seed(0)
        self.ideal = torch.nn.Parameter(0.1 * torch.randn(length, n_channels, generator=generator))
        self.log_scale = torch.nn.Parameter(torch.zeros(()))

    def forward(
        self, x: Float[Tensor, "batch points channels"], lengths: Int[Tensor, " batch"] | None = None
    ) -> Float[Tensor, " batch"]:
        """The score of every series; differentiable by the ideal series alone unless ``x`` wants
        gradients."""
        if lengths is None:
            lengths = torch.full((x.shape[0],), x.shape[1])
        near = self.distance(SeriesSet(x, lengths), self.ideal[None], self.gamma)[0]
        return (-near if self.sign == "nearest" else near) * torch.exp(-self.log_scale)

    def loss(self, scores: Float[Tensor, " items"], answers: Comparisons) -> Float[Tensor, ""]:
        """The mean of -log sigmoid(score of the winner - score of the loser)."""
        return answer_loss(-scores, answers, torch.ones_like(scores[0]), None)


def device_of(device: Any) -> torch.device:
    """The device asked for, or the CPU."""
    return torch.device("cpu" if device is None else device)
