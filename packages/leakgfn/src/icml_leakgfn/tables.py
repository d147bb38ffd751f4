"""Flows in tables, by edge and budget: what a network would say that had learnt everything.

They decide whether a miss is a fault of the equations or of training: the loss of exact tables is 0, on any
batch of ways and budgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from icml_leakgfn.enumeration import StateGraph
from icml_leakgfn.exact import exact_flow, exact_policy_distribution
from icml_leakgfn.hindsight import relabelled
from icml_leakgfn.losses import LeakLoss
from icml_leakgfn.networks import Flows
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import even_policy, rollout
from icml_leakgfn.transitions import flow_batch, flow_rows

_NOTHING = -200.0  # log of a flow that is 0
_LOG_EPS = -80.0
_WAYS = 200  # trajectories of a batch on which losses are taken


class TableOfFlows:
    """Log flows of every edge and stop of an enumerated world, called as a trained network is.

    Args:
        graph: states and edges.
        valid: log F_valid of edges under each budget, -inf where nothing flows.
        chem: log F_chem of edges.
        stop: log F_stop of states.
        policy: whether the policy is that of the valid flow.
    """

    def __init__(
        self,
        graph: StateGraph,
        valid: Mapping[int, Float[ndarray, " edges"]],
        chem: Float[ndarray, " edges"],
        stop: Float[ndarray, " n"],
        *,
        policy: bool = True,
    ) -> None:
        self.env, self.use_valid = graph.env, policy
        self._number = {key: k for k, key in enumerate(self.env.key(graph.states))}
        self._budgets = {budget: k for k, budget in enumerate(valid)}
        shape = (len(graph), self.env.n_actions - 1)
        self._valid = np.full((len(valid), *shape), _NOTHING)
        self._chem = np.full(shape, _NOTHING)
        for k, flow in enumerate(valid.values()):
            self._valid[k, graph.parent, graph.action] = np.maximum(flow, _NOTHING)
        self._chem[graph.parent, graph.action] = np.maximum(chem, _NOTHING)
        self._stop = np.maximum(stop, _NOTHING)

    def flows(self, states: Int[ndarray, "n width"], budget: Int[ndarray, " n"]) -> Flows:
        """Log flows at states, each under its budget."""
        rows = [self._number[key] for key in self.env.key(states)]
        which = [self._budgets[b] for b in np.asarray(budget).tolist()]
        chem, valid = torch.from_numpy(self._chem[rows]), torch.from_numpy(self._valid[which, rows])
        stop = torch.from_numpy(self._stop[rows])
        return Flows(chem, valid - chem, stop, stop)

    def log_policy(self, states: Any, max_length: int, condition: Any) -> Float[ndarray, "n actions"]:
        """log P_F of all actions."""
        found = self.flows(states, np.full(len(states), max_length))
        edges = found.chem + found.log_fraction if self.use_valid else found.chem
        mask = torch.from_numpy(self.env.mask(states))
        logits = torch.cat([edges, found.stop[:, None]], dim=1)
        return torch.log_softmax(torch.where(mask, logits, -torch.inf), dim=1).numpy()


def exact_tables(env: Any, reward: Any, budgets: Sequence[int]) -> TableOfFlows:
    """The exact flows of an environment under several budgets, with uniform P_B.

    Raises:
        ValueError: no finished object within a budget.
    """
    found = {budget: exact_flow(env, reward, max_length=budget) for budget in budgets}
    last = found[max(budgets)]
    valid = {budget: flows.F_valid for budget, flows in found.items()}
    return TableOfFlows(last.graph, valid, last.F_chem, last.log_reward)


def loss_of_tables(
    table: TableOfFlows, reward: Any, budgets: Sequence[int], *, seed: int, log_eps: float, shift: int = 0
) -> float:
    """The whole loss of tables on random ways under several budgets, walks and hindsight included.

    Args:
        table: of :func:`exact_tables`.
        reward: as there.
        budgets: as there.
        seed: of the ways.
        log_eps: log ε.
        shift: tell the table a budget that is so much larger, up to the largest: what a network says that
            mistakes it.
    """
    env, generator = table.env, torch.Generator().manual_seed(seed)
    low, high = min(budgets), max(budgets)
    budget = torch.randint(low, high + 1, (_WAYS,), generator=generator).numpy()
    ways = rollout(env, even_policy, _WAYS, generator=generator, budget=budget, walk=0.3, log_probs=False)
    both = ways.join([ways, relabelled(env, ways, (low, high), generator, copies=2)])
    batch = flow_batch(env, both, as_reward(reward), log_cut=-np.inf, score_all=True)
    told = np.minimum(batch.budget + shift, high)
    rows = flow_rows(env, batch, table.flows(batch.states, told), single_edges=True)
    return float(LeakLoss(log_eps, gamma=1.0, alpha=1.0, uniform_backward=1.0)(rows).total)


@dataclass(frozen=True)
class ConstructedFlows:
    """How far the policy of constructed flows is from the target, and what the loss says of them."""

    distance: float
    loss: float
    loss_of_others: float


def constructed_flows(seed: int, *, valid: bool = True) -> ConstructedFlows:
    """Valid flows by a random backward policy on the grid, and chemical ones with a further flow on top of
    them.

    Args:
        seed: of the backward policy and the further flow.
        valid: whether the policy is that of the valid flow.
    """
    from icml_leakgfn.trainings import small_world

    world = small_world("grid")
    graph, length, exact = world.exact.graph, world.exact.max_length, world.exact
    rng = np.random.default_rng(seed)
    reward = np.where(exact.objects, np.exp(exact.log_reward), 0.0)
    weight = rng.gamma(1.0, size=len(graph.child)) + 1e-3
    back = weight / np.bincount(graph.child, weights=weight, minlength=len(graph))[graph.child]
    edge = np.zeros(len(graph.child))
    # Any flow that ends beyond the boundary: the same equations, with ends at states that are too long.
    further = np.where(graph.length > length, rng.gamma(1.0, size=len(graph)), 0.0)
    chem_edge = np.zeros(len(graph.child))
    order = np.argsort(-graph.level, kind="stable")
    state, chem = reward.copy(), reward + further
    into = [np.flatnonzero(graph.child == s) for s in range(len(graph))]
    for s in order:
        edge[into[s]] = state[s] * back[into[s]]
        chem_edge[into[s]] = chem[s] * back[into[s]]
        np.add.at(state, graph.parent[into[s]], edge[into[s]])
        np.add.at(chem, graph.parent[into[s]], chem_edge[into[s]])
    with np.errstate(divide="ignore"):
        stop = np.log(np.where(graph.may_stop, reward + further, 0.0))
        table = TableOfFlows(graph, {length: np.log(edge)}, np.log(chem_edge), stop, policy=valid)
    apart = exact_policy_distribution(table, world.env, graph=graph, max_length=length).total_variation(exact)
    drawn = rollout(world.env, even_policy, _WAYS, generator=torch.Generator().manual_seed(seed))
    batch = flow_batch(world.env, drawn, as_reward(world.reward), log_cut=-np.inf)
    loss = LeakLoss(_LOG_EPS, anchor=False)
    found = table.flows(batch.states, batch.budget)
    rows = flow_rows(world.env, batch, found)
    others = flow_rows(world.env, batch, found._replace(log_fraction=found.log_fraction - 0.1))
    return ConstructedFlows(apart, float(loss(rows).total), float(loss(others).total))
