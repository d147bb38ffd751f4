"""From trajectories to rows: every state once, all its parents, and its reward beside it in one record."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.distinct import distinct, rows_of, tags
from icml_leakgfn.environments import CUT, FINISHED, INTERIOR
from icml_leakgfn.losses import EdgesIn, FlowRows, edges_in, log_outflow
from icml_leakgfn.networks import Flows
from icml_leakgfn.rewards import Reward
from icml_leakgfn.rollout import Trajectories


@dataclass(frozen=True)
class FlowBatch:
    """What one step of training needs.

    The network is asked for ``states``; rows and parents point into them.

    Attributes:
        states: [m, width]: the visited states first, then parents that were not visited.
        budget: [m]; a state under two budgets stands twice.
        condition: [m, dim], or None.
        mask: [rows, actions]: legal actions.
        rows: how many of the states are rows.
        done: [rows].
        log_end: [rows]: log of what the valid inflow is to be where the row ends, NaN elsewhere.
        log_reward: [rows]: log R where an object was finished, NaN elsewhere.
        stopped: [rows]: how often it was ended here.
        count: [rows]: how often it was visited.
        root: [rows].
        beyond: [rows]: beyond its budget.
        parent: [edges]: the state at which an edge begins.
        action: [edges].
        ptr: [rows + 1]: the edges into each row.
        visited: [records]: the row of each record of the trajectories.
    """

    states: Int[ndarray, "m width"]
    budget: Int[ndarray, " m"]
    condition: Float[Tensor, "m dim"] | None
    mask: Bool[ndarray, "rows actions"]
    rows: int
    done: Int[ndarray, " rows"]
    log_end: Float[ndarray, " rows"]
    log_reward: Float[ndarray, " rows"]
    stopped: Int[ndarray, " rows"]
    count: Int[ndarray, " rows"]
    root: Bool[ndarray, " rows"]
    beyond: Bool[ndarray, " rows"]
    parent: Int[ndarray, " edges"]
    action: Int[ndarray, " edges"]
    ptr: Int[ndarray, " rows_1"]
    visited: Int[ndarray, " records"]


def flow_batch(
    env: Any,
    trajectories: Trajectories,
    reward: Reward,
    *,
    log_cut: float,
    score_all: bool = False,
    check: bool = False,
) -> FlowBatch:
    """Rows, parents and rewards of a batch of trajectories.

    Args:
        env: the environment.
        trajectories: they may end early, late, or beyond their budget.
        reward: of finished objects.
        log_cut: log R of what is cut off; -inf in LeakGFN with truncation="leak".
        score_all: also evaluate the reward of visited objects that could have been finished and were not.
        check: verify that the parents hold every taken edge.

    Raises:
        RuntimeError: with ``check``, where parents miss an edge.
        ValueError: from the reward.
    """
    who, conditions = trajectories.trajectory, trajectories.condition
    tag = tags(trajectories.budget, conditions)[who]
    first, inverse = distinct(trajectories.states, tag)
    states, tag, owner = trajectories.states[first], tag[first], who[first]
    budget = tag[:, 0]
    length = env.length(states)
    legal = env.mask(states)
    beyond = length > budget
    done = env.status(states, np.where(beyond, env.horizon, budget), legal).astype(np.int64)
    count = np.bincount(inverse, minlength=len(first))
    ended = trajectories.last
    # A trajectory that walked on ended at the horizon; nothing says that its object would be cut off before.
    stops = trajectories.action[ended] == env.n_actions - 1
    stopped = np.bincount(inverse[ended[stops]], minlength=len(first))
    # Where the row itself ends as an object, every visit is an end, also of a way that goes on.
    terminal = (done == FINISHED) | ((done == CUT) & (env.truncation == "cap"))
    stopped = np.where(terminal, count, stopped)
    if score_all:
        stopped = np.maximum(stopped, _has_stop(env, legal, done, length))
    worth = stopped > 0
    log_reward = np.full(len(states), math.nan)
    at = np.flatnonzero(worth)
    log_reward[at] = reward.evaluate(env, states[at], rows_of(conditions, owner[at])).log_reward
    cut_off = (done == CUT) & (env.truncation == "leak")
    log_end = np.where(cut_off, log_cut, np.where(done == INTERIOR, math.nan, log_reward))
    root = length == 0
    parent_rows, action, index = env.parents(states)
    if check:
        _check_taken(env, trajectories, inverse, parent_rows, action, index)
    everything = np.concatenate([states, parent_rows])
    kept, where = distinct(everything, np.concatenate([tag, tag[index]]))
    source = np.concatenate([np.arange(len(first)), index[kept[len(first) :] - len(first)]])
    ptr = np.zeros(len(first) + 1, dtype=np.int32)
    ptr[1:] = np.cumsum(np.bincount(index, minlength=len(first)))
    return FlowBatch(
        everything[kept],
        budget[source],
        rows_of(conditions, owner[source]),
        legal,
        len(first),
        done,
        log_end,
        log_reward,
        stopped,
        count,
        root,
        beyond,
        where[len(first) :],
        action,
        ptr,
        inverse,
    )


def _has_stop(env: Any, legal: ndarray, done: ndarray, length: ndarray) -> Bool[ndarray, " n"]:
    """Where the full space has an object: stop is legal, and the horizon does not cut it off."""
    cut_by_horizon = (length >= env.horizon) & (done == CUT) & (env.truncation == "leak")
    return legal[:, -1] & ~cut_by_horizon


def _no_stop(env: Any, done: ndarray, length: ndarray, budget: ndarray) -> Bool[ndarray, " n"]:
    """Where stop is not allowed within the budget: a state that is cut off is worth nothing, unless
    capped.
    """
    return ((done == CUT) & (env.truncation == "leak")) | (length > budget)


def _check_taken(
    env: Any, trajectories: Trajectories, inverse: ndarray, parents: ndarray, action: ndarray, index: ndarray
) -> None:
    """Every edge that a trajectory took is among the parents of its end.

    Raises:
        RuntimeError: one is missing.
    """
    known = set(zip(index.tolist(), env.key(parents), action.tolist(), strict=True))
    keys = env.key(trajectories.states)
    for record in range(1, len(keys)):
        if trajectories.step[record] == 0:
            continue
        edge = (int(inverse[record]), keys[record - 1], int(trajectories.action[record - 1]))
        if edge not in known:
            raise RuntimeError(
                f"the parents of {env.label(trajectories.states[record : record + 1])[0]!r} miss the "
                "edge by action "
                f"{edge[2]} that a trajectory took from "
                f"{env.label(trajectories.states[record - 1 : record])[0]!r}"
            )


def flow_rows(
    env: Any,
    batch: FlowBatch,
    flows: Flows,
    *,
    reach: bool = False,
    closed_end: bool = True,
    fraction: bool = True,
    single_edges: bool = False,
) -> FlowRows:
    """Inflows and outflows of the rows from the network's log flows at all states.

    Args:
        env: the environment.
        batch: of :func:`flow_batch`.
        flows: at ``batch.states``.
        reach: λ is 0 where nothing finished can be reached within the budget, and F_chem where none can be
            within the horizon.
        closed_end: at the horizon the chemical flow ends; False: it goes on along edges that nobody walks.
        fraction: False: λ is 1 (plain flow matching), and nothing is done for a second flow.
        single_edges: the rows hold their edges too, for ``LeakLoss(uniform_backward=...)``.
    """
    from icml_kernels import segment_logsumexp

    device = flows.stop.device
    chem = flows.chem
    if reach:  # such edges are never taken, not even by a walk: nothing would teach their flow
        chem = _reaching(env, batch.states, env.horizon, chem)
    valid = chem + flows.log_fraction if fraction else chem
    if reach:
        valid = _reaching(env, batch.states, batch.budget, valid)
    parent, action = (torch.from_numpy(a.astype(np.int64)).to(device) for a in (batch.parent, batch.action))
    ptr = torch.from_numpy(batch.ptr).to(device)
    n = batch.rows
    length = env.length(batch.states[:n])
    mask = torch.from_numpy(batch.mask).to(device)
    edges, may_stop = mask[:, :-1], mask[:, -1]
    at_end = torch.from_numpy(length >= env.horizon).to(device)
    over = torch.from_numpy(length >= batch.budget[:n]).to(device)
    no_stop = torch.from_numpy(_no_stop(env, batch.done, length, batch.budget[:n])).to(device)
    chem_edges = edges & ~at_end[:, None] if closed_end else edges
    # Behind the boundary the valid flow has edges as long as λ has not been driven to 0 there.
    valid_edges = edges & ~(over & at_end)[:, None] if closed_end else edges
    if not fraction:
        valid_edges = edges & ~over[:, None]
    if env.truncation == "cap":
        may_stop = may_stop | (torch.from_numpy(batch.done == CUT).to(device))
    chem_stop = may_stop
    if closed_end and env.truncation == "leak":
        # What the horizon itself cuts off is no object of the full space either, as in the exact flows.
        chem_stop = torch.from_numpy(_has_stop(env, batch.mask, batch.done, length)).to(device)
    stop = flows.stop[:n]
    chem_in = chem[parent, action]
    if not fraction:  # one flow is enough
        inflow = segment_logsumexp(chem_in, ptr)
        outflow = log_outflow(chem[:n], valid_edges, stop, may_stop & ~no_stop)
        return _with_facts(batch, (inflow, inflow, outflow, outflow, stop), None)
    valid_in = valid[parent, action]
    found = (
        segment_logsumexp(valid_in, ptr),
        segment_logsumexp(chem_in, ptr),
        log_outflow(valid[:n], valid_edges, stop, may_stop & ~no_stop),
        log_outflow(chem[:n], chem_edges, stop, chem_stop),
        stop,
    )
    return _with_facts(batch, found, edges_in(valid_in, chem_in, ptr) if single_edges else None)


def _with_facts(batch: FlowBatch, flows: tuple[Tensor, ...], edges: EdgesIn | None) -> FlowRows:
    stop = flows[-1]
    device = stop.device
    return FlowRows(
        *flows,
        torch.from_numpy(batch.done).to(device),
        torch.from_numpy(batch.log_end).to(stop),
        torch.from_numpy(batch.log_reward).to(stop),
        torch.from_numpy(batch.stopped).to(stop),
        torch.from_numpy(batch.count).to(stop),
        torch.from_numpy(batch.root).to(device),
        torch.from_numpy(batch.beyond).to(device),
        edges,
    )


def _reaching(
    env: Any, states: ndarray, limit: Int[ndarray, " m"] | int, log_flow: Float[Tensor, "m edges"]
) -> Float[Tensor, "m edges"]:
    """Log flows of edges, -inf where nothing finished can be reached within a limit."""
    able = torch.from_numpy(env.may_finish(states, limit - env.length(states))).to(log_flow.device)
    return torch.where(able, log_flow, -torch.inf)
