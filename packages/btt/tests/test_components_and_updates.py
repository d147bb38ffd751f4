import time

import numpy as np
import pytest
from icml_btt import CorrelationClustering, SignedGraph, gnp, planted
from icml_btt.cost import canonical_labels
from icml_btt.small_components import solve_small
from sklearn.datasets import load_iris

pytestmark = pytest.mark.usefixtures("plain")


def blocks(count, size, seed=0, noise=0.15):
    """Noisy graphs beside each other, with names that tell which is which."""
    edges = []
    for index in range(count):
        part = planted(size, 3, noise, seed=seed + index).graph.ends.tolist()
        edges += [(f"{index:03d}-{u:02d}", f"{index:03d}-{v:02d}") for u, v in part]
    return edges


def test_a_contradiction_changes_nothing_elsewhere():
    edges = blocks(4, 12)
    first = CorrelationClustering().solve(SignedGraph.from_edges(edges))
    first.verify(SignedGraph.from_edges(edges))
    for edge in edges[:2]:
        graph = SignedGraph.from_edges([e for e in edges if e != edge], [edge])
        again = CorrelationClustering().solve(graph)
        again.verify(graph)
        for before, after in zip(*(part_clusters(found, "000") for found in (first, again)), strict=True):
            assert before == after


def part_clusters(found, but):
    return sorted(sorted(c) for c in found.clusters() if not c[0].startswith(but))


def test_bounds_of_components_are_rounded_up_apart():
    stars = [(4 * i, 4 * i + leaf) for i in range(3) for leaf in (1, 2, 3)]
    found = CorrelationClustering().solve(SignedGraph.from_edges(stars))
    # The program of each star is 3/2, and its cost 2.
    assert (found.cost, found.lower_bound) == (6.0, 6.0)


def test_updates_touch_only_their_components():
    edges = blocks(24, 10)
    model = CorrelationClustering(runs=8)
    begin = time.perf_counter()
    model.fit(SignedGraph.from_edges(edges))
    full = time.perf_counter() - begin
    before = dict(zip(model.graph_.ids, model.labels_.tolist(), strict=True))
    begin = time.perf_counter()
    model.partial_fit([("new", "000-00"), ("new", "000-01")], [("001-00", "001-05")])
    assert time.perf_counter() - begin < 0.3 * full
    model.clustering_.verify(model.graph_)
    after = dict(zip(model.graph_.ids, model.labels_.tolist(), strict=True))
    assert all(after[name] == label for name, label in before.items() if name[:3] not in ("000", "001"))
    again = [e for e in edges if e != ("001-00", "001-05")]
    whole = SignedGraph.from_edges([*again, ("new", "000-00"), ("new", "000-01")])
    refit = CorrelationClustering(runs=8).solve(whole)
    assert model.graph_.ids == whole.ids
    np.testing.assert_array_equal(model.graph_.ends, whole.ends)
    assert model.cost_ <= 1.02 * refit.cost
    assert model.lower_bound_ == refit.lower_bound


def test_merges_and_splits_are_listed():
    two = [("a", "b"), ("b", "c"), ("a", "c"), ("x", "y"), ("y", "z"), ("x", "z")]
    model = CorrelationClustering().partial_fit(two)
    assert model.labels_.tolist() == [0, 0, 0, 1, 1, 1]
    joined = [(u, v) for u in "abc" for v in "xyz"]
    model.partial_fit(joined)
    assert len(set(model.labels_.tolist())) == 1
    assert model.changes_.merged == (((0, 1), model.labels_[0]),)
    model.partial_fit([], joined, ids=["alone"])
    assert len(set(model.labels_.tolist())) == 3
    assert model.changes_.split == ((int(model.labels_[model.graph_.ids.index("a")]), (0, 2)),) or (
        model.changes_.split[0][1] != ()
    )
    assert model.cost_ == 0.0
    assert model.changes_.created


def test_updates_of_numbered_graphs_and_of_free_pairs():
    with pytest.warns(UserWarning, match="no factor"):
        model = CorrelationClustering(missing="free").partial_fit([(0, 1)], [(1, 2)])
    model.partial_fit([(1, 2)], positive_weight=[3.0])
    assert model.labels_[1] == model.labels_[2]
    model.partial_fit([], [(1, 2)], negative_weight=[0.0])
    assert model.graph_.ends.tolist() == [[0, 1]]
    with pytest.raises(ValueError, match="numbers too"):
        model.partial_fit([("a", "b")])
    with pytest.raises(ValueError, match="infinite weight"):
        model.partial_fit([(0, 2)], positive_weight=[np.inf])


def test_many_thresholds_give_what_each_gives_alone():
    points = load_iris().data[::3]
    similarity = -np.linalg.norm(points[:, None] - points, axis=2)
    thresholds = np.linspace(-0.7, -0.4, 8)
    model = CorrelationClustering(runs=4)
    for found, threshold in zip(model.path(similarity, thresholds), thresholds, strict=True):
        graph = SignedGraph.from_similarity(similarity, threshold)
        alone = model.solve(graph)
        np.testing.assert_array_equal(found.labels, alone.labels)
        assert (found.cost, found.lower_bound) == (alone.cost, alone.lower_bound)


