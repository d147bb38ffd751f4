import warnings
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_btt import (
    CorrelationClustering,
    ExactOptimum,
    SignedGraph,
    disagreements,
    gnp,
    planted,
    transversal,
)
from icml_btt.clusters import best_labels, round_transversal
from icml_btt.cost import canonical_labels
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score

pytestmark = pytest.mark.usefixtures("plain")


@given(
    seed=st.integers(0, 10**6),
    n=st.sampled_from([0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7]),
    weighted=st.booleans(),
    missing=st.sampled_from(["negative", "free"]),
)
@settings(max_examples=40, deadline=None)
def test_cost_and_bound_enclose_the_optimum(seed, n, weighted, missing, request):
    random_graph, oracle = request.getfixturevalue("random_graph"), request.getfixturevalue("oracle")
    graph = random_graph(seed, n, weighted=weighted, missing=missing)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = CorrelationClustering(random_state=seed).solve(graph)
    found.verify(graph)
    best = oracle.best_clustering(graph)
    assert found.lower_bound - 1e-9 <= best <= found.cost + 1e-9
    assert found.cost == pytest.approx(oracle.cost(graph, found.labels), abs=1e-9)


def test_planted_clusters_are_recovered_and_certified():
    instance = planted(120, 8, 0.05, seed=1)
    found = CorrelationClustering().solve(instance.graph)
    np.testing.assert_array_equal(found.labels, canonical_labels(instance.truth))
    assert found.ratio == 1.0


@pytest.mark.parametrize(
    ("graph", "optimum"), [(nx.karate_club_graph(), 50), (nx.les_miserables_graph(), 103)]
)
def test_real_graphs_are_solved_to_their_known_optimum(graph, optimum):
    signed = SignedGraph.complete_from_positive(graph)
    found = CorrelationClustering().solve(signed)
    found.verify(signed)
    assert found.cost == optimum  # the exact program says so; test_integer_program holds it to that
    assert 1.0 < found.ratio < 1.3


def test_the_order_of_rows_and_ends_changes_nothing():
    edges = [(f"record {u}", f"record {v}") for u, v in planted(30, 4, 0.15, seed=2).graph.ends.tolist()]
    first = CorrelationClustering().solve(SignedGraph.from_edges(edges))
    rng = np.random.default_rng(0)
    for _ in range(20):
        shuffled = [edges[i][:: rng.choice([1, -1])] for i in rng.permutation(len(edges))]
        again = CorrelationClustering().solve(SignedGraph.from_edges(shuffled))
        assert again.as_dict() == first.as_dict()
        assert again.lower_bound == first.lower_bound


def test_names_decide_and_not_the_rows_of_a_matrix():
    graph = planted(40, 4, 0.15, seed=2).graph
    matrix = (2 * (graph.sign_table > 0) - 1).astype(float)
    names = [f"n{i:02d}" for i in range(40)]
    first = CorrelationClustering().solve(SignedGraph.from_scipy(matrix, ids=names))
    order = np.random.default_rng(1).permutation(40)
    shuffled = SignedGraph.from_scipy(matrix[np.ix_(order, order)], ids=[names[i] for i in order])
    assert CorrelationClustering().solve(shuffled).as_dict() == first.as_dict()


def test_a_common_factor_of_all_weights_changes_nothing():
    rng = np.random.default_rng(0)
    matrix = np.triu(rng.choice([-1.0, -0.5, 0.25, 1.0], size=(24, 24)), 1)
    matrix += matrix.T
    first, scaled = CorrelationClustering().solve(matrix), CorrelationClustering().solve(7 * matrix)
    np.testing.assert_array_equal(first.labels, scaled.labels)
    assert scaled.cost == pytest.approx(7 * first.cost)


def test_the_best_run_of_each_component_is_taken():
    graph = SignedGraph.from_edges([(0, 1), (2, 3)])
    runs = np.array([[0, 0, 2, 3], [0, 1, 2, 2]])
    best = best_labels(graph, runs)
    assert disagreements(graph, best) == 0
    assert disagreements(graph, best_labels(graph, runs, place=1)) == 2


