"""Games made by TextWorld itself, whose optimal policy is the oracle."""

from __future__ import annotations

import pytest

textworld = pytest.importorskip(
    "textworld", reason="not installed: pip install textworld (it builds from source)"
)

from icml_lm.rollouts import expert_policy, random_policy, rollout  # noqa: E402
from icml_lm.text_env import EnvDataMissing, make_env  # noqa: E402
from icml_lm.textworld_env import _cleaned  # noqa: E402


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("games")
    for seed in (1, 2):
        options = textworld.GameOptions()
        options.nb_rooms, options.nb_objects, options.quest_length, options.seeds = 2, 4, 3, seed
        options.path = str(home / f"{seed}.z8")
        textworld.generator.compile_game(textworld.generator.make_game(options), options)
    return home


def test_the_policy_wins_in_the_length_of_the_quest(folder):
    with make_env(f"textworld:{folder}") as env:
        episodes = [rollout(env, expert_policy(env), seed, "test") for seed in (0, 1)]
    assert all(episode.won and episode.score == 1 and sum(episode.rewards) == 1 for episode in episodes)
    assert [len(episode.actions) for episode in episodes] == [3, 3]
    assert episodes[0].observations[0] != episodes[1].observations[0]


def test_the_policy_is_that_of_the_present_state(folder):
    with make_env(f"textworld:{folder / '1.z8'}") as env:
        env.reset(0)
        plan = env.expert()
        step = env.step("look")
        assert env.expert() == plan
        for action in plan:
            assert action in step.obs.admissible
            step = env.step(action)
        assert step.done
        assert step.info["won"]


def test_the_same_seed_is_the_same_episode(folder):
    with make_env(f"textworld:{folder}") as env, make_env(f"textworld:{folder}") as other:
        first = rollout(env, random_policy(1), 1, max_steps=10)
        assert first == rollout(other, random_policy(1), 1, max_steps=10)
        assert env.reset(3) == first.observations[0]


def test_what_is_not_admissible_is_sent_all_the_same(folder):
    with make_env(f"textworld:{folder}") as env:
        env.reset(0)
        step = env.step("xyzzy")
    assert "verb I recognise" in step.obs.text
    assert not step.done


def test_texts_are_without_the_drawn_title_and_the_prompt(folder):
    with make_env(f"textworld:{folder}") as env:
        texts = [obs.text for obs in rollout(env, expert_policy(env), 0).observations]
    assert "Welcome to TextWorld" in texts[0]
    assert not any("$" in text or text.endswith(">") or "\n\n\n" in text for text in texts)
    assert _cleaned("Taken.\n\n>    -= Kitchen =-0/2") == "Taken."
    assert _cleaned(" $$| $$ >\n\nIt costs $5.\n\n\n\n> ") == "It costs $5."


def test_folders_may_be_split(folder, tmp_path):
    for split, name in (("train", "1"), ("test", "2")):
        (tmp_path / split).mkdir()
        for end in ("z8", "json"):
            (tmp_path / split / f"{name}.{end}").write_bytes((folder / f"{name}.{end}").read_bytes())
    with make_env(f"textworld:{tmp_path}") as env, make_env(f"textworld:{folder}") as both:
        assert env.reset(0, "test") == both.reset(1)
        assert env.reset(5, "train") == both.reset(0)
        with pytest.raises(EnvDataMissing, match="dev holds no game; make one with `tw-make"):
            env.reset(0, "dev")


@pytest.mark.parametrize("name", ["textworld:", "textworld:no/such/folder"])
def test_without_games_the_error_says_how_to_make_one(name):
    with pytest.raises(EnvDataMissing, match="tw-make custom"):
        make_env(name)
