"""The jobs on files of the user's kind."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from icml_core import Run
from icml_sso import exact_msign, jobs
from safetensors.torch import load_file


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", seed=0, device="cpu")


def test_a_fit_writes_metrics_and_weights_on_their_spheres(run):
    figures = jobs.sso(run=run, steps=30, width=24)
    lines = (run.directory / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert len(losses) == 30
    assert losses[-1] < losses[0]
    assert figures["share"] > 0.9
    weights = load_file(run.directory / "weights.safetensors")
    w = weights["2.weight"]
    assert float(torch.linalg.matrix_norm(w, ord=2)) == pytest.approx(2.0, rel=1e-3)
    with pytest.raises(ValueError, match="--steps 0"):
        jobs.muonsphere(run=run, steps=0)


def test_files_of_matrices(run, tmp_path):
    rng = np.random.default_rng(0)
    m, w = rng.normal(size=(2, 8, 20))
    np.save(tmp_path / "m.npy", m)
    np.save(tmp_path / "w.npy", w)
    jobs.msign(run=run, matrix=tmp_path / "m.npy", dtype="float64")
    factor = torch.from_numpy(np.load(run.directory / "factor.npy"))
    torch.testing.assert_close(factor, exact_msign(torch.from_numpy(m)), rtol=0, atol=1e-6)
    found = jobs.tangent_lambda(
        run=run, momentum=tmp_path / "m.npy", weights=tmp_path / "w.npy", dtype="float64"
    )
    left, _, right = np.linalg.svd(w, full_matrices=False)
    direction = np.load(run.directory / "direction.npy")
    assert abs(left[:, 0] @ direction @ right[0]) < 1e-3
    assert found["msign_calls"] <= 3


def test_hostile_and_unsuitable_files_are_refused(run, tmp_path):
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "text.npy").write_text("no array")
    np.save(tmp_path / "vector.npy", np.ones(3))
    for name, message in (
        ("objects.npy", "cannot be read as .npy"),
        ("text.npy", "cannot be read as .npy"),
        ("vector.npy", "holds no matrix"),
        ("absent.npy", "cannot be read"),
    ):
        with pytest.raises(ValueError, match=message):
            jobs.msign(run=run, matrix=tmp_path / name)
    np.save(tmp_path / "a.npy", np.ones((2, 3)))
    np.save(tmp_path / "b.npy", np.ones((3, 3)))
    with pytest.raises(ValueError, match=r"momentum has shape \[2, 3\] and weights \[3, 3\]"):
        jobs.tangent_lambda(run=run, momentum=tmp_path / "a.npy", weights=tmp_path / "b.npy")
