import numpy as np
import pytest
from icml_btt import CorrelationClustering, Score, SignedGraph, gnp, planted, transversal


def test_labels_cost_what_the_oracle_says(random_graph, oracle):
    rng = np.random.default_rng(0)
    for seed in range(5):
        graph = random_graph(seed, 10, weighted=True)
        labels = rng.integers(4, size=10)
        figures = Score().evaluate(labels, graph, truth=labels + 3)
        assert figures["cost"] == pytest.approx(oracle.cost(graph, labels))
        assert (figures["ari"], figures["clusters"]) == (1.0, len(set(labels.tolist())))


def test_edges_leave_what_the_oracle_says(random_graph, oracle):
    graph = random_graph(3, 10)
    edges = transversal(graph).edges
    for kept in (edges[:0], edges[1:], edges):
        figures = Score().evaluate(kept, graph)
        assert figures == {"cost": len(kept), "bad_triangles_left": len(oracle.missed(graph, kept))}
    assert Score().evaluate(np.concatenate([edges, edges[:, ::-1]]), graph)["cost"] == len(edges)


def test_solutions_are_scored_as_they_are():
    instance = planted(30, 3, 0.05, seed=0)
    clusters = CorrelationClustering().solve(instance.graph)
    figures = Score().evaluate(clusters, instance.graph, instance.truth)
    assert figures["cost"] == clusters.cost
    assert figures["ari"] > 0.9
    found = transversal(instance.graph)
    assert Score().evaluate(found, instance.graph) == {"cost": found.cost, "bad_triangles_left": 0.0}


@pytest.mark.parametrize(
    ("subject", "truth", "message"),
    [
        (np.zeros(3, dtype=int), None, "10 integer labels"),
        (np.zeros(10), None, "dtype float64"),
        (np.zeros((2, 3), dtype=int), None, "shape"),
        (np.array([[0, 0]]), None, "different vertices"),
        (np.array([[0, 99]]), None, "different vertices"),
        (np.array([[0, 1]]), np.zeros(10), "give labels"),
        (np.zeros(10, dtype=int), np.zeros(4), "the truth has 4"),
    ],
)
def test_what_cannot_be_scored_is_refused(subject, truth, message):
    with pytest.raises(ValueError, match=message):
        Score().evaluate(subject, gnp(10, 0.5, seed=0).graph, truth)


def test_a_pair_without_opinion_is_no_edge():
    graph = SignedGraph.from_edges([(0, 1)], n=3, missing="free")
    with pytest.raises(ValueError, match="no edge"):
        Score().evaluate(np.array([[0, 2]]), graph)
