"""What holds for any blocks, ways, flows and records: properties, by hypothesis."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_leakgfn import FragmentEnv, LeakLoss, Shaping, check_edges, hypervolume, rows_from_edges
from icml_leakgfn.collapse import expected_unique
from icml_leakgfn.distinct import distinct, tags
from icml_leakgfn.metrics import harmonic_mean
from icml_leakgfn.rollout import Trajectories, even_policy, rollout, sample_masked
from icml_leakgfn.worlds import BracketEnv

POOL = ("*c1ccc(*)cc1", "*C(=O)N*", "*N(*)*", "*c1cc(*)cc(*)c1", "*C1C(*)C(*)C1*", "*C", "*F", "*C(*)(*)O*")
libraries = st.sets(st.sampled_from(POOL), min_size=2, max_size=4).map(sorted)
seeds = st.integers(0, 2**31 - 1)


@cache
def environment(blocks, max_blocks, stop, attach):
    return FragmentEnv(list(blocks), max_blocks, stop=stop, attach=attach, horizon=max_blocks + 1)


@settings(max_examples=25, deadline=None)
@given(libraries, st.sampled_from(["any", "first"]), seeds)
def test_edges_of_any_molecules_agree_in_both_directions(blocks, attach, seed):
    env = environment(tuple(blocks), 4, "capped", attach)
    ways = rollout(env, even_policy, 4, generator=torch.Generator().manual_seed(seed), log_probs=False)
    check_edges(env, ways.states)
    # Records of one trajectory lead from each other, and its end is told by the rule of the environment.
    inner = np.flatnonzero(np.diff(ways.trajectory) == 0)
    after = env.apply(ways.states[inner], ways.action[inner])
    np.testing.assert_array_equal(after, ways.states[inner + 1])
    ended = ways.action[ways.last] < 0
    np.testing.assert_array_equal(ways.done[ended], env.status(ways.ends[ended], 4))


@settings(max_examples=15, deadline=None)
@given(libraries, seeds)
def test_molecules_of_any_blocks_go_to_smiles_and_back(blocks, seed):
    env = environment(tuple(blocks), 4, "capped", "any")
    ends = rollout(env, even_policy, 3, generator=torch.Generator().manual_seed(seed), log_probs=False).ends
    for name in env.label(ends):
        assert env.label(env.decompose(name, time_limit=10.0)[None]) == [name]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 40), st.integers(1, 4), st.integers(0, 3), seeds)
def test_distinct_records_are_those_of_numpy(n, width, dim, seed):
    rng = np.random.default_rng(seed)
    states = rng.integers(-1, 2, (n, width)).astype(np.int16)
    budget = rng.integers(1, 3, n) * rng.choice([1, 100_000])  # also budgets beyond int16
    condition = torch.from_numpy(rng.integers(0, 2, (n, dim)).astype(np.float32)) if dim else None
    first, inverse = distinct(states, tags(budget, condition))
    whole = np.column_stack([states, budget] + ([] if condition is None else [condition.numpy()]))
    np.testing.assert_array_equal(whole[first][inverse], whole)
    expected = np.sort(np.unique(whole, axis=0, return_index=True)[1]) if n else []
    assert first.tolist() == list(expected)


@settings(max_examples=50, deadline=None)
@given(seeds, st.floats(-300, 300))
def test_a_common_factor_of_flows_rewards_and_eps_changes_no_loss(seed, shift):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    given = {
        "log_chem_in": draw(4), "log_fraction_in": -draw(4).abs(), "ptr": torch.tensor([0, 0, 1, 2, 4]),
        "log_chem_out": draw(4, 2), "log_fraction_out": -draw(4, 2).abs(), "log_stop": draw(4),
        "done": torch.tensor([0, 0, 1, 2]), "log_reward": draw(4),
    }  # fmt: skip
    scaled = ("log_chem_in", "log_chem_out", "log_stop", "log_reward")
    moved = given | {name: given[name] + shift for name in scaled}
    one = LeakLoss(-5.0, uniform_backward=1.0)(rows_from_edges(**given))
    other = LeakLoss(-5.0 + shift, uniform_backward=1.0)(rows_from_edges(**moved))
    for a, b in zip(one, other, strict=True):
        assert float(a) == pytest.approx(float(b), rel=1e-9, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 20), st.integers(1, 6), seeds)
def test_only_legal_actions_with_a_flow_are_drawn(n, actions, seed):
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(n, actions, generator=generator) < 0.5
    mask[:, 0] |= ~mask.any(dim=1)
    logits = 200 * torch.randn(n, actions, generator=generator)
    drawn = sample_masked(logits, mask, generator)
    assert bool(mask.gather(1, drawn[:, None]).all())


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 12), st.integers(0, 2**31 - 1))
def test_joining_selected_trajectories_gives_them_back(n, seed):
    generator = torch.Generator().manual_seed(seed)
    ways = rollout(BracketEnv(6, horizon=8), even_policy, n, generator=generator, walk=0.3)
    single = [ways.select(np.array([k])) for k in range(n)]
    again = Trajectories.join(single)
    for name in ("states", "trajectory", "step", "action", "log_prob", "done", "last", "budget", "walks"):
        np.testing.assert_array_equal(getattr(again, name), getattr(ways, name))


@given(
    st.floats(1e-6, 1.0),
    st.floats(1e-3, 10.0),
    st.floats(0.1, 50.0),
    st.floats(-1.0, 2.0),
    st.floats(0.0, 1.0),
)
def test_a_better_score_never_has_a_smaller_reward(minimum, norm, exponent, score, more):
    shaping = Shaping(minimum, norm, exponent)
    low, high = shaping.log_reward(np.array([score, score + more]))
    assert shaping.log_floor - 1e-9 <= low <= high


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.integers(1, 200))
def test_expected_variety_lies_between_one_object_and_all(log_rewards, draws):
    share = expected_unique(log_rewards, draws)
    assert 1 / draws - 1e-9 <= share <= min(1.0, len(log_rewards) / draws) + 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), max_size=8), st.floats(0, 1), st.floats(0, 1))
def test_a_further_point_never_takes_area_away(points, x, y):
    before = hypervolume(np.array(points).reshape(-1, 2))
    after = hypervolume(np.array([*points, (x, y)]))
    assert before - 1e-12 <= after <= 1 + 1e-12
    assert after >= x * y - 1e-12


@given(st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6))
def test_a_harmonic_mean_lies_between_the_least_and_the_arithmetic_one(values):
    found = harmonic_mean(values)
    assert min(values) - 1e-12 <= found <= math.fsum(values) / len(values) + 1e-12
