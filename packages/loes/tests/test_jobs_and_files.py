"""Jobs on files of the user's kind; files that are not to be trusted."""

from __future__ import annotations

import csv
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from icml_core import Run
from icml_loes import jobs
from icml_loes.embedding_files import read_embeddings
from icml_loes.synthetic import layers_like_a_transformer
from icml_loes.text_files import read_texts
from safetensors.numpy import save_file


@pytest.fixture
def file(tmp_path):
    layers, labels = layers_like_a_transformer(90, [12] * 5, classes=3)
    E = np.stack([v.numpy() for v in layers], 1).astype(np.float32)
    path = tmp_path / "embeddings.npz"
    np.savez(path, E=E, y=labels.numpy(), length=np.linspace(0, 1, 90))
    return path


def run(tmp_path, name: str, **options) -> Run:
    return Run(tmp_path / name, quiet=True, device="cpu", **options)


def test_select_extract_and_profile(file, tmp_path):
    first = run(tmp_path, "select")
    found = jobs.select(run=first, embeddings=file, k=2, n_cal=60)
    assert len(found["selected"]) == 2
    assert found["balanced_accuracy"] > 0.5
    written = {p.name for p in first.directory.iterdir()}
    assert written == {"layers.json", "selection.json", "layers.csv", "selection.png"}
    trace = json.loads(first.file("selection.json").read_text())["trace"]
    assert len(trace) == 2
    second = run(tmp_path, "extract")
    made = jobs.extract(run=second, layers=first.file("layers.json"), embeddings=file)
    with np.load(second.file("features.npz"), allow_pickle=False) as features:
        assert features["X"].shape == (90, 24) == (made["examples"], made["features"])
        assert features["y"].tolist() == np.load(file)["y"].tolist()
    third = run(tmp_path, "profile")
    places = jobs.profile(run=third, embeddings=file)
    assert set(places) == {"y", "length"}
    with third.file("profile.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 5
    assert {"isotropy", "entropy", "dimension", "score_y", "score_length"} < set(rows[0])
    assert third.file("profile.png").stat().st_size > 10_000


def test_select_in_every_mode(file, tmp_path):
    for i, options in enumerate(
        [{"mode": "loo"}, {"shrink": True, "normalize_terms": True}, {"task": "label_free"}, {"pca": True}]
    ):
        found = jobs.select(run=run(tmp_path, str(i)), embeddings=file, k=2, picture=False, **options)
        assert len(found["selected"]) == 2


def test_finetune_resumes(file, tmp_path):
    first = run(tmp_path, "head")
    options = {"embeddings": file, "k": 2, "epochs": 4, "batch": 16, "lr": 1e-2, "proj_dim": 8}
    whole = jobs.finetune(run=first, **options)
    assert whole["accuracy"] > 0.5
    expected = {
        "checkpoint.safetensors",
        "head.safetensors",
        "layers.json",
        "metrics.jsonl",
        "training.csv",
        "training.png",
    }
    assert {p.name for p in first.directory.iterdir()} == expected
    again = jobs.finetune(run=run(tmp_path, "head", resumed=True), **options)
    assert again == whole
    with pytest.raises(ValueError, match="--validation 2"):
        jobs.finetune(run=run(tmp_path, "x"), embeddings=file, validation=2.0)


def test_a_job_from_the_command_line(file, tmp_path):
    command = [sys.executable, "-m", "icml_core", "run", "loes.select", "--embeddings", str(file), "--k", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
    done = subprocess.run([*command[:-1], "9", "--out", str(tmp_path / "no")], capture_output=True, text=True)
    assert done.returncode == 2
    assert "k=9 of 5 layers" in done.stderr


def test_safetensors_and_lists_of_widths(tmp_path):
    arrays = {
        "layer_0": np.ones((4, 2), np.float32),
        "layer_10": np.ones((4, 5), np.float16),
        "y": np.arange(4),
    }
    arrays["layer_2"] = np.zeros((4, 3), np.float32)
    save_file(arrays, tmp_path / "e.safetensors")
    found = read_embeddings(tmp_path / "e.safetensors")
    assert [v.shape[1] for v in found.embeddings] == [2, 3, 5]
    assert found.embeddings[2].dtype == np.float32
    assert found.targets.tolist() == [0, 1, 2, 3]


def test_hostile_files_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("executed",))

    np.savez(tmp_path / "evil.npz", E=np.array([Evil()], dtype=object))
    with pytest.raises(ValueError, match=r"evil\.npz cannot be read"):
        read_embeddings(tmp_path / "evil.npz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match=r"pickle\.npz cannot be read"):
        read_embeddings(tmp_path / "pickle.npz")
    (tmp_path / "bad.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match=r"bad\.safetensors cannot be read"):
        read_embeddings(tmp_path / "bad.safetensors")
    np.savez(tmp_path / "other.npz", X=np.ones(3))
    with pytest.raises(ValueError, match="has X; expected E"):
        read_embeddings(tmp_path / "other.npz")
    np.savez(tmp_path / "flat.npz", E=np.ones((3, 4)))
    with pytest.raises(ValueError, match=r"E has shape \[3, 4\]"):
        read_embeddings(tmp_path / "flat.npz")
    (tmp_path / "e.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="neither"):
        read_embeddings(tmp_path / "e.pkl")
    with pytest.raises(FileNotFoundError):
        read_embeddings(tmp_path / "none.npz")


def test_files_too_large_are_refused_before_they_are_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", E=np.zeros((100, 10, 10)))
    monkeypatch.setattr("icml_loes.embedding_files.LARGEST", 10_000)
    with pytest.raises(ValueError, match="at most 10000"):
        read_embeddings(tmp_path / "bomb.npz")


def test_texts(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('text,label\n"a, b",x\nc,y\n', encoding="utf-8")
    texts, labels = read_texts(path)
    assert texts == ["a, b", "c"]
    assert labels.tolist() == ["x", "y"]
    for content, match in (
        ("text\na\n", "lacks the columns label"),
        ("text,label\n", "no row"),
        ("text,label\n ,x\n", "line 2 has no text"),
        ("text,label\na,\n", "line 2 has no text or no label"),
    ):
        path.write_text(content)
        with pytest.raises(ValueError, match=match):
            read_texts(path)
    path.write_bytes(b"text,label\n\xff\xfe,x\n")
    with pytest.raises(ValueError, match="UTF-8"):
        read_texts(path)
