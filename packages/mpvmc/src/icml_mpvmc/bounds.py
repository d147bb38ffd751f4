"""How much a perturbed log-density can bias a Markov chain: the bounds of arXiv 2601.20782, in closed form.

The exact log-density is log π, the low-precision one log π + δ(x). δ is a fixed function of x, over x nearly
Gaussian with standard deviation σ. Its mean is irrelevant. ε = δ(y) - δ(x) is what a proposal x → y sees.
"""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from scipy.special import erfc, erfcx

Array = Float[np.ndarray, " ..."]


def pointwise(s: float | Array, epsilon: float | Array) -> Array:
    """|α̃ - α| of one proposal is at most min(1 - exp(-|ε|), s |1 - exp(ε)|).

    Args:
        s: π(y) q(x|y) / (π(x) q(y|x)); the exact acceptance is α = min(1, s).
        epsilon: δ(y) - δ(x).
    """
    s, epsilon = np.asarray(s, dtype=float), np.asarray(epsilon, dtype=float)
    with np.errstate(over="ignore", invalid="ignore"):
        linear = np.where(s == 0.0, 0.0, s * np.abs(np.expm1(epsilon)))
    return np.minimum(-np.expm1(-np.abs(epsilon)), linear)


def worst_case(delta: float) -> float:
    """|α̃ - α| ≤ 1 - exp(-2Δ) where |δ| ≤ Δ everywhere.

    Raises:
        ValueError: Δ < 0.
    """
    if not delta >= 0:
        raise ValueError(f"delta={delta}; expected a bound on |δ|, 0 or more")
    return -math.expm1(-2.0 * delta)


def acceptance(sigma: float, mu: float = 0.0) -> float:
    """E|α̃ - α| ≤ 1 - ½ (e^{σ²-μ} erfc(σ - μ/2σ) + e^{σ²+μ} erfc(σ + μ/2σ)) for ε ~ N(μ, 2σ²).

    Without a drift μ that is 1 - exp(σ²) erfc(σ). Both are E[1 - exp(-|ε|)], which Gaussian, independent δ
    give; neighbouring states have correlated δ, so that real chains lie below.

    Args:
        sigma: standard deviation of δ.
        mu: mean of ε.

    Raises:
        ValueError: σ < 0 or not a number.

    Example:
        >>> round(acceptance(0.1), 4)
        0.1035
    """
    if not sigma >= 0 or math.isnan(mu):
        raise ValueError(f"sigma={sigma}, mu={mu}; expected sigma >= 0 and numbers")
    if sigma == 0:
        return -math.expm1(-abs(mu))
    if sigma == math.inf:
        return 1.0
    kept = 0.0
    for drift in (mu, -mu):
        argument = sigma - drift / (2 * sigma)
        if argument > 0:  # erfcx(z) = exp(z²) erfc(z) does not overflow there
            kept += math.exp(-((mu / (2 * sigma)) ** 2)) * float(erfcx(argument))
        else:
            kept += math.exp(sigma**2 - drift) * float(erfc(argument))
    return min(1.0, max(0.0, 1.0 - 0.5 * kept))


def kl(sigma: float, f_max: float = 1.0) -> float:
    """|E_π f - E_π̃ f| ≤ ‖f‖∞ √(2 KL(π‖π̃)) ≈ ‖f‖∞ σ, by Pinsker's inequality and KL ≈ σ²/2.

    Args:
        sigma: standard deviation of δ under π.
        f_max: largest |f|; f may be centred first.
    """
    _check(sigma=sigma, f_max=f_max)
    return f_max * sigma


def mcmc(sigma: float, f_max: float = 1.0, r: float = 0.0) -> float:
    """|E_π f - E_π̃ f| ≤ 2 ‖f‖∞ (1 - exp(σ²) erfc(σ)) / (1 - r).

    Args:
        sigma: standard deviation of δ under π.
        f_max: largest |f|.
        r: rate of geometric ergodicity of the exact chain, 0 ≤ r < 1.

    Raises:
        ValueError: r outside [0, 1).
    """
    _check(sigma=sigma, f_max=f_max)
    if not 0 <= r < 1:
        raise ValueError(f"r={r}; the rate of geometric ergodicity lies in [0, 1)")
    return 2.0 * f_max * acceptance(sigma) / (1.0 - r)


def bias(sigma: float, f_max: float = 1.0, r: float | None = None) -> float:
    """The smaller of the bounds that apply; the Markov-chain bound needs the rate r.

    No average of f moves by more than 2 ‖f‖∞, whatever σ.
    """
    least = min(kl(sigma, f_max), 2.0 * f_max)
    return least if r is None else min(least, mcmc(sigma, f_max, r))


def required_sigma(tol: float, f_max: float = 1.0, r: float | None = None) -> float:
    """The largest σ for which ``bias`` is at most ``tol``.

    Raises:
        ValueError: a tolerance that is not positive.
    """
    if not tol > 0:
        raise ValueError(f"tol={tol}; expected a positive tolerance")
    _check(f_max=f_max)
    if f_max == 0 or tol >= 2.0 * f_max:
        return math.inf
    found = tol / f_max
    if r is None or mcmc(found, f_max, r) > tol:
        return found
    from scipy.optimize import brentq

    # The acceptance bound saturates at 1; beyond that no σ helps.
    if 2.0 * f_max / (1.0 - r) <= tol:
        return math.inf
    high = found
    while mcmc(high, f_max, r) <= tol:
        high *= 2.0
    return float(brentq(lambda sigma: mcmc(sigma, f_max, r) - tol, found, high))


def reweighting_ess(sigma: float) -> float:
    """Share of effective samples after reweighting, exp(-σ²) for Gaussian δ."""
    _check(sigma=sigma)
    return math.exp(-(sigma**2))


def delayed_acceptance(sigma: float) -> float:
    """erfc(σ/2) = 1 - σ/√π + …: how many blocks the correction accepts where their ends are independent.

    Under π δ is N(0, σ²), under π̃ it is N(σ², σ²): the exponent δ(x) - δ(y) is N(-σ², 2σ²). Correlated ends
    are accepted more often.
    """
    _check(sigma=sigma)
    return float(erfc(sigma / 2.0))


def distances(log_p: Array, delta: Array) -> tuple[float, float]:
    """Total variation and KL(π‖π̃) of π̃ ∝ π exp(δ), from log π (up to a constant) and δ of all states.

    With d = δ - E_π δ they are KL = log(1 + E_π[exp(d) - 1]) and TV = ½ E_π|exp(d - KL) - 1|, which keep
    their digits where δ is as small as rounding in float32; differences of logarithms do not.

    Example:
        >>> distances(np.zeros(2), np.array([0.0, 1e-9]))[1]
        1.25e-19
    """
    log_p, delta = np.asarray(log_p, dtype=float), np.asarray(delta, dtype=float)
    inside = log_p > -np.inf
    p = np.exp(log_p[inside] - log_p[inside].max())
    p /= p.sum()
    d = delta[inside]
    there = np.isfinite(d)
    d = d - float((p[there] * d[there]).sum() / p[there].sum())
    if not there.all():  # a state of π that π̃ does not have
        q = np.where(there, p * np.exp(np.where(there, d, 0.0)), 0.0)
        return float(np.abs(p - q / q.sum()).sum() / 2), math.inf
    divergence = max(0.0, math.log1p(float((p * np.expm1(d)).sum())))
    return float((p * np.abs(np.expm1(d - divergence))).sum() / 2), divergence


def _check(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{name}={value}; expected 0 or more")
