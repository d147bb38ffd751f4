"""The baselines on whole trajectories: trajectory, detailed and subtrajectory balance with uniform P_B.

A trajectory that is cut off is terminal, with the reward of what is cut off; P_B = 1 / number of parents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml_leakgfn.distinct import distinct, rows_of, tags
from icml_leakgfn.environments import CUT
from icml_leakgfn.losses import detailed_balance, subtrajectory_balance, trajectory_balance
from icml_leakgfn.networks import Flows
from icml_leakgfn.rewards import Reward
from icml_leakgfn.rollout import Trajectories

BALANCES = ("tb", "db", "subtb")


def balance_loss(
    env: Any,
    trajectories: Trajectories,
    reward: Reward,
    evaluate: Callable[[Any, Any, Tensor | None], Flows],
    kind: str,
    *,
    log_cut: float,
    log_z: Tensor | None = None,
    decay: float = 0.9,
) -> tuple[Float[Tensor, ""], Float[np.ndarray, " n"]]:
    """The loss of a batch, and log R of its ends.

    Args:
        env: the environment.
        trajectories: on or off the policy.
        reward: of finished objects.
        evaluate: the network's flows at states, budgets and conditions.
        kind: "tb", "db" or "subtb".
        log_cut: log R of what is cut off.
        log_z: log Z; by default the network's flow of the empty object.
        decay: of subtrajectory balance.

    Raises:
        ValueError: another kind.
    """
    if kind not in BALANCES:
        raise ValueError(f"loss={kind!r} is none of {', '.join(BALANCES)}")
    who, condition = trajectories.trajectory, trajectories.condition
    budget = trajectories.budget[who]
    rows, inverse = distinct(trajectories.states, tags(trajectories.budget, condition)[who])
    states = trajectories.states[rows]
    given = rows_of(condition, who[rows])
    flows = evaluate(states, budget[rows], given)
    device = flows.stop.device
    mask = torch.from_numpy(env.mask(states)).to(device)
    logits = torch.cat([flows.chem, flows.stop[:, None]], dim=1)
    log_policy = torch.log_softmax(torch.where(mask, logits, -torch.inf), dim=1)
    place = torch.from_numpy(inverse).to(device)
    action = torch.from_numpy(trajectories.action).to(device)
    taken = log_policy[place, action.clamp_min(0)]
    taken = torch.where(action >= 0, taken, 0)
    _, _, index = env.parents(states)
    parents = torch.from_numpy(np.bincount(index, minlength=len(states))).to(flows.stop)
    backward = -torch.log(parents.clamp_min(1))[place]

    n, steps = len(trajectories), int(trajectories.step.max(initial=0)) + 1
    at = torch.from_numpy(who * steps + trajectories.step).to(device)

    def padded(values: Tensor) -> Tensor:
        return values.new_zeros(n * steps).index_copy(0, at, values).reshape(n, steps)

    log_reward = np.full(n, log_cut)
    worth = np.ones(n, dtype=bool) if env.truncation == "cap" else trajectories.done != CUT
    ends = np.flatnonzero(worth)
    found = reward.evaluate(env, trajectories.ends[ends], rows_of(condition, ends))
    log_reward[worth] = found.log_reward
    # An object that is worth nothing has no logarithm; it counts as what is cut off.
    log_reward[np.isneginf(log_reward)] = log_cut
    target = torch.from_numpy(log_reward).to(flows.stop)
    length = torch.from_numpy(np.bincount(who, minlength=n)).to(device)
    forward = padded(taken)
    # The backward probability of the step that leads to a state belongs to the step before it.
    back = torch.roll(padded(backward), -1, dims=1)
    back[:, -1] = 0
    if kind == "tb":
        start = padded(flows.state[place])[:, 0] if log_z is None else log_z.expand(n)
        return trajectory_balance(start, forward, back, target), log_reward
    log_flow = padded(flows.state[place])
    if kind == "db":
        return detailed_balance(log_flow, forward, back, target, length), log_reward
    return subtrajectory_balance(log_flow, forward, back, target, length, decay), log_reward
