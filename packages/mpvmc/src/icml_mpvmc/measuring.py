"""The energy of a wavefunction on as many samples as one likes: of each batch only sums are kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import nn

from icml_mpvmc.chains import Estimate, tau_int
from icml_mpvmc.hamiltonian import Hamiltonian
from icml_mpvmc.local_energy import local_energies
from icml_mpvmc.metropolis import Metropolis

MANY_CHAINS = 16
"""Chains from which on the error comes from how they spread."""


def measure(
    model: nn.Module,
    H: Hamiltonian,
    sampler: Metropolis,
    n: int,
    *,
    discard: int = 5,
    batch: int = 16384,
    **options: Any,
) -> Estimate:
    """The energy on ``n`` samples, in batches of which only averages are kept: memory does not grow with n.

    Weights of all batches have one reference and are normalised once. The error is the larger of √(variance τ
    / n) and the spread of the chains (of 16 or more); with fewer chains τ is that of the longest batch.

    Args:
        model: whose energy.
        H: the Hamiltonian.
        sampler: of the model.
        n: samples; a multiple of the chains.
        discard: sweeps before the first.
        batch: samples at a time.
        options: of ``local_energies``.

    Returns:
        ``tau`` of many chains is what their spread implies, at least 1; ``r_hat`` is that of the whole
        series. Both are NaN where a chain has too few draws.

    Raises:
        ValueError: n is no multiple of the chains, or is 0.
    """
    if n < 1 or n % sampler.n_chains:
        raise ValueError(f"n={n}; expected a positive multiple of n_chains={sampler.n_chains}")
    per = max(1, batch // sampler.n_chains) * sampler.n_chains
    sums = ChainSums(sampler.n_chains, n // sampler.n_chains)
    done = 0
    while done < n:
        count = min(per, n - done)
        samples = sampler.sample(count, discard if done == 0 else 0)
        energies = local_energies(model, H, samples.x, **options).cpu().numpy()
        log_w = np.zeros(count)
        if samples.log_w is not None:
            log_w = -(samples.delta.cpu().numpy() + samples.offset)
        sums.add(energies, log_w)
        done += count
    return sums.estimate()


class ChainSums:
    """Running sums of weighted values, for each chain of its own.

    Args:
        n_chains: how many chains.
        draws: of each, in all.
    """

    def __init__(self, n_chains: int, draws: int) -> None:
        self.n_chains, self.draws, self._seen = n_chains, draws, 0
        self._reference, self._centre = -math.inf, 0.0 + 0.0j
        self._complex = False
        self._w = np.zeros(n_chains)
        self._we = np.zeros(n_chains, dtype=complex)
        self._ww = self._wee = 0.0
        self._halves = np.zeros((2, 2, n_chains))  # of both halves: sum, and sum of squares
        self._tau: list[float] = []

    def add(self, values: np.ndarray, log_w: np.ndarray) -> None:
        """A batch in the order of chains; logarithms of weights are up to a constant that batches share."""
        e = values.reshape(self.n_chains, -1)
        if not self._seen:
            self._centre = complex(e.mean())
        self._complex |= np.iscomplexobj(e)
        top = float(log_w.max())
        if top > self._reference:
            shrink = math.exp(self._reference - top)
            self._w, self._we = shrink * self._w, shrink * self._we
            self._ww, self._wee = shrink**2 * self._ww, shrink * self._wee
            self._reference = top
        w = np.exp(log_w - self._reference).reshape(self.n_chains, -1)
        off = e - self._centre
        self._w += w.sum(1)
        self._we += (w * off).sum(1)
        self._ww += float((w**2).sum())
        self._wee += float((w * np.abs(off) ** 2).sum())
        self._tau.append(tau_int(np.real(e)))
        place = self._seen + np.arange(e.shape[1])
        half = self.draws // 2
        for k, inside in enumerate((place < half, place >= self.draws - half)):
            part = np.real(off)[:, inside]
            self._halves[k] += np.stack([part.sum(1), (part**2).sum(1)])
        self._seen += e.shape[1]

    def estimate(self) -> Estimate:
        """Mean, error, variance, τ and R̂ of what was added."""
        total = float(self._w.sum())
        off = self._we.sum() / total
        mean = self._centre + off
        variance = max(0.0, self._wee / total - abs(off) ** 2)
        effective = total**2 / self._ww
        longest = max(self._tau, default=math.nan, key=lambda t: -1.0 if math.isnan(t) else t)
        tau = longest
        if self.n_chains >= MANY_CHAINS:
            spread = np.abs(self._we - off * self._w) / total
            between = float((spread**2).sum()) * self.n_chains / (self.n_chains - 1)
            implied = between * effective / variance if variance > 0 else 1.0
            tau = max(1.0, implied)
        error = math.sqrt(variance * (1.0 if math.isnan(tau) else tau) / effective)
        number = mean if self._complex else mean.real
        return Estimate(number, error, variance, tau, self._r_hat())

    def _r_hat(self) -> float:
        """Split R̂, the same as ``chains.split_r_hat`` of the whole series."""
        half = self.draws // 2
        if half < 2:
            return math.nan
        means = (self._halves[:, 0] / half).ravel()
        within = float(((self._halves[:, 1] - self._halves[:, 0] ** 2 / half) / (half - 1)).mean())
        between = half * float(means.var(ddof=1))
        if within <= 0:
            return 1.0 if between == 0 else math.inf
        return math.sqrt((half - 1) / half + between / (half * within))