def test_local_search_and_runs_never_hurt():
    graph = gnp(30, 0.5, seed=4).graph
    found = transversal(graph)
    one = round_transversal(graph, found, runs=1, local_search=False).cost
    many = round_transversal(graph, found, runs=32, local_search=False).cost
    assert round_transversal(graph, found, runs=32).cost <= many <= one


def test_it_is_a_scikit_learn_clusterer():
    flowers, species = (column[::3] for column in load_iris(return_X_y=True))
    similarity = -np.linalg.norm(flowers[:, None] - flowers, axis=-1)
    graph = SignedGraph.from_similarity(similarity, -1.2)
    model = CorrelationClustering(runs=8, random_state=3)
    copy = clone(model).set_params(runs=16)
    assert copy.get_params()["random_state"] == 3
    assert copy.__sklearn_tags__().input_tags.pairwise
    labels = model.fit_predict(graph)
    np.testing.assert_array_equal(labels, model.labels_)
    assert model.ratio_ == model.cost_ / model.lower_bound_
    assert adjusted_rand_score(species, labels) > 0.5


def test_incomplete_graphs_get_a_certificate_and_a_warning():
    instance = planted(40, 4, 0.1, seed=0, density=0.4)
    with pytest.warns(UserWarning, match="no factor on incomplete graphs"):
        found = CorrelationClustering().solve(instance.graph)
    found.verify(instance.graph)
    assert 0 < found.lower_bound <= found.cost <= disagreements(instance.graph, instance.truth)


def test_a_chain_of_same_judgements_is_one_cluster_where_the_rest_is_free():
    chain = SignedGraph.from_edges([(i, i + 1) for i in range(50)], [(0, 60)], n=61, missing="free")
    with pytest.warns(UserWarning, match="no factor"):
        found = CorrelationClustering().solve(chain)
    assert found.cost == 0
    assert len(set(found.labels[:51].tolist())) == 1


@pytest.mark.parametrize("n", [0, 1])
def test_nothing_to_cluster(n):
    found = CorrelationClustering().solve(SignedGraph.from_edges([], n=n))
    assert (found.n_clusters, found.cost, found.lower_bound, found.ratio) == (n, 0.0, 0.0, 1.0)


def test_every_vertex_has_one_label():
    graph = SignedGraph.from_edges([("a", "b")], ids=["a", "b", "alone"])
    found = CorrelationClustering().solve(graph)
    assert found.as_dict() == {"a": 0, "alone": 1, "b": 0}
    assert found.clusters() == [["a", "b"], ["alone"]]


def test_stages_are_reported():
    stages = []
    CorrelationClustering().solve(
        gnp(30, 0.5, seed=0).graph, report=lambda stage, **figures: stages.append(stage)
    )
    assert list(dict.fromkeys(stages)) == ["pivot rounding", "local moves", "linear program"]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"runs": 0}, ValueError, "runs=0"),
        ({"rounding": "dice"}, ValueError, "rounding='dice'"),
        ({"method": "magic"}, ValueError, "method='magic'"),
        ({"random_state": None}, TypeError, "expected an integer"),
        ({"missing": "what"}, ValueError, "missing='what'"),
    ],
)
def test_wrong_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        CorrelationClustering(**options).solve(nx.path_graph(4))


def test_a_table_of_features_is_refused():
    with pytest.raises(ValueError, match="square"):
        CorrelationClustering().fit(load_iris().data)


def test_verify_says_what_is_wrong():
    graph = gnp(12, 0.5, seed=0).graph
    found = CorrelationClustering().solve(graph)
    bound = replace(found.transversal, lower_bound=99.0)
    for wrong, message in [
        (replace(found, cost=0.0), "the clusters cost"),
        (replace(found, labels=found.labels[::-1].max() - found.labels), "numbered"),
        (replace(found, labels=found.labels[1:]), "12 integer labels"),
        (replace(found, transversal=bound), "the packing proves only"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong.verify(graph)


def test_the_factor_of_three_holds_against_exact_optima():
    for seed in range(3):
        graph = gnp(10, 0.5, seed=seed).graph
        found = round_transversal(graph, transversal(graph), runs=32, local_search=False)
        assert found.cost <= 3 * ExactOptimum("cc").solve(graph).cost
