"""Jobs on files of the user's kind; files that are not to be trusted."""

from __future__ import annotations

import gzip
import json
import pickle
import struct

import numpy as np
import pytest
import torch
from icml_core import Run, UserError
from icml_discrete_samplers import jobs
from icml_discrete_samplers.data_files import read_images, read_problem, read_states

SMALL = {"hidden": 8, "layers": 1, "batch": 16}


def run(tmp_path, name: str, **options) -> Run:
    return Run(tmp_path / name, quiet=True, device="cpu", **options)


def names(directory) -> set[str]:
    return {p.name for p in directory.iterdir()}


def test_a_problem_in_a_file_is_sampled_and_its_best_states_named(tmp_path):
    path = tmp_path / "p.json"
    terms = [[["a", "b"], -2.0], [["b"], 1.0], [["c"], 0.5], [[], 3.0]]
    path.write_text(json.dumps({"domain": "spin", "terms": terms}))
    first = run(tmp_path, "one", seed=1)
    found = jobs.masked(
        run=first, problem=path, beta=2.0, steps=200, lr=1e-2, mcmc_every=50, samples=50, **SMALL
    )
    assert names(first.directory) == {
        "sampler.safetensors",
        "samples.npz",
        "figures.json",
        "best.json",
        "training.png",
        "samples.png",
        "metrics.jsonl",
        "checkpoint.safetensors",
    }
    best = json.loads(first.file("best.json").read_text())["states"][0]
    assert best["energy"] == pytest.approx(3.0 - 2.0 - 1.0 - 0.5)
    assert best["state"] == {"a": -1, "b": -1, "c": -1}
    with np.load(first.file("samples.npz"), allow_pickle=False) as data:
        assert data["x"].shape == (50, 3)
        assert data["log_w"].dtype == np.float64
    assert found["tv"] < 0.3
    assert first.file("training.png").stat().st_size > 5000


def test_a_resumed_run_is_the_unbroken_one(tmp_path):
    options = {
        "target": "ising_L2_b0.4",
        "steps": 8,
        "checkpoint_every": 4,
        "samples": 20,
        "picture": False,
    } | SMALL
    whole = run(tmp_path, "whole", seed=2)
    jobs.masked(run=whole, **options)
    half = run(tmp_path, "half", seed=2)
    from icml_discrete_samplers.off_policy import OffPolicyTrainer

    fit = OffPolicyTrainer.fit

    def stopped(self, steps=None, callback=None):
        fit(self, 4, callback)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OffPolicyTrainer, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            jobs.masked(run=half, **options)
    again = run(tmp_path, "half", seed=2, resumed=True)
    jobs.masked(run=again, **options)
    a, b = (np.load(r.file("samples.npz")) for r in (whole, again))
    np.testing.assert_array_equal(a["x"], b["x"])
    np.testing.assert_array_equal(a["log_w"], b["log_w"])


def test_a_run_interrupted_within_an_update_goes_on_as_if_it_had_not_been(tmp_path):
    """Ctrl-C comes inside an update, after random numbers were drawn: call 8 of the energy, in update 6."""
    from icml_discrete_samplers.lattice_energies import Ising2D

    options = {"target": "ising_L2_b0.4", "steps": 8, "checkpoint_every": 4, "samples": 20, "picture": False}
    options |= {"mcmc": "none", "buffer": "none"} | SMALL
    whole = run(tmp_path, "whole", seed=2)
    jobs.masked(run=whole, **options)
    calls, log_density = [], Ising2D.log_density

    def interrupted(self, x):
        calls.append(len(x))
        if sum(n == SMALL["batch"] for n in calls) == 6:
            raise KeyboardInterrupt
        return log_density(self, x)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ising2D, "log_density", interrupted)
        with pytest.raises(KeyboardInterrupt):
            jobs.masked(run=run(tmp_path, "half", seed=2), **options)
    again = run(tmp_path, "half", seed=2, resumed=True)
    jobs.masked(run=again, **options)
    a, b = (np.load(r.file("samples.npz")) for r in (whole, again))
    np.testing.assert_array_equal(a["x"], b["x"])
    np.testing.assert_array_equal(a["log_w"], b["log_w"])


