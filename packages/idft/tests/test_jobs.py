"""The jobs on files of a user's kind: what they write, and that a stopped one goes on."""

import json

import pytest
import torch
from icml_core import Run
from icml_idft import jobs, jobs_of_rewriting
from icml_idft.skills import task
from icml_lm import load
from icml_lm.tasks.digit_ops import tokenizer
from small_models import tiny


@pytest.fixture
def files(tmp_path):
    model = tmp_path / "base"
    tiny(spread=3.0).save(model)
    tokenizer().save(model / "tokenizer.json")
    data = tmp_path / "rows.jsonl"
    rows = [{"prompt": e.prompt, "response": e.answer, "final": "1"} for e in task("ASC").sample(8, seed=0)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(model), data


def run(folder, **options):
    return Run(folder, seed=1, device="cpu", quiet=True, **options)


def test_texts_are_scored(tmp_path, files):
    model, data = files
    result = jobs.cll(run=run(tmp_path / "out"), data=data, model=model, reference=model)
    lines = (tmp_path / "out" / "scores.csv").read_text().splitlines()
    assert lines[0] == "row,tokens,phi,z,pvalue,ratio_z"
    assert len(lines) == 9
    assert result["rows"] == 8
    assert (tmp_path / "out" / "scores.png").stat().st_size > 1000


def test_weights_are_shown(tmp_path, files):
    model, data = files
    result = jobs.weights(run=run(tmp_path / "out"), data=data, model=model)
    lines = (tmp_path / "out" / "weights.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == [
        "kind",
        "sft",
        "dft",
        "idft",
        "indomain",
        "eaft",
        "reverse",
    ]
    assert lines[1].split(",")[2] == "1"
    assert result["recommend"] in ("sft", "idft", "realign")


def test_a_stopped_fine_tuning_goes_on_bit_for_bit(tmp_path, files, monkeypatch):
    model, data = files
    options = {"data": data, "model": model, "epochs": 2, "batch": 4, "lr": 1e-3, "validation": data}
    whole = jobs.finetune(run=run(tmp_path / "whole"), **options)
    original = Run.log

    def stopping(self, step, **figures):
        original(self, step, **figures)
        if step == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Run, "log", stopping)
    with pytest.raises(KeyboardInterrupt):
        jobs.finetune(run=run(tmp_path / "part"), **options)
    monkeypatch.setattr(Run, "log", original)
    again = jobs.finetune(run=run(tmp_path / "part", resumed=True), **options)
    assert again["loss"] == whole["loss"]
    first, second = (load(tmp_path / name / "model").model for name in ("whole", "part"))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert (tmp_path / "whole" / "training.png").stat().st_size > 1000
    assert len((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()) == 4


def test_answers_are_rewritten(tmp_path, files):
    model, data = files
    options = {"data": data, "model": model, "split": "", "max_new_tokens": 6}
    result = jobs_of_rewriting.hinted(run=run(tmp_path / "out"), **options)
    rows = [json.loads(x) for x in (tmp_path / "out" / "rewritten.jsonl").read_text().splitlines()]
    assert len(rows) == result["rows"] == 8
    assert set(rows[0]) == {"prompt", "response", "phi", "lambda", "finish"}


def test_a_realignment_goes_on_after_its_last_row(tmp_path, files):
    model, data = files
    options = {"data": data, "model": model, "split": "", "answers": "any", "max_new_tokens": 8, "batch": 3}
    options |= {"phi_min": -100.0, "retries": 1}
    result = jobs_of_rewriting.realign(run=run(tmp_path / "whole"), **options)
    path = tmp_path / "whole" / "realigned.jsonl"
    rows = path.read_text().splitlines()
    assert len(rows) == result["rows"] == 8
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / "realigned.jsonl").write_text("\n".join(rows[:3]) + "\n")
    assert jobs_of_rewriting.realign(run=run(tmp_path / "part", resumed=True), **options) == result
    assert (tmp_path / "part" / "realigned.jsonl").read_text().splitlines() == rows
    with pytest.raises(ValueError, match="no boxed answer"):
        jobs_of_rewriting.realign(run=run(tmp_path / "boxed"), **{**options, "answers": "boxed"})
