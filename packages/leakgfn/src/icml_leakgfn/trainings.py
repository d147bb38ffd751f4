"""The small trainings that claims and benchmarks share: three worlds, five losses, one budget of steps for
all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
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
    """A world, its reward, what plain flow matching takes a cut-off object to be worth there, and how all
    losses are trained in it.
    """

    env: Any
    reward: Any
    cut_reward: float
    exact: ExactFlows
    options: dict[str, Any] = field(default_factory=dict)


def small_world(name: str, max_length: int | None = None, horizon: int | None = None) -> SmallWorld:
    """``"brackets"``, ``"grid"``, ``"fragments"`` (10^4 states) or ``"chains"`` (molecules that get long).

    The reward of what is cut off is the floor of the world's rewards, as the official code has it for
    molecules that fail.

    Raises:
        ValueError: another name.
    """
    options: dict[str, Any] = {}
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
        # Nine states of ten are cut off: worth so much that what a leak costs is seen, and visited
        # so often that both losses can learn what they are worth.
        shaping = Shaping(0.2, 0.8, 3.0)
        reward, cut = molecule_reward("qed", shaping=shaping), float(np.exp(shaping.log_floor))
        options = {"uniform": 0.5}
    elif name == "chains":
        length = 6 if max_length is None else max_length
        env = FragmentEnv(("*N(*)*", "*C", "*F"), length, 2, stop="closed", horizon=horizon or length)
        shaping = Shaping(0.05, 0.8, 3.0)
        reward, cut = molecule_reward("qed", shaping=shaping), float(np.exp(shaping.log_floor))
    else:
        raise ValueError(f"world {name!r} is none of brackets, grid, fragments, chains")
    return SmallWorld(env, reward, cut, exact_flow(env, reward), options)


# What suits worlds that can be enumerated, for every loss: rewards cost nothing there, so that every visited
# object is evaluated; and ends weigh as much as conservation, since what is hard is to conserve.
SETTINGS: dict[str, Any] = {"lr": 5e-3, "uniform": 0.05, "gamma": 1.0, "score_all": True}


def train(world: SmallWorld, loss: str, seed: int, *, steps: int, batch: int = 64, **options: Any) -> LeakGFN:
    """One network of 128 hidden units with Adam, its rate falling along a cosine; alike for every loss."""
    chosen: Any = loss
    given: dict[str, Any] = SETTINGS | world.options | {"cut_reward": world.cut_reward, "decay_steps": steps}
    given |= options
    gfn = LeakGFN(world.env, world.reward, net="mlp", loss=chosen, seed=seed, device="cpu", **given)
    return gfn.fit(steps, batch)


@dataclass(frozen=True)
class ChemicalPolicy:
    """A trained network that draws by its chemical flow, λ left out: the method with its key idea off."""

    gfn: LeakGFN

    @property
    def env(self) -> Any:
        """That of the network."""
        return self.gfn.env

    @property
    def log_policy(self) -> Any:
        """log P_F of the chemical flow."""
        return partial(self.gfn.log_policy, chemical=True)


def distance(
    world: SmallWorld, gfn: LeakGFN | ChemicalPolicy, max_length: int | None = None
) -> tuple[float, float]:
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


# For learning λ: the chemical flow weighs as much as the valid one, both have uniform P_B, ε lies far below
# the least reward, since λ below ε / F_chem is not seen, and edges that the policy avoids are walked too.
FOR_FRACTIONS: dict[str, Any] = {"alpha": 1.0, "uniform_backward": 1.0, "uniform": 0.5}
EPS_OF_LEAST = 1e-3


def least_reward(world: SmallWorld) -> float:
    """R of the least object of the full space."""
    log_reward = world.exact.log_reward
    return float(np.exp(log_reward[np.isfinite(log_reward)].min()))


def spearman_ceiling(exact: Float[ndarray, " n"]) -> float:
    """Spearman's coefficient of the best ranking without ties beside one with ties.

    Of ties of sizes t in n values: sqrt(1 - Σ (t^3 - t) / (n^3 - n)). A learnt λ gives no two edges the same
    value, so that this is what a perfect order reaches.
    """
    _, sizes = np.unique(exact, return_counts=True)
    n, ties = float(len(exact)), sizes.astype(np.float64)
    return float(np.sqrt(1 - ((ties**3 - ties).sum()) / (n**3 - n)))


def area_under_curve(score: Float[ndarray, " n"], truth: ndarray) -> float:
    """The probability that a true one has the higher score (Mann and Whitney), ties counted by half."""
    from scipy.stats import rankdata

    truth = np.asarray(truth, dtype=bool)
    if truth.all() or not truth.any():
        return float("nan")
    ranks = rankdata(score)
    positive = int(truth.sum())
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * (len(truth) - positive)))
