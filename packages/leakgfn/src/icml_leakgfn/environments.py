"""What a flow network walks on: states as rows of integers, actions, and three ways to end.

A trajectory ends FINISHED (stop was chosen, or nothing can be added), CUT (the budget is used up, or nothing
can be added, and the object is not finished: the leak) or goes on (INTERIOR). States are equal where their
rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int, Int8
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.stems import row_bytes

INTERIOR, CUT, FINISHED = 0, 1, 2

Truncation: TypeAlias = Literal["leak", "cap"]
TRUNCATIONS: tuple[Truncation, ...] = ("leak", "cap")


@runtime_checkable
class Env(Protocol):
    """An environment: everything by batch, a state a row of integers.

    Attributes:
        n_actions: number of actions; the last one is stop.
        max_length: how many actions an object may take (L_max) where nothing else is said.
        horizon: how long states can get at all; the chemical flow may walk as far.
        truncation: "leak": an object that is cut off is worth nothing; "cap": it is an object of its own.
    """

    n_actions: int
    max_length: int
    horizon: int
    truncation: Truncation

    def reset(self, n: int) -> Int[ndarray, "n width"]:
        """``n`` times the empty object."""

    def mask(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, "n actions"]:
        """Legal actions in the untruncated space; the last column says whether the object may be finished."""

    def apply(self, states: Int[ndarray, "n width"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n width"]:
        """The states after adding actions that are known to be legal."""

    def step(
        self,
        states: Int[ndarray, "n width"],
        actions: Int[ndarray, " n"],
        budget: Int[ndarray, " n"] | int | None = None,
    ) -> tuple[Int[ndarray, "n width"], Int8[ndarray, " n"]]:
        """The states after the actions, and whether each is INTERIOR, CUT or FINISHED."""

    def parents(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "edges width"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
        """Every edge into the states: parents, actions, and the state's number, rising; each edge once."""

    def length(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """How many actions lead to each state."""

    def finishes(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        """Whether a state that cannot go on is a finished object."""

    def status(
        self,
        states: Int[ndarray, "n width"],
        budget: Int[ndarray, " n"] | int,
        mask: Bool[ndarray, "n actions"] | None = None,
    ) -> Int8[ndarray, " n"]:
        """INTERIOR, CUT or FINISHED under a budget of actions."""

    def may_finish(
        self, states: Int[ndarray, "n width"], remaining: Int[ndarray, " n"]
    ) -> Bool[ndarray, "n edges"]:
        """Whether a finished object may be reached after each adding action; never False where one can be."""

    def min_steps_to_finish(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """A lower bound of the actions that are missing for a finished object."""

    def key(self, states: Int[ndarray, "n width"]) -> list[bytes]:
        """A hashable name of each state."""

    def features(self, states: Int[ndarray, "n width"]) -> dict[str, Tensor]:
        """What a network reads, on the CPU: with ``net="mlp"`` a float matrix under "vector"."""

    def decode(self, states: Int[ndarray, "n width"]) -> list[Any]:
        """The objects, as the reward takes them."""

    def label(self, states: Int[ndarray, "n width"]) -> list[str]:
        """The objects in words: SMILES, a string, coordinates."""


class World:
    """What environments share: budgets, keys, and steps that are checked.

    A subclass gives ``mask``, ``apply``, ``parents``, ``length``, ``finishes``, ``features``, ``decode`` and
    ``start`` (the row of the empty object).
    """

    n_actions: int
    max_length: int
    horizon: int
    truncation: Truncation
    graded = True  # every edge leads from one length to the next
    start: Int[ndarray, " width"]

    def _set_lengths(self, max_length: int, horizon: int | None, truncation: str) -> None:
        if max_length < 1:
            raise ValueError(f"max_length={max_length}; objects need at least one action")
        if horizon is not None and horizon < max_length:
            raise ValueError(f"horizon={horizon} is below max_length={max_length}")
        if truncation not in TRUNCATIONS:
            raise ValueError(f"truncation={truncation!r} is none of {', '.join(TRUNCATIONS)}")
        self.max_length, self.horizon = max_length, max_length if horizon is None else horizon
        self.truncation = truncation  # type: ignore[assignment]

    def reset(self, n: int) -> Int[ndarray, "n width"]:
        """``n`` times the empty object."""
        return np.repeat(self.start[None], n, axis=0)

    def step(
        self,
        states: Int[ndarray, "n width"],
        actions: Int[ndarray, " n"],
        budget: Int[ndarray, " n"] | int | None = None,
    ) -> tuple[Int[ndarray, "n width"], Int8[ndarray, " n"]]:
        """The states after the actions, and whether each is INTERIOR, CUT or FINISHED.

        Raises:
            TypeError: actions that are no integers.
            ValueError: an action that is not legal, or beyond the horizon.
        """
        states, actions = np.asarray(states), np.asarray(actions)
        if len(actions) and actions.dtype.kind not in "iu":
            raise TypeError(f"actions are {actions.dtype}; expected integers, the numbers of actions")
        legal = self.mask(states)
        bad = (actions < 0) | (actions >= self.n_actions)
        bad |= ~legal[np.arange(len(states)), np.clip(actions, 0, self.n_actions - 1)]
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"action {int(actions[at])} is not legal in {self.label(states[at : at + 1])[0]!r}; "
                "legal are "
                f"{np.flatnonzero(legal[at]).tolist()[:20]}"
            )
        adding = actions < self.n_actions - 1
        if (self.length(states[adding]) >= self.horizon).any():
            raise ValueError(f"a state of length {self.horizon} cannot grow; construct a longer horizon")
        after = states.copy()
        after[adding] = self.apply(states[adding], actions[adding])
        done = np.full(len(states), FINISHED, dtype=np.int8)
        limit = np.broadcast_to(self.max_length if budget is None else budget, len(states))
        done[adding] = self.status(after[adding], limit[adding])
        return after, done

    def status(
        self,
        states: Int[ndarray, "n width"],
        budget: Int[ndarray, " n"] | int,
        mask: Bool[ndarray, "n actions"] | None = None,
    ) -> Int8[ndarray, " n"]:
        """INTERIOR, CUT or FINISHED under a budget of actions."""
        goes_on = self.can_grow(states) if mask is None else mask[:, :-1].any(axis=1)
        found = np.full(len(states), INTERIOR, dtype=np.int8)
        ended = np.flatnonzero(~goes_on | (self.length(states) >= budget))
        if len(ended):
            found[ended] = np.where(self.finishes(states[ended]), FINISHED, CUT)
        return found

    def can_grow(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        """Whether any adding action is legal."""
        return self.mask(states)[:, :-1].any(axis=1)

    def may_finish(
        self, states: Int[ndarray, "n width"], remaining: Int[ndarray, " n"]
    ) -> Bool[ndarray, "n edges"]:
        """Nothing is known: everything with an action left."""
        return np.repeat((np.asarray(remaining) > 0)[:, None], self.n_actions - 1, axis=1)

    def min_steps_to_finish(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """A lower bound of the actions that are missing for a finished object."""
        return np.where(self.mask(states)[:, -1], 0, 1)

    def key(self, states: Int[ndarray, "n width"]) -> list[bytes]:
        """The bytes of each row."""
        return row_bytes(np.asarray(states))

    def label(self, states: Int[ndarray, "n width"]) -> list[str]:
        """The objects in words."""
        return [str(item) for item in self.decode(states)]

    def mask(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, "n actions"]:
        """Given by the subclass."""
        raise TypeError(f"{type(self).__name__} does not say which actions are legal (mask)")

    def apply(self, states: Int[ndarray, "n width"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n width"]:
        """The states after legal adding actions; given by the subclass."""
        raise TypeError(f"{type(self).__name__} does not say where actions lead (apply)")

    def length(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Given by the subclass."""
        raise TypeError(f"{type(self).__name__} does not say how long a state is (length)")

    def finishes(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, " n"]:
        """Whether a state that cannot go on is finished: where stop is legal."""
        return self.mask(states)[:, -1]

    def decode(self, states: Int[ndarray, "n width"]) -> list[Any]:
        """Given by the subclass."""
        raise TypeError(f"{type(self).__name__} does not say what its states are (decode)")

    def signature(self) -> dict[str, Any]:
        """What a checkpoint must agree with, as JSON values."""
        return {
            "world": type(self).__name__,
            "n_actions": self.n_actions,
            "horizon": self.horizon,
            "truncation": self.truncation,
        }


def check_edges(env: Any, states: Int[ndarray, "n width"]) -> None:
    """Forward and backward edges agree on these states: each taken edge is among its end's parents, and each
    parent's action leads to the state.

    Raises:
        RuntimeError: names an edge that one of the two directions misses.
    """
    legal = env.mask(states)[:, :-1] & (env.length(states) < env.horizon)[:, None]
    source, action = np.nonzero(legal)
    ends = env.apply(states[source], action)
    parents, actions, index = env.parents(ends)
    known = set(zip(index.tolist(), env.key(parents), actions.tolist(), strict=True))
    if len(known) != len(index):
        raise RuntimeError("an edge stands twice among the parents; merge symmetric attachments by their key")
    for number, (key, act) in enumerate(zip(env.key(states[source]), action.tolist(), strict=True)):
        if (number, key, act) not in known:
            raise RuntimeError(
                f"the parents of {env.label(ends[number : number + 1])[0]!r} miss the edge by action "
                f"{act} from "
                f"{env.label(states[source[number]][None])[0]!r}"
            )
    inner = env.length(states) > 0
    parents, actions, index = env.parents(states[inner])
    if len(parents) == 0:
        return
    there = env.mask(parents)[np.arange(len(parents)), actions]
    reached = env.apply(parents, actions)
    wrong = ~there | (reached != states[inner][index]).any(axis=1)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise RuntimeError(
            f"{env.label(parents[at : at + 1])[0]!r} is named a parent of "
            f"{env.label(states[inner][index[at]][None])[0]!r}, but action {int(actions[at])} does "
            "not lead there"
        )


def as_budget(
    budget: int | Sequence[int] | Int[ndarray, " n"] | None, env: Any, n: int
) -> Int[ndarray, " n"]:
    """One budget a trajectory.

    Raises:
        ValueError: a budget below 1 or beyond the horizon.
    """
    limit = np.broadcast_to(np.asarray(env.max_length if budget is None else budget, dtype=np.int64), (n,))
    if n and (limit.min() < 1 or limit.max() > env.horizon):
        raise ValueError(
            f"max_length={limit.min()} to {limit.max()} is outside 1 to the horizon {env.horizon} of "
            "the environment"
        )
    return limit
