"""The cache of trained bases: built once, checked, and safe with two processes."""

import json
import subprocess
import sys

import pytest
import torch
from icml_lm import artefacts
from icml_lm.artefacts import artefact, base, base_names, cache_directory, digest, register_base
from icml_lm.models import load
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import SymbolTokenizer


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_is_built_is_kept_and_what_is_damaged_is_built_anew():
    calls = []

    def build(folder):
        calls.append(folder)
        (folder / "sub").mkdir()
        (folder / "sub" / "x.txt").write_text("five")

    folder = artefact("thing", 1, build)
    assert folder.is_relative_to(cache_directory())
    assert artefact("thing", 1, build) == folder
    assert len(calls) == 1
    (folder / "sub" / "x.txt").write_text("six")
    artefact("thing", 1, build)
    assert (folder / "sub" / "x.txt").read_text() == "five"
    (folder / "manifest.json").write_text("{")
    artefact("thing", 1, build)
    assert len(calls) == 3
    assert artefact("thing", 2, build) != folder
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["files"] == {"sub/x.txt": digest(folder / "sub" / "x.txt")}
    assert not [p for p in folder.parent.iterdir() if p.name.startswith(".thing") and p.is_dir()]


def test_a_build_that_fails_leaves_nothing():
    def broken(folder):
        (folder / "half").write_text("")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        artefact("thing", 1, broken)
    assert not [p for p in cache_directory().iterdir() if p.is_dir()]
    with pytest.raises(ValueError, match="wrote no file"):
        artefact("thing", 1, lambda folder: None)
    with pytest.raises(ValueError, match="no name"):
        artefact("../thing", 1, broken)


def test_two_processes_build_once(tmp_path):
    code = (
        "import sys, time\n"
        "from icml_lm.artefacts import artefact\n"
        "def build(folder):\n"
        "    with open(sys.argv[1], 'a') as f: f.write('built\\n')\n"
        "    time.sleep(0.3)\n"
        "    (folder / 'x').write_text('x')\n"
        "print((artefact('shared', 1, build) / 'x').read_text())\n"
    )
    log = tmp_path / "log.txt"
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(log)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert [p.communicate(timeout=60)[0].strip() for p in running] == ["x"] * 3
    assert log.read_text() == "built\n"


def test_large_files_are_sampled(tmp_path, monkeypatch):
    monkeypatch.setattr(artefacts, "WHOLE", 10)
    monkeypatch.setattr(artefacts, "_SAMPLE", 4)
    path = tmp_path / "big"
    path.write_bytes(bytes(300))
    first = digest(path)
    path.write_bytes(bytes(301))
    assert digest(path) != first
    path.write_bytes(bytes(299) + b"x")
    assert digest(path) != first


def test_a_base_is_loaded_by_name(monkeypatch):
    monkeypatch.setattr(artefacts, "_bases", {})
    calls = []

    def build():
        calls.append(1)
        return TinyLM(TinyConfig(vocab=6, d=8, heads=2), seed=4), SymbolTokenizer("abc")

    register_base("toy", 1, build)
    model, tokenizer = load("tiny:toy", dtype=torch.float64)
    assert len(calls) == 1
    assert base("toy") == base("toy")
    expected = TinyLM(TinyConfig(vocab=6, d=8, heads=2), seed=4).double()
    ids = torch.tensor([tokenizer.encode("a b c")])
    assert torch.equal(model(ids).logits, expected(ids).logits)
    assert not model.training
    assert "toy" in base_names()
    with pytest.raises(ValueError, match="registered already"):
        register_base("toy", 1, lambda: None)
    with pytest.raises(ValueError, match="no base 'tiny:tory'"):
        load("tiny:tory")
