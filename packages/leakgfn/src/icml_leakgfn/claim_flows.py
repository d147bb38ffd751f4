"""What claims measure besides trainings: flows that satisfy the equations by construction, and seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from icml_leakgfn.exact import exact_policy_distribution
from icml_leakgfn.losses import LeakLoss
from icml_leakgfn.networks import Flows
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import rollout
from icml_leakgfn.trainings import EIGHT_BLOCKS, small_world
from icml_leakgfn.transitions import flow_batch, flow_rows

_LOG_EPS = -80.0


@dataclass(frozen=True)
class ConstructedFlows:
    """How far the policy of constructed flows is from the target, and what the loss says of them."""

    distance: float
    loss: float
    loss_of_others: float


class TableOfFlows:
    """Log flows of every edge and stop of an enumerated world, called as a trained network is.

    Args:
        graph: states and edges.
        valid: log F_valid of edges, -inf where nothing flows.
        chem: log F_chem of edges.
        stop: log F_stop of states.
        policy: whether the policy is that of the valid flow.
    """

    def __init__(self, graph: Any, valid: Any, chem: Any, stop: Any, *, policy: bool = True) -> None:
        self.env, self.use_valid = graph.env, policy
        self.number = {key: k for k, key in enumerate(self.env.key(graph.states))}
        shape = (len(graph), self.env.n_actions - 1)
        self.valid, self.chem = np.full(shape, -200.0), np.full(shape, -200.0)
        self.valid[graph.parent, graph.action] = np.maximum(valid, -200.0)
        self.chem[graph.parent, graph.action] = np.maximum(chem, -200.0)
        self.stop = stop

    def flows(self, states: Any) -> Flows:
        """Log flows at states."""
        rows = [self.number[key] for key in self.env.key(states)]
        chem, valid = torch.from_numpy(self.chem[rows]), torch.from_numpy(self.valid[rows])
        stop = torch.from_numpy(self.stop[rows])
        return Flows(chem, valid - chem, stop, stop)

    def log_policy(self, states: Any, max_length: Any, condition: Any) -> Any:
        """log P_F of all actions."""
        found = self.flows(states)
        edges = found.chem + found.log_fraction if self.use_valid else found.chem
        mask = torch.from_numpy(self.env.mask(states))
        logits = torch.cat([edges, found.stop[:, None]], dim=1)
        return torch.log_softmax(torch.where(mask, logits, -torch.inf), dim=1).numpy()


def constructed_flows(seed: int, *, valid: bool = True) -> ConstructedFlows:
    """Valid flows by a random backward policy on the grid, and chemical ones with a further flow on top of
    them.

    Args:
        seed: of the backward policy and the further flow.
        valid: whether the policy is that of the valid flow.
    """
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
        stop = np.maximum(np.log(np.where(graph.may_stop, reward + further, 0.0)), -200.0)
        table = TableOfFlows(graph, np.log(edge), np.log(chem_edge), stop, policy=valid)
    apart = exact_policy_distribution(table, world.env, graph=graph, max_length=length).total_variation(exact)
    drawn = rollout(
        world.env,
        lambda s, b, c, m: (torch.zeros(m.shape, dtype=torch.float64),) * 2,
        200,
        generator=torch.Generator().manual_seed(seed),
        reach=False,
    )
    batch = flow_batch(world.env, drawn, as_reward(world.reward), log_cut=-np.inf)
    loss = LeakLoss(_LOG_EPS, anchor=False)
    found = table.flows(batch.states)
    rows = flow_rows(world.env, batch, found)
    others = flow_rows(world.env, batch, found._replace(log_fraction=found.log_fraction - 0.1))
    return ConstructedFlows(apart, float(loss(rows).total), float(loss(others).total))


def step_seconds(seed: int, steps: int) -> tuple[float, float]:
    """Median seconds of a training step on molecules, with both heads and of plain flow matching, in
    turns.
    """
    from icml_leakgfn.molecules import MoleculeGenerator

    runs = {
        loss: MoleculeGenerator(
            _size, loss=loss, hidden=64, message_steps=4, seed=seed, device="cpu", on_error="floor"
        ).gfn.fit(2, 8)
        for loss in ("leak", "fm")
    }
    # The same trajectories for both: what is compared is the cost of the losses.
    seconds: dict[str, list[float]] = {"leak": [], "fm": []}
    for step in range(steps):
        for loss, gfn in runs.items():
            gfn.generator.manual_seed(seed + step)
            begin = time.perf_counter()
            gfn.fit(1, 8)
            seconds[loss].append(time.perf_counter() - begin)
    return float(np.median(seconds["leak"])), float(np.median(seconds["fm"]))


def _size(mol: Any) -> float:
    """A score that costs nothing: heavy atoms over fifty."""
    return min(1.0, mol.GetNumHeavyAtoms() / 50)


def trajectory_rates(seed: int, loops: int) -> tuple[float, float]:
    """Trajectories a second: 256 at a time, and in a loop over batches of one."""
    from icml_leakgfn.molecules import MoleculeGenerator

    gfn = MoleculeGenerator(_size, hidden=64, message_steps=4, seed=seed, device="cpu").gfn
    generator = torch.Generator().manual_seed(seed)
    rollout(gfn.env, gfn.policy, 8, generator=generator)
    begin = time.perf_counter()
    rollout(gfn.env, gfn.policy, 256, generator=generator)
    together = 256 / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(loops):
        rollout(gfn.env, gfn.policy, 1, generator=generator)
    return together, loops / (time.perf_counter() - begin)


def solver_seconds(max_blocks: int) -> tuple[float, int]:
    """Seconds of the exact solver on molecules of eight fragments, and how many states it took in."""
    from icml_leakgfn.exact import exact_flow
    from icml_leakgfn.fragments import FragmentEnv

    env = FragmentEnv(EIGHT_BLOCKS, max_blocks, 2, stop="closed")
    reward = _Flat()
    exact_flow(FragmentEnv(EIGHT_BLOCKS, 2, 2, stop="closed"), reward)
    begin = time.perf_counter()
    flows = exact_flow(env, reward)
    return time.perf_counter() - begin, len(flows.graph)


class _Flat:
    """A reward of 1 for every molecule: the solver's own cost."""

    vectorised = True

    def __call__(self, items: list[Any]) -> np.ndarray:
        return np.ones(len(items))
