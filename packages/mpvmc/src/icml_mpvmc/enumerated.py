"""Independent samples of |ψ|² for small systems, from the list of all states."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from icml_mpvmc.hamiltonian import Sector, enumerate_spins
from icml_mpvmc.lowered import LogDensity
from icml_mpvmc.samples import Samples


class EnumeratedSampler:
    """Draws states by their probabilities, which are normalised in float64 whatever the precision of log ψ.

    Args:
        model: gives log ψ.
        n_spins: up to 20.
        dtype: precision of log ψ.
        sectors: groups of spins whose sums are fixed.
        upcast: keep sums in float32 in low precision.
        seed: of the samples.

    Raises:
        ValueError: more than 20 spins.
    """

    def __init__(
        self,
        model: nn.Module,
        n_spins: int,
        dtype: str = "f64",
        *,
        sectors: Sequence[Sector] = (),
        upcast: bool = True,
        seed: int = 0,
    ) -> None:
        self.states = enumerate_spins(n_spins, sectors)
        self.n_spins, self.sectors = n_spins, tuple(sectors)
        self._low = LogDensity(model, dtype, upcast=upcast)
        self._exact = LogDensity(model, "f64")
        self._generator = torch.Generator().manual_seed(seed)

    def sample(self, n: int, *, seed: int | None = None) -> Samples:
        """``n`` independent states.

        Args:
            n: how many.
            seed: start the stream anew.
        """
        if n < 0:
            raise ValueError(f"n={n} is negative")
        if seed is not None:
            self._generator = torch.Generator().manual_seed(seed)
        self._low.refresh()
        self._exact.refresh()
        low, log_p = self._low(self.states).double(), self._exact(self.states)
        cumulative = torch.softmax(low, 0).cumsum(0)
        draws = torch.rand(n, generator=self._generator, dtype=torch.float64) * cumulative[-1]
        chosen = torch.searchsorted(cumulative, draws).clamp(max=len(cumulative) - 1)
        delta = (low - log_p)[chosen]
        delta = delta - delta.mean() if n else delta
        return Samples(self.states[chosen], log_p[chosen], delta, None, 1.0, max(1, n), self._low.dtype)
