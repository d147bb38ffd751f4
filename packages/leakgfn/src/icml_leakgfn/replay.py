"""Trajectories kept for later: the best ones so far, never changed after they were stored."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import numpy as np
import torch

from icml_leakgfn.rollout import Trajectories


class ReplayBuffer:
    """Trajectories with a priority, the log reward of their object; the least ones make room.

    What is stored is a copy that cannot be written to, and what is drawn is a copy too.

    Args:
        capacity: most trajectories.
        temperature: chances are proportional to exp(rank / (temperature * size)), so that no scale of rewards
            matters; large values draw evenly.

    Raises:
        ValueError: a capacity or temperature that is not positive.
    """

    def __init__(self, capacity: int = 1000, *, temperature: float = 0.5) -> None:
        if capacity < 1 or not temperature > 0:
            raise ValueError(f"capacity={capacity} and temperature={temperature} must be positive")
        self.capacity, self.temperature = capacity, temperature
        self.entries: list[Trajectories] = []
        self.priorities: list[float] = []
        self._known: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.entries)

    def add(self, trajectories: Trajectories, log_reward: np.ndarray) -> None:
        """Keep trajectories that ended in an object; the same way to the same object is kept once."""
        for number in np.flatnonzero(np.isfinite(log_reward)):
            one = trajectories.select(np.array([number]))
            name = _way(one)
            if name in self._known:
                continue
            if len(self) >= self.capacity:
                worst = int(np.argmin(self.priorities))
                if self.priorities[worst] >= log_reward[number]:
                    continue
                self._known.discard(_way(self.entries[worst]))
                del self.entries[worst], self.priorities[worst]
            for array in vars(one).values():
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)
            self.entries.append(one)
            self.priorities.append(float(log_reward[number]))
            self._known.add(name)

    def draw(self, n: int, generator: torch.Generator) -> Trajectories | None:
        """``n`` of them, better ones more often; None while it is empty."""
        if not self.entries or n < 1:
            return None
        rank = torch.tensor(np.argsort(np.argsort(self.priorities, kind="stable"), kind="stable"))
        chances = torch.softmax(rank.double() / (self.temperature * len(self)), dim=0)
        chosen = torch.multinomial(chances, n, replacement=True, generator=generator)
        return Trajectories.join([self.entries[k] for k in chosen.tolist()])

    def digests(self) -> list[str]:
        """A fingerprint of every entry."""
        return [digest(entry) for entry in self.entries]

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        packed = []
        for entry in self.entries:
            fields = {
                k: torch.from_numpy(np.array(v)) for k, v in vars(entry).items() if isinstance(v, np.ndarray)
            }
            packed.append(fields | {"condition": entry.condition})
        return {"entries": packed, "priorities": list(self.priorities)}

    def load(self, state: dict[str, Any]) -> None:
        """Take up what :meth:`state` gave."""
        self.entries, self.priorities, self._known = [], list(state["priorities"]), set()
        for packed in state["entries"]:
            fields = {
                k: (v if k == "condition" or v is None else v.numpy().copy()) for k, v in packed.items()
            }
            entry = Trajectories(**fields)
            for array in vars(entry).values():
                if isinstance(array, np.ndarray):
                    array.setflags(write=False)
            self.entries.append(entry)
            self._known.add(_way(entry))


def _hashed(arrays: Iterable[np.ndarray], condition: torch.Tensor | None) -> Any:
    found = sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    if condition is not None:
        found.update(condition.numpy().tobytes())
    return found


def _way(one: Trajectories) -> bytes:
    """What makes a trajectory another one; how likely it was when it was drawn does not."""
    return _hashed((one.states, one.action, one.done, one.budget), one.condition).digest()


def digest(one: Trajectories) -> str:
    """A fingerprint of everything that trajectories hold."""
    arrays = (value for value in vars(one).values() if isinstance(value, np.ndarray))
    return _hashed(arrays, one.condition).hexdigest()
