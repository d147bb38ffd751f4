import csv
import json
from importlib.util import find_spec

import numpy as np
import pytest
from icml_btt import SignedGraph, disagreements, planted
from icml_btt.cost import canonical_labels
from icml_btt.jobs import cc, cluster_deletion, exact, minstc, transversal
from icml_btt.pictures import adjacency_image
from icml_core import Run

pytestmark = pytest.mark.usefixtures("plain")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", seed=5, quiet=True)


@pytest.fixture
def instance():
    return planted(60, 5, 0.1, seed=2)


@pytest.fixture
def edges(tmp_path, instance):
    path = tmp_path / "edges.csv"
    lines = [f"r{u:02d},r{v:02d},1\n" for u, v in instance.graph.ends.tolist()]
    path.write_text("left,right,sign\n" + "".join(lines) + "r99,,\n")
    return path


def rows(run, name):
    with run.file(name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_clusters_from_an_edge_list(run, edges, instance):
    summary = cc(run=run, graph=edges)
    labels = {row["id"]: int(row["label"]) for row in rows(run, "labels.csv")}
    assert len(labels) == 61
    found = np.array([labels[f"r{v:02d}"] for v in range(60)])
    assert summary["cost"] == disagreements(instance.graph, canonical_labels(found))
    assert list(labels.values()).count(labels["r99"]) == 1
    assert summary["certified_ratio"] == summary["cost"] / summary["lower_bound"]
    assert summary["clusters"] == len(set(labels.values()))
    assert json.loads(run.file("summary.json").read_text()) == summary
    metrics = [json.loads(line) for line in run.file("metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics] == list(range(len(metrics)))
    assert any("linear_program_bound" in m for m in metrics)


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="draws with matplotlib")
def test_the_picture_is_drawn_where_matplotlib_is(run, edges):
    from matplotlib.image import imread

    cc(run=run, graph=edges, method="disjoint")
    picture = imread(run.file("clusters.png"))
    assert picture.shape == (750, 1500, 4)
    assert picture.std() > 0.05


def test_without_matplotlib_or_wish_there_is_no_picture(run, edges, monkeypatch):
    monkeypatch.setattr("icml_btt.pictures.find_spec", lambda name: None)
    assert "pip install matplotlib" in cc(run=run, graph=edges, method="disjoint")["picture"]
    assert cc(run=run, graph=edges, method="disjoint", picture=False)["picture"] == "not wanted"
    assert not run.file("clusters.png").exists()


def test_the_image_shows_blocks_and_mistakes():
    graph = SignedGraph.from_edges([(0, 2), (2, 4), (0, 4), (1, 3), (3, 4)])
    image = adjacency_image(graph, np.array([0, 1, 0, 1, 0]))
    assert image.shape == (5, 5, 3)
    order = [0, 2, 4, 1, 3]
    blue, orange = image[0, 1], image[order.index(4), order.index(3)]
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]
    np.testing.assert_array_equal(image, image.transpose(1, 0, 2))
    np.testing.assert_array_equal(image[0, 3], [1, 1, 1])
    assert adjacency_image(
        SignedGraph.from_edges(planted(900, 9, 0.0, seed=0).graph.ends), np.zeros(900, int)
    ).shape == (600, 600, 3)


def test_clusters_from_a_similarity_matrix(run, tmp_path, instance):
    same = instance.truth[:, None] == instance.truth
    np.save(tmp_path / "similarity.npy", np.where(same, 0.9, 0.2))
    summary = cc(run=run, graph=tmp_path / "similarity.npy", threshold=0.5)
    assert (summary["cost"], summary["clusters"], summary["certified_ratio"]) == (0.0, 5, 1.0)
    labels = np.array([int(row["label"]) for row in rows(run, "labels.csv")])
    np.testing.assert_array_equal(labels, canonical_labels(instance.truth))


def test_the_seed_of_the_run_decides(edges, tmp_path):
    first, again = (Run(tmp_path / name, seed=1, quiet=True) for name in ("a", "b"))
    for each in (first, again):
        cc(run=each, graph=edges, method="disjoint", picture=False)
    assert first.file("labels.csv").read_bytes() == again.file("labels.csv").read_bytes()


def test_a_transversal_from_an_edge_list(run, edges, instance):
    summary = transversal(run=run, graph=edges, lp="highs")
    dropped = rows(run, "transversal.csv")
    assert len(dropped) == summary["edges"] == summary["cost"]
    ends = np.array([[int(row["u"][1:]), int(row["v"][1:])] for row in dropped])
    assert {row["sign"] for row in dropped} <= {"1", "-1"}
    graph = instance.graph
    left = graph.without(graph.pair_key(ends[:, 0], ends[:, 1]))
    from icml_btt import count_bad_triangles

    assert summary["bad_triangles"] == count_bad_triangles(graph) > count_bad_triangles(left) == 0


def test_an_exact_optimum_from_an_edge_list(run, tmp_path):
    (tmp_path / "path.csv").write_text("a,b,1\nb,c,1\nc,d,1\n")
    summary = exact(run=run, graph=tmp_path / "path.csv")
    assert (summary["status"], summary["cost"], summary["lower_bound"]) == ("optimal", 1.0, 1.0)
    assert len(rows(run, "labels.csv")) == 4
    summary = exact(run=run, graph=tmp_path / "path.csv", problem="btt")
    assert rows(run, "transversal.csv") == [{"u": "b", "v": "c", "sign": "1", "weight": "1.0"}]
    assert summary["certified_ratio"] == 1.0


def test_cliques_and_ties_from_an_edge_list(run, tmp_path):
    (tmp_path / "path.csv").write_text("a,b,1\nb,c,1\na,c,1\nc,d,1\n")
    summary = cluster_deletion(run=run, graph=tmp_path / "path.csv")
    assert (summary["cliques"], summary["cost"], summary["certified_ratio"]) == (2, 1.0, 1.0)
    assert rows(run, "deleted.csv") == [{"u": "c", "v": "d", "sign": "1", "weight": "1.0"}]
    assert [row["label"] for row in rows(run, "labels.csv")] == ["0", "0", "0", "1"]
    summary = minstc(run=run, graph=tmp_path / "path.csv", method="matching")
    assert (summary["weak"], summary["lower_bound"]) == (1, 1.0)
    assert {(row["u"], row["v"]): row["tie"] for row in rows(run, "ties.csv")}["c", "d"] == "weak"
    summary = exact(run=run, graph=tmp_path / "path.csv", problem="cd")
    assert (summary["status"], summary["cost"]) == ("optimal", 1.0)


def test_nothing_certified_is_null_and_not_infinity(run, tmp_path):
    (tmp_path / "cycle.csv").write_text("a,b,1\nb,c,1\nc,d,1\na,d,-1\n")
    with pytest.warns(UserWarning, match="no factor"):
        summary = cc(run=run, graph=tmp_path / "cycle.csv", missing="free")
    assert (summary["cost"], summary["lower_bound"], summary["certified_ratio"]) == (1.0, 0.0, None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"runs": 0}, "--runs 0"),
        ({"time_limit": 0.0}, "--time-limit 0"),
        ({"triangle_limit": -1}, "--triangle-limit -1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(options, message, run, edges):
    with pytest.raises(ValueError, match=message):
        cc(run=run, graph=edges, **options)
    assert not run.started


def test_a_contradiction_in_the_file_is_refused_before_anything_is_written(run, tmp_path):
    (tmp_path / "edges.csv").write_text("a,b,1\nb,a,-1\n")
    with pytest.raises(ValueError, match="edge 'a', 'b' is listed with two signs"):
        cc(run=run, graph=tmp_path / "edges.csv")
    assert not run.started
