"""Scores of users that fail, shaping, and figures of molecules, against what RDKit and plain sums say."""

from __future__ import annotations

import csv
import gzip
import math

import numpy as np
import pytest
from icml_leakgfn import (
    BracketEnv,
    FragmentEnv,
    LeakGFN,
    MoleculeGenerator,
    MoleculeMetrics,
    PreferenceReward,
    Reward,
    Shaping,
    SimilarityTo,
    genetic_search,
    molecule_reward,
    moses_smiles,
)
from icml_leakgfn.metrics import diversity, harmonic_mean, novelty
from icml_leakgfn.scores import find_score, qed, synthetic_accessibility
from rdkit import Chem, DataStructs
from rdkit.Chem import rdFingerprintGenerator

BLOCKS = ["*c1ccc(*)cc1", "*C", "*O", "*N(*)*", "*C(=O)N*"]


def test_shaping_stays_in_logarithms():
    shaping = Shaping(0.01, 0.2, 12.0)
    scores = np.array([0.0, 0.01, 0.2, 1.0])
    expected = 12 * np.log(np.maximum(scores, 0.01) / 0.2)
    np.testing.assert_allclose(shaping.log_reward(scores), expected)
    assert Shaping(1e-300, 1.0, 1e12).log_reward(np.array([0.5]))[0] == pytest.approx(1e12 * math.log(0.5))
    with pytest.raises(ValueError, match="exponent=0 must be positive"):
        Shaping(exponent=0)


class Moody:
    """Raises for words with "()()", gives NaN for "(())"."""

    def __call__(self, word):
        if "()()" in word:
            raise KeyError(word)
        return math.nan if word == "(())" else float(len(word))


@pytest.mark.parametrize("batched", [False, True])
def test_a_failing_score_names_the_object_or_counts_as_the_least(batched):
    env = BracketEnv(6)
    one = Moody()
    function = (lambda words: [one(w) for w in words]) if batched else one
    words = ["()", "(())", "()()", "((()))"]
    states = np.array([[" ()".index(c) for c in w.ljust(6)] for w in words], dtype=np.int16)
    with pytest.raises(ValueError, match=r"raised KeyError|got NaN for SMILES \(\(\)\)"):
        Reward(function, vectorised=batched).evaluate(env, states)
    reward = Reward(function, vectorised=batched, on_error="floor", shaping=Shaping(0.5, 1.0, 2.0))
    scores = reward.evaluate(env, states)
    assert scores.failed.tolist() == [False, True, True, False]
    np.testing.assert_allclose(scores.log_reward, 2 * np.log([2, 0.5, 0.5, 6]))
    assert set(reward.failures) == {"(())", "()()"}
    assert "KeyError" in reward.failures["()()"]


def test_a_failure_counts_as_the_least_only_where_a_shaping_says_what_that_is():
    with pytest.raises(ValueError, match="on_error='floor' counts a failure as the least reward"):
        Reward(Moody(), on_error="floor")
    with pytest.raises(ValueError, match="on_error='floor' counts"):
        PreferenceReward([len, len], on_error="floor")


def test_what_was_cut_off_lowers_uniqueness():
    found = ["CCO", "CCO", "CCN", "CC", "C"], [0.9, 0.9, 0.6, math.nan, math.nan]
    assert MoleculeMetrics().evaluate(found)["uniqueness"] == 2 / 5


def test_a_wrong_number_of_scores_is_told_with_both():
    env = BracketEnv(4)
    states = np.array([[1, 2, 0, 0], [1, 1, 2, 2]], dtype=np.int16)
    with pytest.raises(ValueError, match="gave 1 scores for 2 objects"):
        Reward(lambda words: [1.0], vectorised=True).evaluate(env, states)
    with pytest.raises(ValueError, match="gave one number for 2 objects"):
        Reward(lambda words: 1.0, vectorised=True).evaluate(env, states)
    with pytest.raises(ValueError, match="gave 2 numbers for SMILES"):
        Reward(lambda word: [1.0, 2.0]).evaluate(env, states)


@pytest.mark.parametrize("value", [-1.0, math.inf, 0.0])
def test_rewards_that_cannot_be_used_are_refused_with_the_object(value):
    env = FragmentEnv(BLOCKS, 3)
    with pytest.raises(
        ValueError, match=r"reward must be finite and > 0 on finished objects; got .* for SMILES \w"
    ):
        LeakGFN(env, lambda mol: value, hidden=8, message_steps=1, device="cpu").fit(1, 4)


def test_scores_in_the_output_are_those_of_the_function():
    """Duplicates, failures and several batches; and as many calls as different molecules."""
    calls = []

    def score(smiles: str) -> float:
        calls.append(smiles)
        if smiles.count("N") == 2:
            raise ValueError("no")
        return Chem.MolFromSmiles(smiles).GetNumHeavyAtoms() / 30

    generator = MoleculeGenerator(
        score, blocks=BLOCKS, max_blocks=4, hidden=8, message_steps=1, on_error="floor", device="cpu"
    )
    drawn = generator.fit(3, 8).sample(300, seed=0)
    assert len(calls) == len(set(calls))
    for name, raw, done in zip(drawn.smiles, drawn.score_raw, drawn.done, strict=True):
        if done != 2:
            assert math.isnan(raw)
        elif name.count("N") == 2:
            assert math.isnan(raw)
            assert name in drawn.failures
        else:
            assert raw == pytest.approx(score(name), abs=1e-9)
    assert len(set(drawn.smiles)) < 300
    assert drawn.frame().shape == (300, 5)
    assert [Chem.MolToSmiles(m) for m in drawn.objects] == drawn.smiles


