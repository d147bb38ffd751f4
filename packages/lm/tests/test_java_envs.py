"""TextWorldExpress and ScienceWorld: gold paths win, seeds repeat, Java machines are their own and end."""

from __future__ import annotations

import itertools
import os
import shutil

import pytest
from icml_core.errors import UnknownNameError
from icml_lm.java_env import JavaEnv
from icml_lm.rollouts import expert_policy, random_policy, rollout
from icml_lm.text_env import EpisodeError, make_env
from icml_lm.textworld_express import GAMES

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java")


@pytest.fixture(scope="module")
def express():
    pytest.importorskip("textworld_express", reason="not installed: pip install textworld-express")
    made: dict[str, JavaEnv] = {}

    def get(game: str) -> JavaEnv:
        if game not in made:
            made[game] = make_env(f"textworld-express:{game}")
        return made[game]

    yield get
    for env in made.values():
        env.close()


@pytest.fixture(scope="module")
def plants():
    pytest.importorskip("scienceworld", reason="not installed: pip install scienceworld")
    with make_env("scienceworld:find-plant", simplifications="easy") as env:
        yield env


@needs_java
@pytest.mark.parametrize("game", GAMES)
def test_gold_paths_win(express, game):
    episodes = [
        rollout(express(game), expert_policy(express(game)), seed, "test", max_steps=100) for seed in (0, 1)
    ]
    assert all(episode.won and episode.score == 1 for episode in episodes)
    assert [sum(episode.rewards) for episode in episodes] == pytest.approx([1, 1])


@needs_java
def test_the_games_are_those_of_the_simulator(express):
    assert sorted(express("coin")._game.getGameNames()) == sorted(GAMES)


@needs_java
def test_chance_seldom_cooks(express):
    env = express("cookingworld")
    assert sum(rollout(env, random_policy(seed), seed, max_steps=30).won for seed in range(20)) <= 1


@needs_java
def test_the_same_seed_is_the_same_episode(express):
    with make_env("textworld-express:twc") as other:
        assert other.port != express("twc").port
        express("twc").reset(9)
        first = rollout(express("twc"), random_policy(1), 4, "dev", max_steps=30)
        assert first == rollout(other, random_policy(1), 4, "dev", max_steps=30)
        assert first.observations[0] != express("twc").reset(4, "test")


@needs_java
def test_two_machines_do_not_mix(express):
    one, two = express("coin"), express("twc")
    one.reset(0), two.reset(0)
    alone = [express("coin").step("look around").obs]
    two.step("look around")
    assert one.step("look around").obs == alone[0]
    assert "coin" in one.step("inventory").obs.task
    assert "coin" not in two.step("inventory").obs.task


@needs_java
def test_the_gold_path_is_known_only_while_it_is_followed(express):
    env = express("simonsays")
    env.reset(1)
    plan = env.expert()
    env.step(plan[0])
    assert env.expert() == plan[1:]
    wrong = next(action for action in ("jump up and down", "sit down", "look around") if action != plan[1])
    if not env.step(wrong).done:
        assert env.expert() is None
    env.reset(1)
    assert env.expert() == plan


@needs_java
def test_what_is_not_admissible_is_sent_all_the_same(express):
    env = express("coin")
    obs = env.reset(0)
    step = env.step("sing a song")
    assert "sing a song" not in obs.admissible
    assert not step.done
    assert step.obs.text != obs.text


@needs_java
def test_the_java_machine_ends():
    pytest.importorskip("textworld_express", reason="not installed: pip install textworld-express")
    env = make_env("textworld-express:coin")
    machine = env._game._gateway.java_process
    assert machine.poll() is None
    env.close()
    env.close()
    assert machine.poll() is not None
    with pytest.raises(EpisodeError, match="is closed"):
        env.reset()


@needs_java
def test_another_process_is_refused(express, monkeypatch):
    env = express("coin")
    env.reset(0)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(EpisodeError, match="started in another process"):
        env.step("look around")


@needs_java
def test_bad_names_and_parameters():
    pytest.importorskip("textworld_express", reason="not installed: pip install textworld-express")
    with pytest.raises(UnknownNameError, match="no game of textworld-express 'coins'; did you mean 'coin'"):
        make_env("textworld-express:coins")
    with pytest.raises(ValueError, match="refuses params='numberOfRooms=3'"):
        make_env("textworld-express:coin", params="numberOfRooms=3")


@needs_java
def test_a_scientist_with_the_gold_path_has_the_full_score(plants):
    obs = plants.reset(0, "test")
    assert obs.task.startswith("Your task is to find")
    assert "\n" in obs.text
    steps = [plants.step(action) for action in plants.expert()]
    scores = [step.info["score"] for step in steps]
    assert scores[-1] == 1
    assert (
        [step.info["won"] for step in steps]
        == [step.done for step in steps]
        == [score == 1 for score in scores]
    )
    changes = [after - before for before, after in itertools.pairwise(scores)]
    assert [step.reward for step in steps[1:]] == pytest.approx(changes)


@needs_java
def test_experiments_repeat(plants):
    """Also what the simulator leaves to chance and to the order of its sets: which cup stands where."""
    first = rollout(plants, random_policy(2), 3, "dev", max_steps=6)
    plants.reset(1)
    assert first == rollout(plants, random_policy(2), 3, "dev", max_steps=6)
    with make_env("scienceworld:find-plant", simplifications="easy") as other:
        assert other.port != plants.port
        assert first == rollout(other, random_policy(2), 3, "dev", max_steps=6)


@needs_java
def test_tasks_have_names_and_numbers():
    pytest.importorskip("scienceworld", reason="not installed: pip install scienceworld")
    with pytest.raises(UnknownNameError, match="no task of scienceworld 'boilt'; did you mean 'boil'"):
        make_env("scienceworld:boilt")
    with pytest.raises(ValueError, match="refuses simplifications='simple'"):
        make_env("scienceworld:1-1", simplifications="simple")
