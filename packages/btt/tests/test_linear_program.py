from dataclasses import replace

import numpy as np
import pytest
from icml_btt import CoverProgram, SignedGraph, gnp, planted
from icml_btt.instances import thirds
from icml_btt.linear_program import solve_cover
from icml_btt.packing import Packing, maximal_packing
from icml_btt.triangles import TriangleSystem
from scipy.optimize import linprog


def dense_optimum(graph, oracle):
    """The cover program with all rows, written out over all pairs, by the simplex method."""
    pairs = oracle.signed_pairs(graph)
    number = {pair: index for index, pair in enumerate(pairs)}
    rows = np.zeros((len(oracle.bad_triangles(graph)), len(pairs)))
    for row, (a, b, c) in zip(rows, oracle.bad_triangles(graph), strict=True):
        row[[number[a, b], number[a, c], number[b, c]]] = -1
    weight = [weight for _, weight in pairs.values()]
    if not len(rows):
        return 0.0
    return linprog(weight, A_ub=rows, b_ub=-np.ones(len(rows)), method="highs-ds").fun


@pytest.mark.parametrize("missing", ["negative", "free"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_lazy_rows_reach_the_optimum_of_all_rows(seed, weighted, missing, random_graph, oracle):
    graph = random_graph(seed, 12, weighted=weighted, missing=missing)
    solution = CoverProgram().solve(graph)
    solution.verify(graph)
    assert solution.status == "optimal"
    assert solution.value == pytest.approx(dense_optimum(graph, oracle), rel=1e-6, abs=1e-6)
    assert solution.bound == pytest.approx(solution.value, rel=1e-6, abs=1e-6)


def test_the_graph_of_thirds_has_its_stated_optimum():
    solution = CoverProgram().solve(thirds().graph)
    assert solution.value == pytest.approx(26 / 3)
    assert sorted(set(np.round(3 * solution.x, 4))) == [0, 1, 2]


def test_the_star_has_half_on_every_edge():
    for leaves in (3, 4, 7):
        graph = SignedGraph.from_edges([(0, leaf) for leaf in range(1, leaves + 1)])
        assert CoverProgram().solve(graph).value == pytest.approx(leaves / 2)


def test_a_good_clustering_ends_the_rounds_early():
    instance = planted(60, 6, 0.1, seed=0)
    system = TriangleSystem.of(instance.graph)
    plain = solve_cover(instance.graph, system)
    helped = solve_cover(instance.graph, system, labels=instance.truth)
    assert helped.rounds < plain.rounds
    assert helped.value == pytest.approx(plain.value)
    helped.verify(instance.graph)


def test_out_of_time_the_cover_still_covers_and_the_bound_still_holds():
    graph = gnp(40, 0.5, seed=1).graph
    best = CoverProgram().solve(graph)
    for limit in (1e-9, 0.05):
        cut = CoverProgram(time_limit=limit).solve(graph)
        cut.verify(graph)
        assert cut.status == "time limit"
        assert 0 < cut.bound <= best.value + 1e-6 <= cut.value + 2e-6


def test_rounds_are_reported():
    graph = gnp(20, 0.5, seed=1).graph
    told = []
    solution = solve_cover(
        graph, TriangleSystem.of(graph), report=lambda stage, **figures: told.append((stage, figures))
    )
    assert len(told) == solution.rounds
    bounds = [figures["bound"] for _, figures in told]
    assert bounds == sorted(bounds)
    assert told[-1][1]["violated"] == 0


def test_weights_of_very_different_size_are_solved():
    edges = [(0, 1), (1, 2), (3, 4), (4, 5)]
    graph = SignedGraph.from_edges(edges, positive_weight=[1e-6, 1e-6, 1e-3, 1e-3])
    solution = CoverProgram().solve(graph)
    solution.verify(graph)
    assert solution.value == pytest.approx(1e-6 + 1e-3, rel=1e-6)


def test_verify_says_what_is_wrong():
    graph = SignedGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d")])
    solution = CoverProgram().solve(graph)
    cases = [
        (replace(solution, x=solution.x / 2), r"x is no cover: the edges of bad triangle \('b', 'a', 'c'\)"),
        (replace(solution, value=3.0), "the cover costs"),
        (replace(solution, x=-solution.x), ">= 0"),
        (replace(solution, edges=solution.edges[1:]), "not those that lie in a bad triangle"),
        (
            replace(solution, packing=Packing(solution.packing.triangles, solution.packing.values * 2)),
            "loads edge",
        ),
        (
            replace(solution, packing=Packing(solution.packing.triangles, solution.packing.values * 0)),
            "called optimal",
        ),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            wrong.verify(graph)


def test_too_many_triangles_are_refused_with_both_numbers():
    graph = gnp(20, 0.5, seed=0).graph
    with pytest.raises(MemoryError, match=r"bad triangles are more than triangle_limit=10"):
        CoverProgram(triangle_limit=10).solve(graph)


@pytest.mark.parametrize("missing", ["negative", "free"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_maximal_packing_packs_and_its_full_edges_hit_everything(weighted, missing, random_graph, oracle):
    for seed in range(5):
        graph = random_graph(seed, 12, weighted=weighted, missing=missing)
        packing, full = maximal_packing(graph)
        packing.verify(graph)
        assert oracle.missed(graph, graph.pair_ends(full)) == []
        cost = graph.weights_of(full).sum()
        assert packing.total <= cost + 1e-9
        assert cost <= 3 * packing.total + 1e-9


def test_an_unweighted_packing_is_edge_disjoint():
    graph = gnp(25, 0.4, seed=0).graph
    packing, full = maximal_packing(graph)
    assert set(packing.values) == {1.0}
    assert len(full) == 3 * len(packing.values)


def test_the_packing_is_the_same_in_small_blocks_without_tables(no_tables, monkeypatch, random_graph, oracle):
    monkeypatch.setattr("icml_btt.packing._BLOCK", 20)
    for seed in range(5):
        graph = random_graph(seed, 14, weighted=True)
        packing, full = maximal_packing(graph)
        packing.verify(graph)
        assert oracle.missed(graph, graph.pair_ends(full)) == []


def test_a_packing_that_is_none_is_refused():
    graph = SignedGraph.from_edges([("a", "b"), ("b", "c"), ("a", "c"), ("c", "d")])
    ones = np.ones(1)
    for packing, message in [
        (Packing(np.array([[0, 1, 2]]), ones), r"\('a', 'b', 'c'\) is not a bad triangle"),
        (Packing(np.array([[0, 2, 3]]), ones), "with its centre first"),
        (Packing(np.array([[2, 0, 3]]), -ones), "negative"),
        (Packing(np.array([[2, 0, 3]]), 2 * ones), "loads edge"),
        (Packing(np.array([[2, 0, 9]]), ones), "outside"),
        (Packing(np.array([[2, 0, 3]]), np.ones(2)), "2 values"),
    ]:
        with pytest.raises(ValueError, match=message):
            packing.verify(graph)