def test_chains_that_never_move_are_reported(tmp_path):
    """At beta 40 each chain keeps its frozen state: R-hat is infinite, and stands in the report."""
    rows = np.array([[0] * 9, [1] * 9] * 2)
    np.save(tmp_path / "start.npy", rows)
    here = run(tmp_path, "stuck")
    options = {"steps": 20, "burn_in": 0, "thin": 1, "kernel": "single_site_mh", "picture": False}
    with pytest.warns(RuntimeWarning, match="they have not mixed"):
        jobs.mcmc(run=here, target="ising_L3_b40.0", start=tmp_path / "start.npy", **options)
    figures = json.loads(here.file("figures.json").read_text())
    assert figures["mixed"] is False
    assert figures["rhat"] == "inf"


def test_comparators_train_without_a_buffer_and_refuse_one(tmp_path):
    options = {"target": "ising_L2_b0.4", "steps": 2, "samples": 5, "picture": False} | SMALL
    jobs.masked(run=run(tmp_path, "ce"), loss="ce", **options)
    with pytest.raises(UserError, match="own paths alone"):
        jobs.masked(run=run(tmp_path, "iw"), loss="ce", buffer="iw", **options)


def test_a_bridge_leads_to_a_problem_in_a_file(tmp_path):
    (tmp_path / "p.json").write_text(json.dumps({"terms": [[["a", "b"], -2.0], [["c"], 1.0]]}))
    np.save(tmp_path / "data.npy", np.zeros((20, 3), dtype=np.int8))
    sizes = {"steps": 2, "rounds": 1, "updates": 1, "batch": 8, "hidden": 8, "layers": 1, "mcmc_steps": 2}
    here = run(tmp_path, "b")
    jobs.bridge(run=here, data=tmp_path / "data.npy", problem=tmp_path / "p.json", samples=6, **sizes)
    with np.load(here.file("transported.npz")) as found:
        assert found["x1"].shape == (6, 3)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_chains_bridges_and_posteriors_run(tmp_path):
    chains = run(tmp_path, "chains")
    found = jobs.mcmc(
        run=chains,
        target="ising_L3_b0.4",
        kernel="swendsen_wang",
        chains=8,
        steps=60,
        burn_in=10,
        thin=2,
        temperatures=[1.0, 2.0, float("inf")],
    )
    assert names(chains.directory) == {"samples.npz", "figures.json", "samples.png"}
    assert len(found["swap_rates"]) == 2
    np.save(tmp_path / "data.npy", np.zeros((20, 12), dtype=np.int8))
    bridge = run(tmp_path, "bridge")
    sizes = {"steps": 2, "rounds": 2, "updates": 2, "batch": 8, "hidden": 8, "layers": 1, "mcmc_steps": 2}
    jobs.bridge(run=bridge, data=tmp_path / "data.npy", target="9gmm", samples=20, **sizes)
    expected = {
        "bridge.safetensors",
        "transported.npz",
        "training.png",
        "samples.png",
        "metrics.jsonl",
        "checkpoint.safetensors",
    }
    assert names(bridge.directory) == expected
    jobs.bridge(
        run=run(tmp_path, "bridge", resumed=True),
        data=tmp_path / "data.npy",
        samples=20,
        picture=False,
        **sizes,
    )
    posterior = run(tmp_path, "posterior")
    figures = jobs.posterior(
        run=posterior,
        codes=2,
        codebook=3,
        autoencoder_steps=5,
        steps=3,
        batch=8,
        samples=12,
        classes=[1],
        coverage=False,
    )
    assert {"accuracy", "reconstruction_error", "coverage"} <= set(figures)
    assert {"samples.npz", "samples.png", "sampler.safetensors"} <= names(posterior.directory)


def test_an_unknown_target_or_file_is_one_line(tmp_path):
    with pytest.raises(UserError, match="unknown target 'spin'"):
        jobs.masked(run=run(tmp_path, "a"), target="spin", steps=2)
    with pytest.raises(UserError, match=r"classes \[12\] are not among the labels"):
        jobs.posterior(run=run(tmp_path, "c"), classes=[12], steps=2)
    with pytest.raises(UserError, match="no file"):
        jobs.masked(run=run(tmp_path, "b"), problem=tmp_path / "none.json", steps=2)


