"""HopWorld against its definition: powers of permutations, probabilities of k, thoughts of a level."""

from __future__ import annotations

import numpy as np
import pytest
from icml_core.errors import UnknownNameError
from icml_lm import hopworld
from icml_lm.hopworld import ACT, FILLER, HopQuestions, HopWorldEnv, sample
from icml_lm.rollouts import expert_policy, random_policy, rollout
from icml_lm.text_env import make_env
from icml_lm.tokenizers import SymbolTokenizer
from scipy.stats import binomtest, chisquare


def question(pairs: str, hops: int, start: str) -> HopQuestions:
    """One question from pairs as they are listed, ``"ab bc ..."``."""
    order = ["abcdef".index(pair[0]) for pair in pairs.split()]
    f = dict(zip(order, ("abcdef".index(pair[1]) for pair in pairs.split()), strict=True))
    table = [f[x] for x in range(6)]
    return HopQuestions(*(np.array([v]) for v in (table, order, hops, "abcdef".index(start))))


def test_a_question_by_hand():
    asked = question("fa ab bd ce dc ef", 2, "a")
    assert asked.prompts() == [["f", "a", "a", "b", "b", "d", "c", "e", "d", "c", "e", "f", "k2", "a"]]
    assert asked.thoughts(4) == [["b", "d", FILLER]]
    assert [asked.responses(level)[0] for level in (1, 2, 3, 4)] == [
        ["<L1>", ACT, "d"],
        ["<L2>", "b", ACT, "d"],
        ["<L3>", "b", "d", ACT, "d"],
        ["<L4>", "b", "d", FILLER, ACT, "d"],
    ]


@pytest.mark.parametrize("hops", [0, 1, 2, 3])
def test_the_answer_is_the_power_of_the_permutation(hops):
    asked = sample(500, seed=hops)
    matrices = np.zeros((500, 6, 6))
    matrices[np.arange(500)[:, None], np.arange(6), asked.permutation] = 1
    reached = np.linalg.matrix_power(matrices, hops)[np.arange(500), asked.start].argmax(axis=1)
    forced = HopQuestions(asked.permutation, asked.order, np.full(500, hops), asked.start)
    np.testing.assert_array_equal(forced.answers(), reached)


def test_what_is_drawn_has_the_probabilities_of_the_recipe():
    asked = sample(60_000, seed=0, shuffled=True)
    assert chisquare(np.bincount(asked.hops), 60_000 * np.array([0.4, 0.2, 0.2, 0.2])).pvalue > 1e-3
    assert chisquare(np.bincount(asked.start)).pvalue > 1e-3
    for rows in (asked.permutation, asked.order):
        ranks = (rows * 6 ** np.arange(6)).sum(axis=1)
        counts = np.unique(ranks, return_counts=True)[1]
        assert len(counts) == 720
        assert chisquare(counts).pvalue > 1e-3


def test_pairs_are_listed_in_the_order_of_the_alphabet_or_in_any():
    plain, shuffled = sample(50, seed=3), sample(50, seed=3, shuffled=True)
    assert all(prompt[:12:2] == list("abcdef") for prompt in plain.prompts())
    for asked in (plain, shuffled):
        for prompt, places in zip(asked.prompts(), asked.visited(), strict=True):
            f = dict(zip(prompt[:12:2], prompt[1:12:2], strict=True))
            assert f["abcdef"[places[0]]] == "abcdef"[places[1]]
    assert len({tuple(prompt[:12:2]) for prompt in shuffled.prompts()}) > 40
    texts = {
        rollout(HopWorldEnv(shuffled=flag), random_policy(0)).observations[0].text for flag in (True, False)
    }
    assert len(texts) == 2


def test_the_required_level_leaves_one_hop_unwritten():
    asked = sample(300, seed=1)
    for level in (1, 2, 3, 4):
        written = np.array([sum(token != FILLER for token in thoughts) for thoughts in asked.thoughts(level)])
        enough = asked.hops - written <= 1
        np.testing.assert_array_equal(enough, level >= asked.required_levels())
        np.testing.assert_array_equal([len(thoughts) for thoughts in asked.thoughts(level)], level - 1)


def test_every_token_is_in_the_vocabulary():
    tokenizer = SymbolTokenizer(hopworld.VOCABULARY)
    asked = sample(50, seed=2)
    for prompt, response in zip(asked.prompts(), asked.responses(4), strict=True):
        text = " ".join(prompt + response)
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_the_expert_always_wins():
    env = HopWorldEnv()
    episodes = [rollout(env, expert_policy(env), seed, "test") for seed in range(100)]
    assert all(episode.won and episode.rewards == (0, 0, 0, 1) for episode in episodes)


def test_chance_wins_one_time_in_six_to_the_fourth():
    env, policy = HopWorldEnv(), random_policy(0)
    wins = sum(rollout(env, policy, seed).won for seed in range(4000))
    assert binomtest(wins, 4000, 6.0**-4).pvalue > 1e-3


def test_a_wrong_answer_cannot_be_made_good():
    env = make_env("hopworld")
    env.reset(5)
    right = env.expert()
    step = env.step("a" if right[0] != "a" else "b")
    assert env.expert() is None
    for action in right[1:]:
        step = env.step(action)
    assert step.done
    assert not step.info["won"]
    assert step.reward == 0


def test_the_same_seed_is_the_same_episode_and_splits_differ():
    env, other = HopWorldEnv(), HopWorldEnv()
    assert rollout(env, random_policy(1), 7, "dev") == rollout(other, random_policy(1), 7, "dev")
    asked = set()
    for split in ("train", "dev", "test"):
        for seed in range(30):
            env.reset(seed, split)
            asked.add(str(env.questions.prompts()))
    assert len(asked) == 90


def test_bad_input():
    with pytest.raises(ValueError, match="level = 5"):
        sample(1, seed=0).thoughts(5)
    with pytest.raises(ValueError, match="n = -1"):
        sample(-1, seed=0)
    with pytest.raises(UnknownNameError, match="hopworld alone"):
        make_env("hopworld:hard")
    assert sample(0, seed=0).prompts() == []
