"""The command line's jobs, from files to files; files that are damaged or hostile."""

from __future__ import annotations

import csv
import pickle

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse as sp
from icml_core import Run
from icml_deepcontour.datasets import family, plate
from icml_deepcontour.jobs import certify, contours, eigs, fit
from icml_deepcontour.matrix_files import find_pairs, read_fields, read_matrix
from matplotlib.image import imread


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", seed=3, quiet=True)


@pytest.fixture(scope="module")
def instances():
    return family(plate, 3, 0, n=10, size=8)


@pytest.fixture
def folder(tmp_path, instances):
    place = tmp_path / "pencils"
    place.mkdir()
    for i, p in enumerate(instances):
        if i == 1:
            scipy.io.mmwrite(place / f"p{i}_A.mtx", p.A, symmetry="symmetric")
            scipy.io.mmwrite(place / f"p{i}_B.mtx", p.B)
        else:
            sp.save_npz(place / f"p{i}_A.npz", p.A)
            sp.save_npz(place / f"p{i}_B.npz", p.B)
    return place


def rows(run, name):
    with run.file(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def exact(p):
    return scipy.linalg.eigh(p.A.toarray(), p.B.toarray(), eigvals_only=True)


def test_one_pencil(run, folder, instances):
    summary = eigs(run=run, matrices=folder / "p1_A.mtx", k=5)
    assert summary["certified"]
    with np.load(run.file("p1.npz")) as file:
        np.testing.assert_allclose(file["eigenvalues"], exact(instances[1])[:5], rtol=1e-8)
        assert file["eigenvectors"].shape == (100, 5)
    assert [float(r["eigenvalue"]) for r in rows(run, "eigenvalues.csv")] == sorted(
        float(r["eigenvalue"]) for r in rows(run, "eigenvalues.csv")
    )
    assert imread(run.file("spectrum.png")).shape[2] == 4


def test_a_folder_and_resuming(run, folder, instances):
    summary = eigs(run=run, matrices=folder, high=3e4)
    assert summary["pencils"] == 3
    table = rows(run, "instances.csv")
    assert [int(r["eigenvalues"]) for r in table] == [int((exact(p) < 3e4).sum()) for p in instances]
    assert imread(run.file("sweep.png")).shape[2] == 4
    lines = run.file("instances.jsonl").read_text().splitlines()
    run.file("instances.jsonl").write_text(lines[0] + "\n")
    run.file("p0.npz").unlink()
    again = Run(run.directory, seed=3, quiet=True, resumed=True)
    assert eigs(run=again, matrices=folder, high=3e4)["pencils"] == 3
    assert not run.file("p0.npz").exists()  # it was done, and is not done again


def test_training_predicting_and_solving(tmp_path, folder, instances):
    first = Run(tmp_path / "fit", seed=0, quiet=True)
    found = fit(run=first, count=12, grid=10, k=6, width=6, modes=3, layers=1, epochs=6)
    assert found["instances"] == 12
    for name in ("training.png", "errors.png"):
        assert imread(first.file(name)).shape[2] == 4
    resumed = Run(first.directory, seed=0, quiet=True, resumed=True)
    assert fit(run=resumed, count=12, grid=10, k=6, width=6, modes=3, layers=1, epochs=6) == found
    data = read_fields(first.file("data.npz"))
    size = data["fields"].shape[2]
    again = family(plate, 3, 0, n=10, size=size)
    np.savez(tmp_path / "new.npz", fields=np.array([p.fields for p in again]))
    second = Run(tmp_path / "solve", seed=0, quiet=True)
    summary = eigs(
        run=second,
        matrices=folder,
        k=5,
        predictor=first.file("predictor.safetensors"),
        fields=tmp_path / "new.npz",
        backend="slice",
    )
    assert summary["certified"]
    with np.load(second.file("p2.npz")) as file:
        np.testing.assert_allclose(file["eigenvalues"], exact(instances[2])[:5], rtol=1e-8)
    from_file = Run(tmp_path / "file", seed=0, quiet=True)
    assert (
        fit(run=from_file, data=first.file("data.npz"), width=4, modes=2, layers=1, epochs=2)["epochs"] == 2
    )


def test_contours_of_a_list(tmp_path, run):
    (tmp_path / "real.txt").write_text(
        "\n".join(str(v) for v in (1, 1.1, 1.2, 1.3, 1.4, 5, 5.1, 5.2, 5.3, 5.4))
    )
    assert contours(run=run, eigenvalues=tmp_path / "real.txt", max_per=5)["contours"] == 2
    assert [int(r["expected"]) for r in rows(run, "contours.csv")] == [5, 5]
    assert imread(run.file("contours.png")).shape[2] == 4
    (tmp_path / "complex.txt").write_text("1+1j\n1.1+1j\n5\n")
    assert contours(run=run, eigenvalues=tmp_path / "complex.txt")["predictions"] == 3
    (tmp_path / "bad.txt").write_text("one\n")
    with pytest.raises(ValueError, match="one number a line"):
        contours(run=run, eigenvalues=tmp_path / "bad.txt")


def test_counting(tmp_path, run, folder, instances):
    high = float(exact(instances[0])[6] * 1.001)
    np.savez(tmp_path / "found.npz", eigenvalues=exact(instances[0])[1:7])
    found = certify(run=run, matrices=folder / "p0_A.npz", high=high, eigenvalues=tmp_path / "found.npz")
    assert found == {"count": 7, "exact": True, "missed": 1}
    assert certify(run=run, matrices=folder, low=0.0, high=1.0)["count"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 3, "high": 1.0}, "not both"),
        ({"low": 1.0}, "--low needs --high"),
        ({"near": 1.0, "high": 2.0}, "--near goes with --k"),
    ],
)
def test_contradicting_options_are_refused(run, folder, options, message):
    with pytest.raises(ValueError, match=message):
        eigs(run=run, matrices=folder, **options)


