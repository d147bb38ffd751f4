"""The jobs, as `icml run` calls them."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from icml_ccd import MDMConfig, TinyMDM, jobs
from icml_core import Run
from icml_lm import ByteTokenizer


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    """Models trained for a moment: what is tested is what the jobs write."""
    from icml_ccd import trained_tasks

    monkeypatch.setitem(trained_tasks.RECIPES, "small", trained_tasks.RECIPES["smoke"])


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", seed=1, device="cpu", quiet=True)


def rows(path):
    with path.open() as stream:
        return list(csv.DictReader(stream))


def test_decode_fills_puzzles_and_explains_the_first(run):
    result = jobs.decode(run=run, model="task:sudoku", rule="ccd", limit=5)
    assert result["n_forward"] == 12
    answers = [json.loads(line) for line in run.file("answers.jsonl").read_text().splitlines()]
    assert len(answers) == 5
    assert result["accuracy"] == sum(a["correct"] for a in answers) / 5
    trace = rows(run.file("trace.csv"))
    assert [int(r["step"]) for r in trace] == list(range(12))
    assert run.file("order.png").stat().st_size > 1000
    assert json.loads(run.file("report.json").read_text())["settings"]["rule"] == "ccd"


def test_decode_takes_a_trained_folder_prompts_and_a_checker(run, tmp_path):
    tokenizer = ByteTokenizer()
    model = TinyMDM(MDMConfig(260, 259, d=16, layers=1, heads=2, eos_id=258), seed=0)
    model.save(tmp_path / "model")
    tokenizer.save(tmp_path / "model" / "tokenizer.json")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": p}) + "\n" for p in ("ab", "cde")))
    (tmp_path / "check.py").write_text("def never(line, answer):\n    return False\n")
    result = jobs.decode(
        run=run,
        model=str(tmp_path / "model"),
        prompts=prompts,
        checker=f"{tmp_path / 'check.py'}:never",
        gen_length=6,
    )
    assert (result["prompts"], result["accuracy"]) == (2, 0.0)
    first = json.loads(run.file("answers.jsonl").read_text().splitlines()[0])
    assert first["prompt"] == "ab"
    assert isinstance(first["answer"], str)


def test_training_stops_and_goes_on(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question. " * 40)
    options = {"data": text, "length": 16, "steps": 6, "batch": 4, "width": 16, "layers": 1}
    result = jobs.train_mdm(run=run, **options)
    assert result["loss"] < 7
    assert len(run.file("metrics.jsonl").read_text().splitlines()) == 6
    model = TinyMDM.load(run.file("model"))
    assert model(torch.zeros(1, 16, dtype=torch.int64)).shape == (1, 16, 260)
    again = Run(run.directory, seed=1, device="cpu", resumed=True, quiet=True)
    assert jobs.train_mdm(run=again, **options) == pytest.approx(result)


def test_training_of_a_task(run):
    result = jobs.train_mdm(run=run, task="sudoku", steps=2, batch=4, width=16, layers=1)
    assert result["weights"] > 1000
    assert TinyMDM.load(run.file("model")).mask_id == 4


def test_bench_writes_curves(run):
    result = jobs.bench(run=run, tasks=("sudoku",), n=4, quick=True)
    table = rows(run.file("bench.csv"))
    assert {"task", "decoder", "accuracy", "nfe", "frontier"} <= set(table[0])
    assert len(result) == sum(row["frontier"] == "True" for row in table)
    assert "sudoku: ccd b=1 over neg_entropy b=1" in json.loads(run.file("differences.json").read_text())
    assert run.file("sudoku.png").stat().st_size > 1000


def test_loglik_scores_answers(run):
    result = jobs.loglik(run=run, model="task:addition", limit=3, n_mc=14)
    assert result["lines"] == 3
    assert 0 < result["nats_a_token"] < 5
    assert len(rows(run.file("loglik.csv"))) == 3


@pytest.mark.parametrize(
    ("job", "options", "message"),
    [
        ("decode", {"model": "nowhere"}, "neither task:NAME"),
        ("decode", {"model": "task:chess"}, "there is no task 'chess'"),
        ("decode", {"limit": 0}, "--limit 0"),
        ("train_mdm", {"task": "chess"}, "--task chess"),
        ("train_mdm", {"start": "smollm2"}, "say --data FILE"),
        ("train_mdm", {"start": "other"}, "--start other"),
        ("train_mdm", {"steps": 0}, "--steps 0"),
        ("bench", {"tasks": ("chess",)}, "chess"),
        ("loglik", {"model": "task:sudoku"}, "answers of sudoku stand between"),
    ],
)
def test_bad_options_are_named(run, job, options, message):
    if options.get("model") == "nowhere":
        prompts = run.directory / "prompts.jsonl"
        prompts.parent.mkdir()
        prompts.write_text('{"prompt": "x"}')
        options = {**options, "prompts": prompts}
    with pytest.raises(ValueError, match=message):
        getattr(jobs, job)(run=run, **options)
