"""All states of an environment within a length, as integers, with every edge once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray

_EDGES_AT_ONCE = 100_000  # canonical forms that are made together


@dataclass(frozen=True)
class StateGraph:
    """States and edges up to a length; the empty object is state 0.

    Attributes:
        env: the environment.
        limit: the length.
        states: [n, width].
        length: [n].
        may_stop: [n]: whether stop is legal.
        finishes: [n]: whether a state that cannot go on is finished.
        grows: [n]: whether any action is legal, also beyond the limit.
        ptr: [n + 1]: where each state's edges begin.
        action: [edges].
        child: [edges].
        level: [n]: the longest way from the empty object; every edge leads to a higher level.
    """

    env: Any
    limit: int
    states: Int[ndarray, "n width"]
    length: Int[ndarray, " n"]
    may_stop: Bool[ndarray, " n"]
    finishes: Bool[ndarray, " n"]
    grows: Bool[ndarray, " n"]
    ptr: Int[ndarray, " n_1"]
    action: Int[ndarray, " edges"]
    child: Int[ndarray, " edges"]
    level: Int[ndarray, " n"]

    def __len__(self) -> int:
        return len(self.states)

    @property
    def parent(self) -> Int[ndarray, " edges"]:
        """The state at which each edge begins."""
        return np.repeat(np.arange(len(self)), np.diff(self.ptr))

    def done(self, budget: int) -> Int[ndarray, " n"]:
        """INTERIOR, CUT or FINISHED under a budget, by the environment's rule."""
        ended = ~self.grows | (self.length >= budget)
        return np.where(ended, np.where(self.finishes, 2, 1), 0).astype(np.int8)

    def objects(self, budget: int) -> Bool[ndarray, " n"]:
        """Which states can be finished within a budget."""
        done = self.done(budget)
        within = self.length <= budget
        if self.env.truncation == "cap":
            return within & (self.may_stop | (done == 1))
        return within & ((self.may_stop & (done == 0)) | (done == 2))


def enumerate_states(env: Any, limit: int | None = None, *, max_states: int = 2_000_000) -> StateGraph:
    """Walk from the empty object along all actions, length after length.

    Args:
        env: the environment.
        limit: longest states; by default the horizon.
        max_states: give up beyond.

    Raises:
        RuntimeError: more than ``max_states`` states, with the count so far.
        ValueError: the states have a cycle, with a state on it.
    """
    from icml_kernels import dag_levels, unique_rows

    limit = env.horizon if limit is None else limit
    known = env.reset(1)
    front = np.zeros(1, dtype=np.int64)
    sources, actions, children = [], [], []
    graded = getattr(env, "graded", False)
    while len(front):
        rows = known[front]
        goes_on = env.length(rows) < limit
        source, action, ends = _expand(env, rows[goes_on])
        if len(source) == 0:
            break
        origin = front[goes_on][source]
        # In a graded world a child is new, or a child of another state of this front.
        base = known[:0] if graded else known
        first, inverse = (t.numpy() for t in unique_rows(torch.from_numpy(np.concatenate([base, ends]))))
        fresh = first[first >= len(base)] - len(base)
        if len(known) + len(fresh) > max_states:
            raise RuntimeError(
                f"more than max_states={max_states} states: {len(known) + len(fresh)} so far, up to length "
                f"{int(env.length(ends[:1])[0])} of {limit}; raise max_states or shorten the objects"
            )
        number = np.where(first < len(base), first, 0)
        number[first >= len(base)] = len(known) + np.arange(len(fresh))
        sources.append(origin)
        actions.append(action)
        children.append(number[inverse[len(base) :]])
        front = len(known) + np.arange(len(fresh))
        known = np.concatenate([known, ends[fresh]])
    parent, action, child = (
        np.concatenate(part) if part else np.zeros(0, dtype=np.int64) for part in (sources, actions, children)
    )
    order = np.argsort(parent, kind="stable")
    parent, action, child = parent[order], action[order], child[order]
    ptr = np.zeros(len(known) + 1, dtype=np.int64)
    ptr[1:] = np.cumsum(np.bincount(parent, minlength=len(known)))
    level = dag_levels(torch.from_numpy(ptr), torch.from_numpy(child)).numpy()
    if (level < 0).any():
        name = env.label(known[level < 0][:1])[0]
        raise ValueError(f"state graph has a cycle through {name!r}; a flow network needs one without")
    blocks = [_facts(env, known[k : k + _EDGES_AT_ONCE]) for k in range(0, len(known), _EDGES_AT_ONCE)]
    length, may_stop, finishes, grows = (np.concatenate(part) for part in zip(*blocks, strict=True))
    return StateGraph(env, limit, known, length, may_stop, finishes, grows, ptr, action, child, level)


def _facts(env: Any, states: ndarray) -> tuple[ndarray, ...]:
    quick = getattr(env, "_may_stop", None)
    if quick is not None:
        return env.length(states), quick(states), env.finishes(states), env.can_grow(states)
    mask = env.mask(states)
    return env.length(states), mask[:, -1], env.finishes(states), mask[:, :-1].any(axis=1)


def _expand(env: Any, rows: ndarray) -> tuple[ndarray, ndarray, ndarray]:
    """All edges out of states: the state's number, the action, the end."""
    found = []
    width = max(1, env.n_actions - 1)
    step = max(1, _EDGES_AT_ONCE // width)
    children = getattr(env, "children", None)
    for begin in range(0, len(rows), step):
        some = rows[begin : begin + step]
        source, action = np.nonzero(env.mask(some)[:, :-1])
        for at in range(0, len(source), _EDGES_AT_ONCE):
            part = slice(at, at + _EDGES_AT_ONCE)
            if children is not None:
                ends = children(some, source[part], action[part])
            else:
                ends = env.apply(some[source[part]], action[part])
            found.append((source[part] + begin, action[part], ends))
    if not found:
        none = np.zeros(0, dtype=np.int64)
        return none, none, env.reset(0)
    source, action, ends = (np.concatenate(part) for part in zip(*found, strict=True))
    return source, action, ends