def test_scores_by_name(tmp_path, monkeypatch):
    aspirin = Chem.MolFromSmiles("CC(=O)Oc1ccccc1C(=O)O")
    assert qed(aspirin) == pytest.approx(0.55, abs=0.01)  # Bickerton et al. 2012, as RDKit computes it
    assert 0.9 < synthetic_accessibility(aspirin) < 1
    assert SimilarityTo("CC(=O)Oc1ccccc1C(=O)O")(aspirin) == 1.0
    assert find_score("similarity:imatinib").smiles.startswith("Cc1ccc")
    (tmp_path / "my_score.py").write_text("def heavy(mol):\n    return mol.GetNumHeavyAtoms()\n")
    monkeypatch.chdir(tmp_path)
    assert find_score("my_score:heavy")(aspirin) == 13
    with pytest.raises(ValueError, match="has no function 'light'"):
        find_score("my_score:light")
    with pytest.raises(ValueError, match="none of qed, sa"):
        find_score("docking")
    with pytest.raises(ValueError, match="neither SMILES nor one of"):
        SimilarityTo("paracetamo(")
    assert molecule_reward("sa").shaping == Shaping(0.01, 0.8, 6.0)


def test_figures_of_molecules_are_those_of_a_loop():
    smiles = ["CCO", "CCO", "c1ccccc1", "CCN", "c1ccncc1"]
    scores = [0.9, 0.9, 0.4, 0.6, 0.2]
    figures = MoleculeMetrics(top=3, success=0.5).evaluate((smiles, scores), reference=["OCC", "C"])
    prints = [
        rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048).GetFingerprint(Chem.MolFromSmiles(s))
        for s in ("CCO", "CCN", "c1ccccc1")
    ]
    apart = [1 - DataStructs.TanimotoSimilarity(prints[a], prints[b]) for a in range(3) for b in range(a)]
    assert figures["diversity"] == pytest.approx(np.mean(apart))
    assert figures["uniqueness"] == 4 / 5
    assert figures["success"] == 3 / 5
    assert figures["top_mean"] == pytest.approx((0.9 + 0.6 + 0.4) / 3)
    assert figures["novelty"] == pytest.approx(2 / 3)
    parts = [figures[k] for k in ("top_mean", "diversity", "uniqueness")]
    assert figures["harmonic_mean"] == pytest.approx(3 / sum(1 / p for p in parts))
    assert harmonic_mean([0.0, 1.0]) == 0
    assert diversity(["CCO"]) == 0
    assert novelty(["CCO"], ["CCO"], 0.5) == 0
    assert novelty(["CCO"], ["c1ccccc1"], 0.5) == 1
    with pytest.raises(ValueError, match="1 SMILES and 2 scores"):
        MoleculeMetrics().evaluate((["C"], [1.0, 2.0]))
    with pytest.raises(ValueError, match="no object"):
        MoleculeMetrics().evaluate(([], []))


def test_moses_is_read_without_being_imported():
    import sys

    some = moses_smiles("test", 50, seed=1)
    assert len(some) == 50
    assert all(Chem.MolFromSmiles(s) is not None for s in some)
    assert some == moses_smiles("test", 50, seed=1) != moses_smiles("test", 50, seed=2)
    assert "moses" not in sys.modules
    with pytest.raises(ValueError, match="split='valid' is none of"):
        moses_smiles("valid")
    with pytest.raises(ValueError, match="limit=0 must be positive"):
        moses_smiles("test", 0)


def test_a_missing_or_damaged_moses_is_told(monkeypatch, tmp_path):
    import importlib.util
    from types import SimpleNamespace

    from icml_core.errors import NeedsError

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NeedsError, match="pip install --no-deps molsets"):
        moses_smiles("train")
    data = tmp_path / "dataset" / "data"
    data.mkdir(parents=True)
    with gzip.open(data / "train.csv.gz", "wt") as stream:
        csv.writer(stream).writerow(["name"])
    found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    with pytest.raises(ValueError, match=r"has the columns \['name'\]"):
        moses_smiles("train")


def test_a_genetic_search_finds_better_molecules_than_chance():
    env = FragmentEnv(BLOCKS, 5)
    reward = molecule_reward("qed")
    begin = genetic_search(env, reward, population=16, generations=0, seed=0)
    end = genetic_search(env, reward, population=16, generations=6, seed=0)
    assert end.score_raw.mean() > begin.score_raw.mean() + 0.02
    assert (np.diff(end.score_raw) <= 1e-12).all()
    assert (env.length(end.states) <= 5).all()
