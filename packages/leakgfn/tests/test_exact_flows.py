"""The exact solver against closed forms, enumeration by hand, and sums over networkx' paths."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from icml_leakgfn import (
    BracketEnv,
    ExactFlow,
    FlowProblem,
    FragmentEnv,
    HyperGridEnv,
    World,
    check_edges,
    exact_flow,
)
from icml_leakgfn.worlds import HyperGridReward, bracket_reward


def flat(items):
    return [1.0] * len(items)


flat.vectorised = True


def test_brackets_have_22_words_56_cut_states_and_the_known_total():
    flows = exact_flow(BracketEnv(8, horizon=14), bracket_reward)
    assert int(flows.objects.sum()) == 22
    assert flows.cut_states == 56
    # Narayana numbers N(n, k) count the words of n pairs with k peaks.
    narayana = {
        (n, k): math.comb(n, k) * math.comb(n, k - 1) // n for n in range(1, 5) for k in range(1, n + 1)
    }
    total = sum(count * (1 + k) ** 2 / (1 + n / 2) for (n, k), count in narayana.items())
    assert pytest.approx(total, rel=1e-12) == flows.Z
    assert flows.leak(0.05) == pytest.approx(56 * 0.05 / (total + 56 * 0.05), rel=1e-12)


@pytest.mark.parametrize("length", [3, 5, 8])
def test_flows_are_sums_over_paths(length):
    """F_valid of an edge, by listing every path of a small grid and its backward probability."""
    env = HyperGridEnv(3, 2, forbidden=0.3, max_length=min(length, 4), seed=1)
    flows = exact_flow(env, HyperGridReward(3))
    graph = flows.graph
    paths = nx.DiGraph()
    paths.add_edges_from(zip(graph.parent.tolist(), graph.child.tolist(), strict=True))
    into = flows.parents
    expected = np.zeros(len(graph.child))
    number = {(int(u), int(v)): k for k, (u, v) in enumerate(zip(graph.parent, graph.child, strict=True))}
    for x in np.flatnonzero(flows.objects):
        for path in nx.all_simple_paths(paths, 0, int(x)) if x else []:
            chance = np.prod([1 / into[v] for v in path[1:]])
            for edge in itertools.pairwise(path):
                expected[number[edge]] += chance * np.exp(flows.log_reward[x])
    np.testing.assert_allclose(np.exp(flows.F_valid), expected, rtol=1e-12, atol=1e-15)


def test_the_exact_fraction_is_a_share_and_0_where_nothing_is_in_reach():
    flows = exact_flow(BracketEnv(6, horizon=10), bracket_reward)
    fraction = flows.lambda_star
    known = ~np.isnan(fraction)
    assert ((fraction[known] >= 0) & (fraction[known] <= 1 + 1e-12)).all()
    env, graph = flows.graph.env, flows.graph
    left = 6 - graph.length
    reach = env.may_finish(graph.states, left)[graph.parent, graph.action]
    inside = graph.length[graph.child] <= 6
    np.testing.assert_array_equal(fraction[known & inside] > 0, reach[known & inside])


def test_a_flow_is_verified_and_a_wrong_one_refused():
    problem = FlowProblem(HyperGridEnv(4, 2), HyperGridReward(4))
    flows = ExactFlow().solve(problem)
    flows.verify(problem)
    for name in ("log_valid", "log_chem"):
        wrong = getattr(flows, name).copy()
        wrong[3] += 0.2
        with pytest.raises(ValueError, match="is not conserved"):
            replace(flows, **{name: wrong}).verify(problem)


@pytest.mark.parametrize("stop", ["capped", "closed"])
@pytest.mark.parametrize("truncation", ["leak", "cap"])
def test_both_meanings_of_truncation(stop, truncation):
    """With cap every state of max_blocks blocks is an object; with leak those with open slots are worth
    nothing.
    """
    env = FragmentEnv(["*c1ccc(*)cc1", "*C", "*O"], 3, 2, truncation, stop=stop)
    flows = exact_flow(env, flat)
    graph = flows.graph
    is_open, size = env.open_slots(graph.states) > 0, graph.length
    expected = (size >= 2) & ((~is_open) if stop == "closed" else (size < 3) | ~is_open)
    if truncation == "cap":
        expected |= size == 3
    np.testing.assert_array_equal(flows.objects, expected)
    assert flows.cut_states > 0
    assert pytest.approx(expected.sum()) == flows.Z


def test_a_constraint_makes_an_object_worth_nothing():
    from icml_leakgfn import Reward

    env = BracketEnv(6)
    reward = Reward(bracket_reward, constraint=lambda word: not word.startswith("()"))
    flows = exact_flow(env, reward)
    free = exact_flow(env, bracket_reward)
    kept = np.array([not word.startswith("()") for word in env.label(free.graph.states)])
    expected = np.where(kept & free.objects, np.exp(free.log_reward), 0)
    np.testing.assert_allclose(flows.probability, expected / expected.sum(), rtol=1e-12)


def test_rewards_of_300_orders_give_the_same_distribution_up_to_a_shift():
    from icml_leakgfn import Reward

    env = BracketEnv(6)
    log = [Reward(lambda w, s=s: s + 0.3 * w.count("()"), log=True) for s in (-300.0, 0.0, 300.0)]
    distributions = [exact_flow(env, r).probability for r in log]
    for found in distributions[1:]:
        np.testing.assert_allclose(found, distributions[0], rtol=1e-9)


def test_too_many_states_and_none_within_reach_are_told():
    with pytest.raises(RuntimeError, match="more than max_states=100 states: 1"):
        exact_flow(BracketEnv(12), bracket_reward, max_states=100)
    with pytest.raises(ValueError, match="no finished object within 1 actions; the nearest has 2"):
        exact_flow(BracketEnv(1, horizon=6), bracket_reward)
    with pytest.raises(ValueError, match="max_length=1 are forbidden; the nearest other is 2"):
        HyperGridEnv(4, 1, forbidden=0.7, max_length=1, seed=2)
    with pytest.raises(ValueError, match="the shortest has 2 blocks"):
        FragmentEnv(["*c1ccc(*)cc1", "*C"], 1, 1, stop="closed")
    with pytest.raises(ValueError, match="no end: no block closes a slot"):
        FragmentEnv(["*c1ccc(*)cc1"], 4, stop="closed")


class Circle(World):
    """Three places in a circle, entered from outside."""

    graded = False

    def __init__(self):
        self._set_lengths(5, None, "leak")
        self.n_actions = 2
        self.start = np.array([0], dtype=np.int16)

    def mask(self, states):
        return np.column_stack([np.ones(len(states), dtype=bool), states[:, 0] == 2])

    def apply(self, states, actions):
        return np.where(states == 3, 1, states + 1).astype(np.int16)

    def length(self, states):
        return np.minimum(states[:, 0], 1).astype(np.int64)

    def decode(self, states):
        return [int(v) for v in states[:, 0]]


def test_a_circle_of_states_is_named():
    with pytest.raises(ValueError, match="state graph has a cycle through '[123]'"):
        exact_flow(Circle(), flat)


@pytest.mark.parametrize(
    "env",
    [
        BracketEnv(5),
        HyperGridEnv(3, 3),
        FragmentEnv(["*c1ccc(*)cc1", "*C(=O)N*", "*c1cc(*)cc(*)c1", "*C"], 3, horizon=4),
        FragmentEnv(["*c1ccc(*)cc1", "*C(=O)N*", "*C"], 4, attach="first"),
    ],
    ids=["brackets", "grid", "fragments", "first"],
)
def test_forward_and_backward_edges_agree_on_every_state(env):
    flows = exact_flow(env, flat)
    check_edges(env, flows.graph.states)
    assert (flows.parents[1:] > 0).all()


def test_parents_that_miss_an_edge_are_found_out():
    env = HyperGridEnv(3, 2)
    whole = env.parents
    env.parents = lambda states: tuple(part[:-1] for part in whole(states))
    with pytest.raises(RuntimeError, match="miss the edge by action"):
        check_edges(env, env.reset(1))


def test_a_step_that_is_not_legal_is_refused():
    env = BracketEnv(4)
    with pytest.raises(ValueError, match=r"action 1 is not legal in ''; legal are \[0\]"):
        env.step(env.reset(1), [1])
    states, done = env.step(env.reset(2), [0, 0])
    states, done = env.step(states, [1, 0], budget=[2, 2])
    assert done.tolist() == [2, 1]
    with pytest.raises(TypeError, match="actions are float64; expected integers"):
        env.step(env.reset(1), [0.0])
    assert env.label(states) == ["()", "(("]
