"""The report against enumeration and closed forms, and the command line's jobs from files to files."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
import torch
from icml_core import Run
from icml_mpvmc import RBM, Metropolis, exact, precision_report
from icml_mpvmc.jobs import ground_state, sample
from icml_mpvmc.jobs import precision_report as report_job
from matplotlib.image import imread


def test_report_of_a_machine_is_that_of_all_states():
    """σ on samples near σ under π; TV and KL are sums over all states; the bounds hold."""
    model = RBM(10, 1, std=0.4, seed=1)
    x = Metropolis(model, 10, n_chains=500, dtype="f64").sample(5000, discard=20).x
    report = precision_report(model, x)
    states, p = exact.distribution(model, 10)
    from icml_mpvmc.lowered import LogDensity

    for name in ("bf16", "f16", "f32"):
        row = report[name]
        delta = LogDensity(model, name)(states).double() - torch.log(p)
        sigma = float((p * (delta - (p * delta).sum()) ** 2).sum().sqrt())
        assert row.sigma == pytest.approx(sigma, rel=0.1)
        assert 2 * row.total_variation <= math.sqrt(2 * row.kl) * 1.0001 + 1e-12
        if name != "f32":
            assert math.sqrt(2 * row.kl) == pytest.approx(sigma, rel=0.05)
        assert row.ess == pytest.approx(math.exp(-(sigma**2)), abs=0.01)
        assert row.kl_bound == row.sigma
    assert report["f32"].verdict == "ok"
    assert report.fastest_ok is not None
    assert "verdict" in report.table()
    with pytest.raises(KeyError, match="no row for 'f64'"):
        report["f64"]


def test_report_of_any_log_density():
    """A Gaussian of 20 dimensions far from the origin: |log π| ~ 200 in bf16 has steps of one."""
    x = torch.randn(2000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    precise = precision_report(lambda v: -(v**2).sum(1) / 2, x, r=0.5)
    coarse = precision_report(lambda v: -(v**2).sum(1) / 2 - 500.0, x)
    assert precise["f32"].verdict == "ok"
    assert coarse["bf16"].sigma > 0.3
    assert coarse["bf16"].verdict in ("correct", "no")
    assert precise["bf16"].mcmc_bound == pytest.approx(4 * precise["bf16"].acceptance_bound)
    assert precise["bf16"].total_variation is None
    assert coarse["f16"].sigma < coarse["bf16"].sigma


def test_report_says_what_overflows():
    x = torch.ones(8, 1, dtype=torch.float64)
    report = precision_report(lambda v: 1e5 * v[:, 0], x, ("f16", "f32"))
    assert report["f16"].verdict == "overflow"
    assert "overflows float16" in report["f16"].reason
    figures = report.figures()
    assert figures["f16/sigma"] is None
    json.dumps(figures, allow_nan=False)


def test_report_of_batch_sizes():
    """A density whose value depends on the batch size by construction is found out."""
    x = torch.zeros(64, 1, dtype=torch.float64)
    report = precision_report(lambda v: v[:, 0] + 0.25 * (len(v) == 1), x, ("f32",))
    assert report["f32"].batch_delta == 0.25


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(1, 2)}, "two samples"),
        ({"f_max": 0.0}, "f_max=0.0"),
        ({"dtypes": ("f8",)}, "unknown dtype"),
        ({"weights": torch.ones(3)}, "weights have shape"),
        ({"model_or_logp": lambda v: v[:, 0] - math.inf}, "not finite on 4 of 4"),
        ({"model_or_logp": lambda v: v}, "expected .4."),
    ],
)
def test_bad_questions_are_named(change, message):
    given = {"model_or_logp": lambda v: v[:, 0], "x": torch.zeros(4, 2), **change}
    with pytest.raises(ValueError, match=message):
        precision_report(**given)


def rows(run, name):
    with run.file(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_ground_state_samples_and_report_by_jobs(tmp_path):
    run = Run(tmp_path / "run", seed=5, device="cpu", quiet=True)
    options = {"shape": "6", "iterations": 30, "samples": 400, "chains": 100, "lr": 0.2, "dtype": "f32"}
    summary = ground_state(run=run, **options)
    assert summary["exact"] == pytest.approx(exact.tfim_chain_energy(6))
    assert summary["energy"] == pytest.approx(summary["exact"], rel=0.02)
    assert len(rows(run, "history.csv")) == 30
    assert imread(run.file("training.png")).shape[2] == 4
    assert json.loads(run.file("energy.json").read_text())["error"] == summary["error"]
    wavefunction = run.file("wavefunction.safetensors")

    again = Run(run.directory, seed=5, device="cpu", quiet=True, resumed=True)
    longer = ground_state(run=again, **{**options, "iterations": 40})
    assert len(rows(again, "history.csv")) == 40
    assert longer["proposals"] > summary["proposals"]

    drawn = Run(tmp_path / "draw", seed=1, device="cpu", quiet=True)
    found = sample(run=drawn, wavefunction=wavefunction, n=400, chains=50, dtype="f32", correction="reweight")
    with np.load(drawn.file("samples.npz")) as arrays:
        assert arrays["x"].shape == (400, 6)
        assert arrays["log_w"].shape == (400,)
    assert found["ess"] > 0.99
    with pytest.raises(ValueError, match="--n 401"):
        sample(run=drawn, wavefunction=wavefunction, n=401, chains=50)

    told = Run(tmp_path / "told", seed=1, device="cpu", quiet=True)
    verdicts = report_job(run=told, wavefunction=wavefunction, samples=drawn.file("samples.npz"))
    assert verdicts["f32"].startswith("ok")
    assert [row["dtype"] for row in rows(told, "precision.csv")] == ["bf16", "f16", "f32"]
    assert imread(told.file("precision.png")).shape[2] == 4


def test_a_run_from_a_file_of_pauli_strings(tmp_path):
    (tmp_path / "h.json").write_text(json.dumps({"ZZ": 1.0, "XI": -1.0, "IX": -1.0}))
    run = Run(tmp_path / "run", seed=1, device="cpu", quiet=True)
    options = {"iterations": 20, "samples": 200, "chains": 50, "lr": 0.2, "dtype": "f32", "picture": False}
    summary = ground_state(run=run, hamiltonian=tmp_path / "h.json", **options)
    assert summary["exact"] == pytest.approx(-math.sqrt(5))
    with pytest.raises(ValueError, match="not both"):
        ground_state(run=run, hamiltonian=tmp_path / "h.json", molecule="H 0 0 0")
