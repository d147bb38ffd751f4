"""Trainings on enumerable worlds judged by exact dynamic programming; saving, replay, conditions,
collapse.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from icml_leakgfn import (
    BracketEnv,
    ConditionedReward,
    Env,
    FragmentEnv,
    HyperGridEnv,
    LeakGFN,
    PreferenceReward,
    Reward,
    Shaping,
    World,
    exact_flow,
    exact_policy_distribution,
    hypervolume,
)
from icml_leakgfn.collapse import expected_unique
from icml_leakgfn.replay import digest
from icml_leakgfn.worlds import HyperGridReward, bracket_reward

FAST = {
    "hidden": 64,
    "lr": 1e-2,
    "device": "cpu",
    "net": "mlp",
    "gamma": 1.0,
    "uniform": 0.05,
    "score_all": True,
}


def distance(gfn, **options):
    exact = exact_flow(gfn.env, gfn.reward, **options)
    found = exact_policy_distribution(gfn, graph=exact.graph, **options)
    return found.total_variation(exact), found


@pytest.mark.parametrize("loss", ["leak", "fm", "tb", "db", "subtb"])
def test_every_loss_learns_the_words_of_a_short_world(loss):
    env = BracketEnv(4)
    steps = 120
    gfn = LeakGFN(env, bracket_reward, loss=loss, decay_steps=steps, cut_reward=1e-2, **FAST).fit(steps, 32)
    apart, found = distance(gfn)
    assert apart < 0.05
    assert found.finished.sum() + found.leak == pytest.approx(1, abs=1e-9)


def test_flow_matching_leaks_as_its_closed_form_says_and_leakgfn_does_not():
    env = BracketEnv(6)
    options = FAST | {"decay_steps": 150}
    plain = LeakGFN(env, bracket_reward, loss="fm", cut_reward=0.5, **options).fit(150, 32)
    exact = exact_flow(env, bracket_reward)
    assert distance(plain)[1].leak == pytest.approx(exact.leak(0.5), rel=0.2)
    gfn = LeakGFN(env, bracket_reward, **options).fit(150, 32)
    apart, found = distance(gfn)
    assert found.leak < 0.01
    assert apart < distance(plain)[0]


def test_samples_follow_the_exact_distribution_of_the_policy():
    env = BracketEnv(4)
    gfn = LeakGFN(env, bracket_reward, **FAST).fit(20, 16)
    _, found = distance(gfn)
    drawn = gfn.sample(4000, seed=0)
    counts = {}
    for key in env.key(drawn.states[drawn.done == 2]):
        counts[key] = counts.get(key, 0) + 1
    for key, p in found.p.items():
        assert counts.get(key, 0) / 4000 == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 4000) + 1e-3)
    # A tree: the log-probability of the way is that of the object.
    ended = drawn.done == 2
    expected = [found.p[key] for key in env.key(drawn.states[ended])]
    np.testing.assert_allclose(np.exp(drawn.log_prob[ended]), expected, rtol=1e-4)
    cold = gfn.sample(4000, seed=0, temperature=0.2)

    def most(samples):
        return max(samples.smiles.count(name) for name in set(samples.smiles))

    assert most(drawn) < most(cold)
    assert len(set(cold.smiles)) < len(set(drawn.smiles))


def test_one_network_serves_several_lengths():
    """Nothing is cut off at any length, and every length comes nearer to its own target."""
    env = BracketEnv(6)
    steps, options = 300, FAST | {"alpha": 1.0, "hindsight": 2, "uniform": 0.2}
    gfn = LeakGFN(env, bracket_reward, budgets=(2, 6), reach_mask=True, decay_steps=steps, **options)
    before = {length: distance(gfn, max_length=length)[0] for length in (4, 6)}
    gfn.fit(steps, 16)
    for length, untrained in before.items():
        apart, found = distance(gfn, max_length=length)
        assert found.leak < 1e-9
        assert apart < 0.75 * untrained
        assert max(len(word) for word in gfn.sample(50, seed=0, max_length=length).smiles) <= length
    with pytest.raises(ValueError, match="outside 1 to the horizon 6"):
        gfn.sample(1, max_length=9)


def test_conditions_have_an_effect_and_each_target_is_met():
    """Five preferences between short and peaked words."""
    env = BracketEnv(4)
    reward = PreferenceReward([lambda w: 1.0 + w.count("()"), lambda w: 4.0 / len(w) ** 2])
    options = FAST | {"alpha": 1.0, "uniform": 0.2, "reach_mask": True}
    gfn = LeakGFN(env, reward, decay_steps=250, **options).fit(250, 32)
    distributions = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        weights = torch.tensor([share, 1 - share])
        exact = exact_flow(env, reward, condition=weights)
        found = exact_policy_distribution(gfn, graph=exact.graph, condition=weights)
        assert found.total_variation(exact) < 0.05
        distributions.append(found.finished)
    assert 0.5 * np.abs(distributions[0] - distributions[-1]).sum() > 0.3
    drawn = gfn.sample(5, seed=0, condition=torch.tensor([1.0, 0.0]))
    assert drawn.score_raw.shape == (5, 2)
    with pytest.raises(ValueError, match=r"condition has shape \[5, 3\]; expected \[5, 2\]"):
        gfn.sample(5, condition=torch.ones(5, 3))
    with pytest.raises(ValueError, match="each row must sum to 1"):
        gfn.sample(5, condition=torch.ones(5, 2))


def test_pockets_have_an_effect():
    """A vector of a pocket says which words it likes."""
    pockets = torch.tensor([[1.0, 0.0], [0.0, 1.0]])

    def docking(words, vectors):
        likes = torch.tensor([[float(w.startswith("()")), float(w.startswith("(("))] for w in words])
        return (0.2 + 3 * (likes * vectors).sum(1)).numpy()

    reward = ConditionedReward(docking, pockets)
    env = BracketEnv(4)
    gfn = LeakGFN(env, reward, decay_steps=200, **FAST).fit(200, 32)
    for vector, start in zip(pockets, ("()", "(("), strict=True):
        exact = exact_flow(env, reward, condition=vector)
        assert (
            exact_policy_distribution(gfn, graph=exact.graph, condition=vector).total_variation(exact) < 0.06
        )
        drawn = gfn.sample(200, seed=1, condition=vector)
        assert np.mean([word.startswith(start) for word in drawn.smiles]) > 0.8
        np.testing.assert_allclose(drawn.score_raw, docking(drawn.smiles, vector.expand(200, -1)))
    with pytest.raises(ValueError, match="expected finite numbers"):
        ConditionedReward(docking, torch.tensor([[math.nan, 0.0]]))


@pytest.mark.parametrize("loss", ["leak", "fm", "tb", "db", "subtb"])
def test_a_loaded_network_draws_the_same_and_resumes_as_unbroken(loss, tmp_path):
    env = HyperGridEnv(3, 2, max_length=3)

    def build():
        return LeakGFN(
            env, HyperGridReward(3), loss=loss, hidden=8, device="cpu", replay=0.25, seed=4, decay_steps=12
        )

    whole = build().fit(12, 8)
    half = build().fit(6, 8)
    half.save(tmp_path / "half.safetensors")
    again = LeakGFN.load(tmp_path / "half.safetensors", env, HyperGridReward(3), device="cpu")
    assert again.sample(20, seed=1).smiles == half.sample(20, seed=1).smiles
    again.fit(6, 8)
    assert again.history_ == whole.history_
    assert again.buffer.digests() == whole.buffer.digests()
    for a, b in zip(again.net.parameters(), whole.net.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="belongs to another training"):
        LeakGFN.load(tmp_path / "half.safetensors", HyperGridEnv(4, 2), HyperGridReward(4), device="cpu")
    (tmp_path / "broken.safetensors").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="no file of a trained flow network"):
        LeakGFN.load(tmp_path / "broken.safetensors", env, HyperGridReward(3))


def test_replay_changes_no_entry_and_does_not_hurt():
    env = BracketEnv(4)
    options = FAST | {"decay_steps": 120}
    gfn = LeakGFN(env, bracket_reward, replay=0.25, replay_size=40, **options)
    gfn.fit(40, 16)
    # The entries themselves, also those that make room: none may have changed when it is looked at again.
    entries, before = list(gfn.buffer.entries), gfn.buffer.digests()
    rewards = {id(entry): value for entry, value in zip(entries, gfn.buffer.priorities, strict=True)}
    assert len(entries) >= 3  # a way to each of the three words
    gfn.fit(80, 16)
    assert [digest(entry) for entry in entries] == before
    for entry, value in zip(gfn.buffer.entries, gfn.buffer.priorities, strict=True):
        assert rewards.get(id(entry), value) == value
    changed = replace(entries[0], log_prob=entries[0].log_prob + 1.0)
    assert digest(changed) != before[0]
    with pytest.raises(ValueError, match="read-only"):
        gfn.buffer.entries[0].states[0, 0] = 9
    without = LeakGFN(env, bracket_reward, **options).fit(120, 16)
    assert distance(gfn)[0] <= distance(without)[0] + 0.02


def test_the_same_seed_gives_the_same_molecules_twice():
    env = FragmentEnv(["*c1ccc(*)cc1", "*C", "*O", "*N(*)*"], 4)
    runs = [
        LeakGFN(env, lambda mol: 1.0, hidden=16, message_steps=2, seed=3, device="cpu")
        .fit(50, 2)
        .sample(20, seed=0)
        for _ in range(2)
    ]
    assert runs[0].smiles == runs[1].smiles
    assert len(set(runs[0].smiles)) > 3


def test_training_ends_by_itself_where_one_object_fills_the_batch():
    env = BracketEnv(4)
    gfn = LeakGFN(env, lambda w: 1e6 if w == "()" else 1e-3, stop_on_collapse=0.2, eps=1e-6, **FAST)
    with pytest.warns(UserWarning, match="of the last 100 objects are different, below 20%"):
        gfn.fit(400, 32)
    assert gfn.collapsed_
    assert gfn.step < 400
    assert gfn.history_[-1]["unique"] < 0.2


def test_the_expected_share_of_different_objects():
    assert expected_unique([0.0] * 100, 1) == pytest.approx(1.0)
    draws = np.random.default_rng(0).choice(3, size=(20000, 4), p=[0.5, 0.25, 0.25])
    seen = np.mean([len(set(row)) / 4 for row in draws.tolist()])
    assert expected_unique(np.log([2.0, 1.0, 1.0]).tolist(), 4) == pytest.approx(seen, abs=0.01)


def test_another_reward_for_a_trained_network():
    env = BracketEnv(4)
    gfn = LeakGFN(env, bracket_reward, **FAST).fit(5, 8)
    gfn.set_reward(lambda w: -3.0 + len(w), log=True)
    gfn.fit(120, 32)
    assert distance(gfn)[0] < 0.1
    with pytest.raises(ValueError, match="the new reward has 2 conditions"):
        gfn.set_reward(PreferenceReward([len, len]))


def test_a_floor_above_the_least_reward_warns():
    with pytest.warns(UserWarning, match="eps=5 is not below the least reward"):
        LeakGFN(BracketEnv(4), bracket_reward, eps=5.0, **FAST).fit(1, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LeakGFN(BracketEnv(4), bracket_reward, **FAST).fit(1, 4)


def test_wrong_options_are_named():
    env = BracketEnv(4)
    with pytest.raises(ValueError, match="loss='vi' is none of"):
        LeakGFN(env, bracket_reward, loss="vi")
    with pytest.raises(ValueError, match=r"explore=2 must lie in 0 to 1"):
        LeakGFN(env, bracket_reward, explore=2)
    with pytest.raises(ValueError, match="net='graph' needs molecules"):
        LeakGFN(env, bracket_reward, net="graph")
    with pytest.raises(ValueError, match="net='cnn' is neither"):
        LeakGFN(env, bracket_reward, net="cnn")
    with pytest.raises(ValueError, match=r"budgets=\(4, 2\) must rise"):
        LeakGFN(env, bracket_reward, budgets=(4, 2))
    with pytest.raises(TypeError, match="which cannot be called"):
        LeakGFN(env, 3.0)
    gfn = LeakGFN(env, bracket_reward, **FAST)
    with pytest.raises(ValueError, match="n=-1 is negative"):
        gfn.sample(-1)
    with pytest.raises(ValueError, match="steps=-1"):
        gfn.fit(-1)
    with pytest.raises(ValueError, match="within 1 actions; at least 2 are needed"):
        LeakGFN(BracketEnv(1), bracket_reward, **FAST).fit(1)
    with pytest.raises(TypeError, match=r"dtype=torch.int64 is no floating-point type"):
        LeakGFN(env, bracket_reward, dtype=torch.int64)


class Ladder(World):
    """Up, or off the ladder for good; an object only on its top."""

    graded = True

    def __init__(self, top, max_length):
        self._set_lengths(max_length, max(top, max_length), "leak")
        self.top, self.n_actions = top, 3
        self.start = np.zeros(self.horizon, dtype=np.int16)

    def mask(self, states):
        on_top = (states == 1).sum(axis=1) == self.top
        return np.column_stack([~on_top, ~on_top, on_top])

    def apply(self, states, actions):
        after = states.copy()
        after[np.arange(len(states)), self.length(states)] = 1 + np.asarray(actions)
        return after

    def length(self, states):
        return (states > 0).sum(axis=1)

    def parents(self, states):
        index = np.flatnonzero(self.length(states) > 0)
        before, rows = states[index].copy(), np.arange(len(index))
        last = self.length(before) - 1
        action = before[rows, last].astype(np.int64) - 1
        before[rows, last] = 0
        return before, action, index

    def features(self, states):
        return {"vector": torch.from_numpy(states).float()}

    def decode(self, states):
        return ["".join(str(v) for v in row if v) for row in states.tolist()]


@pytest.mark.parametrize("shaping", [None, Shaping(0.1, 1.0, 1.0)], ids=["plain", "shaped"])
def test_rare_ends_are_legal_and_none_at_all_is_told(shaping):
    """One trajectory of 1,024 ends in the object, which random ones miss; or it lies beyond L_max."""
    reward = Reward(lambda name: 0.5, shaping=shaping)
    gfn = LeakGFN(Ladder(10, 10), reward, **FAST).fit(1, 4)
    assert gfn.log_least == pytest.approx(math.log(0.5 if shaping is None else 0.1))
    with pytest.raises(ValueError, match="within 6 actions; the nearest has 8"):
        LeakGFN(Ladder(8, 6), reward, **FAST).fit(1, 4)


@pytest.mark.parametrize("loss", ["leak", "fm"])
def test_debug_finds_parents_that_miss_a_taken_edge(loss):
    env = HyperGridEnv(4, 2)
    whole = env.parents
    LeakGFN(env, HyperGridReward(4), loss=loss, debug=True, **FAST).fit(2, 8)

    def half(states):
        parents, action, index = whole(states)
        kept = action != 0
        return parents[kept], action[kept], index[kept]

    env.parents = half
    with pytest.raises(RuntimeError, match=r"the parents of '.*' miss the edge by action 0"):
        LeakGFN(env, HyperGridReward(4), loss=loss, debug=True, **FAST).fit(2, 8)


def test_walks_are_left_out_of_figures_replay_and_collapse():
    env = BracketEnv(4, horizon=10)
    gfn = LeakGFN(env, bracket_reward, walk=1.0, replay=0.5, **FAST).fit(5, 16)
    assert gfn.recent_ == []
    assert len(gfn.buffer) == 0
    assert not {"cut", "mean_log_reward"} & gfn.history_[-1].keys()
    gfn = LeakGFN(env, bracket_reward, walk=0.5, replay=0.25, **FAST).fit(20, 16)
    assert len(gfn.buffer) > 0
    assert max(env.length(entry.states).max() for entry in gfn.buffer.entries) <= 4
    assert "cut" in gfn.history_[-1]


class Plain:
    """A world that owes nothing to ours: it has the methods of Env, and hands them on."""

    def __init__(self, world):
        names = [name for name in vars(Env) if not name.startswith("_")]
        for name in (*names, "n_actions", "max_length", "horizon", "truncation"):
            setattr(self, name, getattr(world, name))


def test_a_class_with_the_methods_of_env_is_an_environment():
    env = Plain(BracketEnv(4))
    assert isinstance(env, Env)
    assert not hasattr(env, "width")
    options = FAST | {"net": None}
    trained = LeakGFN(env, bracket_reward, reach_mask=True, **options).fit(20, 16)
    same = LeakGFN(BracketEnv(4), bracket_reward, reach_mask=True, **options).fit(20, 16)
    assert trained.history_ == same.history_
    assert trained.sample(10, seed=0).smiles == same.sample(10, seed=0).smiles
    exact = exact_flow(env, bracket_reward)
    assert exact.objects.sum() == 3
    assert exact_policy_distribution(trained, graph=exact.graph).leak < 1e-9


def test_hypervolume_is_the_area_of_a_union_of_rectangles():
    rng = np.random.default_rng(0)
    points = rng.random((8, 2))
    inside = rng.random((200_000, 2))
    share = (inside[:, None] <= points[None]).all(2).any(1).mean()
    assert hypervolume(points) == pytest.approx(share, abs=0.005)
    assert hypervolume(np.zeros((0, 2))) == 0
    with pytest.raises(ValueError, match=r"expected \[n, 2\]"):
        hypervolume(np.zeros((3, 3)))
