"""The floor of flows: ε lies below the least reward, which a shaping says or a few trajectories show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from icml_leakgfn.distinct import rows_of
from icml_leakgfn.enumeration import enumerate_states
from icml_leakgfn.environments import FINISHED
from icml_leakgfn.rewards import Reward
from icml_leakgfn.rollout import even_policy, rollout

_PROBE = 64  # trajectories from which the least reward is guessed
_SEARCHED = 5000  # states that are enumerated where none of them ends in an object


def finite_log(value: float | None, otherwise: float) -> float:
    """The logarithm of a positive number, or a default.

    Raises:
        ValueError: a number that is not positive and finite.
    """
    if value is None:
        return otherwise
    if not 0 < value < math.inf:
        raise ValueError(f"{value} must be positive and finite")
    return math.log(value)


def least_log_reward(env: Any, reward: Reward, budget: int, seed: int) -> float:
    """log R of the least object that is known: what the shaping says, or the least of a few random objects.

    Where random trajectories end in none, states are enumerated as far as ``_SEARCHED``; a world that is
    larger is taken as it is.

    Raises:
        ValueError: no finished object can be reached within the budget, with the shortest distance known.
    """
    least = int(env.min_steps_to_finish(env.reset(1))[0])
    if least > budget and env.truncation != "cap":
        raise ValueError(
            f"no finished object can be reached within {budget} actions; at least {least} are needed"
        )
    generator = torch.Generator().manual_seed(seed)
    condition = reward.sample_conditions(_PROBE, generator)
    probe = rollout(
        env,
        even_policy,
        _PROBE,
        generator=generator,
        budget=budget,
        condition=condition,
        reach=True,
        log_probs=False,
    )
    good = np.flatnonzero(probe.done == FINISHED)
    ends = probe.ends[good] if len(good) else _searched(env, budget)[:_PROBE]
    if reward.log_floor is not None:
        return reward.log_floor
    if len(ends) == 0:
        return 0.0
    rows = good if len(good) else np.arange(len(ends))
    given = rows_of(condition, rows)
    found = reward.evaluate(env, ends, given).log_reward
    found = found[np.isfinite(found)]
    return float(found.min()) if len(found) else 0.0


def _searched(env: Any, budget: int) -> Int[ndarray, "n width"]:
    """Objects within a budget by enumeration; none where there are too many states to tell.

    Raises:
        ValueError: there is no object, with the length of the shortest that lies beyond.
    """
    try:
        graph = enumerate_states(env, budget, max_states=_SEARCHED)
    except RuntimeError:
        return env.reset(0)
    objects = graph.objects(budget)
    if objects.any():
        return graph.states[objects]
    try:
        whole = enumerate_states(env, max_states=_SEARCHED)
        later = whole.length[whole.objects(whole.limit)]
        nearest = f"the nearest has {int(later.min())}" if len(later) else "there is none at all"
    except RuntimeError:
        nearest = f"none of the {len(graph)} states is one"
    raise ValueError(f"no finished object can be reached within {budget} actions; {nearest}")
