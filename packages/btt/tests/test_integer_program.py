from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import networkx as nx
import numpy as np
import pytest
from icml_btt import ExactOptimum, SignedGraph, exact, gnp, planted
from icml_btt.binary_program import solve_binary
from icml_btt.enumeration import enumerated_optima
from scipy import sparse


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


@pytest.mark.parametrize("weighted", [False, True])
def test_optimal_cliques_and_ties_are_those_of_brute_force(weighted, random_graph, oracle):
    for seed in range(6):
        graph = random_graph(seed, 7, positive=0.5, weighted=weighted)
        cliques = ExactOptimum("cd").solve(graph)
        cliques.verify(graph)
        assert (cliques.status, cliques.cost) == ("optimal", pytest.approx(oracle.best_cliques(graph)))
        ties = ExactOptimum("minstc").solve(graph)
        ties.verify(graph)
        assert (ties.status, ties.cost) == ("optimal", pytest.approx(oracle.best_ties(graph)))
        assert ties.cost <= cliques.cost + 1e-9


@pytest.mark.skipif(find_spec("ortools") is None, reason="the backend is OR-Tools' CP-SAT")
@pytest.mark.parametrize("problem", ["btt", "cc", "cd", "minstc"])
def test_cpsat_finds_what_highs_finds(problem, random_graph):
    for seed in range(4):
        graph = random_graph(seed, 12, weighted=seed % 2 == 1)
        first = exact(graph, problem)
        second = exact(graph, problem, backend="cpsat")
        second.verify(graph)
        assert (first.status, second.status) == ("optimal", "optimal")
        assert second.cost == pytest.approx(first.cost)


def test_without_or_tools_cpsat_is_refused(monkeypatch):
    monkeypatch.setattr("icml_btt.binary_program.find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"icml-btt\[cpsat\]"):
        ExactOptimum(backend="cpsat")
    with pytest.raises(ValueError, match="expected 'highs' or 'cpsat'"):
        ExactOptimum(backend="glpk")


@pytest.mark.skipif(find_spec("ortools") is None, reason="the backend is OR-Tools' CP-SAT")
def test_both_backends_solve_programs_with_negative_prices_alike():
    rng = np.random.default_rng(0)
    for _ in range(10):
        price = rng.normal(size=8)
        rows = sparse.csr_array(rng.integers(-1, 2, size=(6, 8)).astype(float))
        least = np.minimum(rng.integers(-2, 2, size=6), np.maximum(rows.toarray(), 0).sum(axis=1))
        every = np.array(list(product([0, 1], repeat=8)))
        good = (every @ rows.toarray().T >= least).all(axis=1)
        if not good.any():
            continue
        best = (every[good] @ price).min()
        for backend in ("highs", "cpsat"):
            found = solve_binary(price, rows, least, backend=backend, seconds=10)
            assert found.optimal
            assert price @ found.x == pytest.approx(best)
            assert found.bound == pytest.approx(best, abs=1e-5)


def test_components_are_solved_apart():
    parts = [gnp(7, 0.5, seed=seed).graph.ends + 7 * seed for seed in range(3)]
    graph = SignedGraph.from_edges(np.concatenate(parts))
    alone = sum(ExactOptimum().solve(gnp(7, 0.5, seed=seed).graph).cost for seed in range(3))
    found = ExactOptimum().solve(graph)
    assert (found.cost, found.status) == (alone, "optimal")


@pytest.mark.parametrize("backend", ["highs", "cpsat"])
@pytest.mark.parametrize("problem", ["btt", "cc", "cd", "minstc"])
def test_out_of_time_there_is_a_solution_and_a_bound_but_no_optimum(problem, backend):
    if backend == "cpsat" and find_spec("ortools") is None:
        pytest.skip("the backend is OR-Tools' CP-SAT")
    graph = planted(40, 4, 0.3, seed=0).graph
    found = ExactOptimum(problem, time_limit=0.05, backend=backend).solve(graph)
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


@pytest.mark.parametrize("problem", ["btt", "cc", "cd", "minstc"])
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
    with pytest.raises(ValueError, match="expected 'btt', 'cc', 'cd' or 'minstc'"):
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
