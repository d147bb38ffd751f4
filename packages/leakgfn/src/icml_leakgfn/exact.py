"""Exact flows of an environment that can be enumerated, and the exact distribution of a learnt policy.

With P_B uniform over parents, from the last level to the first,

    F(s) = [s is an object] R(s) + Σ_{s -> c} F(c) / parents(c)

once with the objects within L_max (F_valid) and once with those of the full space (F_chem); λ* = F_valid /
F_chem on every edge. All in logarithms, in double precision. The distribution R(x) / Z does not depend on
P_B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.enumeration import StateGraph, enumerate_states
from icml_leakgfn.environments import CUT
from icml_leakgfn.rewards import as_reward

_CLOSE = 1e-9  # relative; flows of a solution that is verified
_ROWS_AT_ONCE = 8192


@dataclass(frozen=True)
class FlowProblem:
    """An environment, a reward, and how far to enumerate.

    Attributes:
        env: the environment.
        reward: a function or a :class:`Reward`.
        max_length: L_max; by default the environment's.
        max_states: most states.
        condition: of a conditional reward, one row.
    """

    env: Any
    reward: Any
    max_length: int | None = None
    max_states: int = 2_000_000
    condition: Float[Tensor, " dim"] | None = None


@dataclass(frozen=True)
class ExactFlows:
    """The solution.

    Attributes:
        graph: states and edges of the full space.
        max_length: L_max.
        objects: [n]: finished objects within L_max.
        log_reward: [n]: log R of the objects of the full space, -inf elsewhere.
        log_valid: [n]: log of the valid flow through each state.
        log_chem: [n]: log of the chemical flow.
    """

    graph: StateGraph
    max_length: int
    objects: Bool[ndarray, " n"]
    log_reward: Float[ndarray, " n"]
    log_valid: Float[ndarray, " n"]
    log_chem: Float[ndarray, " n"]

    @property
    def log_Z(self) -> float:
        """log of the sum of R over the finished objects within L_max."""
        return float(self.log_valid[0])

    @property
    def Z(self) -> float:
        """The sum of R over the finished objects within L_max; inf where it is beyond the largest number."""
        return math.exp(self.log_Z) if self.log_Z < 700 else math.inf

    @property
    def probability(self) -> Float[ndarray, " n"]:
        """R(x) / Z of each state that is an object, 0 elsewhere."""
        return np.exp(np.where(self.objects, self.log_reward, -np.inf) - self.log_Z)

    @property
    def p(self) -> dict[bytes, float]:
        """The probability of each object, by the environment's key."""
        at = np.flatnonzero(self.objects)
        return dict(
            zip(self.graph.env.key(self.graph.states[at]), self.probability[at].tolist(), strict=True)
        )

    @property
    def parents(self) -> Int[ndarray, " n"]:
        """Edges into each state."""
        return np.bincount(self.graph.child, minlength=len(self.graph))

    @property
    def F_valid(self) -> Float[ndarray, " edges"]:
        """log F_valid of each edge; -inf where nothing finished lies behind it."""
        child = self.graph.child
        return self.log_valid[child] - np.log(self.parents[child])

    @property
    def F_chem(self) -> Float[ndarray, " edges"]:
        """log F_chem of each edge."""
        child = self.graph.child
        return self.log_chem[child] - np.log(self.parents[child])

    @property
    def lambda_star(self) -> Float[ndarray, " edges"]:
        """F_valid / F_chem of each edge; NaN where neither flows."""
        child = self.graph.child
        with np.errstate(invalid="ignore"):
            return np.exp(self.log_valid[child] - self.log_chem[child])

    @property
    def cut_states(self) -> int:
        """How many states within L_max are cut off."""
        within = self.graph.length <= self.max_length
        return int((within & (self.graph.done(self.max_length) == CUT)).sum())

    def leak(self, cut_reward: float) -> float:
        """The share of trajectories that plain flow matching ends unfinished: Z_cut / (Z_valid + Z_cut)."""
        cut = self.cut_states * cut_reward
        return cut / (self.Z + cut)

    def verify(self, problem: FlowProblem) -> None:
        """Check that both flows are conserved in every state, begin in the empty object, and end as R.

        Raises:
            ValueError: names a state whose inflow and outflow differ, or the total.
        """
        graph = self.graph
        reward = as_reward(problem.reward)
        worth = self.objects | graph.objects(graph.limit)
        at = np.flatnonzero(worth)
        condition = None if problem.condition is None else problem.condition.expand(len(at), -1)
        found = np.full(len(graph), -np.inf)
        found[at] = reward.evaluate(problem.env, graph.states[at], condition).log_reward
        for name, flow, ends in (
            ("valid", self.log_valid, self.objects),
            ("chemical", self.log_chem, graph.objects(graph.limit)),
        ):
            share = np.where(ends, np.exp(found - flow[0]), 0.0)
            edge = np.exp(flow[graph.child] - np.log(self.parents[graph.child]) - flow[0])
            out = share + np.bincount(graph.parent, weights=edge, minlength=len(graph))
            gap = np.abs(out - np.exp(flow - flow[0]))
            if not gap.max() <= _CLOSE:
                worst = int(np.nanargmax(np.where(np.isnan(gap), np.inf, gap)))
                raise ValueError(
                    f"the {name} flow of {graph.env.label(graph.states[worst : worst + 1])[0]!r} is "
                    "not conserved: "
                    f"{np.exp(flow[worst] - flow[0]):.6g} in, {out[worst]:.6g} out, as shares of the total"
                )
            total = share.sum()
            if not abs(total - 1) <= _CLOSE * len(graph):
                raise ValueError(f"the {name} flow ends as {total:.9g} of what begins")


