"""Small worlds that can be enumerated: words of brackets, and a grid on which ends are forbidden."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.environments import World

_OPEN, _CLOSE = 1, 2


class BracketEnv(World):
    """Words of brackets, written from left to right: finished where balanced. The states form a tree.

    Up to length 8 there are 22 finished words and 56 words that are cut off.

    Args:
        max_length: L_max.
        horizon: how long words get in the full space that the chemical flow knows.

    Raises:
        ValueError: lengths that contradict each other.
    """

    def __init__(self, max_length: int = 8, *, horizon: int | None = None) -> None:
        self._set_lengths(max_length, horizon, "leak")
        self.n_actions = 3
        self.start = np.zeros(self.horizon, dtype=np.int16)

    def length(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Brackets written."""
        return (states > 0).sum(axis=1)

    def height(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Brackets that are open."""
        return (states == _OPEN).sum(axis=1) - (states == _CLOSE).sum(axis=1)

    def mask(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, "n 3"]:
        """Open always, close where one is open, stop where the word is balanced and not empty."""
        height = self.height(states)
        balanced = (height == 0) & (self.length(states) > 0)
        return np.stack([np.ones(len(states), dtype=bool), height > 0, balanced], axis=1)

    def apply(self, states: Int[ndarray, "n width"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n width"]:
        """Write a bracket."""
        after = states.copy()
        after[np.arange(len(states)), self.length(states)] = np.where(actions == 0, _OPEN, _CLOSE)
        return after

    def parents(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "edges width"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
        """Every word but the empty one has one: without its last bracket."""
        index = np.flatnonzero(self.length(states) > 0)
        before = states[index].copy()
        last = self.length(before) - 1
        rows = np.arange(len(index))
        actions = np.where(before[rows, last] == _OPEN, 0, 1)
        before[rows, last] = 0
        return before, actions, index

    def may_finish(
        self, states: Int[ndarray, "n width"], remaining: Int[ndarray, " n"]
    ) -> Bool[ndarray, "n 2"]:
        """What is open after the action can be closed with what is left."""
        height = self.height(states)
        return np.stack([height + 1 <= remaining - 1, height - 1 <= remaining - 1], axis=1)

    def min_steps_to_finish(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Closing what is open; two brackets for the empty word."""
        return np.where(self.length(states) == 0, 2, self.height(states))

    def features(self, states: Int[ndarray, "n width"]) -> dict[str, Tensor]:
        """One-hot brackets by position, one-hot height and length."""
        rows = torch.from_numpy(states.astype(np.int64))
        spots = torch.nn.functional.one_hot(rows, 3)[:, :, 1:].flatten(1)
        sizes = [torch.from_numpy(v.astype(np.int64)) for v in (self.height(states), self.length(states))]
        counts = [torch.nn.functional.one_hot(v, self.horizon + 1) for v in sizes]
        return {"vector": torch.cat([spots, *counts], dim=1).float()}

    @property
    def width(self) -> int:
        """Length of the vector of features."""
        return 2 * self.horizon + 2 * (self.horizon + 1)

    def decode(self, states: Int[ndarray, "n width"]) -> list[str]:
        """The words."""
        return ["".join(" ()"[v] for v in row if v) for row in states.tolist()]


def bracket_reward(words: list[str]) -> Tensor:
    """(1 + number of "()")^2 / (1 + length / 4): between 4/3 and 25/3 up to length 8, in all 87.63."""
    return torch.tensor([(1 + w.count("()")) ** 2 / (1 + len(w) / 4) for w in words], dtype=torch.float64)


bracket_reward.vectorised = True  # type: ignore[attr-defined]


class HyperGridEnv(World):
    """Walks on a grid from the origin, one step up at a time; some cells are forbidden ends.

    Args:
        height: cells along each axis.
        ndim: axes.
        forbidden: share of cells at which an object cannot be finished, drawn by ``seed``.
        max_length: L_max; by default half of the longest walk.
        seed: of the forbidden cells.

    Raises:
        ValueError: sizes below 2, a share outside 0 to 1, or forbidden cells alone within max_length.
    """

    def __init__(
        self,
        height: int = 8,
        ndim: int = 3,
        *,
        forbidden: float = 0.3,
        max_length: int | None = None,
        seed: int = 0,
    ) -> None:
        if height < 2 or ndim < 1:
            raise ValueError(f"height={height} and ndim={ndim}; expected at least 2 and 1")
        if not 0 <= forbidden < 1:
            raise ValueError(f"forbidden={forbidden} must lie in 0 to 1, without 1")
        longest = ndim * (height - 1)
        self._set_lengths(max(1, longest // 2) if max_length is None else max_length, longest, "leak")
        self.height, self.ndim, self.seed = height, ndim, seed
        self.forbidden = np.random.default_rng(seed).random((height,) * ndim) < forbidden
        away = np.indices(self.forbidden.shape).sum(axis=0)[~self.forbidden]
        if away.min(initial=longest + 1) > self.max_length:
            nearest = f"the nearest other is {int(away.min())} steps away" if len(away) else "so are all"
            raise ValueError(f"all cells within max_length={self.max_length} are forbidden; {nearest}")
        self.n_actions = ndim + 1
        self.start = np.zeros(ndim, dtype=np.int16)

    def length(self, states: Int[ndarray, "n ndim"]) -> Int[ndarray, " n"]:
        """Steps from the origin."""
        return states.sum(axis=1, dtype=np.int64)

    def mask(self, states: Int[ndarray, "n ndim"]) -> Bool[ndarray, "n actions"]:
        """Up where there is room; stop where the cell is not forbidden."""
        allowed = ~self.forbidden[tuple(states.T)]
        return np.column_stack([states < self.height - 1, allowed])

    def apply(self, states: Int[ndarray, "n ndim"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n ndim"]:
        """One step up."""
        after = states.copy()
        after[np.arange(len(states)), actions] += 1
        return after

    def parents(
        self, states: Int[ndarray, "n ndim"]
    ) -> tuple[Int[ndarray, "edges ndim"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
        """One step down along each axis."""
        index, axis = np.nonzero(states > 0)
        before = states[index].copy()
        before[np.arange(len(index)), axis] -= 1
        return before, axis, index

    def features(self, states: Int[ndarray, "n ndim"]) -> dict[str, Tensor]:
        """One-hot coordinates."""
        rows = torch.from_numpy(states.astype(np.int64))
        return {"vector": torch.nn.functional.one_hot(rows, self.height).flatten(1).float()}

    @property
    def width(self) -> int:
        """Length of the vector of features."""
        return self.height * self.ndim

    def decode(self, states: Int[ndarray, "n ndim"]) -> list[tuple[int, ...]]:
        """The coordinates."""
        return [tuple(row) for row in states.tolist()]

    def signature(self) -> dict[str, Any]:
        """With the forbidden cells."""
        return super().signature() | {
            "height": self.height,
            "ndim": self.ndim,
            "forbidden": np.flatnonzero(self.forbidden).tolist(),
        }


class HyperGridReward:
    """R0 + R1 [all |x/(H-1) - 1/2| in (0.25, 0.5]] + R2 [all in (0.3, 0.4)] (Bengio et al. 2021).

    Args:
        height: cells along each axis.
        base: R0.
        outer: R1.
        ring: R2.
    """

    vectorised = True

    def __init__(self, height: int = 8, *, base: float = 0.1, outer: float = 0.5, ring: float = 2.0) -> None:
        self.height, self.base, self.outer, self.ring = height, base, outer, ring

    def __call__(self, cells: list[tuple[int, ...]]) -> Tensor:
        """The reward of each cell."""
        away = (torch.tensor(cells, dtype=torch.float64) / (self.height - 1) - 0.5).abs()
        outer = ((away > 0.25) & (away <= 0.5)).all(dim=1)
        ring = ((away > 0.3) & (away < 0.4)).all(dim=1)
        return self.base + self.outer * outer + self.ring * ring
