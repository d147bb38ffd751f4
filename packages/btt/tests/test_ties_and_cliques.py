from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from icml_btt import (
    ClusterDeletion,
    SignedGraph,
    StrongTriadicClosure,
    cluster_deletion,
    gnp,
    minstc,
    planted,
)

pytestmark = pytest.mark.usefixtures("plain")


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("method", ["lp", "matching"])
def test_weak_ties_cost_at_most_twice_the_optimum(method, weighted, random_graph, oracle):
    for seed in range(12):
        graph = random_graph(seed, 6, weighted=weighted)
        best = oracle.best_ties(graph)
        for prune in (False, True):
            found = minstc(graph, method, prune=prune, seed=seed)
            found.verify(graph)
            weak = {tuple(edge) for edge in found.edges[found.weak].tolist()}
            assert all(weak.intersection(wedge) for wedge in oracle.open_wedges(graph))
            assert found.lower_bound - 1e-9 <= best <= found.cost + 1e-9
            assert found.cost <= 2 * best + 1e-9
            if method == "lp":
                assert found.cost <= 2 * found.lp_value + 1e-9 or prune
                assert best / 2 - 1e-6 <= found.lp_value <= best + 1e-6


@pytest.mark.parametrize("weighted", [False, True])
def test_cliques_enclose_the_optimum(weighted, random_graph, oracle):
    for seed in range(12):
        graph = random_graph(seed, 7, positive=0.6, weighted=weighted)
        best = oracle.best_cliques(graph)
        for method in ("lp", "matching"):
            found = cluster_deletion(graph, method=method, seed=seed)
            found.verify(graph)
            assert found.lower_bound - 1e-9 <= best <= found.cost + 1e-9
            assert found.cost == pytest.approx(
                graph.weights_of(graph.pair_key(*found.deleted(graph).T)).sum()
            )


def test_local_moves_never_make_cliques_worse():
    for seed in range(6):
        graph = gnp(40, 0.4, seed=seed).graph
        plain = cluster_deletion(graph, local_search=False, runs=1)
        plain.verify(graph)
        moved = cluster_deletion(graph, runs=1)
        moved.verify(graph)
        assert moved.cost <= plain.cost


def test_disjoint_cliques_are_found_and_certified():
    instance = planted(60, 6, 0.0, seed=0)
    found = ClusterDeletion().solve(instance.graph)
    assert (found.cost, found.ratio) == (0.0, 1.0)
    assert len(found.clusters()) == len(set(instance.truth.tolist()))
    assert StrongTriadicClosure().solve(instance.graph).cost == 0.0


def test_unsigned_graphs_and_names_are_taken():
    graph = nx.Graph([("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
    assert cluster_deletion(graph).clusters() == [["a", "b", "c"], ["d"]]
    assert minstc(graph).as_dict()["c", "d"] == "weak"
    assert cluster_deletion(nx.to_scipy_sparse_array(graph)).labels.tolist() == [0, 0, 0, 1]


def test_pairs_without_opinion_are_no_cliques():
    graph = SignedGraph.from_edges([(0, 1), (1, 2)], missing="free")
    assert cluster_deletion(graph).cost == minstc(graph).cost == 1.0


@pytest.mark.parametrize("n", [0, 1, 2])
def test_without_edges_nothing_costs(n):
    graph = SignedGraph.from_edges([], n=n)
    for found in (cluster_deletion(graph), minstc(graph)):
        found.verify(graph)
        assert (found.cost, found.ratio) == (0.0, 1.0)


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="expected 'lp' or 'matching'"):
        minstc(nx.path_graph(3), "guess")
    with pytest.raises(ValueError, match="runs=0"):
        cluster_deletion(nx.path_graph(3), runs=0)
    with pytest.raises(MemoryError, match="open wedges"):
        minstc(nx.star_graph(30), triangle_limit=10)


def test_verify_says_what_is_wrong():
    graph = SignedGraph.from_edges([(0, 1), (1, 2), (2, 3)])
    cliques, ties = cluster_deletion(graph), minstc(graph)
    double = replace(ties.packing, values=2 * ties.packing.values)
    turned = replace(ties.packing, triangles=np.roll(ties.packing.triangles, 1, axis=1))
    for wrong, message in [
        (replace(cliques, labels=np.zeros(4, dtype=int)), "no clique"),
        (replace(cliques, cost=0.5), "the deleted edges cost"),
        (replace(cliques, lower_bound=3.0), "proves only"),
        (replace(ties, weak=np.zeros(3, dtype=bool), cost=0.0), "are strong"),
        (replace(ties, cost=7.0), "the weak edges cost"),
        (replace(ties, edges=ties.edges[:1]), "not the positive edges"),
        (replace(ties, packing=double), "beyond its weight"),
        (replace(ties, packing=turned), "not positive"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong.verify(graph)
