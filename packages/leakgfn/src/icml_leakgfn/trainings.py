"""The small trainings that claims and benchmarks share: three worlds, five losses, one budget of steps for
all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from icml_leakgfn.exact import ExactFlows, exact_flow, exact_policy_distribution
from icml_leakgfn.fragments import FragmentEnv
from icml_leakgfn.gfn import LeakGFN
from icml_leakgfn.rewards import Shaping
from icml_leakgfn.scores import molecule_reward
from icml_leakgfn.worlds import BracketEnv, HyperGridEnv, HyperGridReward, bracket_reward

# Two rods, two stars, four caps, as medicinal chemistry has them: within four blocks about 10^4 states.
EIGHT_BLOCKS = (
    "*c1ccc(*)cc1",
    "*C(=O)N*",
    "*N1CCN(*)CC1",
    "*c1ccc(*)c(*)c1",
    "*C",
    "*OC",
    "*F",
    "*c1ccncc1",
)
BRACKET_CUT = 0.05  # what the specification's closed form takes a cut-off word to be worth


@dataclass(frozen=True)
class SmallWorld:
    """A world, its reward, and what plain flow matching takes a cut-off object to be worth there."""

    env: Any
    reward: Any
    cut_reward: float
    exact: ExactFlows


def small_world(name: str, max_length: int | None = None, horizon: int | None = None) -> SmallWorld:
    """``"brackets"``, ``"grid"``, ``"fragments"`` (10^4 states) or ``"chains"`` (molecules that get long).

    The reward of what is cut off is the floor of the world's rewards, as the official code has it for
    molecules that fail.

    Raises:
        ValueError: another name.
    """
    if name == "brackets":
        length = 8 if max_length is None else max_length
        env: Any = BracketEnv(length, horizon=max(length, 14) if horizon is None else horizon)
        reward: Any = bracket_reward
        cut = BRACKET_CUT
    elif name == "grid":
        env, reward, cut = HyperGridEnv(8, 3, forbidden=0.3, max_length=max_length), HyperGridReward(8), 0.1
    elif name == "fragments":
        length = 4 if max_length is None else max_length
        env = FragmentEnv(EIGHT_BLOCKS, length, 2, stop="closed", horizon=horizon or length)
        shaping = Shaping(0.05, 0.8, 3.0)
        reward, cut = molecule_reward("qed", shaping=shaping), float(np.exp(shaping.log_floor))
    elif name == "chains":
        length = 6 if max_length is None else max_length
        env = FragmentEnv(("*N(*)*", "*C", "*F"), length, 2, stop="closed", horizon=horizon or length)
        shaping = Shaping(0.05, 0.8, 3.0)
        reward, cut = molecule_reward("qed", shaping=shaping), float(np.exp(shaping.log_floor))
    else:
        raise ValueError(f"world {name!r} is none of brackets, grid, fragments, chains")
    return SmallWorld(env, reward, cut, exact_flow(env, reward))


# What suits worlds that can be enumerated, for every loss: rewards cost nothing there, so that every visited
# object is evaluated; and ends weigh as much as conservation, since what is hard is to conserve.
SETTINGS: dict[str, Any] = {"lr": 5e-3, "uniform": 0.05, "gamma": 1.0, "score_all": True}


def train(world: SmallWorld, loss: str, seed: int, *, steps: int, batch: int = 64, **options: Any) -> LeakGFN:
    """One network of 128 hidden units with Adam, its rate falling along a cosine; alike for every loss."""
    chosen: Any = loss
    given: dict[str, Any] = SETTINGS | {"cut_reward": world.cut_reward, "decay_steps": steps} | options
    gfn = LeakGFN(world.env, world.reward, net="mlp", loss=chosen, seed=seed, device="cpu", **given)
    return gfn.fit(steps, batch)


def distance(world: SmallWorld, gfn: LeakGFN, max_length: int | None = None) -> tuple[float, float]:
    """Total variation to the exact distribution, and the probability to be cut off."""
    exact = world.exact
    if max_length is not None and max_length != exact.max_length:
        exact = exact_flow(world.env, world.reward, max_length=max_length)
    found = exact_policy_distribution(gfn, graph=exact.graph, max_length=exact.max_length)
    return found.total_variation(exact), found.leak


def learnt_fractions(world: SmallWorld, gfn: LeakGFN) -> tuple[Float[ndarray, " edges"], ...]:
    """λ as learnt and λ* on every edge within L_max that carries chemical flow."""
    import torch

    graph, length = world.exact.graph, world.exact.max_length
    exact = world.exact.lambda_star
    kept = np.flatnonzero((graph.length[graph.child] <= length) & ~np.isnan(exact))
    parents = graph.parent[kept]
    states, inverse = np.unique(parents, return_inverse=True)
    budget = np.full(len(states), length)
    with torch.no_grad():
        log_fraction = gfn.evaluate(graph.states[states], budget).log_fraction.double().numpy()
    return np.exp(log_fraction[inverse, graph.action[kept]]), exact[kept]


def area_under_curve(score: Float[ndarray, " n"], truth: ndarray) -> float:
    """The probability that a true one has the higher score (Mann and Whitney), ties counted by half."""
    from scipy.stats import rankdata

    truth = np.asarray(truth, dtype=bool)
    if truth.all() or not truth.any():
        return float("nan")
    ranks = rankdata(score)
    positive = int(truth.sum())
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))