def test_damaged_and_hostile_files_are_refused(tmp_path):
    (tmp_path / "a.mtx").write_text("no matrix\n")
    with pytest.raises(ValueError, match="no Matrix Market file"):
        read_matrix(tmp_path / "a.mtx")
    (tmp_path / "b.mtx").write_text(
        "%%MatrixMarket matrix coordinate real general\n99999999999 99999999999 1\n1 1 1\n"
    )
    with pytest.raises(ValueError, match="Matrix Market|more than can be factorized"):
        read_matrix(tmp_path / "b.mtx")
    (tmp_path / "c.npz").write_bytes(pickle.dumps({"x": 1}))
    with pytest.raises(ValueError, match="no sparse matrix"):
        read_matrix(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", data=np.ones(2), indices=np.array([0, 99]), indptr=np.array([0, 1, 2]),
             shape=np.array([2, 2]), format=np.array("csr"))  # fmt: skip
    with pytest.raises(ValueError, match="do not fit"):
        read_matrix(tmp_path / "d.npz")
    np.savez(tmp_path / "e.npz", x=np.ones(2))
    with pytest.raises(ValueError, match="save_npz"):
        read_matrix(tmp_path / "e.npz")
    np.savez(tmp_path / "f.npz", data=np.array([{}], dtype=object),
             indices=np.array([0]), indptr=np.array([0, 1]),
             shape=np.array([1, 1]), format=np.array("csr"))  # fmt: skip
    with pytest.raises(ValueError, match="no sparse matrix"):
        read_matrix(tmp_path / "f.npz")
    sp.save_npz(tmp_path / "g.npz", sp.csr_array(np.ones((2, 3))))
    with pytest.raises(ValueError, match="2 x 3"):
        read_matrix(tmp_path / "g.npz")
    (tmp_path / "h.txt").write_text("")
    with pytest.raises(ValueError, match="expected one of"):
        read_matrix(tmp_path / "h.txt")
    with pytest.raises(FileNotFoundError):
        read_matrix(tmp_path / "none.mtx")
    with pytest.raises(FileNotFoundError):
        find_pairs(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match="NAME_A"):
        find_pairs(tmp_path)
    with pytest.raises(ValueError, match="no array called fields"):
        read_fields(tmp_path / "e.npz")