def test_states_are_read_and_hostile_files_refused(tmp_path):
    x = np.array([[0, 1], [1, 1]], dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x)
    np.savetxt(tmp_path / "x.csv", x, delimiter=",", fmt="%d")
    for suffix in ("npy", "npz", "csv"):
        assert read_states(tmp_path / f"x.{suffix}").tolist() == x.tolist()
    np.save(tmp_path / "o.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    (tmp_path / "p.npy").write_bytes(pickle.dumps([1]))
    np.save(tmp_path / "f.npy", x.astype(float))
    for name, text in (
        ("o.npy", "holds no states"),
        ("p.npy", "holds no states"),
        ("f.npy", "matrix of integers"),
    ):
        with pytest.raises(ValueError, match=text):
            read_states(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="no file"):
        read_states(tmp_path / "none.npy")
    (tmp_path / "x.txt").write_text("1")
    with pytest.raises(ValueError, match=r"must end in \.npy"):
        read_states(tmp_path / "x.txt")


def test_archives_that_unpack_to_too_much_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr("icml_discrete_samplers.data_files.LARGEST", 20_000)
    np.savez_compressed(tmp_path / "bomb.npz", x=np.zeros((1000, 100), dtype=np.int8), y=np.zeros(1000))
    assert (tmp_path / "bomb.npz").stat().st_size < 20_000
    for read in (read_states, read_problem, read_images):
        with pytest.raises(ValueError, match="unpacks to 108"):
            read(tmp_path / "bomb.npz")
    (tmp_path / "no.npz").write_bytes(b"PK nothing")
    for read in (read_states, read_problem, read_images):
        with pytest.raises(ValueError, match=r"is no \.npz archive"):
            read(tmp_path / "no.npz")


def test_problems_are_read_from_every_format(tmp_path):
    import dimod
    from scipy.sparse import csr_array, save_npz

    Q = np.array([[1.0, -2.0], [0.0, 0.5]])
    np.save(tmp_path / "q.npy", Q)
    np.savez(tmp_path / "dense.npz", Q=Q)
    save_npz(tmp_path / "sparse.npz", csr_array(Q))
    bqm = dimod.BinaryQuadraticModel(Q, "BINARY")
    (tmp_path / "bqm.json").write_text(json.dumps(bqm.to_serializable()))
    x = torch.tensor([[0, 0], [0, 1], [1, 0], [1, 1]])
    for name in ("q.npy", "dense.npz", "sparse.npz", "bqm.json"):
        assert read_problem(tmp_path / name).energy(x).tolist() == [0.0, 0.5, 1.0, -0.5]
    (tmp_path / "bad.json").write_text('{"terms": 3}')
    (tmp_path / "deep.json").write_text("[" * 100_000)
    for name in ("bad.json", "deep.json"):
        with pytest.raises(ValueError, match="holds no QUBO"):
            read_problem(tmp_path / name)


def test_images_are_read_as_mnist_comes(tmp_path):
    x, y = np.arange(12, dtype=np.uint8).reshape(3, 2, 2), np.array([0, 1, 1], dtype=np.uint8)
    folder = tmp_path / "idx"
    folder.mkdir()
    head = struct.pack(">HBBIII", 0, 8, 3, *x.shape)
    with gzip.open(folder / "train-images-idx3-ubyte.gz", "wb") as stream:
        stream.write(head + x.tobytes())
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 3) + y.tobytes())
    images, labels = read_images(folder)
    np.testing.assert_allclose(images.numpy() * 255, x.reshape(3, 4), atol=1e-4)
    assert labels.tolist() == [0, 1, 1]
    np.savez(tmp_path / "m.npz", x_train=x, y_train=y)
    assert torch.equal(read_images(tmp_path / "m.npz")[0], images)
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 2**32 - 1) + b"0")
    with pytest.raises(ValueError, match="announces"):
        read_images(folder)
    (folder / "train-labels-idx1-ubyte").write_bytes(struct.pack(">HBBI", 0, 8, 1, 9) + b"0")
    with pytest.raises(ValueError, match="ends after 1 of 9 bytes"):
        read_images(folder)
    with pytest.raises(FileNotFoundError, match="neither"):
        read_images(tmp_path / "idx" / "none")