def log_state_flow(
    graph: StateGraph, log_reward: Float[ndarray, " n"], length: int | None = None
) -> Float[ndarray, " n"]:
    """log F of every state under uniform P_B, for rewards that are -inf off the objects.

    Args:
        graph: states and edges.
        log_reward: [n].
        length: edges to longer states carry nothing.
    """
    from icml_kernels import segment_logsumexp

    log_back = -np.log(np.maximum(np.bincount(graph.child, minlength=len(graph)), 1))
    flow = np.full(len(graph), -np.inf)
    order = np.argsort(graph.level, kind="stable")
    bounds = np.searchsorted(graph.level[order], np.arange(graph.level.max(initial=0) + 2))
    size = np.diff(graph.ptr)
    for depth in range(len(bounds) - 2, -1, -1):
        states = order[bounds[depth] : bounds[depth + 1]]
        ptr = np.zeros(len(states) + 1, dtype=np.int64)
        ptr[1:] = np.cumsum(size[states] + 1)
        values = np.full(ptr[-1], -np.inf)
        values[ptr[:-1]] = log_reward[states]
        edges = _ranges(graph.ptr[states], size[states])
        child = graph.child[edges]
        through = flow[child] + log_back[child]
        if length is not None:
            through = np.where(graph.length[child] <= length, through, -np.inf)
        places = np.ones(ptr[-1], dtype=bool)
        places[ptr[:-1]] = False
        values[places] = through
        found = segment_logsumexp(torch.from_numpy(values), torch.from_numpy(ptr.astype(np.int32)))
        flow[states] = found.numpy()
    return flow


def _ranges(begin: Int[ndarray, " n"], size: Int[ndarray, " n"]) -> Int[ndarray, " total"]:
    """begin_0, begin_0 + 1, ... of each run, one run after another."""
    shift = np.repeat(begin - np.concatenate([[0], np.cumsum(size)[:-1]]), size)
    return shift + np.arange(int(size.sum()))


class ExactFlow:
    """Exact flows by dynamic programming; linear in states and edges."""

    def solve(self, problem: FlowProblem) -> ExactFlows:
        """F_valid, F_chem, λ* and p(x) of a problem.

        Raises:
            ValueError: no finished object within L_max, a reward that cannot be used, or a cycle of states.
            RuntimeError: too many states.
        """
        env, reward = problem.env, as_reward(problem.reward)
        length = env.max_length if problem.max_length is None else problem.max_length
        if not 1 <= length <= env.horizon:
            raise ValueError(
                f"max_length={length} is outside 1 to the horizon {env.horizon} of the environment"
            )
        graph = enumerate_states(env, max_states=problem.max_states)
        objects = graph.objects(length)
        if not objects.any():
            finished = graph.length[graph.objects(graph.limit)]
            nearest = f"the nearest has {int(finished.min())}" if len(finished) else "there is none at all"
            raise ValueError(f"no finished object within {length} actions; {nearest}")
        at = np.flatnonzero(objects | graph.objects(graph.limit))
        log_reward = np.full(len(graph), -np.inf)
        for begin in range(0, len(at), _ROWS_AT_ONCE):
            part = at[begin : begin + _ROWS_AT_ONCE]
            condition = None if problem.condition is None else problem.condition.expand(len(part), -1)
            log_reward[part] = reward.evaluate(env, graph.states[part], condition).log_reward
        valid = log_state_flow(graph, np.where(objects, log_reward, -np.inf), length)
        if valid[0] == -np.inf:
            raise ValueError(
                f"the reward of all {int(objects.sum())} finished objects within {length} actions is 0"
            )
        chem = log_state_flow(graph, np.where(graph.objects(graph.limit), log_reward, -np.inf))
        return ExactFlows(graph, length, objects, log_reward, valid, chem)


