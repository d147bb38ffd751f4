"""The jobs by their functions and by the command, on small sizes."""

from __future__ import annotations

import csv
import json

import pytest
from icml_core import Run
from icml_leakgfn import jobs


def rows(path):
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


SMALL = {"hidden": 8, "message_steps": 1, "batch": 4, "max_blocks": 4}


def test_molecules_are_written_and_an_earlier_run_is_used_again(tmp_path):
    run = Run(tmp_path / "one", seed=1, device="cpu", quiet=True)
    result = jobs.molecules(run=run, steps=30, samples=40, reference=50, **SMALL)
    found = rows(run.file("molecules.csv"))
    assert len(found) == result["samples"] == 40
    assert result["steps"] == 30
    finished = [row["smiles"] for row in found if row["done"] == "2"]
    assert run.file("molecules.smi").read_text().split() == finished
    for name in ("top.png", "training.png", "checkpoint.safetensors", "metrics.jsonl"):
        assert run.file(name).stat().st_size > 100
    assert json.loads(run.file("metrics.json").read_text())["uniqueness"] == result["uniqueness"]

    again = Run(tmp_path / "two", seed=1, device="cpu", quiet=True)
    result = jobs.molecules(run=again, from_run=tmp_path / "one", steps=99, samples=25, **SMALL)
    assert result["steps"] == 30
    assert len(rows(again.file("molecules.csv"))) == 25
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        jobs.molecules(run=again, from_run=tmp_path / "none", steps=1, samples=1, **SMALL)


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
