"""Replica exchange: replicas at neighbouring temperatures swap their configurations now and then.

Neighbours a and b swap with probability ``min(1, exp((beta_a - beta_b) (E_a - E_b)))``, beta = 1/kT, which
keeps the canonical distribution at every temperature (Sugita and Okamoto, Chem. Phys. Lett. 1999, 314, 141).
Velocities go along, times ``sqrt(T_new / T_old)``. Even and odd pairs of neighbours take turns.

A slot keeps its temperature; what moves between slots is the configuration, called a walker.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels.molecules.langevin_baoab import philox_normal
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_flashschnet.integrators import State
from icml_flashschnet.simulation import LangevinSimulator
from icml_flashschnet.simulation_checkpoint import load_checkpoint
from icml_flashschnet.structure import Molecule
from icml_flashschnet.units import BOLTZMANN

EXCHANGE_STREAM = 2
"""Stream of the random numbers that decide swaps; 0 is the noise of the steps, 1 the initial velocities."""


@dataclass(frozen=True)
class ExchangeStatistics:
    """Swaps between the neighbours i and i + 1 of the ladder of temperatures.

    Attributes:
        temperatures: of the slots, K.
        attempts: for each pair of neighbours.
        accepted: of these.
        walkers: number of the walker that stands in each slot now.
    """

    temperatures: tuple[float, ...]
    attempts: tuple[int, ...]
    accepted: tuple[int, ...]
    walkers: tuple[int, ...]

    @property
    def acceptance(self) -> tuple[float, ...]:
        """Share of the attempts that were accepted; NaN where there was none."""
        return tuple(a / n if n else float("nan") for a, n in zip(self.accepted, self.attempts, strict=True))


def swap_probability(
    energy: Float[Tensor, " slots"], temperature: Float[Tensor, " slots"]
) -> Float[Tensor, " slots_1"]:
    """Probability that slots i and i + 1 swap.

    Args:
        energy: of the configuration in each slot, kcal/mol.
        temperature: of each slot, K.
    """
    beta = 1.0 / (BOLTZMANN * temperature.double())
    energy = energy.double()
    return torch.exp(((beta[:-1] - beta[1:]) * (energy[:-1] - energy[1:])).clamp(max=0.0))


class ReplicaExchangeSimulator(LangevinSimulator):
    """Langevin dynamics of one replica at each of several temperatures, which swap configurations.

    Swaps are decided by random numbers keyed by (seed, pair, step): a run that was cut into pieces, or
    resumed, is the uninterrupted one. Frozen replicas take no part.

    Args:
        model: as for `LangevinSimulator`.
        molecule: as for `LangevinSimulator`.
        temperatures: K, rising or falling, at least two; neighbours swap.
        exchange_every: steps between attempts.
        options: further ones of `LangevinSimulator`.

    Raises:
        ValueError: fewer than two temperatures, temperatures that do not rise or fall strictly, an interval
            below 1, or an integrator without a temperature.

    Example:
        >>> from icml_flashschnet import CGPrior, demo_prior, example_structure, read_pdb
        >>> molecule = read_pdb(example_structure("1ejg"))
        >>> prior = CGPrior(molecule, demo_prior())
        >>> simulator = ReplicaExchangeSimulator(prior, molecule, (300.0, 320.0), exchange_every=5)
        >>> simulator.run(steps=20).pos.shape[0], simulator.statistics.attempts
        (2, (2,))
    """

    def __init__(
        self,
        model: Any,
        molecule: Molecule,
        temperatures: Sequence[float],
        exchange_every: int = 100,
        **options: Any,
    ) -> None:
        ladder = np.asarray(temperatures, dtype=np.float64)
        steps = np.diff(ladder)
        if ladder.ndim != 1 or len(ladder) < 2 or not ((steps > 0).all() or (steps < 0).all()):
            raise ValueError(
                f"temperatures must be at least two numbers that rise or fall, got {list(temperatures)}"
            )
        if exchange_every < 1:
            raise ValueError(f"exchange_every must be at least 1, got {exchange_every}")
        if options.get("integrator", "baoab") == "nve":
            raise ValueError("replica exchange needs a thermostat; integrator 'nve' has none")
        self.exchange_every = exchange_every
        self._attempts = torch.zeros(len(ladder) - 1, dtype=torch.int64)
        self._accepted = torch.zeros(len(ladder) - 1, dtype=torch.int64)
        self._walkers = torch.arange(len(ladder))
        super().__init__(model, molecule, len(ladder), tuple(ladder.tolist()), **options)

    @property
    def statistics(self) -> ExchangeStatistics:
        """Swaps so far."""
        return ExchangeStatistics(
            tuple(self.temperatures(0).tolist()),
            tuple(self._attempts.tolist()),
            tuple(self._accepted.tolist()),
            tuple(self._walkers.tolist()),
        )

    @property
    def config(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        return super().config | {"exchange_every": self.exchange_every}

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state from a checkpoint; see `LangevinSimulator.restore`."""
        super().restore(path)
        arrays = load_checkpoint(Path(path)).arrays
        self._attempts, self._accepted, self._walkers = (
            torch.as_tensor(arrays[name]) for name in ("attempts", "accepted", "walkers")
        )

    def _arrays(self) -> dict[str, Tensor]:
        counts = {"attempts": self._attempts, "accepted": self._accepted, "walkers": self._walkers}
        return super()._arrays() | counts

    def _step(self) -> None:
        super()._step()
        if self.state.step % self.exchange_every == 0:
            self._exchange()

    def _exchange(self) -> None:
        state, temperature = self.state, self.temperatures(self.state.step)
        parity = state.step // self.exchange_every % 2
        tried = torch.arange(self.n_replicas - 1, device=self.device) % 2 == parity
        tried &= ~(state.frozen[:-1] | state.frozen[1:])
        accepted = tried & (
            _uniform(self.motion.seed, state.step, self.n_replicas - 1, self.device)
            < swap_probability(state.energy, temperature)
        )
        self._attempts = self._attempts + tried.cpu()
        self._accepted = self._accepted + accepted.cpu()
        if not bool(accepted.any()):
            return
        order = _swapped(accepted)
        scale = torch.sqrt(temperature / temperature[order])[:, None, None]
        self.state = State(
            state.step,
            state.pos[order],
            state.vel[order] * scale,
            state.force[order],
            state.energy[order],
            state.frozen,
        )
        self._good_pos = self._good_pos[order]
        self._walkers = self._walkers[order.cpu()]
        # The list names beads by slot, and the slots hold other configurations now.
        self._list, self._list_pos = None, None


def _uniform(seed: int, step: int, count: int, device: torch.device) -> Float[Tensor, " pairs"]:
    pairs = torch.arange(count, device=device)
    return torch.special.ndtr(philox_normal(seed, pairs, step, 1, stream=EXCHANGE_STREAM)[:, 0, 0])


def _swapped(accepted: Bool[Tensor, " pairs"]) -> Int[Tensor, " slots"]:
    """Which slot's configuration each slot gets; accepted pairs do not touch each other."""
    order = torch.arange(len(accepted) + 1, device=accepted.device)
    low = accepted.nonzero()[:, 0]
    order[low], order[low + 1] = low + 1, low.clone()
    return order
