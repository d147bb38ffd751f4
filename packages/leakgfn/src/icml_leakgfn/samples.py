"""What a trained network drew: objects, their scores as the user's function gives them, and
log-probabilities.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray

from icml_leakgfn.distinct import rows_of
from icml_leakgfn.environments import FINISHED
from icml_leakgfn.rewards import Reward
from icml_leakgfn.rollout import Policy, Trajectories, rollout

_AT_ONCE = 1024  # trajectories drawn in one batch


@dataclass(frozen=True)
class Samples:
    """Drawn objects, in the order in which they were drawn.

    Attributes:
        states: [n, width].
        smiles: the objects in words; SMILES for molecules.
        score_raw: the score, or one for each of several, as the user's function gives it; NaN where an
            object was cut off or the function failed.
        log_reward: log R, shaped; -inf where an object is worth nothing.
        log_prob: log-probability of the way by which it was made: of the object itself where there is one way
            only, else a lower bound.
        done: FINISHED, or CUT; with truncation "cap" always FINISHED.
        failures: what the user's function said of objects on which it failed, by SMILES.
    """

    states: Int[ndarray, "n width"]
    smiles: list[str]
    score_raw: Float[ndarray, " n *scores"]
    log_reward: Float[ndarray, " n"]
    log_prob: Float[ndarray, " n"]
    done: Int[ndarray, " n"]
    failures: dict[str, str]

    def __len__(self) -> int:
        return len(self.smiles)

    @property
    def reward(self) -> Float[ndarray, " n"]:
        """R, shaped; inf where it is beyond the largest number."""
        with np.errstate(over="ignore"):
            return np.exp(self.log_reward)

    @property
    def objects(self) -> list[Any]:
        """RDKit molecules, or what else the environment makes."""
        env = getattr(self, "_env", None)
        return self.smiles if env is None else env.decode(self.states)

    def attach(self, env: Any) -> Samples:
        """Remember the environment, which turns states into objects."""
        object.__setattr__(self, "_env", env)
        return self

    def frame(self) -> Any:
        """A pandas data frame of the columns.

        Raises:
            ImportError: pandas is not installed (the extra ``frame``).
        """
        import pandas as pd

        columns: dict[str, Any] = {"smiles": self.smiles}
        if self.score_raw.ndim == 1:
            columns["score"] = self.score_raw
        else:
            columns |= {f"score_{k}": self.score_raw[:, k] for k in range(self.score_raw.shape[1])}
        columns |= {"log_reward": self.log_reward, "log_prob": self.log_prob, "done": self.done}
        return pd.DataFrame(columns)


def no_samples(env: Any, reward: Reward) -> Samples:
    """Nothing, in the right shapes."""
    none = np.zeros(0)
    raw = none if reward.columns == 1 else np.zeros((0, reward.columns))
    return Samples(env.reset(0), [], raw, none, none, none.astype(int), {}).attach(env)


def draw(
    env: Any,
    reward: Reward,
    policy: Policy,
    n: int,
    *,
    budget: Int[ndarray, " n"],
    condition: Float[torch.Tensor, "n dim"] | None = None,
    **options: Any,
) -> Samples:
    """Objects drawn by a policy, a thousand at a time.

    Args:
        env: the environment.
        reward: what scores them.
        policy: as :func:`rollout` takes it.
        n: how many.
        budget: L_max of each.
        condition: of each, or None.
        options: of :func:`rollout`.

    Raises:
        ValueError: from :func:`rollout` or the reward.
    """
    parts = []
    for begin in range(0, n, _AT_ONCE):
        rows = np.arange(begin, min(n, begin + _AT_ONCE))
        given = rows_of(condition, rows)
        parts.append(rollout(env, policy, len(rows), budget=budget[rows], condition=given, **options))
    return scored(env, reward, Trajectories.join(parts)) if parts else no_samples(env, reward)


def scored(env: Any, reward: Reward, drawn: Trajectories) -> Samples:
    """The objects at which trajectories ended, with their scores; what was cut off has none.

    Raises:
        ValueError: from the reward.
    """
    n, columns = len(drawn), reward.columns
    worth = (drawn.done == FINISHED) | (env.truncation == "cap")
    at = np.flatnonzero(worth)
    raw = np.full((n,) if columns == 1 else (n, columns), np.nan)
    log_reward = np.full(n, -np.inf)
    found = reward.evaluate(env, drawn.ends[at], rows_of(drawn.condition, at))
    raw[at], log_reward[at] = found.raw, found.log_reward
    log_prob = np.bincount(drawn.trajectory, weights=drawn.log_prob, minlength=n)
    labels = env.label(drawn.ends)
    failed = {name: reward.failures[name] for name in labels if name in reward.failures}
    return Samples(drawn.ends, labels, raw, log_reward, log_prob, drawn.done, failed).attach(env)


def conditions_for(
    reward: Reward, n: int, condition: Any, generator: torch.Generator
) -> Float[torch.Tensor, "n dim"] | None:
    """One condition for each object: those given, one row for all of them, or drawn as in training.

    Raises:
        ValueError: another shape, or a condition for a reward that takes none.
    """
    if condition is None:
        return reward.sample_conditions(n, generator)
    given = torch.as_tensor(condition, dtype=torch.float32)
    given = given.expand(n, -1) if given.dim() == 1 or given.shape[0] == 1 else given
    if not reward.dim or tuple(given.shape) != (n, reward.dim):
        raise ValueError(f"condition has shape {list(given.shape)}; expected {[n, reward.dim]}")
    return given
