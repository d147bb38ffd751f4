import numpy as np
import pytest
from icml_btt import SignedGraph, disagreements, kwik_cluster, local_moves, planted
from icml_btt.cost import canonical_labels, component_disagreements


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_cost_agrees_with_a_sum_over_all_pairs(missing, random_graph, oracle):
    for seed in range(6):
        graph = random_graph(seed, 11, weighted=True, missing=missing)
        labels = np.random.default_rng(seed).integers(4, size=(5, 11))
        expected = [oracle.cost(graph, run) for run in labels]
        np.testing.assert_allclose(disagreements(graph, labels), expected)
        np.testing.assert_allclose(disagreements(graph, labels[0]), expected[0])


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_costs_of_components_add_up(missing, random_graph):
    graph = random_graph(3, 20, positive=0.07, weighted=True, missing=missing)
    count = int(graph.components.max()) + 1
    assert count > 2
    labels = kwik_cluster(graph, runs=7)
    apart = component_disagreements(graph, labels, graph.components, count)
    np.testing.assert_allclose(apart.sum(axis=1), disagreements(graph, labels))


def test_many_runs_are_cut_into_blocks(monkeypatch, random_graph):
    graph = random_graph(0, 9)
    labels = np.random.default_rng(0).integers(4, size=(30, 9))
    whole = disagreements(graph, labels)
    monkeypatch.setattr("icml_btt.cost._BLOCK", 50)
    np.testing.assert_allclose(disagreements(graph, labels), whole)


def test_labels_that_are_none_are_refused():
    graph = SignedGraph.from_edges([(0, 1)], n=3)
    for labels in ([0, 1], [0, 1, 3], [0, 1, -1], [0.0, 1.0, 2.0]):
        with pytest.raises(ValueError, match="labels"):
            disagreements(graph, np.array(labels))


def test_clusters_are_numbered_by_their_first_vertices():
    np.testing.assert_array_equal(canonical_labels(np.array([7, 2, 7, 0, 2])), [0, 1, 0, 2, 1])
    assert len(canonical_labels(np.zeros(0, dtype=int))) == 0


@pytest.mark.parametrize("missing", ["negative", "free"])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_single_move_or_merge_is_left(weighted, missing, random_graph, oracle):
    for seed in range(5):
        graph = random_graph(seed, 10, weighted=weighted, missing=missing)
        start = np.random.default_rng(seed).integers(5, size=10)
        before = start.copy()
        labels = local_moves(graph, start)
        np.testing.assert_array_equal(start, before)
        cost = oracle.cost(graph, labels)
        assert cost <= oracle.cost(graph, start) + 1e-12
        clusters = range(labels.max() + 2)
        for vertex in range(10):
            for cluster in clusters:
                moved = labels.copy()
                moved[vertex] = cluster
                assert oracle.cost(graph, moved) >= cost - 1e-9
        for a in clusters:
            for b in clusters:
                assert oracle.cost(graph, np.where(labels == a, b, labels)) >= cost - 1e-9


def test_planted_clusters_are_found_from_single_vertices():
    instance = planted(300, 10, 0.02, seed=0)
    labels = local_moves(instance.graph, np.arange(300))
    np.testing.assert_array_equal(labels, canonical_labels(instance.truth))


def test_optima_stay_as_they_are():
    graph = SignedGraph.from_edges([(0, 1), (1, 2), (0, 2), (2, 3)])
    np.testing.assert_array_equal(local_moves(graph, np.array([0, 0, 0, 3])), [0, 0, 0, 1])


def test_without_time_nothing_moves():
    graph = planted(50, 3, 0.1, seed=0).graph
    np.testing.assert_array_equal(local_moves(graph, np.arange(50), time_limit=0.0), np.arange(50))


def test_no_vertices():
    assert len(local_moves(SignedGraph.from_edges([]), np.zeros(0, dtype=int))) == 0
