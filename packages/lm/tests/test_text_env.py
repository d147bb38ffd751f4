"""The rules that all text environments share, on a small one that is played through by hand."""

from __future__ import annotations

import subprocess
import sys

import pytest
from icml_core.errors import NeedsError, UnknownNameError
from icml_lm import java_env, text_env
from icml_lm.rollouts import expert_policy, random_policy, rollout
from icml_lm.text_env import (
    ADAPTERS,
    CheckedEnv,
    EnvDataMissing,
    EpisodeError,
    MissingJava,
    NoAdmissibleActions,
    Obs,
    Step,
    TextEnv,
    make_env,
    split_seed,
)


class Stairs(CheckedEnv):
    """Two steps up win; "jump" is answered without being admissible; "dig" leads where nothing is offered."""

    name = "stairs"
    freed = 0

    def begin(self, seed: int, split: str) -> Obs:
        self.height, self.knows = 0, split != "dev"
        return self._seen()

    def act(self, action: str) -> Step:
        self.height += {"up": 1, "down": -1}.get(action, 0)
        done = self.height == 2
        obs = self._seen("You jump." if action == "jump" else "", action != "dig" and not done)
        return Step(obs, 0.5 * (action == "up"), done, {"won": done, "score": self.height / 2})

    def plan(self) -> list[str] | None:
        return ["up"] * (2 - self.height) if self.knows else None

    def free(self) -> None:
        self.freed += 1

    def _seen(self, text: str = "", offers: bool = True) -> Obs:
        return Obs(text or f"Height {self.height}.", ("down", "up") if offers else (), "Climb.")


def test_an_episode_by_hand():
    with Stairs() as env:
        assert env.reset(seed=1) == Obs("Height 0.", ("down", "up"), "Climb.")
        obs, reward, done, info = env.step("up")
        assert (obs.text, reward, done, info) == ("Height 1.", 0.5, False, {"won": False, "score": 0.5})
        assert env.step("jump").obs.text == "You jump."
        assert env.expert() == ["up"]
        last = env.step("up")
        assert last.done
        assert last.info["won"]
        assert last.obs.admissible == ()


def test_the_protocol_asks_for_methods_only():
    assert isinstance(Stairs(), TextEnv)
    assert not isinstance(object(), TextEnv)


def test_steps_outside_an_episode_are_refused():
    env = Stairs()
    for call in (lambda: env.step("up"), env.expert):
        with pytest.raises(EpisodeError, match="stairs has no episode in progress; call reset"):
            call()
    env.reset()
    env.step("up"), env.step("up")
    with pytest.raises(EpisodeError, match="no episode"):
        env.step("up")
    env.close()
    env.close()
    assert env.freed == 1
    with pytest.raises(EpisodeError, match="stairs is closed; make a new one"):
        env.reset()


def test_nothing_to_do_is_an_error_while_the_episode_goes_on():
    env = Stairs()
    env.reset()
    with pytest.raises(NoAdmissibleActions, match="stairs offers no action after: 'Height 0.'"):
        env.step("dig")


@pytest.mark.parametrize("seed", [-1, 1.0, "1", True, None])
def test_seeds_that_are_none(seed):
    with pytest.raises(ValueError, match=f"seed = {seed!r}"):
        Stairs().reset(seed)


def test_splits_and_actions_that_are_none():
    env = Stairs()
    with pytest.raises(UnknownNameError, match="no split 'tests'; did you mean 'test'"):
        env.reset(0, "tests")
    env.reset()
    with pytest.raises(ValueError, match=r"action = 1; a text"):
        env.step(1)


def test_rollouts_of_the_expert_win_and_are_complete():
    episode = rollout(env := Stairs(), expert_policy(env), seed=3, split="test")
    assert episode.actions == ("up", "up")
    assert episode.rewards == (0.5, 0.5)
    assert [obs.text for obs in episode.observations] == ["Height 0.", "Height 1.", "Height 2."]
    assert (episode.won, episode.done, episode.score, episode.seed) == (True, True, 1.0, 3)


def test_rollouts_are_cut():
    episode = rollout(Stairs(), lambda obs: "down", max_steps=3)
    assert episode.actions == ("down",) * 3
    assert (episode.won, episode.done, episode.score) == (False, False, -1.5)
    with pytest.raises(ValueError, match="max_steps = 0"):
        rollout(Stairs(), lambda obs: "up", max_steps=0)


def test_an_expert_without_a_plan_says_so():
    with pytest.raises(EnvDataMissing, match="Stairs holds no plan from this state"):
        rollout(env := Stairs(), expert_policy(env), split="dev")


def test_random_actions_are_admissible_and_repeatable():
    obs = Obs("", tuple("abcdef"), "")
    first, again, other = (random_policy(seed) for seed in (1, 1, 2))
    drawn = [[policy(obs) for _ in range(60)] for policy in (first, again, other)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert set(drawn[0]) == set("abcdef")


def test_seeds_of_splits_do_not_meet():
    drawn = {split_seed(seed, split) for seed in range(1000) for split in ("train", "dev", "test")}
    assert len(drawn) == 3000
    assert all(0 <= seed < 2**31 for seed in drawn)


def test_unknown_names_give_the_nearest_and_the_forms():
    with pytest.raises(
        UnknownNameError, match="no environment 'sciencewrld'; did you mean 'scienceworld'"
    ) as error:
        make_env("sciencewrld:boil")
    assert all(form in str(error.value) for _, _, form in ADAPTERS.values())


@pytest.mark.parametrize(
    ("name", "module", "command"),
    [
        ("babyai:GoToRedBall", "minigrid", "pip install minigrid"),
        ("scienceworld:boil", "scienceworld", "pip install scienceworld"),
        ("textworld-express:coin", "textworld_express", "pip install textworld-express"),
        ("textworld:games", "textworld", "pip install textworld"),
        ("alfgen:heat", "fast_downward", 'pip install alfworld "textworld[pddl]"'),
    ],
)
def test_without_the_package_the_error_has_the_command(name, module, command, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NeedsError, match="needs") as error:
        make_env(name)
    assert command in str(error.value)


def test_without_java_the_error_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingJava, match="needs Java, in which scienceworld runs; install .* openjdk"):
        java_env.require_java("scienceworld")


def test_games_that_are_not_there_name_what_replaces_them(tmp_path):
    with pytest.raises(EnvDataMissing, match="alfgen:heat") as error:
        make_env(f"alfworld:{tmp_path}")
    assert error.value.path == str(tmp_path)
    assert "alfgen" in error.value.generator


def test_the_options_of_java_are_put_back(monkeypatch):
    monkeypatch.setenv(java_env.JAVA_OPTIONS, "-Xmx1g")
    with java_env.steady_hashes():
        inside = java_env.os.environ[java_env.JAVA_OPTIONS]
    assert inside.startswith("-Xmx1g -XX:")
    assert java_env.os.environ[java_env.JAVA_OPTIONS] == "-Xmx1g"
    monkeypatch.delenv(java_env.JAVA_OPTIONS)
    with java_env.steady_hashes():
        pass
    assert java_env.JAVA_OPTIONS not in java_env.os.environ


def test_the_modules_load_without_torch_and_without_games():
    names = sorted({module for module, _, _ in text_env.ADAPTERS.values()})
    code = (
        f"import importlib, sys; [importlib.import_module(n) for n in {names}];"
        "print([m for m in ('torch', 'gymnasium', 'textworld', 'py4j') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
