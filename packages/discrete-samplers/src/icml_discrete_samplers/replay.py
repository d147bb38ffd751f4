"""The replay buffer of terminal states, drawn by their importance weights."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

Priority = Literal["iw", "uniform", "density"]
POOR = 0.01  # effective share of the buffer below which weights are taken to have collapsed
EVEN = 0.1  # share that is then drawn evenly


class ReplayBuffer:
    """States in a ring, with log rho and the log_rnd of the path that found them.

    Priorities are softmax(log_rnd + (beta - 1) log rho) in double precision: the importance weights of the
    sampler that found the states, at the current temperature. The network's part is as old as the entry (the
    paper's choice); temperature costs nothing to renew.

    Args:
        capacity: most states; the oldest make room.
        D: sites.
        device: where states lie.

    Raises:
        ValueError: a capacity that is not positive.
    """

    def __init__(self, capacity: int, D: int, device: str | torch.device = "cpu") -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} must be positive")
        self.capacity, self.at, self.size = capacity, 0, 0
        self.x = torch.zeros(capacity, D, dtype=torch.int64, device=device)
        self.log_rho = torch.zeros(capacity, dtype=torch.float64, device=device)
        self.log_rnd = torch.full((capacity,), torch.nan, dtype=torch.float64, device=device)
        self._warned = False

    def __len__(self) -> int:
        return self.size

    def add(
        self,
        x: Int64[Tensor, "n D"],
        log_rho: Float64[Tensor, " n"],
        log_rnd: Float64[Tensor, " n"] | None = None,
    ) -> None:
        """Copy states in; without ``log_rnd`` they can be drawn evenly or by density alone."""
        x, log_rho = x[-self.capacity :], log_rho[-self.capacity :]
        places = (self.at + torch.arange(len(x), device=self.x.device)) % self.capacity
        self.x[places] = x
        self.log_rho[places] = log_rho.double()
        self.log_rnd[places] = torch.nan if log_rnd is None else log_rnd[-self.capacity :].detach().double()
        self.at = (self.at + len(x)) % self.capacity
        self.size = min(self.capacity, self.size + len(x))

    def chances(self, priority: Priority, beta: float = 1.0) -> Float64[Tensor, " size"]:
        """The probability of each entry.

        Raises:
            RuntimeError: the buffer is empty, or holds no state of positive density.
            ValueError: importance weights are asked for entries that have none.
        """
        if self.size == 0:
            raise RuntimeError("the replay buffer is empty; add states before drawing from it")
        log_rho = self.log_rho[: self.size]
        possible = log_rho > -torch.inf
        if priority == "uniform":
            return possible.double() / self._count(possible)
        weights = log_rho
        if priority == "iw":
            log_rnd = self.log_rnd[: self.size]
            if bool(torch.isnan(log_rnd).any()):
                raise ValueError(
                    "importance-weighted replay needs log_rnd of every entry; add(x, log_rho, "
                    "log_rnd), or draw with "
                    "priority='uniform'"
                )
            weights = log_rnd + (beta - 1.0) * torch.where(possible, log_rho, 0.0)
        self._count(possible)
        chances = torch.where(possible, weights, -torch.inf).softmax(0)
        if 1.0 / float(chances.square().sum()) < POOR * self.size:
            if not self._warned:
                warnings.warn(
                    f"the weights of the replay buffer have collapsed (effective size below {POOR:.0%}); "
                    f"{EVEN:.0%} of each draw is even",
                    RuntimeWarning,
                    stacklevel=2,
                )
                self._warned = True
            chances = (1 - EVEN) * chances + EVEN * possible.double() / possible.sum()
        return chances

    def _count(self, possible: Tensor) -> Tensor:
        count = possible.sum()
        if int(count) == 0:
            raise RuntimeError("no feasible state found; pass initial states with initial=")
        return count

    def sample(
        self, n: int, generator: torch.Generator, *, priority: Priority = "uniform", beta: float = 1.0
    ) -> Int64[Tensor, "n D"]:
        """Copies of n states, with replacement.

        Raises:
            RuntimeError, ValueError: as :meth:`chances`.
        """
        chosen = torch.multinomial(self.chances(priority, beta), n, replacement=True, generator=generator)
        return self.x[chosen].clone()

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        kept = slice(0, self.size)
        return {
            "x": self.x[kept].clone(),
            "log_rho": self.log_rho[kept].clone(),
            "log_rnd": self.log_rnd[kept].clone(),
            "at": self.at,
            "size": self.size,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.at, self.size = state["at"], state["size"]
        for name in ("x", "log_rho", "log_rnd"):
            getattr(self, name)[: self.size] = state[name]
