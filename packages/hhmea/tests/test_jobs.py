"""Jobs on files of the user's kind; files that are not to be trusted."""

from __future__ import annotations

import csv
import pickle
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest
from icml_core import Run
from icml_hhmea import jobs
from icml_hhmea.user_files import image_of_nwb, read_curves, read_electrodes, read_image, read_patterns


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measured")
    run = Run(folder / "cell", quiet=True, device="cpu", seed=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = jobs.cell(run=run, patterns=6, rings=2, curves=3)
    assert 0.85 < found["ceiling"] <= 1
    return run.directory


def run(tmp_path, name: str, **options) -> Run:
    return Run(tmp_path / name, quiet=True, device="cpu", **options)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_predict_and_optimize(measured, tmp_path):
    first = run(tmp_path, "fit")
    options = {"ei": measured / "ei.npz", "curves": measured / "curves.csv", "restarts": 1, "steps": 1}
    found = jobs.fit(run=first, **options)
    assert found["loss"] > 0
    names = {p.name for p in first.directory.iterdir()}
    assert {"posterior.safetensors", "parameters.csv", "cell.png", "image.png", "curves.png"} <= names
    for picture in ("cell.png", "image.png", "curves.png"):
        assert first.file(picture).stat().st_size > 10_000
    again = jobs.fit(run=run(tmp_path, "fit", resumed=True), **options)
    assert again["loss"] == found["loss"]
    second = run(tmp_path, "predict")
    scored = jobs.predict(
        run=second, posterior=first.file("posterior.safetensors"), patterns=measured / "patterns.csv"
    )
    assert scored["patterns"] == 6
    assert 0 <= scored["accuracy"] <= 1
    with second.file("predictions.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {"pattern", "p", "spike", "threshold_scale", "latency_ms", "site"} == set(rows[0])
    third = run(tmp_path, "stimulus")
    best = jobs.optimize_stimulus(run=third, targets=[first.file("posterior.safetensors")], steps=1)
    assert best["p_targets"][0] > 0.5
    assert third.file("pattern.csv").is_file()


def test_simulate_a_file(tmp_path):
    path = tmp_path / "cell.swc"
    path.write_text("1 1 0 0 0 8 -1\n2 3 8 0 0 1 1\n3 3 120 0 0 1 2\n")
    job = run(tmp_path, "swc")
    found = jobs.simulate(run=job, swc=path, time=4.0, current=0.8)
    assert found["largest_mv"] > 0
    assert job.file("voltage.png").stat().st_size > 5_000
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "icml_core",
            "run",
            "hhmea.simulate",
            "--swc",
            str(tmp_path / "no.swc"),
            "--out",
            str(tmp_path / "none"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert "no file" in done.stderr


def test_hostile_files_are_refused(tmp_path):
    np.savez(tmp_path / "evil.npz", ei=np.array([print], dtype=object), fs=1.0)
    with pytest.raises(ValueError, match=r"evil\.npz cannot be read"):
        read_image(tmp_path / "evil.npz")
    (tmp_path / "pickle.npz").write_bytes(pickle.dumps([1]))
    with pytest.raises(ValueError, match=r"pickle\.npz cannot be read"):
        read_image(tmp_path / "pickle.npz")
    np.savez(tmp_path / "other.npz", X=np.ones(3))
    with pytest.raises(ValueError, match="has X; expected arrays ei and fs"):
        read_image(tmp_path / "other.npz")
    np.savez(tmp_path / "flat.npz", ei=np.ones(3), fs=1.0)
    with pytest.raises(ValueError, match=r"float64\[3\]"):
        read_image(tmp_path / "flat.npz")
    np.savez(tmp_path / "xy.npz", ei=np.ones((3, 9)), fs=1.0, xy=np.ones((2, 2)))
    with pytest.raises(ValueError, match=r"xy has shape \[2, 2\]"):
        read_image(tmp_path / "xy.npz")
    (tmp_path / "a.mat").write_bytes(b"")
    with pytest.raises(ValueError, match=r"no \.npz file"):
        read_image(tmp_path / "a.mat")
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.npz")


def test_files_too_large_are_refused_before_they_are_read(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "bomb.npz", ei=np.zeros((100, 100)), fs=1.0)
    monkeypatch.setattr("icml_hhmea.user_files.MAX_BYTES", 10_000)
    with pytest.raises(ValueError, match="at most 10000"):
        read_image(tmp_path / "bomb.npz")


@pytest.mark.parametrize(
    ("reader", "text", "match"),
    [
        (read_curves, "electrode,uA,trials\n", "lacks the columns spikes"),
        (read_curves, "electrode,uA,trials,spikes\n1,x,10,2\n", "line 2: uA 'x' is no number"),
        (read_curves, "electrode,uA,trials,spikes\n1,1.0,10,12\n", "line 2: 12 spikes in 10 trials"),
        (read_electrodes, "electrode,x,y\n0,1,2\n2,1,2\n", "must be 0 to 1, each once"),
        (lambda p: read_patterns(p, 3), "pattern,electrode,uA\na,5,1\n", "line 2: electrode 5 of 3"),
        (lambda p: read_patterns(p, 3), "pattern,electrode,uA\na,1,nan\n", "line 2: uA is not finite"),
    ],
)
def test_bad_tables_are_named_with_their_line(reader, text, match, tmp_path):
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=match):
        reader(path)


def test_an_nwb_file_that_is_open():
    class Table(dict):
        colnames = ("waveform_mean",)
        waveform_rate, waveform_unit = 20_000.0, "volts"

        def __len__(self):
            return 4

    units = Table(waveform_mean=[np.ones((9, 4)) * 1e-5])
    places = Table(rel_x=np.arange(4.0), rel_y=np.zeros(4))
    found = image_of_nwb(types.SimpleNamespace(units=units, electrodes=places), 0)
    assert (found.ei.shape, found.units, found.fs) == ((4, 9), "V", 20_000.0)
    units.waveform_unit = "lumens"
    with pytest.raises(ValueError, match="'lumens' is none of"):
        image_of_nwb(types.SimpleNamespace(units=units, electrodes=places), 0)
