"""Jobs on files of the user's kinds: training, refinement, reports; files that are not to be trusted."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest
import torch
from icml_core import Run
from icml_irno import IRNO, Statistics, jobs, kuramoto_sivashinsky
from icml_irno.field_files import read_fields, read_trajectories, write_well
from icml_irno.reports import write_lead_times
from safetensors.numpy import save_file


def run(tmp_path, name: str, **options) -> Run:
    return Run(tmp_path / name, quiet=True, device="cpu", **options)


@pytest.fixture(scope="module")
def trajectories() -> torch.Tensor:
    times = [10 * t for t in range(6)]
    return kuramoto_sivashinsky(8, 0, steps=times, points=32, length=32.0, burn_in=100)[:, :, None].float()


@pytest.fixture
def well(tmp_path, trajectories):
    path = tmp_path / "ks.h5"
    write_well(path, trajectories, ["u"], (1.0,), "ks")
    return path


def test_windows_of_trajectories(well, trajectories):
    found = read_fields(well, history=2, lead=1)
    assert (found.channels, found.history, found.spacing) == (("u",), 2, (1.0,))
    assert found.x.shape == (8 * 4, 2, 32)
    torch.testing.assert_close(found.x[4 * 3 + 1], trajectories[3, 1:3, 0])
    torch.testing.assert_close(found.y[4 * 3 + 1], trajectories[3, 3])
    later = read_fields(well, history=1, lead=3)
    torch.testing.assert_close(later.y[0], trajectories[0, 3])
    with pytest.raises(ValueError, match="has 6 times; history=5 and lead=2 need 7"):
        read_fields(well, history=5, lead=2)
    with pytest.raises(ValueError, match="GiB as windows"):
        read_fields(well, most_bytes=100)


def test_vector_fields_become_channels(tmp_path):
    import h5py

    values = np.arange(2 * 3 * 4 * 5 * 2, dtype=np.float32).reshape(2, 3, 4, 5, 2)
    with h5py.File(tmp_path / "v.hdf5", "w") as file:
        file.attrs["n_spatial_dims"] = 2
        file.create_group("t1_fields").create_dataset("velocity", data=values)
    fields, names, spacing = read_trajectories(tmp_path / "v.hdf5")
    assert names == ("velocity_0", "velocity_1")
    assert spacing is None
    np.testing.assert_array_equal(fields[:, :, 1].numpy(), values[..., 1])


def test_train_refine_and_report(well, tmp_path):
    first = run(tmp_path, "base")
    found = jobs.train_base(run=first, data=well, modes=4, hidden_channels=6, layers=1, epochs=3, lr=1e-2)
    assert 0 < found["vrmse"] < 1.5
    base = str(first.file("base.safetensors"))
    second = run(tmp_path, "train")
    options = {
        "data": well,
        "base": base,
        "epochs": 4,
        "lr": 1e-2,
        "base_channels": 4,
        "depth": 1,
        "shift": True,
    }
    trained = jobs.train(run=second, **options)
    assert trained["vrmse"] < trained["base_vrmse"]
    written = {p.name for p in second.directory.iterdir()}
    assert written == {
        "checkpoint.safetensors", "irno.safetensors", "metrics.jsonl", "refinement.png", "sample.png",
        "steps.csv", "training.csv", "training.png",
    }  # fmt: skip
    with second.file("steps.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    # The base alone is the first row, the corrector alone the last.
    assert [(r["start"], int(r["k"])) for r in rows] == [
        *(("base", k) for k in range(3 * trained["K"] + 1)),
        ("zero", trained["K"]),
    ]
    assert float(rows[0]["low"]) == float(rows[0]["high"]) == 1.0
    assert float(rows[0]["vrmse"]) == pytest.approx(trained["base_vrmse"])
    third = run(tmp_path, "refine")
    solved = jobs.refine(run=third, model=second.file("irno.safetensors"), data=well, anderson=2)
    assert solved["samples"] == 40
    assert solved["diverged"] == 0
    with np.load(third.file("refined.npz"), allow_pickle=False) as file:
        assert np.isfinite(file["h"]).all()
        assert file["calls"].mean() == pytest.approx(solved["mean_calls"])
    exact = run(tmp_path, "exact")
    steps = trained["K"]
    taken = jobs.refine(run=exact, model=second.file("irno.safetensors"), data=well, steps=steps)
    assert taken["mean_calls"] == steps
    with np.load(exact.file("refined.npz"), allow_pickle=False) as file:
        y = read_fields(well).y.numpy()
        assert file["h"].shape == y.shape
        assert np.square(file["h"] - y).mean() < np.square(file["h0"] - y).mean()
    fourth = run(tmp_path, "spectrum")
    figures = jobs.spectrum(run=fourth, model=second.file("irno.safetensors"), data=well, lead_times=3)
    assert json.loads(fourth.file("spectrum.json").read_text()) == figures
    assert figures["q_median"] > 0
    assert {f"lead_refined_vrmse/{t}" for t in (1, 2, 3)} <= set(figures)
    assert {p.name for p in fourth.directory.iterdir()} >= {
        "lead_times.csv",
        "lead_times.png",
        "refinement.png",
    }


def test_interrupted_training_goes_on(well, tmp_path):
    options = {"data": well, "epochs": 3, "lr": 1e-2, "base_channels": 4, "depth": 1, "picture": False}
    whole = jobs.train(run=run(tmp_path, "whole"), **options)
    again = jobs.train(run=run(tmp_path, "whole", resumed=True), **options)
    assert again == whole
    assert whole["base_vrmse"] > 0.5  # without a base it starts from nothing


def test_super_resolution_from_a_netcdf_file(tmp_path):
    import xarray

    rng = np.random.default_rng(0)
    y = rng.normal(size=(12, 16, 16)).cumsum(1).astype(np.float32)
    x = y.reshape(12, 4, 4, 4, 4).mean((2, 4))
    xarray.Dataset({"x": (("t", "a", "b"), x), "y": (("t", "c", "d"), y)}).to_netcdf(
        tmp_path / "era.nc", engine="h5netcdf"
    )
    options = {"epochs": 1, "base_channels": 4, "depth": 1, "picture": False}
    found = jobs.train(run=run(tmp_path, "sr"), data=tmp_path / "era.nc", base="interpolate", **options)
    assert 0 < found["base_vrmse"] < 2
    solved = jobs.refine(
        run=run(tmp_path, "out"), model=tmp_path / "sr" / "irno.safetensors", data=tmp_path / "era.nc",
        base="interpolate",
    )  # fmt: skip
    assert solved["samples"] == 12


def test_land_points_in_a_file(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(20, 1, 16)).astype(np.float32)
    y, mask = 2 * x, np.ones((1, 1, 16), dtype=bool)
    mask[..., 3:5] = False
    y[..., 3:5] = np.nan
    x[..., 3:5] = np.nan
    np.savez(tmp_path / "land.npz", x=x, y=y, mask=mask)
    found = jobs.train(
        run=run(tmp_path, "land"), data=tmp_path / "land.npz", epochs=2, lr=1e-2, base_channels=4, depth=1
    )
    assert np.isfinite(found["vrmse"])
    assert found["vrmse"] < found["base_vrmse"]
    model = tmp_path / "land" / "irno.safetensors"
    for name, options in (("solved", {}), ("stepped", {"steps": found["K"]})):
        out = run(tmp_path, name)
        solved = jobs.refine(run=out, model=model, data=tmp_path / "land.npz", **options)
        assert solved["diverged"] == 0
        with np.load(out.file("refined.npz"), allow_pickle=False) as file:
            for h in (file["h"], file["h0"]):
                assert np.isnan(h[..., 3:5]).all()
                assert np.isfinite(np.delete(h, [3, 4], -1)).all()
    figures = jobs.spectrum(run=run(tmp_path, "bands"), model=model, data=tmp_path / "land.npz")
    # Over the points that exist, up to the divisor n - 1 of the variance.
    kept = np.delete(y, [3, 4], -1)
    z = ((kept - kept[:16].mean()) / kept[:16].std()).astype(float)
    by_hand = np.sqrt((z**2).mean(-1) / z.var(-1, ddof=1)).mean()  # of h = 0, the start without a base
    assert figures["vrmse/0"] == pytest.approx(by_hand, rel=0.02)
    assert figures["vrmse/3"] < figures["vrmse/0"]
    assert figures["q_median"] > 0
    base = jobs.train_base(
        run=run(tmp_path, "wet"), data=tmp_path / "land.npz", modes=4, hidden_channels=4, layers=1, epochs=2
    )
    assert np.isfinite(base["vrmse"])


def test_a_forecast_is_fed_back_in_the_units_of_the_data(tmp_path):
    # u(t + 1) = 0.9 u(t). Inputs are z-scores of deviation 2, outputs of deviation 4: the exact operator on
    # z-scores is 0.45, and fed back as it is it would lose half of the field at every step.
    start = torch.randn(6, 1, 1, 32, generator=torch.Generator().manual_seed(0))
    path = tmp_path / "decay.h5"
    write_well(path, torch.cat([0.9**t * start for t in range(5)], 1), ["u"], (1.0,), "decay")
    known = {
        "history": 1,
        "x": Statistics.read({"mean": [1.0], "std": [2.0]}),
        "y": Statistics.read({"mean": [0.5], "std": [4.0]}),
    }

    model = IRNO(lambda z: (0.9 * (2 * z + 1) - 0.5) / 4, Still(), alpha=1.0, K=3)
    out = run(tmp_path, "leads")
    figures = write_lead_times(out, model, known, path, 4, False)
    arms = ("base", "refined", "corrector_alone")
    assert set(figures) == {f"lead_{n}_vrmse/{t}" for n in arms for t in (1, 2, 3, 4)}
    assert max(v for n, v in figures.items() if "alone" not in n) < 1e-5
    assert min(v for n, v in figures.items() if "alone" in n) > 0.9  # it gives the mean of y for ever
    with out.file("lead_times.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        for band in ("low", "mid", "high"):
            assert float(row[f"refined_energy_{band}"]) == pytest.approx(1, rel=1e-4)
            assert float(row[f"refined_error_{band}"]) < 1e-8


class Still(torch.nn.Module):
    """A corrector that changes nothing."""

    out_channels = 1

    def forward(self, xh: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(xh[:, 1:])


def test_inputs_without_targets_are_refined_alike(tmp_path, trajectories):
    x, y = trajectories[:, 0].numpy(), trajectories[:, 1].numpy()
    mask = np.ones((1, 1, 32), dtype=bool)
    mask[..., 5] = False
    np.savez(tmp_path / "pairs.npz", x=x, y=y, mask=mask)
    np.savez(tmp_path / "inputs.npz", x=x, mask=mask)
    options = {"epochs": 1, "base_channels": 4, "depth": 1, "picture": False}
    jobs.train(run=run(tmp_path, "t"), data=tmp_path / "pairs.npz", **options)
    model, found = tmp_path / "t" / "irno.safetensors", {}
    for name in ("pairs", "inputs"):
        out = run(tmp_path, name)
        assert jobs.refine(run=out, model=model, data=tmp_path / f"{name}.npz", steps=2)["samples"] == 8
        assert out.file("sample.png").is_file() == (name == "pairs")
        with np.load(out.file("refined.npz"), allow_pickle=False) as file:
            found[name] = file["h"]
    np.testing.assert_array_equal(found["pairs"], found["inputs"])
    # Trajectories that end before a target, and only these, are read as inputs.
    write_well(tmp_path / "now.h5", trajectories[:, :2], ["u"], (1.0,), "now")
    last = read_fields(tmp_path / "now.h5", history=2, lead=1, targets=False)
    assert (last.x.shape, len(last.y)) == ((8, 2, 32), 0)
    torch.testing.assert_close(last.x, trajectories[:, :2, 0])
    with pytest.raises(ValueError, match="lacks y; it has x, mask"):
        jobs.spectrum(run=run(tmp_path, "s"), model=model, data=tmp_path / "inputs.npz")
    np.savez(tmp_path / "few.npz", x=x, mask=np.ones((3, 1, 32), dtype=bool))
    with pytest.raises(ValueError, match="3 masks for 8 samples"):
        read_fields(tmp_path / "few.npz", targets=False)


def test_hostile_and_wrong_files(tmp_path, well):
    objects = tmp_path / "objects.npz"
    np.savez(objects, x=np.array([{"a": 1}], dtype=object), y=np.zeros((1, 1, 4)))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_fields(objects)
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(ValueError, match="is no .npz file"):
        read_fields(tmp_path / "text.npz")
    (tmp_path / "text.h5").write_text("no")
    with pytest.raises(ValueError, match="is no HDF5 file"):
        read_fields(tmp_path / "text.h5")
    (tmp_path / "text.safetensors").write_text("no")
    with pytest.raises(ValueError, match="is no safetensors file"):
        read_fields(tmp_path / "text.safetensors")
    (tmp_path / "a.csv").write_text("1")
    with pytest.raises(ValueError, match=r"is no .npz, .safetensors"):
        read_fields(tmp_path / "a.csv")
    with pytest.raises(FileNotFoundError, match="no file"):
        read_fields(tmp_path / "none.npz")
    save_file({"x": np.zeros((2, 1, 4), dtype=np.float32)}, tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match="lacks y; it has x"):
        read_fields(tmp_path / "half.safetensors")
    np.savez(tmp_path / "flat.npz", x=np.zeros((2, 4)), y=np.zeros((2, 4)))
    with pytest.raises(ValueError, match=r"expected real \[samples, channels, \*space\]"):
        read_fields(tmp_path / "flat.npz")
    np.savez(tmp_path / "large.npz", x=np.zeros((2, 1, 400)), y=np.zeros((2, 1, 400)))
    with pytest.raises(ValueError, match="unpacks to"):
        read_fields(tmp_path / "large.npz", most_bytes=1000)
    with pytest.raises(ValueError, match="well:MODEL:FOLDER"):
        jobs.train(run=run(tmp_path, "w"), data=well, base="well:FNO")
    with pytest.raises(ValueError, match="--holdout 1.0"):
        jobs.train(run=run(tmp_path, "h"), data=well, holdout=1.0)
    with pytest.raises(FileNotFoundError, match="no file"):
        jobs.train(run=run(tmp_path, "b"), data=well, base=str(tmp_path / "no.safetensors"))
