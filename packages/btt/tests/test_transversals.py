from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_btt import (
    BadTriangleTransversal,
    CoverProgram,
    SignedGraph,
    count_bad_triangles,
    gnp,
    planted,
    round_cover,
    transversal,
)
from icml_btt.packing import maximal_packing
from icml_btt.pruning import _involved_by_scan, _involved_by_table, prune_unlisted
from icml_btt.rounding import exact_lp_rule, threshold_rule
from icml_btt.triangles import TriangleSystem

METHODS = ["threshold", "exact_lp", "disjoint"]
graphs = st.builds(
    dict,
    seed=st.integers(0, 10**6),
    n=st.integers(0, 8),
    free=st.sampled_from([0.0, 0.3]),
    positive=st.sampled_from([0.3, 0.5, 0.67]),
    weighted=st.booleans(),
    missing=st.sampled_from(["negative", "free"]),
)


@given(options=graphs, method=st.sampled_from(METHODS), prune=st.booleans())
@settings(max_examples=80, deadline=None)
def test_every_bad_triangle_is_hit_within_the_factor(options, method, prune, request):
    random_graph, oracle = request.getfixturevalue("random_graph"), request.getfixturevalue("oracle")
    graph = random_graph(**options)
    found = transversal(graph, method, prune=prune)
    found.verify(graph)
    assert oracle.missed(graph, found.edges) == []
    program = CoverProgram().solve(graph).value
    factor = 3 if method == "disjoint" else 2
    assert program - 1e-6 <= found.cost <= factor * program + 1e-9
    assert found.lower_bound <= found.cost