def test_components_that_stay_are_solved_once(monkeypatch):
    graph = SignedGraph.from_edges(blocks(8, 10))
    similarity = (graph.sign_table > 0) * 0.9
    similarity[0, 1:10] = similarity[1:10, 0] = np.linspace(0.1, 0.8, 9)
    solved = []
    part = CorrelationClustering._solve_part

    def counted(self, graph, report):
        solved.append(graph.n)
        return part(self, graph, report)

    monkeypatch.setattr(CorrelationClustering, "_solve_part", counted)
    thresholds = np.linspace(0.15, 0.75, 10)
    found = CorrelationClustering(runs=4).path(similarity, thresholds)
    assert len(found) == 10
    assert len(solved) <= 8 + 2 * 10  # eight components, of which one changes; alone it would be 80


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_confidence_is_the_share_of_agreeing_weight(missing, random_graph, oracle):
    graph = random_graph(2, 12, weighted=True, missing=missing)
    model = CorrelationClustering(confidence=True, missing=missing)
    if missing == "free" or not graph.complete:
        with pytest.warns(UserWarning, match="no factor"):
            model.fit(graph)
    for v in range(12):
        yes = no = 0.0
        for pair, (sign, weight) in oracle.signed_pairs(graph).items():
            if v in pair:
                same = model.labels_[pair[0]] == model.labels_[pair[1]]
                yes += weight * (sign > 0 and same)
                no += weight * ((sign > 0 and not same) or (sign < 0 and same))
        assert model.confidence_[v] == pytest.approx(yes / (yes + no) if yes + no else 1.0)


def test_without_asking_there_is_no_confidence():
    assert not hasattr(CorrelationClustering().fit(gnp(8, 0.5, seed=0).graph), "confidence_")


def test_review_finds_planted_mistakes(oracle):
    instance = planted(60, 5, 0.06, seed=3)
    graph, truth = instance.graph, instance.truth
    model = CorrelationClustering().fit(graph)
    pairs = oracle.signed_pairs(graph)
    wrong = {pair for pair, (sign, _) in pairs.items() if (sign > 0) != (truth[pair[0]] == truth[pair[1]])}
    top = model.review_[: len(pairs) // 10]
    rate = np.mean([(item.u, item.v) in wrong for item in top])
    assert rate >= 3 * len(wrong) / len(pairs)
    listed = model.review_
    contradicted = [item for item in listed if item.contradicted]
    assert sum(item.weight for item in contradicted) == model.cost_
    assert listed[: len(contradicted)] == contradicted
    bad = {frozenset(t) for t in oracle.bad_triangles(graph)}
    for item in listed:
        assert pairs[item.u, item.v] == (item.sign, item.weight)
        assert item.triangle is None or (
            frozenset(item.triangle) in bad and {item.u, item.v} <= set(item.triangle)
        )
        assert 0 <= item.load <= 1
    assert all(item.triangle is not None for item in contradicted)


def test_review_tells_the_program_and_obeys_constraints():
    graph = gnp(14, 0.5, seed=1).graph
    model = CorrelationClustering().fit(graph)
    assert {item.lp_value for item in model.review_} <= {0.0, 0.5, 1.0}
    assert max(item.lp_value for item in model.review_) > 0
    pair = next((u, v) for u, v in graph.ends.tolist() if model.labels_[u] == model.labels_[v])
    model.fit(graph, cannot_link=[pair])
    assert pair in {(item.u, item.v) for item in model.review_ if item.contradicted}
    with pytest.raises(AttributeError, match="fit first"):
        _ = CorrelationClustering().review_


def test_canonical_labels_of_updates_are_those_of_the_clustering():
    model = CorrelationClustering().partial_fit(blocks(3, 10)).partial_fit([("000-00", "002-00")])
    np.testing.assert_array_equal(canonical_labels(model.labels_), model.clustering_.labels)


def test_small_components_are_solved_to_the_optimum(random_graph, oracle):
    for seed in range(40):
        graph = random_graph(
            seed, 2 + seed % 5, weighted=seed % 3 == 0, missing=("negative", "free")[seed % 2]
        )
        found = solve_small(graph, seed)
        found.verify(graph)
        assert found.cost == pytest.approx(oracle.best_clustering(graph))
        assert oracle.missed(graph, found.transversal.edges) == []
        assert found.lower_bound <= found.cost + 1e-9


def test_thousands_of_small_components_take_seconds():
    count = 300
    edges = [
        (5 * i + a, 5 * i + b) for i in range(count) for a, b in ((0, 1), (1, 2), (2, 3), (1, 3), (3, 4))
    ]
    begin = time.perf_counter()
    found = CorrelationClustering().solve(SignedGraph.from_edges(edges))
    assert time.perf_counter() - begin < 30
    assert (found.cost, found.ratio) == (2.0 * count, 1.0)
