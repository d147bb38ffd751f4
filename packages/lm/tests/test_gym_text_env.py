"""Gymnasium environments in words, on one that is a closed form: a corridor."""

from __future__ import annotations

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="gymnasium is not installed: pip install gymnasium")

from icml_lm.gym_text import GymTextEnv  # noqa: E402
from icml_lm.rollouts import expert_policy, random_policy, rollout  # noqa: E402
from icml_lm.text_env import split_seed  # noqa: E402


class Corridor(gymnasium.Env):
    """Tiles 0 to 5; the seed draws a start from 1 to 4, tile 5 pays 1, tile 0 ends without pay, 20 steps."""

    action_space = gymnasium.spaces.Discrete(2, start=3)
    observation_space = gymnasium.spaces.Discrete(6)
    closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.tile, self.left = seed, int(self.np_random.integers(1, 5)), 20
        return self.tile, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.tile, self.left = self.tile + (1 if action == 4 else -1), self.left - 1
        return self.tile, float(self.tile == 5), self.tile in (0, 5), self.left == 0, {}

    def close(self):
        self.closed = True


class Parrot(gymnasium.Env):
    """Says what it was told; "stop" ends it with pay."""

    action_space = gymnasium.spaces.Text(20)

    def reset(self, *, seed=None, options=None):
        return "", {}

    def step(self, action):
        return action, float(action == "stop"), action == "stop", False, {}


def corridor(**options) -> GymTextEnv:
    return GymTextEnv(Corridor(), lambda tile, env: f"Tile {tile}.", ["left", "right"], **options)


def test_actions_and_observations_have_words():
    env = corridor(task=lambda env: f"Walk to 5 from {env.tile}.")
    obs = env.reset(seed=2, split="dev")
    start = env.env.tile
    assert (obs.text, obs.task) == (f"Tile {start}.", f"Walk to 5 from {start}.")
    assert obs.admissible == ("left", "right")
    assert env.step("right").obs.text == f"Tile {start + 1}."
    assert env.env.seed == split_seed(2, "dev")


def test_only_pay_at_the_end_wins():
    env = corridor(expert=lambda corridor: ["right"] * (5 - corridor.tile))
    for seed in range(20):
        won = rollout(env, expert_policy(env), seed)
        lost = rollout(env, lambda obs: "left", seed)
        assert (won.won, won.score, sum(won.rewards), won.done) == (True, 1.0, 1.0, True)
        assert (lost.won, lost.score, lost.done) == (False, 0.0, True)


def test_chance_reaches_the_far_end_as_a_gambler_does():
    """From tile i a fair walk ends at 5 before 0 with probability i / 5 (without the limit on steps, which
    here cuts few): on average over the starts one half."""
    env = corridor()
    wins = sum(rollout(env, random_policy(seed), seed).won for seed in range(600))
    assert 0.38 < wins / 600 < 0.58


def test_an_action_without_a_name_changes_nothing():
    env = corridor()
    first = env.reset(0)
    step = env.step("jump")
    assert step.obs.text == f"Nothing happens: there is no such action. {first.text}"
    assert (step.reward, step.done, env.env.left) == (0.0, False, 20)


def test_the_limit_ends_without_a_win():
    env = corridor()
    env.reset(0)
    while not (step := env.step("right" if env.env.tile < 3 else "left")).done:
        pass
    assert step.info == {"won": False, "score": 0.0, "truncated": True}


def test_texts_are_sent_as_they_are():
    env = GymTextEnv(Parrot(), lambda said, _: f"{said}!", ["stop"])
    env.reset()
    assert env.step("Polly").obs.text == "Polly!"
    assert env.step("stop").info["won"]


def test_closing_closes():
    with corridor() as env:
        assert env.expert is not None
    assert env.env.closed


def test_bad_input():
    with pytest.raises(ValueError, match="has 2 actions; 1 names"):
        GymTextEnv(Corridor(), str, ["left"])
    with pytest.raises(ValueError, match="not all different"):
        GymTextEnv(Corridor(), str, ["left", "left"])
    boxed = Corridor()
    boxed.action_space = gymnasium.spaces.Box(0, 1)
    with pytest.raises(ValueError, match="a space Box; Discrete or Text"):
        GymTextEnv(boxed, str, [])
