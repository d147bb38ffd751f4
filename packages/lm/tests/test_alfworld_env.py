"""Generated games of ALFWorld: Fast Downward is the oracle of the expert, rules and words are ALFWorld's."""

from __future__ import annotations

import json
import random
import sys

import pytest

WHY = 'not installed: pip install alfworld "textworld[pddl]" (they build from source)'
for module in ("alfworld", "textworld", "fast_downward"):
    pytest.importorskip(module, reason=WHY)

from icml_core.errors import UnknownNameError  # noqa: E402
from icml_lm.alfgen import TASKS, mangled, new_game, room  # noqa: E402
from icml_lm.alfworld_expert import Goal, House, shortest_plan  # noqa: E402
from icml_lm.rollouts import expert_policy, random_policy, rollout  # noqa: E402
from icml_lm.text_env import EnvDataMissing, make_env  # noqa: E402

SMALL = {"receptacles": 5, "objects": 5}


@pytest.fixture(scope="module")
def houses():
    made = {task: make_env(f"alfgen:{task}", **SMALL) for task in TASKS}
    yield made
    for env in made.values():
        env.close()


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_wins_in_as_many_steps_as_the_planner(houses, task):
    env = houses[task]
    for seed in range(4):
        split = ("train", "dev", "test")[seed % 3]
        env.reset(seed, split)
        plan = env.expert()
        assert len(plan) == len(env.planner_commands())
        steps = [env.step(action) for action in plan]
        assert [step.done for step in steps] == [False] * (len(plan) - 1) + [True]
        assert steps[-1].info == {"won": True, "score": 1.0}


@pytest.mark.parametrize("task", TASKS)
def test_from_any_state_the_expert_is_no_longer_than_the_planner(houses, task):
    """Also with the wrong thing in hand, which only wandering that takes whatever it can brings about."""
    env, rng = houses[task], random.Random(5)
    for seed in (10, 11):
        obs, done = env.reset(seed), False
        for _ in range(12):
            kinds = [[a for a in obs.admissible if a.startswith(verb)] for verb in ("take", "open", "go to")]
            obs, _, done, _ = env.step(rng.choice(next(kind for kind in kinds if kind)))
        assert not done
        plan = env.expert()
        assert len(plan) <= len(env.planner_commands())
        for action in plan:
            done, info = env.step(action)[2:]
        assert done
        assert info["won"]


def test_chance_seldom_wins(houses):
    wins = sum(
        rollout(houses[task], random_policy(seed), seed, max_steps=8).won
        for task in ("heat", "two")
        for seed in range(3)
    )
    assert wins <= 1


def test_the_words_are_those_of_alfworld(houses):
    env = houses["heat"]
    obs = env.reset(0)
    assert obs.text.startswith("-= Welcome to TextWorld, ALFRED! =-")
    assert "You are in the middle of a room. Looking quickly around you, you see a " in obs.text
    assert obs.text.endswith(f"Your task is to: {obs.task}")
    go = next(action for action in obs.admissible if action.startswith("go to microwave"))
    assert env.step(go).obs.text == "You arrive at microwave 1. The microwave 1 is closed."
    assert env.step("open microwave 1").obs.text.startswith(
        "You open the microwave 1. The microwave 1 is open."
    )
    assert env.step("put egg 1 in/on microwave 1").obs.text == "Nothing happens."
    assert env.step("inventory").obs.text == "You are not carrying anything."


def test_the_same_seed_is_the_same_episode(houses):
    first = rollout(houses["cool"], random_policy(1), 4, "dev", max_steps=8)
    houses["cool"].reset(0)
    assert first == rollout(houses["cool"], random_policy(1), 4, "dev", max_steps=8)
    games = [new_game("cool", seed, split) for split in ("train", "dev", "test") for seed in range(6)]
    assert games[0] == new_game("cool", 0, "train")
    assert len({game["pddl_problem"] for game in games}) == len(games)


def test_rooms_for_the_test_are_rooms_of_their_own():
    def rooms(split: str) -> set[str]:
        return {new_game("pick", seed, split)["pddl_problem"].split()[2] for seed in range(40)}

    assert not rooms("train") & rooms("test")


