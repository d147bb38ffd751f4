"""The jobs by their functions and by the command, on small sizes."""

from __future__ import annotations

import csv
import json
import math

import pytest
from icml_core import Run
from icml_core.run import recorded
from icml_leakgfn import jobs


def rows(path):
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


SMALL = {"hidden": 8, "message_steps": 1, "batch": 4, "max_blocks": 4}


def test_molecules_are_written_and_an_earlier_run_is_used_again(tmp_path):
    run = Run(tmp_path / "one", seed=1, device="cpu", quiet=True)
    with recorded(run, "leakgfn.molecules", SMALL):
        result = jobs.molecules(run=run, steps=10, samples=40, reference=50, **SMALL)
    found = rows(run.file("molecules.csv"))
    assert len(found) == result["samples"] == 40
    assert result["steps"] == 10
    finished = [row["smiles"] for row in found if row["done"] == "2"]
    assert run.file("molecules.smi").read_text().split() == finished
    for name in ("top.png", "training.png", "checkpoint.safetensors", "metrics.jsonl"):
        assert run.file(name).stat().st_size > 100
    assert json.loads(run.file("metrics.json").read_text())["uniqueness"] == result["uniqueness"]

    again = Run(tmp_path / "two", seed=1, device="cpu", quiet=True)
    result = jobs.molecules(run=again, from_run=tmp_path / "one", steps=99, samples=25, **SMALL)
    assert result["steps"] == 10
    assert len(rows(again.file("molecules.csv"))) == 25
    with pytest.raises(FileNotFoundError, match=r"there is no run\.json"):
        jobs.molecules(run=again, from_run=tmp_path / "none", steps=1, samples=1, **SMALL)
    run.file("checkpoint.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        jobs.molecules(run=again, from_run=tmp_path / "one", steps=1, samples=1, **SMALL)


def test_an_earlier_run_keeps_its_reward_blocks_and_sizes(tmp_path, monkeypatch):
    """The command of the README says only --from-run; what was given beside it and differs is refused."""
    (tmp_path / "counted.py").write_text(
        "def score(smiles: str) -> float:\n    return 0.1 + len(smiles) / 20\n"
    )
    (tmp_path / "few.smi").write_text("*c1ccc(*)cc1\n*C\n*O\n")
    monkeypatch.chdir(tmp_path)
    given = SMALL | {"reward": "counted:score", "blocks": "few.smi", "exponent": 2.0, "truncation": "cap"}
    run = Run(tmp_path / "one", seed=1, device="cpu", quiet=True)
    with recorded(run, "leakgfn.molecules", given):
        jobs.molecules(run=run, steps=3, samples=4, picture=False, **given)
    again = Run(tmp_path / "two", seed=1, device="cpu", quiet=True)
    result = jobs.molecules(run=again, from_run=tmp_path / "one", samples=20, picture=False)
    assert result["reward"] == "counted:score"
    found = rows(again.file("molecules.csv"))
    assert len(found) == 20
    assert run.file("molecules.smi").read_text().count("\n") == 4  # capped molecules are molecules
    for row in found:
        assert float(row["score"]) == pytest.approx(0.1 + len(row["smiles"]) / 20, abs=1e-9)
        assert float(row["log_reward"]) == pytest.approx(2 * math.log(float(row["score"])), abs=1e-6)
    with pytest.raises(ValueError, match=r"--reward sa was given, but the run .* had counted:score"):
        jobs.molecules(run=again, from_run=tmp_path / "one", samples=1, reward="sa")
    with pytest.raises(ValueError, match=r"--max-blocks 5 was given, but the run .* had 4"):
        jobs.molecules(run=again, from_run=tmp_path / "one", samples=1, max_blocks=5)


def test_a_resumed_run_is_the_unbroken_one(tmp_path):
    whole = Run(tmp_path / "whole", seed=2, device="cpu", quiet=True)
    jobs.molecules(run=whole, steps=8, samples=10, picture=False, **SMALL)
    half = Run(tmp_path / "half", seed=2, device="cpu", quiet=True)
    jobs.molecules(run=half, steps=4, samples=0, picture=False, **SMALL)
    resumed = Run(tmp_path / "half", seed=2, device="cpu", resumed=True, quiet=True)
    jobs.molecules(run=resumed, steps=8, samples=10, picture=False, **SMALL)
    assert rows(resumed.file("molecules.csv")) == rows(whole.file("molecules.csv"))


@pytest.mark.parametrize("world", ["brackets", "grid"])
def test_a_small_world_is_compared_with_its_exact_distribution(tmp_path, world):
    run = Run(tmp_path, seed=0, device="cpu", quiet=True)
    result = jobs.sampler(run=run, world=world, max_length=4, steps=20, batch=8, hidden=16, samples=10)
    found = rows(run.file("objects.csv"))
    assert sum(float(row["exact"]) for row in found) == pytest.approx(1)
    learnt = sum(float(row["learnt"]) for row in found)
    assert learnt + result["leak"] == pytest.approx(1)


def test_all_molecules_of_three_blocks(tmp_path):
    run = Run(tmp_path, seed=0, device="cpu", quiet=True)
    result = jobs.exact_flow(run=run, max_blocks=2)
    found = rows(run.file("molecules.csv"))
    assert len(found) == result["objects"]
    assert sum(float(row["probability"]) for row in found) == pytest.approx(1)


def test_the_command_runs_on_a_score_of_the_user(tmp_path, monkeypatch):
    from icml_core.cli import call

    (tmp_path / "mine.py").write_text(
        "def score(smiles: str) -> float:\n    return 0.1 + smiles.count('c') / 20\n"
    )
    monkeypatch.chdir(tmp_path)
    arguments = [
        "run",
        "leakgfn.molecules",
        "--reward",
        "mine:score",
        "--max-blocks",
        "3",
        "--samples",
        "5",
        "--steps",
        "2",
        "--hidden",
        "8",
        "--message-steps",
        "1",
        "--out",
        "mols",
        "--device",
        "cpu",
    ]
    status = call(arguments)
    assert not status
    assert len(rows(tmp_path / "mols" / "molecules.csv")) == 5
