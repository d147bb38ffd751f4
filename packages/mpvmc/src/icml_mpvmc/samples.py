"""What a sampler returns: states with their exact log-probabilities, and what low precision did to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int8
from torch import Tensor

from icml_mpvmc.chains import Estimate, estimate, split_r_hat, tau_int


@dataclass
class Samples:
    """States in the order of chains: ``x.view(n_chains, draws, spins)``.

    Attributes:
        x: spins ±1, int8 [n, spins].
        log_p: log π, evaluated again in float64.
        delta: log π̃ - log π up to a constant: what the precision of the chain did to the log-density.
        log_w: logarithms of weights that sum to n, or None where averages need none.
        acceptance: share of proposals that were accepted.
        n_chains: how many chains.
        dtype: precision of the chains.
        block_acceptance: of delayed acceptance, the share of blocks accepted; else 1.
        proposals: proposals made in all chains together, the discarded ones included.
        offset: the constant that was taken from ``delta``; batches share log π̃ - log π = delta + offset.
    """

    x: Int8[Tensor, "n spins"]
    log_p: Float64[Tensor, " n"]
    delta: Float64[Tensor, " n"]
    log_w: Float64[Tensor, " n"] | None
    acceptance: float
    n_chains: int
    dtype: str
    block_acceptance: float = 1.0
    proposals: int = 0
    offset: float = 0.0

    def __len__(self) -> int:
        return len(self.x)

    @property
    def sigma(self) -> float:
        """Standard deviation of δ over the samples, which are those of π up to the weights (0 below two)."""
        return float(self.delta.std()) if len(self) > 1 else 0.0

    @property
    def ess(self) -> float:
        """Share of effective samples that reweighting would leave, or leaves, (Σw)² / (n Σw²)."""
        if len(self) == 0:
            return float("nan")
        w = torch.softmax(-self.delta, 0)
        return float(1.0 / (len(self) * (w * w).sum()))

    @property
    def tau_int(self) -> float:
        """Integrated correlation time of log π, in draws."""
        return tau_int(self._series())

    @property
    def r_hat(self) -> float:
        """Split R̂ of log π."""
        return split_r_hat(self._series())

    @property
    def weights(self) -> Float64[Tensor, " n"]:
        """Weights that sum to one."""
        if self.log_w is None:
            return torch.full_like(self.log_p, 1.0 / max(1, len(self)))
        return torch.softmax(self.log_w, 0)

    def mean(self, values: Tensor | np.ndarray) -> Estimate:
        """The average of a function's values on the samples, weighted where there are weights."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return estimate(array, self.n_chains, None if self.log_w is None else self.log_w.cpu().numpy())

    def _series(self) -> np.ndarray:
        return self.log_p.cpu().numpy().reshape(self.n_chains, -1) if len(self) else np.zeros((0, 0))


def log_weights(delta: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """log w with w ∝ exp(log π - log π̃) = exp(-δ), scaled to sum to n."""
    if len(delta) == 0:
        return delta
    return np.log(len(delta)) - delta - torch.logsumexp(-delta, 0)
