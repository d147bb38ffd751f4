"""Do chains agree, and how much are they worth: split R-hat, autocorrelation time, effective sample size.

Vehtari, Gelman, Simpson, Carpenter and Bürkner, Rank-normalization, folding, and localization: an improved
R-hat, Bayesian Analysis 16 (2021) 667-718; split R-hat and the effective size are theirs without the ranks.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

AGREE = 1.05  # R-hat above which chains are reported as stuck


class Diagnosis(NamedTuple):
    """Of one observable over chains.

    Attributes:
        rhat: 1 where chains agree.
        autocorrelation_time: recorded draws between two independent ones.
        ess: effective number of draws of all chains together.
    """

    rhat: float
    autocorrelation_time: float
    ess: float


def diagnose(draws: Float64[ndarray, "draws chains"]) -> Diagnosis:
    """R-hat of half chains, Geyer's initial monotone sum of autocorrelations, and the effective sample size.

    A constant observable has R-hat 1 and time 1; chains that are constant, each at another value, have R-hat
    infinity.

    Raises:
        ValueError: fewer than four draws, or none.
    """
    if draws.ndim != 2 or draws.shape[0] < 4 or draws.shape[1] < 1:
        raise ValueError(f"draws have shape {list(draws.shape)}; expected four or more of one chain or more")
    half = draws.shape[0] // 2
    split = np.concatenate([draws[:half], draws[-half:]], axis=1)
    n, m = split.shape
    within = split.var(axis=0, ddof=1).mean()
    between = n * split.mean(axis=0).var(ddof=1)
    total = draws.size
    if within <= 1e-300:
        return Diagnosis(1.0, 1.0, float(total)) if between <= 1e-300 else Diagnosis(np.inf, np.inf, 1.0)
    pooled = (n - 1) / n * within + between / n
    rhat = float(np.sqrt(pooled / within))
    centred = split - split.mean(axis=0)
    size = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(centred, size, axis=0)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, size, axis=0)[:n].mean(axis=1) / n
    rho = 1 - (within - covariance * n / (n - 1)) / pooled
    rho[0] = 1.0
    tau, last = -1.0, np.inf
    for t in range(0, n - 1, 2):
        pair = rho[t] + rho[t + 1]
        if pair < 0:
            break
        last = min(last, pair)
        tau += 2 * last
    tau = max(tau, 1 / np.log10(max(total, 10)))
    return Diagnosis(rhat, float(tau), float(n * m / tau))
