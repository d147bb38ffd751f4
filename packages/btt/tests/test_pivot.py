from fractions import Fraction

import numpy as np
import pytest
from icml_btt import (
    Coins,
    SignedGraph,
    disagreements,
    gnp,
    kwik_cluster,
    pivot_rounding,
    planted,
    transversal,
)
from icml_btt.enumeration import triple_excess
from icml_btt.pivot import _COINS, _ORDER
from icml_btt.randomness import hashes, mix, pair_keys, uniforms


def sequential_pivot(graph, keys, seed, run):
    """Algorithm 4 as it is written, vertex by vertex, with the same order and coins."""
    order = np.argsort(hashes(graph.vertex_keys, seed, _ORDER, [run])[0], kind="stable")
    chosen = set(keys.tolist())
    labels = np.full(graph.n, -1)
    for pivot in order:
        if labels[pivot] >= 0:
            continue
        labels[pivot] = pivot
        for vertex in np.flatnonzero(labels < 0):
            u, v = np.array([pivot]), np.array([vertex])
            sign, dropped = int(graph.signs_of(u, v)[0]), int(graph.pair_key(u, v)[0]) in chosen
            coin = uniforms(pair_keys(graph.vertex_keys[u], graph.vertex_keys[v]), seed, _COINS, [run])[0, 0]
            probability = {(1, False): 1.0, (1, True): 0.25, (-1, True): 0.75}.get((sign, dropped), 0.0)
            if coin < probability:
                labels[vertex] = pivot
    return labels


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_all_runs_together_equal_the_algorithm_run_by_run(missing, random_graph):
    for seed in range(4):
        graph = random_graph(seed, 14, missing=missing)
        keys = transversal(graph).keys(graph)
        together = pivot_rounding(graph, keys, runs=6, seed=seed)
        for run in range(6):
            np.testing.assert_array_equal(together[run], sequential_pivot(graph, keys, seed, run))


def test_runs_do_not_depend_on_how_many_there_are(monkeypatch):
    graph = planted(30, 4, 0.1, seed=0).graph
    keys = transversal(graph).keys(graph)
    whole = pivot_rounding(graph, keys, runs=20, seed=1)
    np.testing.assert_array_equal(pivot_rounding(graph, keys, runs=5, seed=1, first_run=15), whole[15:])
    monkeypatch.setattr("icml_btt.pivot._BLOCK", 1)
    np.testing.assert_array_equal(pivot_rounding(graph, keys, runs=20, seed=1), whole)


def clique(k, first=0):
    return [(first + u, first + v) for v in range(k) for u in range(v)]


@pytest.mark.parametrize("coins", [Coins(), Coins(0.5, 0.5), Coins(0.0, 1.0)])
@pytest.mark.parametrize("k", [3, 6])
def test_the_mean_cost_is_the_closed_form(k, coins):
    """Three families with one edge in D, whose expected cost can be written down."""
    bridge = SignedGraph.from_edges([*clique(k), *clique(k, k), (0, k)])
    hole = SignedGraph.from_edges(clique(k + 2)[1:])
    whole = SignedGraph.from_edges(clique(k + 2))
    # An end of the bridge is the first pivot of all with probability 1/k; only then is the coin thrown.
    expected = [
        (bridge, (0, k), 1 + coins.positive * (2 * (k - 1) - 1) / k),
        (hole, (0, 1), 1 + 2 / (k + 2) * (1 - coins.negative) * (k - 1)),
        (whole, (0, 1), 2 / (k + 2) * (1 - coins.positive) * (k + 1)),
    ]
    runs = 20_000
    for graph, edge, mean in expected:
        keys = graph.pair_key(*np.array(edge)[:, None])
        cost = disagreements(graph, pivot_rounding(graph, keys, runs=runs, seed=7, coins=coins))
        error = max(cost.std(ddof=1), 1e-9) / runs**0.5
        assert abs(cost.mean() - mean) < 5 * error


def test_without_a_transversal_it_is_kwik_cluster():
    graph = gnp(20, 0.4, seed=0).graph
    none = np.zeros(0, dtype=np.int64)
    np.testing.assert_array_equal(
        pivot_rounding(graph, none, runs=4, seed=2), kwik_cluster(graph, runs=4, seed=2)
    )
    labels = kwik_cluster(graph, runs=4, seed=2)
    for run in labels:
        for vertex, pivot in enumerate(run.tolist()):
            assert run[pivot] == pivot
            assert vertex == pivot or graph.signs_of(np.array([vertex]), np.array([pivot]))[0] == 1


def test_disjoint_cliques_come_back_whatever_the_order():
    graph = SignedGraph.from_edges([*clique(4), *clique(3, 4)], n=8)
    labels = kwik_cluster(graph, runs=50)
    assert disagreements(graph, labels).max() == 0
    assert all(len(set(run.tolist())) == 3 for run in labels)


def test_no_vertices_give_no_labels():
    assert kwik_cluster(SignedGraph.from_edges([]), runs=3).shape == (3, 0)


def test_a_transversal_of_pairs_that_are_no_edges_is_refused():
    graph = SignedGraph.from_edges([(0, 1)], n=3, missing="free")
    with pytest.raises(ValueError, match="holds a pair that is no edge"):
        pivot_rounding(graph, graph.pair_key(np.array([1]), np.array([2])))


def test_the_table_of_the_proof_is_tight_where_the_paper_says():
    excess = triple_excess(0.25, 0.75)
    assert max(excess.values()) == 0
    tight = {kinds for kinds, value in excess.items() if value == 0}
    assert {("+", "+", "D+"), ("+", "-", "D+"), ("+", "+", "D-")} <= tight
    assert max(triple_excess(0.0, 1.0).values()) == Fraction(1, 2)
    assert max(triple_excess(0.5, 0.5).values()) == Fraction(1, 2)


def test_no_other_coins_pass_the_table():
    passing = [
        (p, q)
        for p in np.arange(0, 9) / 8
        for q in np.arange(0, 9) / 8
        if max(triple_excess(p, q).values()) <= 0
    ]
    assert passing == [(0.25, 0.75)]


def test_random_numbers_are_uniform_and_independent():
    keys = mix(np.arange(4000, dtype=np.uint64))
    drawn = uniforms(keys, 1, _COINS, range(50))
    assert drawn.min() >= 0
    assert drawn.max() < 1
    counts = np.histogram(drawn, bins=100, range=(0, 1))[0]
    assert np.sum((counts - 2000) ** 2 / 2000) < 160  # the 0.9999 quantile of chi-squared with 99 degrees
    correlation = np.corrcoef(drawn)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 5 / 4000**0.5
    assert not np.array_equal(drawn, uniforms(keys, 2, _COINS, range(50)))
    assert not np.array_equal(drawn, uniforms(keys, 1, _ORDER, range(50)))


def test_pair_keys_do_not_know_left_from_right():
    keys = mix(np.arange(100, dtype=np.uint64))
    u, v = np.triu_indices(100, 1)
    forward, backward = pair_keys(keys[u], keys[v]), pair_keys(keys[v], keys[u])
    np.testing.assert_array_equal(forward, backward)
    assert len(np.unique(forward)) == len(u)
