"""Whole episodes of text environments: played by a policy, by chance, or by the environment's own expert."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from icml_lm.text_env import EnvDataMissing, Obs, TextEnv


@dataclass(frozen=True)
class Episode:
    """What was seen and done: ``observations`` has one more entry than ``actions`` and ``rewards``."""

    seed: int
    split: str
    observations: tuple[Obs, ...]
    actions: tuple[str, ...]
    rewards: tuple[float, ...]
    won: bool
    score: float
    done: bool


Policy = Callable[[Obs], str]


def rollout(
    env: TextEnv, policy: Policy, seed: int = 0, split: str = "train", *, max_steps: int = 50
) -> Episode:
    """One episode under a policy, cut after ``max_steps`` (``done`` is then False).

    Raises:
        ValueError: for fewer than one step.
    """
    if max_steps < 1:
        raise ValueError(f"max_steps = {max_steps}; at least 1 is wanted")
    observations = [env.reset(seed, split)]
    actions: list[str] = []
    rewards: list[float] = []
    done, info = False, {"won": False, "score": 0.0}
    while not done and len(actions) < max_steps:
        action = policy(observations[-1])
        obs, reward, done, info = env.step(action)
        observations.append(obs)
        actions.append(action)
        rewards.append(reward)
    return Episode(
        seed, split, tuple(observations), tuple(actions), tuple(rewards), info["won"], info["score"], done
    )


def random_policy(seed: int) -> Policy:
    """Any admissible action, all alike."""
    rng = random.Random(seed)
    return lambda obs: rng.choice(obs.admissible)


def expert_policy(env: TextEnv) -> Policy:
    """The first action of the environment's own plan, asked for anew at every step.

    Raises:
        EnvDataMissing: at a step for which the environment knows no plan.
    """

    def first(obs: Obs) -> str:
        plan = env.expert()
        if not plan:
            raise EnvDataMissing(type(env).__name__, "plan from this state", "play an episode from its start")
        return plan[0]

    return first
