"""When a low precision is good enough: the paper's rule, and the escalation that follows from it.

A precision is accepted where the bias that it can cause is hidden by the Monte Carlo error of the same
average,

    bound(σ) · max|f| ≤ 3 √2 · (error of the mean of f),

for f the samples' terms of every component of the gradient. Both sides are centred: a constant in f has no
bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from icml_mpvmc import bounds

EVERY = 20
"""Iterations between two looks."""
ON = 256
"""Samples on which σ is measured."""
ALLOWANCE = 3.0 * math.sqrt(2.0)
LEAST_ESS = 0.5
"""Share of effective samples below which a correction is not worth its variance."""


@dataclass(frozen=True)
class Check:
    """One look at a precision.

    Attributes:
        sigma: σ of δ.
        ratio: largest of bound(σ) max|f| / (3√2 error) over the components; at most 1 is accepted.
        accepted: whether the precision is kept.
        reason: in words.
    """

    sigma: float
    ratio: float
    accepted: bool
    reason: str


def safety_check(
    delta: Float[Tensor, " samples"],
    terms: Float[Tensor, "samples components"],
    *,
    tau: float = 1.0,
    corrected: bool = False,
    r: float | None = None,
) -> Check:
    """Apply the rule to the samples' gradient terms.

    Args:
        delta: log π̃ - log π of the samples.
        terms: f of each sample and component.
        tau: correlation time of the samples.
        corrected: the averages are corrected exactly; then only the loss of effective samples counts.
        r: rate of ergodicity of the chain, where it is known.
    """
    sigma = float(delta[:ON].std()) if len(delta) > 1 else 0.0
    if corrected:
        kept = bounds.reweighting_ess(sigma)
        return Check(
            sigma,
            LEAST_ESS / max(kept, 1e-300),
            kept >= LEAST_ESS,
            f"corrected; {kept:.3f} of the samples count",
        )
    f = terms - terms.mean(0)
    error = f.std(0) * math.sqrt(max(1.0, tau) / len(f))
    largest = f.abs().amax(0)
    moving = error > 0
    if not bool(moving.any()):
        return Check(sigma, 0.0, True, "the gradient has no variance")
    ratio = bounds.bias(sigma, 1.0, r) * float((largest[moving] / error[moving]).max()) / ALLOWANCE
    word = "hidden by" if ratio <= 1 else "above"
    return Check(
        sigma,
        ratio,
        ratio <= 1,
        f"σ = {sigma:.2g}; the largest bias is {word} 3√2 Monte Carlo errors ({ratio:.2f})",
    )


def next_precision(current: str, steps: tuple[str, ...]) -> str | None:
    """The next higher precision, or None at the top."""
    place = steps.index(current) if current in steps else len(steps) - 1
    return steps[place + 1] if place + 1 < len(steps) else None
