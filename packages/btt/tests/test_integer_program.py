from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from icml_btt import ExactOptimum, SignedGraph, gnp, planted
from icml_btt.enumeration import enumerated_optima


@pytest.mark.parametrize("missing", ["negative", "free"])
@pytest.mark.parametrize("weighted", [False, True])
def test_optima_are_those_of_brute_force(weighted, missing, random_graph, oracle):
    for seed in range(6):
        graph = random_graph(seed, 6 + seed % 2, weighted=weighted, missing=missing, free=0.35)
        clusters = ExactOptimum("cc").solve(graph)
        clusters.verify(graph)
        assert clusters.status == "optimal"
        assert clusters.cost == pytest.approx(oracle.best_clustering(graph))
        edges = ExactOptimum("btt").solve(graph)
        edges.verify(graph)
        assert edges.status == "optimal"
        assert edges.cost == pytest.approx(oracle.best_transversal(graph))
        assert edges.cost <= clusters.cost + 1e-9


def test_components_are_solved_apart():
    parts = [gnp(7, 0.5, seed=seed).graph.ends + 7 * seed for seed in range(3)]
    graph = SignedGraph.from_edges(np.concatenate(parts))
    alone = sum(ExactOptimum().solve(gnp(7, 0.5, seed=seed).graph).cost for seed in range(3))
    found = ExactOptimum().solve(graph)
    assert (found.cost, found.status) == (alone, "optimal")


@pytest.mark.parametrize("problem", ["btt", "cc"])
def test_out_of_time_there_is_a_solution_and_a_bound_but_no_optimum(problem):
    graph = planted(40, 4, 0.3, seed=0).graph
    found = ExactOptimum(problem, time_limit=0.05).solve(graph)
    found.verify(graph)
    assert found.status == "time limit"
    assert found.bound < found.cost
    assert 1 < found.ratio < 3


def test_les_miserables_takes_103_mistakes():
    signed = SignedGraph.complete_from_positive(nx.les_miserables_graph())
    found = ExactOptimum("cc").solve(signed)
    found.verify(signed)
    assert (found.cost, found.status) == (103.0, "optimal")


def test_small_graphs_by_enumeration_agree_with_the_program():
    excess, ratio, count = enumerated_optima(4, free=False)
    assert (excess, count) == (0.0, 64)
    assert ratio <= 1.5
    # With free pairs a cycle of four with one negative edge costs 1 and needs no transversal.
    assert enumerated_optima(4, free=True)[0] == 1.0
    cycle = SignedGraph.from_edges([(0, 1), (1, 2), (2, 3)], [(0, 3)], missing="free")
    assert (ExactOptimum("cc").solve(cycle).cost, ExactOptimum("btt").solve(cycle).cost) == (1.0, 0.0)


@pytest.mark.parametrize("problem", ["btt", "cc"])
@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_solve(problem, n):
    found = ExactOptimum(problem).solve(SignedGraph.from_edges([], n=n))
    assert (found.cost, found.bound, found.status, found.ratio) == (0.0, 0.0, "optimal", 1.0)


def test_instances_too_large_are_refused():
    with pytest.raises(MemoryError, match="a component has 400 vertices"):
        ExactOptimum("cc").solve(nx.path_graph(400))
    with pytest.raises(MemoryError, match="bad triangles"):
        ExactOptimum("btt").solve(nx.star_graph(700))


def test_unknown_problems_are_refused():
    with pytest.raises(ValueError, match="expected 'btt' or 'cc'"):
        ExactOptimum("tsp")


def test_verify_says_what_is_wrong():
    graph = SignedGraph.from_edges([(0, 1), (1, 2), (2, 3)])
    clusters, edges = ExactOptimum("cc").solve(graph), ExactOptimum("btt").solve(graph)
    for wrong, message in [
        (replace(clusters, cost=0.5), "the solution costs"),
        (replace(clusters, bound=0.5), "status 'optimal' with"),
        (replace(clusters, bound=2.0), "above the cost"),
        (replace(clusters, status="time limit"), "status 'time limit' with"),
        (replace(clusters, labels=None), "has labels"),
        (replace(edges, edges=edges.edges[:0]), "is not hit"),
        (replace(edges, edges=None), "has edges"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong.verify(graph)
