"""The floor of flows: ε lies below the least reward, which a shaping says or a few trajectories show."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from icml_leakgfn.environments import FINISHED
from icml_leakgfn.rewards import Reward
from icml_leakgfn.rollout import rollout

_PROBE = 64  # trajectories from which the least reward is guessed


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

    Raises:
        ValueError: none of the trajectories ends in a finished object.
    """
    if reward.log_floor is not None:
        return reward.log_floor
    generator = torch.Generator().manual_seed(seed)
    condition = reward.sample_conditions(_PROBE, generator)
    flat = torch.zeros(1, env.n_actions)
    probe = rollout(
        env,
        lambda s, b, c, m: (flat.expand(len(s), -1), flat.expand(len(s), -1)),
        _PROBE,
        generator=generator,
        budget=budget,
        condition=condition,
        reach=True,
    )
    good = np.flatnonzero(probe.done == FINISHED)
    if len(good) == 0:
        raise ValueError(
            f"none of {_PROBE} random trajectories of up to {budget} actions ends in a finished "
            "object; at least "
            f"{int(env.min_steps_to_finish(env.reset(1))[0])} actions are needed"
        )
    given = None if condition is None else condition[torch.from_numpy(good)]
    found = reward.evaluate(env, probe.ends[good], given).log_reward
    found = found[np.isfinite(found)]
    return float(found.min()) if len(found) else 0.0
