import math
from collections import Counter
from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from icml_btt import CorrelationClustering, SignedGraph, planted, triangle_census
from sklearn.metrics import adjusted_rand_score

pytestmark = pytest.mark.usefixtures("plain")


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_the_census_is_that_of_all_triples(missing, random_graph, oracle):
    for seed, n in enumerate((0, 1, 2, 3, 17, 40, 60)):
        graph = random_graph(seed, n, free=0.3, positive=0.4, missing=missing)
        sign = {pair: s for pair, (s, _) in oracle.signed_pairs(graph).items()}
        kinds = Counter(
            tuple(sorted(sign[pair] for pair in combinations(triple, 2)))
            for triple in combinations(range(n), 3)
        )
        census = triangle_census(graph)
        assert (census.ppp, census.ppn) == (kinds[1, 1, 1], kinds[-1, 1, 1])
        assert (census.pnn, census.nnn) == (kinds[-1, -1, 1], kinds[-1, -1, -1])
        wedges = Counter(next(iter(set(first) & set(second))) for first, second in oracle.open_wedges(graph))
        assert census.open_wedges.tolist() == [wedges[v] for v in range(n)]


def test_balance_in_the_strict_and_the_weak_sense():
    census = triangle_census(SignedGraph.from_edges([(0, 1)], n=4))
    assert (census.total, census.balanced, census.clusterable) == (4, 0.5, 1.0)
    assert math.isnan(triangle_census(SignedGraph.from_edges([], n=2)).balanced)
    assert triangle_census(nx.complete_graph(5)).ppp == 10


def table_of(pairs, probability):
    return {"left": [u for u, _ in pairs], "right": [v for _, v in pairs], "p": list(probability)}


def test_log_odds_are_the_weights():
    table = table_of([("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")], [0.9, 0.2, 0.5, 1.0])
    graph = SignedGraph.from_probabilities(table, "left", "right", "p", missing="free")
    weight = dict(
        zip(map(tuple, graph.ends.tolist()), zip(graph.sign, graph.weight, strict=True), strict=True)
    )
    assert weight[0, 1] == (1, pytest.approx(math.log(9)))
    assert weight[1, 2] == (-1, pytest.approx(math.log(4)))
    assert (2, 3) not in weight
    assert graph.hard.tolist() == [False, True, False]


def test_tables_of_all_kinds_give_the_same_graph():
    pairs, p = [(3, 7), (7, 9)], [0.75, 0.25]
    rows = [{"left": u, "right": v, "p": q} for (u, v), q in zip(pairs, p, strict=True)]
    kinds = [table_of(pairs, p), rows]
    kinds.append(np.array([(3, 7, 0.75), (7, 9, 0.25)], dtype=[("left", int), ("right", int), ("p", float)]))
    frames = pytest.importorskip("pandas")
    kinds.append(frames.DataFrame(kinds[0]))
    graphs = [SignedGraph.from_probabilities(t, "left", "right", "p", ids=[3, 7, 9]) for t in kinds]
    for graph in graphs:
        assert graph.ids == (3, 7, 9)
        np.testing.assert_array_equal(graph.ends, graphs[0].ends)
        np.testing.assert_array_equal(graph.weight, graphs[0].weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"p": [0.5, 1.5]}, "row 1: p = 1.5"),
        ({"p": [float("nan"), 0.5]}, "row 0: p = nan"),
        ({"p": ["a", "b"]}, "no number"),
        ({"q": 1}, "no column 'p'"),
    ],
)
def test_tables_that_are_wrong_are_refused(change, message):
    table = table_of([("a", "b"), ("b", "c")], [0.9, 0.1])
    if "q" in change:
        table.pop("p")
    else:
        table |= change
    with pytest.raises(ValueError, match=message):
        SignedGraph.from_probabilities(table, "left", "right", "p")
    with pytest.raises(ValueError, match="expected a data frame"):
        SignedGraph.from_probabilities(3, "left", "right", "p")


def test_clusters_beat_connected_components_at_their_best_threshold():
    rng = np.random.default_rng(0)
    truth = rng.integers(18, size=100)
    u, v = np.triu_indices(100, 1)
    same = truth[u] == truth[v]
    compared = same | (rng.random(len(u)) < 0.05)
    u, v, same = u[compared], v[compared], same[compared]
    wrong = rng.random(len(u)) < 0.05
    p = np.clip(np.where(same ^ wrong, 0.85, 0.15) + 0.1 * rng.normal(size=len(u)), 0.02, 0.98)
    table = table_of(list(zip(u.tolist(), v.tolist(), strict=True)), p)
    graph = SignedGraph.from_probabilities(table, "left", "right", "p", ids=range(100))
    ours = adjusted_rand_score(truth, CorrelationClustering(method="disjoint").solve(graph).labels)
    best = 0.0
    for threshold in np.linspace(0.3, 0.97, 40):
        links = nx.Graph(list(zip(u[p >= threshold].tolist(), v[p >= threshold].tolist(), strict=True)))
        links.add_nodes_from(range(100))
        labels = np.zeros(100, dtype=int)
        for number, part in enumerate(nx.connected_components(links)):
            labels[list(part)] = number
        best = max(best, adjusted_rand_score(truth, labels))
    assert ours > best + 0.05


def test_a_planted_graph_has_the_bad_triangles_that_are_counted():
    from icml_btt import count_bad_triangles

    graph = planted(70, 5, 0.1, seed=0).graph
    assert triangle_census(graph).ppn == count_bad_triangles(graph)
