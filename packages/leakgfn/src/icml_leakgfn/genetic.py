"""A genetic baseline on the same blocks, by mutation and selection alone.

Each generation takes the best molecules, strips some blocks off each, and grows them again at random.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from icml_leakgfn.environments import FINISHED, INTERIOR
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import even_policy, rollout, sample_masked
from icml_leakgfn.samples import Samples


def genetic_search(
    env: Any, reward: Any, *, population: int = 64, generations: int = 20, seed: int = 0
) -> Samples:
    """The last population of a genetic search, best first.

    Args:
        env: an environment.
        reward: a function or a :class:`Reward`.
        population: size.
        generations: rounds of strip, grow and select.
        seed: of all draws.

    Raises:
        ValueError: counts that are not positive, or what the reward refuses.
    """
    if population < 2 or generations < 0:
        raise ValueError(
            f"population={population} must be at least 2 and generations={generations} not negative"
        )
    scorer, generator = as_reward(reward), torch.Generator().manual_seed(seed)
    begin = rollout(env, even_policy, 4 * population, generator=generator, reach=True)
    pool = begin.ends[begin.done == FINISHED]
    for generation in range(generations + 1):
        _, first = np.unique(pool, axis=0, return_index=True)
        pool = pool[np.sort(first)]
        worth = scorer.evaluate(env, pool).log_reward
        pool = pool[np.argsort(-worth, kind="stable")[:population]]
        if generation < generations and len(pool):
            pool = np.concatenate([pool, _regrown(env, pool, generator)])
    scores = scorer.evaluate(env, pool)
    none = np.full(len(pool), np.nan)
    done = np.full(len(pool), FINISHED)
    return Samples(
        pool, env.label(pool), scores.raw, scores.log_reward, none, done, dict(scorer.failures)
    ).attach(env)


def _regrown(env: Any, pool: Int[ndarray, "n width"], generator: torch.Generator) -> Int[ndarray, "m width"]:
    """Each object with one to three actions undone at random and others taken, as far as it ends finished."""
    states = pool.copy()
    depth = torch.randint(1, 4, (len(states),), generator=generator).numpy()
    for step in range(3):
        goes = (depth > step) & (env.length(states) > 0)
        parents, _, index = env.parents(states[goes])
        chosen = states[goes].copy()
        draws = torch.rand(len(index), generator=generator).numpy()
        order = np.lexsort((draws, index))
        first = np.unique(index[order], return_index=True)[1]
        chosen[index[order][first]] = parents[order][first]
        states[goes] = chosen
    ended = np.zeros(len(states), dtype=bool)
    for _ in range(env.max_length + 1):
        status = env.status(states, env.max_length)
        going = np.flatnonzero((status == INTERIOR) & ~ended)
        if len(going) == 0:
            break
        mask = torch.from_numpy(env.mask(states[going]))
        able = torch.from_numpy(env.may_finish(states[going], env.max_length - env.length(states[going])))
        mask[:, :-1] &= able
        stuck = ~mask.any(dim=1)
        mask[stuck, -1] = True
        action = sample_masked(torch.zeros(mask.shape), mask, generator).numpy()
        stops = action == env.n_actions - 1
        ended[going[stops]] = True
        states[going[~stops]] = env.apply(states[going[~stops]], action[~stops])
    finished = (env.status(states, env.max_length) == FINISHED) | (ended & env.mask(states)[:, -1])
    return states[finished]
