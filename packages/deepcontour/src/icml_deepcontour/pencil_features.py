"""What a predictor can read off any Hermitian pencil that has no fields: 64 numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

from icml_deepcontour.factorization import Factorizer
from icml_deepcontour.inertia import definiteness, of_factor
from icml_deepcontour.pencil import Pencil

N_FEATURES = 64
MOMENTS, PROBES = 8, 8


def spectral_features(A: Any, B: Any = None, *, seed: int = 0) -> Float[np.ndarray, " 64"]:
    """Features of the spectrum of A x = lambda B x.

    24 quantiles of log |A_ii / B_ii|, 16 of the Gershgorin radii over the diagonal, both Gershgorin bounds, 8
    stochastic Chebyshev moments of the scaled D_B^(-1/2) A D_B^(-1/2) from 8 probes with their spreads,
    inertia
    at 0 and at the median of A_ii / B_ii, and sizes.

    Args:
        A: Hermitian.
        B: positive semi-definite, or None.
        seed: of the probes.

    Raises:
        ValueError: as for `certify`.
    """
    pencil = Pencil.of(A, B, require_hermitian=True)
    used = np.maximum(pencil.b_diagonal, 1e-12 * pencil.b_typical)
    ratio = pencil.A.diagonal().real / used
    radius = (np.asarray(abs(pencil.A).sum(axis=0)).ravel() - np.abs(pencil.A.diagonal())) / used
    low, high = float((ratio - radius).min()), float((ratio + radius).max())
    scale = max(abs(low), abs(high), 1e-300)
    logs = np.log(np.maximum(np.abs(ratio), 1e-12 * scale))
    parts = [np.quantile(logs, np.linspace(0, 1, 24))]
    parts.append(np.quantile(radius / np.maximum(np.abs(ratio), 1e-12 * scale), np.linspace(0, 1, 16)))
    parts.append(np.array([np.arcsinh(low), np.arcsinh(high)]))
    parts.append(_moments(pencil, used, low, high, seed))
    factors = Factorizer(pencil)
    kind = definiteness(pencil, factors)
    shifts = (-1e-9 * scale, float(np.median(ratio)))
    parts.append(np.array([of_factor(factors(s), kind).n / pencil.n for s in shifts]))
    parts.append(
        np.array([np.log(pencil.n), pencil.A.nnz / pencil.n, np.log(scale), float(ratio.mean()) / scale])
    )
    return np.concatenate(parts)


def _moments(pencil: Pencil, used: np.ndarray, low: float, high: float, seed: int) -> np.ndarray:
    """Means and standard deviations over probes of v^T T_k(A') v / n for k = 1 to 8."""
    rng = np.random.default_rng(seed)
    v = rng.choice([-1.0, 1.0], size=(pencil.n, PROBES))
    root = 1 / np.sqrt(used)[:, None]
    middle, half = (high + low) / 2, max((high - low) / 2, 1e-300)

    def apply(x: np.ndarray) -> np.ndarray:
        return (root * pencil.times_a(root * x) - middle * x) / half

    before, now = v, apply(v)
    found = []
    for _ in range(MOMENTS):
        found.append((v * now.real).sum(axis=0) / pencil.n)
        before, now = now, 2 * apply(now) - before
    each = np.array(found)
    return np.concatenate([each.mean(axis=1), each.std(axis=1)])
