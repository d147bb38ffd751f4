import warnings

import numpy as np
import pytest
from icml_btt import CorrelationClustering, SignedGraph, planted
from icml_btt.constraints import resolve_constraints

pytestmark = pytest.mark.usefixtures("plain")


def solve(graph, **constraints):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return CorrelationClustering(method="disjoint", runs=4).solve(graph, **constraints)


def obeys(labels, must, cannot, sources):
    together = all(labels[u] == labels[v] for u, v in must)
    apart = all(labels[u] != labels[v] for u, v in cannot)
    held = [(labels[v], s) for v, s in enumerate(sources) if s is not None]
    return together and apart and len(set(held)) == len(held)


def draw(seed, n, graph):
    rng = np.random.default_rng(seed)
    must = [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(rng.integers(0, 3))]
    cannot = [tuple(rng.choice(n, 2, replace=False).tolist()) for _ in range(rng.integers(0, 4))]
    sources = [None if rng.random() < 0.4 else int(rng.integers(3)) for _ in range(n)]
    try:
        resolve_constraints(graph, must, cannot, sources)
    except ValueError:
        return None
    return must, cannot, sources


def test_constraints_hold_and_the_bound_is_one_for_clusterings_that_obey(random_graph, oracle):
    cases = compared = 0
    for seed in range(235):
        n = 6 if seed % 3 == 0 else 14
        missing = "free" if seed % 2 else "negative"
        graph = random_graph(seed, n, weighted=seed % 5 == 0, missing=missing)
        if (drawn := draw(seed, n, graph)) is None:
            continue
        must, cannot, sources = drawn
        found = solve(graph, must_link=must, cannot_link=cannot, sources=sources)
        found.verify(graph)
        assert obeys(found.labels, must, cannot, sources)
        assert found.cost == pytest.approx(oracle.cost(graph, found.labels))
        assert found.lower_bound <= found.cost + 1e-9
        cases += 1
        if n == 6:
            best = min(oracle.cost(graph, p) for p in oracle.partitions(n) if obeys(p, must, cannot, sources))
            assert found.lower_bound - 1e-9 <= best <= found.cost + 1e-9
            compared += 1
    assert cases >= 200
    assert compared >= 50


def test_records_of_two_files_are_matched_one_to_one():
    pairs = [(f"a{i}", f"b{j}") for i in range(12) for j in range(12) if abs(i - j) <= 1]
    sources = {f"{side}{i}": side for side in "ab" for i in range(12)}
    found = solve(SignedGraph.from_edges(pairs), sources=sources)
    assert all(len(c) == len({sources[name] for name in c}) for c in found.clusters())
    assert found.cost == len(pairs) - 12


def test_contradictions_are_refused_with_their_path():
    graph = SignedGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d")])
    links = [("a", "b"), ("b", "c"), ("c", "d")]
    with pytest.raises(ValueError, match="'c' – 'b' – 'a'"):
        solve(graph, must_link=links, cannot_link=[("c", "a")])
    with pytest.raises(ValueError, match="two records of source 7 must be together: 'b' – 'c' – 'd'"):
        solve(graph, must_link=links, sources={"b": 7, "d": 7})


@pytest.mark.parametrize(
    ("constraints", "message"),
    [
        ({"must_link": [("a", "z")]}, "must_link names 'z'"),
        ({"cannot_link": [("a", "a")]}, "apart from itself"),
        ({"cannot_link": ["ab"]}, "pairs of records"),
        ({"sources": [1]}, "1 sources for 3 records"),
        ({"sources": {"q": 1}}, "sources names 'q'"),
    ],
)
def test_constraints_that_are_none_are_refused(constraints, message):
    with pytest.raises(ValueError, match=message):
        solve(SignedGraph.from_edges([("a", "b"), ("b", "c")]), **constraints)


def test_infinite_weights_are_constraints():
    graph = SignedGraph.from_edges(
        [(0, 1), (1, 2), (2, 3)], [(0, 3)], positive_weight=[np.inf, 1, 1], negative_weight=[np.inf]
    )
    found = solve(graph)
    assert found.labels[0] == found.labels[1] != found.labels[3]
    assert found.cost == 1.0
    found.verify(graph)
    with pytest.raises(ValueError, match="must be apart, and together"):
        solve(graph, must_link=[(1, 3)])


def test_many_groups_of_a_complete_graph_are_refused(monkeypatch):
    monkeypatch.setattr("icml_btt.constraints._PAIR_LIMIT", 100)
    graph = planted(60, 4, 0.1, seed=0).graph
    with pytest.raises(MemoryError, match="groups of must-links"):
        solve(graph, must_link=[(0, 1), (2, 3)])


def test_fit_takes_constraints_and_partial_fit_then_does_not():
    model = CorrelationClustering().fit(SignedGraph.from_edges([(0, 1), (1, 2)]), cannot_link=[(0, 1)])
    assert model.labels_[0] != model.labels_[1]
    with pytest.raises(ValueError, match="fit again"):
        model.partial_fit([(2, 3)])
