"""The command line's jobs, from files to files."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
from icml_core import Run
from icml_idealpoint import pairwise
from icml_idealpoint.jobs import ask, distances, rank
from matplotlib.image import imread


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", seed=5, quiet=True)


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "series"
    folder.mkdir()
    for k in range(6):
        (folder / f"r{k}.csv").write_text("\n".join([str(k / 5)] * (5 + k % 2)) + "\n")
    lines = [f"r{i},r{j},{(i + j) % 2}" for i in range(6) for j in range(i)]
    (tmp_path / "pairs.csv").write_text("winner,loser,annotator\n" + "\n".join(lines) + "\n")
    return folder, tmp_path / "pairs.csv"


def rows(run, name):
    with run.file(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_ranking_with_intervals_new_series_and_pictures(run, files):
    summary = rank(run=run, series=files[0], pairs=files[1], new=files[0], steps=30, starts=2, resamples=5)
    ranking = rows(run, "ranking.csv")
    assert [row["item"] for row in ranking] == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert all(float(row["low"]) <= float(row["high"]) for row in ranking)
    new = [float(row["score"]) for row in rows(run, "new.csv")]
    assert new == sorted(new)
    assert len(rows(run, "annotators.csv")) == 2
    assert summary["comparisons"] == 15
    assert summary["agreement"] == 1.0
    assert imread(run.file("ranking.png")).shape[2] == 4
    assert imread(run.file("ideal.png")).shape[2] == 4
    logged = [json.loads(line) for line in run.file("metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in logged] == [0, 10, 20, 30]


def test_questions_answers_and_resuming(tmp_path, run, files, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    first = ask(run=run, series=files[0], questions=4, steps=20)
    assert first == {"answers": 0, "proposed": 4, "items": 6}
    asked = [(row["first"], row["second"]) for row in rows(run, "questions.csv")]
    assert len({tuple(sorted(pair)) for pair in asked}) == 4
    replies = tmp_path / "replies.csv"
    replies.write_text("winner,loser\n" + "\n".join(f"{max(p)},{min(p)}" for p in asked) + "\n")
    again = Run(run.directory, seed=5, quiet=True, resumed=True)
    second = ask(run=again, series=files[0], answers=replies, questions=3, steps=20)
    assert second["answers"] == 4
    new = {tuple(sorted((row["first"], row["second"]))) for row in rows(run, "questions.csv")}
    assert not new & {tuple(sorted(pair)) for pair in asked}
    third = ask(run=Run(run.directory, seed=5, quiet=True, resumed=True), series=files[0], steps=20)
    assert third["answers"] == 4
    assert len(rows(run, "ranking.csv")) == 6


def test_answers_from_a_terminal(run, files, monkeypatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    given = iter(["1", "=", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(given))
    found = ask(run=run, series=files[0], questions=5, steps=10)
    assert found["answers"] == 2
    assert [float(row["outcome"]) for row in rows(run, "answers.csv")] == [1.0, 0.5]


def test_a_matrix_of_distances(run, files):
    distances(run=run, series=files[0], lam=0.5, jobs=2)
    found = np.load(run.file("distances.npy"))
    X = [np.full(5 + k % 2, k / 5) for k in range(6)]
    assert np.allclose(found, pairwise(X, lam=0.5), atol=1e-12)
    assert [row["name"] for row in rows(run, "names.csv")[:6]] == [f"r{k}" for k in range(6)]


def test_bad_numbers_are_refused(run, files):
    with pytest.raises(ValueError, match="--questions 0"):
        ask(run=run, series=files[0], questions=0)
