"""BabyAI in words: the renderer on scenes set by hand, and the bot that comes with Minigrid as the oracle."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("minigrid", reason="minigrid is not installed: pip install minigrid")

from icml_core.errors import UnknownNameError
from icml_lm.babyai import describe
from icml_lm.rollouts import expert_policy, random_policy, rollout
from icml_lm.text_env import make_env
from minigrid.core.grid import Grid
from minigrid.core.world_object import Ball, Box, Door, Key, Wall

LEVELS = ("GoToRedBall", "PickupLoc", "OpenDoor", "UnlockPickup", "PutNextLocal")


def scene(things: dict[tuple[int, int], object], direction: int = 0) -> dict[str, object]:
    """A view of 5 by 5 from (2, 4) towards (2, 0), as Minigrid encodes it."""
    grid = Grid(5, 5)
    for place, thing in things.items():
        grid.set(*place, thing)
    return {"image": grid.encode(), "direction": direction}


def test_a_scene_by_hand():
    seen = scene({(2, 1): Ball("red"), (4, 2): Key("blue"), (1, 4): Box("grey"), (2, 0): Wall()}, direction=3)
    assert describe(seen) == (
        "You face north. You can go 2 steps forward; then there is a red ball. You see: "
        "a grey box 1 step to the left; a red ball 3 steps ahead; "
        "a blue key 2 steps ahead and 2 steps to the right. You carry nothing."
    )


@pytest.mark.parametrize(
    ("door", "way"),
    [
        (Door("green", is_open=True), "You can go 4 steps forward"),
        (Door("green"), "You cannot go forward; right in front there is a closed green door"),
        (Door("green", is_locked=True), "You cannot go forward; right in front there is a locked green door"),
    ],
)
def test_doors_have_states(door, way):
    assert f"{way}." in describe(scene({(2, 3): door, (2, 4): Key("yellow")}))
    assert describe(scene({(2, 3): door, (2, 4): Key("yellow")})).endswith("You carry a yellow key.")


def test_what_is_not_seen_is_not_told():
    image = np.zeros((5, 5, 3), dtype=np.uint8)
    image[2, 4] = (1, 0, 0)
    text = describe({"image": image, "direction": 1})
    assert text == "You face south. You cannot go forward. You see: nothing. You carry nothing."


@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_always_wins(level):
    with make_env(f"babyai:{level}") as env:
        episodes = [rollout(env, expert_policy(env), seed, "test", max_steps=200) for seed in range(5)]
    assert [(episode.won, episode.score, sum(episode.rewards)) for episode in episodes] == [
        (True, 1.0, 1.0)
    ] * 5


def test_a_plan_is_kept_as_it_was_foretold():
    with make_env("babyai:UnlockPickup") as env:
        env.reset(3)
        plan = env.expert()
        steps = [env.step(action) for action in plan]
    assert [step.done for step in steps] == [False] * (len(plan) - 1) + [True]
    assert steps[-1].info["won"]


def test_the_expert_finds_home_from_anywhere():
    with make_env("babyai:PickupLoc") as env:
        won = 0
        for seed in range(15):
            policy, obs = random_policy(seed), env.reset(seed, "dev")
            for _ in range(10):
                step = env.step(policy(obs))
                if step.done:
                    break
            plan = [] if step.done else env.expert()
            assert plan is not None
            for action in plan:
                step = env.step(action)
            won += bool(plan) and step.info["won"]
        assert won >= 10


def test_chance_seldom_wins():
    with make_env("babyai:UnlockPickup") as env:
        assert sum(rollout(env, random_policy(seed), seed, max_steps=40).won for seed in range(20)) <= 1


def test_the_same_seed_is_the_same_episode():
    with make_env("babyai:GoToLocal") as env, make_env("babyai:BabyAI-GoToLocal-v0") as other:
        first = rollout(env, random_policy(1), 4, "dev", max_steps=30)
        assert first == rollout(other, random_policy(1), 4, "dev", max_steps=30)
        assert first.observations[0] != env.reset(4, "test")


def test_nothing_is_printed_where_layouts_are_rejected(capsys):
    with make_env("babyai:PutNextLocal") as env:
        for seed in range(30):
            env.reset(seed)
    assert capsys.readouterr().out == ""


def test_unknown_levels():
    with pytest.raises(UnknownNameError, match="no level of babyai 'GoToRedBal'; did you mean 'GoToRedBall'"):
        make_env("babyai:GoToRedBal")