@given(options=graphs, seed=st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_the_threshold_rule_doubles_any_cover_at_most(options, seed, request):
    random_graph, oracle = request.getfixturevalue("random_graph"), request.getfixturevalue("oracle")
    graph = random_graph(**options)
    system = TriangleSystem.of(graph)
    x = np.random.default_rng(seed).random(len(system.keys))
    if len(system.rows):
        x = np.minimum(x / min(1.0, x[system.rows].sum(axis=1).min()), 1.0)
    chosen = threshold_rule(system, x)
    assert oracle.missed(graph, graph.pair_ends(system.keys[chosen])) == []
    assert system.weight @ chosen <= 2 * (system.weight @ x) + 1e-9


def test_the_threshold_rule_takes_the_cheapest_of_all_thresholds():
    graph = gnp(16, 0.5, seed=2, weighted=True).graph
    system = TriangleSystem.of(graph)
    rng = np.random.default_rng(0)
    x = np.minimum(rng.random(len(system.keys)) + 1 / 3, 1.0)
    positive = system.sign > 0
    costs = [
        system.weight @ np.where(positive, x >= alpha, x > 1 - 2 * alpha)
        for alpha in np.linspace(0, 0.5, 5_001)
    ]
    assert system.weight @ threshold_rule(system, x) == pytest.approx(min(costs), rel=1e-9)


def test_one_threshold_for_both_signs_is_not_enough():
    from icml_btt.instances import thirds

    graph = thirds().graph
    system = TriangleSystem.of(graph)
    cover = CoverProgram().solve(graph)
    assert (cover.x >= 1 / 3 - 1e-7).sum() == 22 > 2 * cover.value
    for rule in (threshold_rule, exact_lp_rule):
        assert rule(system, cover.x).sum() <= 2 * cover.value


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_costs_are_within_the_factor_of_the_brute_force_optimum(missing, random_graph, oracle):
    for seed in range(12):
        graph = random_graph(seed, 6, weighted=seed % 2 == 1, missing=missing)
        best = oracle.best_transversal(graph)
        for method, factor in zip(METHODS, (2, 2, 3), strict=True):
            found = transversal(graph, method, prune=False)
            assert best - 1e-9 <= found.cost <= factor * best + 1e-9
            assert found.lower_bound <= best + 1e-9


@pytest.mark.parametrize("method", METHODS)
def test_pruned_transversals_are_minimal(method, oracle):
    for seed in range(3):
        graph = gnp(14, 0.4, seed=seed).graph
        found = transversal(graph, method)
        assert found.cost <= transversal(graph, method, prune=False).cost
        for index in range(len(found.edges)):
            assert oracle.missed(graph, np.delete(found.edges, index, axis=0))


def test_pruning_by_table_and_by_sets_agree(monkeypatch, random_graph):
    for seed in range(10):
        graph = random_graph(seed, 16, missing=["negative", "free"][seed % 2], weighted=seed % 3 == 0)
        keys = maximal_packing(graph)[1]
        involved = _involved_by_table(graph, keys)[0]
        np.testing.assert_array_equal(_involved_by_scan(graph, keys)[0], involved)
        by_table = prune_unlisted(graph, keys)
        monkeypatch.setattr("icml_btt.pruning.TABLE_LIMIT", -1)
        np.testing.assert_array_equal(prune_unlisted(graph, keys), by_table)
        monkeypatch.undo()


def test_the_solver_uses_the_mistakes_of_a_clustering_where_they_are_cheaper():
    graph = planted(40, 4, 0.2, seed=1).graph
    plain, solved = transversal(graph), BadTriangleTransversal().solve(graph)
    solved.verify(graph)
    assert solved.cost < plain.cost
    assert solved.lower_bound == plain.lower_bound


@pytest.mark.parametrize(("graph", "bound"), [(nx.karate_club_graph(), 39), (nx.les_miserables_graph(), 92)])
def test_real_graphs(graph, bound):
    signed = SignedGraph.complete_from_positive(graph)
    found = BadTriangleTransversal().solve(signed)
    found.verify(signed)
    assert found.lower_bound == bound
    assert found.ratio < 1.4


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("method", METHODS)
def test_graphs_without_bad_triangles_need_nothing(n, method):
    found = transversal(SignedGraph.from_edges([(0, 1)] if n == 2 else [], n=n), method)
    assert (len(found.edges), found.cost, found.ratio) == (0, 0.0, 1.0)


def test_too_many_triangles_switch_to_a_packing_with_a_warning():
    graph = gnp(15, 0.5, seed=0).graph
    with pytest.warns(RuntimeWarning, match="a maximal packing replaces the linear program"):
        found = transversal(graph, triangle_limit=5)
    assert found.method == "disjoint"
    found.verify(graph)
    with pytest.raises(MemoryError, match="triangle_limit=5"):
        transversal(graph, lp="highs", triangle_limit=5)


def test_out_of_time_the_threshold_rule_rounds_what_there_is():
    graph = gnp(40, 0.5, seed=1).graph
    found = transversal(graph, "exact_lp", time_limit=1e-9)
    found.verify(graph)
    assert (found.method, found.lp_value) == ("threshold", None)
    assert found.ratio <= 3


def test_a_cover_that_does_not_cover_is_refused_with_the_triangle():
    graph = SignedGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d")])
    cover = CoverProgram().solve(graph)
    with pytest.raises(
        ValueError, match=r"x is no cover: the edges of bad triangle \('b', 'a', 'c'\) have 0"
    ):
        round_cover(graph, replace(cover, x=cover.x * 0))
    with pytest.raises(ValueError, match="not one of this graph"):
        round_cover(SignedGraph.from_edges([(0, 1), (1, 2)]), cover)
    assert round_cover(graph, cover).cost == 1.0


def test_unknown_options_are_refused():
    graph = SignedGraph.from_edges([(0, 1)])
    for options, message in [({"method": "magic"}, "method='magic'"), ({"lp": "no"}, "lp='no'")]:
        with pytest.raises(ValueError, match=message):
            transversal(graph, **options)
    with pytest.raises(TypeError, match="expected a SignedGraph"):
        transversal([(0, 1)])


def test_verify_says_what_is_wrong():
    graph = SignedGraph.from_edges([(0, 1), (1, 2), (2, 3), (3, 4)])
    found = transversal(graph)
    cut = {"edges": found.edges[:1], "sign": found.sign[:1], "cost": 1.0}
    for wrong, message in [
        (replace(found, **cut), "is not hit"),
        (replace(found, cost=9.0), "the edges cost"),
        (replace(found, sign=-found.sign), "signs are not those"),
        (replace(found, edges=found.edges[:, ::-1]), "pairs u < v"),
        (replace(found, edges=found.edges[[0, 0]]), "listed twice"),
        (replace(found, lower_bound=5.0), "the packing proves only"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong.verify(graph)


def test_matrices_and_networkx_graphs_are_taken_as_they_are():
    path = nx.path_graph(4)
    for graph in (path, nx.to_scipy_sparse_array(path), nx.to_numpy_array(path)):
        assert transversal(graph).cost == 1.0
        assert transversal(graph, missing="free").cost == 0.0


def test_random_keys_do_not_depend_on_anything_global():
    graph = gnp(20, 0.5, seed=0).graph
    np.random.default_rng(0)
    first = transversal(graph, "disjoint", seed=3)
    assert np.array_equal(first.edges, transversal(graph, "disjoint", seed=3).edges)
    assert count_bad_triangles(graph.without(first.keys(graph))) == 0