def test_large_rooms_have_an_expert_too():
    with make_env("alfgen:clean", receptacles=20, objects=18) as env:
        episode = rollout(env, expert_policy(env), 1)
    assert episode.won
    assert len(episode.observations[0].admissible) > 15


def test_things_are_put_where_they_belong():
    from alfworld.gen import constants

    types = {}
    for seed, task in enumerate(TASKS):
        lines = new_game(task, seed)["pddl_problem"].splitlines()
        facts = [line.strip("()").split() for line in lines if line.strip("() ")]
        types.update(
            {f[1]: f[2].removesuffix("Type") for f in facts if f[0] in ("objectType", "receptacleType")}
        )
        for _, thing, place in (f for f in facts if f[0] == "inReceptacle"):
            assert types[thing] in constants.VAL_RECEPTACLE_OBJECTS[types[place]] | {"DeskLamp"}


def test_names_are_mangled_as_the_pattern_of_alfred():
    assert (
        mangled("Apple|-01.10|+00.92|-02.30")
        == "Apple_bar__minus_01_dot_10_bar__plus_00_dot_92_bar__minus_02_dot_30"
    )
    assert {kind for _, kind, _ in room(9).receptacles} >= {"SinkBasin", "Fridge", "Microwave", "Cabinet"}


def test_goals_are_read_from_the_problem():
    goals = {task: Goal.of(new_game(task, 3)["pddl_problem"]) for task in TASKS}
    assert [goals[task].made for task in TASKS] == ["", "", "isclean", "ishot", "iscool", ""]
    assert [goals[task].count for task in TASKS] == [1, 1, 1, 1, 1, 2]
    assert [goals[task].look for task in TASKS] == [False, True, False, False, False, False]
    assert goals["look"].place == "desklamptype"
    with pytest.raises(ValueError, match="none of ALFWorld's six tasks"):
        Goal.of("(define (:goal (and (isSliced ?o) (objectType ?o AppleType))))")


def test_there_is_no_plan_without_the_appliance():
    house = House(
        {}, types={"apple": "appletype", "table": "tabletype"}, at={"table": "l"}, inside={"apple": "table"}
    )
    assert shortest_plan(house, Goal("appletype", "tabletype", made="ishot")) is None
    assert shortest_plan(house, Goal("appletype", "tabletype")) == []


def test_games_on_disk_are_played_as_they_are(tmp_path):
    for number, task in enumerate(("heat", "two", "two")):
        for folder in ("train", "valid_unseen"):
            home = tmp_path / folder / f"{TASKS[task]}-Egg-None-Fridge-{number}" / "trial_1"
            home.mkdir(parents=True)
            game = new_game(task, number, **SMALL) | {"solvable": number < 2}
            (home / "game.tw-pddl").write_text(json.dumps(game), encoding="utf-8")
    with make_env(f"alfworld:{tmp_path}") as env, make_env("alfgen:heat", **SMALL) as generated:
        assert env.reset(0) == generated.reset(0)
        assert env.reset(2) == env.reset(0) != env.reset(1)
        assert rollout(env, expert_policy(env), 1, "test").won
        with pytest.raises(EnvDataMissing, match="valid_seen holds no solvable games"):
            env.reset(0, "dev")
    with make_env(f"alfworld:{tmp_path}", tasks=("two",)) as env:
        assert env.reset(0) == env.reset(1)
    with pytest.raises(UnknownNameError, match="'too'; did you mean 'two'"):
        make_env(f"alfworld:{tmp_path}", tasks=("too",))


def test_the_programs_arguments_stay(houses):
    before = list(sys.argv)
    houses["pick"].reset(2)
    houses["pick"].planner_commands()
    assert sys.argv == before


def test_bad_input():
    with pytest.raises(UnknownNameError, match="no task of alfgen 'hot'; did you mean 'heat'"):
        make_env("alfgen:hot")
    with pytest.raises(UnknownNameError, match="no task of alfgen 'cook'"):
        new_game("cook", 0)
    with pytest.raises(ValueError, match="2 receptacles and 7 objects"):
        new_game("heat", 0, receptacles=2)