def exact_flow(
    env: Any,
    reward: Any,
    *,
    max_length: int | None = None,
    max_states: int = 2_000_000,
    condition: Float[Tensor, " dim"] | None = None,
) -> ExactFlows:
    """Exact flows of an environment; see :class:`ExactFlow`.

    Raises:
        ValueError: as :meth:`ExactFlow.solve`.
        RuntimeError: too many states.
    """
    return ExactFlow().solve(FlowProblem(env, reward, max_length, max_states, condition))


@dataclass(frozen=True)
class PolicyDistribution:
    """Where a policy's trajectories end, without sampling noise.

    Attributes:
        graph: states and edges.
        max_length: L_max.
        finished: [n]: probability to end finished in each state.
        cut: [n]: probability to be cut off in each state.
    """

    graph: StateGraph
    max_length: int
    finished: Float[ndarray, " n"]
    cut: Float[ndarray, " n"]

    @property
    def leak(self) -> float:
        """Probability to be cut off."""
        return float(self.cut.sum())

    @property
    def p(self) -> dict[bytes, float]:
        """Probability of each object, by the environment's key."""
        at = np.flatnonzero(self.finished > 0)
        return dict(zip(self.graph.env.key(self.graph.states[at]), self.finished[at].tolist(), strict=True))

    def total_variation(self, exact: ExactFlows) -> float:
        """Half the sum of |q - p|, what is cut off included.

        Raises:
            ValueError: the two belong to different state graphs.
        """
        if not np.array_equal(self.graph.states[:64], exact.graph.states[:64]):
            raise ValueError(
                "the distribution and the exact flows number their states differently; pass the same graph"
            )
        n = max(len(self.finished), len(exact.objects))
        q, p = np.zeros(n), np.zeros(n)
        q[: len(self.finished)] = self.finished
        p[: len(exact.objects)] = exact.probability
        return float(0.5 * (np.abs(q - p).sum() + self.leak))

    def jensen_shannon(self, exact: ExactFlows) -> float:
        """The Jensen-Shannon divergence in nats, what is cut off counted as one more outcome."""
        n = max(len(self.finished), len(exact.objects))
        q, p = np.zeros(n + 1), np.zeros(n + 1)
        q[: len(self.finished)], q[-1] = self.finished, self.leak
        p[: len(exact.objects)] = exact.probability
        middle = (p + q) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = [np.where(a > 0, a * np.log(a / middle), 0).sum() for a in (p, q)]
        return float(sum(parts) / 2)


def exact_policy_distribution(
    gfn: Any,
    env: Any | None = None,
    *,
    max_length: int | None = None,
    graph: StateGraph | None = None,
    condition: Float[Tensor, " dim"] | None = None,
    max_states: int = 2_000_000,
) -> PolicyDistribution:
    """Where a policy's trajectories end, by pushing probability forward along all edges.

    Args:
        gfn: a :class:`LeakGFN`, or anything with ``log_policy(states, max_length, condition)``.
        env: by default the one of ``gfn``.
        max_length: L_max; by default the environment's.
        graph: states that were enumerated before, at least up to L_max.
        condition: one row.
        max_states: most states.

    Raises:
        RuntimeError: too many states.
    """
    env = gfn.env if env is None else env
    length = env.max_length if max_length is None else max_length
    graph = enumerate_states(env, length, max_states=max_states) if graph is None else graph
    done, within = graph.done(length), graph.length <= length
    mass = np.zeros(len(graph))
    mass[0] = 1.0
    finished, cut = np.zeros(len(graph)), np.zeros(len(graph))
    order = np.argsort(graph.level, kind="stable")
    bounds = np.searchsorted(graph.level[order], np.arange(graph.level.max(initial=0) + 2))
    size = np.diff(graph.ptr)
    for depth in range(len(bounds) - 1):
        states = order[bounds[depth] : bounds[depth + 1]]
        states = states[within[states]]
        ended = states[done[states] != 0]
        finished[ended] += np.where(done[ended] == CUT, 0.0, mass[ended])
        cut[ended] += np.where(done[ended] == CUT, mass[ended], 0.0)
        inner = states[done[states] == 0]
        for begin in range(0, len(inner), _ROWS_AT_ONCE):
            some = inner[begin : begin + _ROWS_AT_ONCE]
            probs = np.exp(gfn.log_policy(graph.states[some], length, condition))
            finished[some] += mass[some] * probs[:, -1]
            edges = _ranges(graph.ptr[some], size[some])
            row = np.repeat(np.arange(len(some)), size[some])
            moved = mass[some][row] * probs[row, graph.action[edges]]
            mass += np.bincount(graph.child[edges], weights=moved, minlength=len(graph))
    if env.truncation == "cap":
        finished, cut = finished + cut, np.zeros_like(cut)
    return PolicyDistribution(graph, length, finished, cut)
