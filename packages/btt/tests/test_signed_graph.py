import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_btt import SignedGraph
from scipy import sparse


def pairs_of(graph):
    return {
        (graph.name(u), graph.name(v)): (int(s), float(w))
        for (u, v), s, w in zip(graph.ends.tolist(), graph.sign, graph.weight, strict=True)
    }


def test_negative_edges_of_weight_one_are_not_stored_where_missing_pairs_are_negative():
    graph = SignedGraph.from_edges([(0, 1)], [(1, 2), (0, 2)], negative_weight=[1.0, 2.5])
    assert pairs_of(graph) == {(0, 1): (1, 1.0), (0, 2): (-1, 2.5)}
    assert graph.complete
    assert not graph.unweighted


def test_free_pairs_are_not_stored_where_missing_pairs_are_free():
    graph = SignedGraph.from_edges([(0, 1)], [(1, 2), (0, 2)], negative_weight=[1.0, 0.0], missing="free")
    assert pairs_of(graph) == {(0, 1): (1, 1.0), (1, 2): (-1, 1.0)}
    assert not graph.complete


def test_weight_zero_is_no_opinion():
    graph = SignedGraph.from_edges([(0, 1), (1, 2)], positive_weight=[0.0, 1.0])
    assert pairs_of(graph) == {(0, 1): (0, 0.0), (1, 2): (1, 1.0)}
    assert not graph.complete


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_lookup_agrees_with_the_lists(missing, random_graph, oracle, no_tables):
    graph = random_graph(3, 12, weighted=True, missing=missing)
    for (u, v), (sign, weight) in oracle.signed_pairs(graph).items():
        u, v = np.array([u]), np.array([v])
        assert graph.signs_of(u, v)[0] == graph.signs_of(v, u)[0] == sign
        assert graph.weights_of(graph.pair_key(v, u))[0] == weight


def test_table_and_search_give_the_same_signs(random_graph, monkeypatch):
    for missing in ("negative", "free"):
        graph = random_graph(5, 15, missing=missing)
        u, v = np.triu_indices(15, 1)
        table = graph.signs_of(u, v)
        monkeypatch.setattr("icml_btt.signed_graph.TABLE_LIMIT", -1)
        np.testing.assert_array_equal(graph.signs_of(u, v), table)
        monkeypatch.undo()


def test_all_constructors_agree():
    dense = np.array([[0, 1, -1, 0], [1, 0, 2, 0], [-1, 2, 0, 0], [0, 0, 0, 0]], dtype=float)
    lists = SignedGraph.from_edges([(0, 1), (2, 1)], [(2, 0)], 4, positive_weight=[1, 2], missing="free")
    graph = nx.Graph([(0, 1, {"sign": 1}), (1, 2, {"sign": 1, "weight": 2}), (0, 2, {"sign": -1})])
    graph.add_node(3)
    signed = nx.Graph([(0, 1, {"weight": 1}), (1, 2, {"weight": 2.0}), (0, 2, {"weight": -1})])
    signed.add_node(3)
    for other in (
        SignedGraph.from_scipy(dense, missing="free"),
        SignedGraph.from_scipy(sparse.csr_matrix(dense), missing="free"),
        SignedGraph.from_scipy(sparse.coo_array(dense), missing="free", ids=[0, 1, 2, 3]),
        SignedGraph.from_networkx(graph, missing="free"),
        SignedGraph.from_networkx(signed, sign=None, missing="free"),
    ):
        assert pairs_of(other) == pairs_of(lists)
        assert other.n == 4


def test_an_unsigned_graph_gives_a_complete_signed_graph():
    karate = nx.karate_club_graph()
    adjacency = nx.to_scipy_sparse_array(karate, weight="weight")
    for graph in (
        SignedGraph.complete_from_positive(karate),
        SignedGraph.complete_from_positive(adjacency),
        SignedGraph.complete_from_positive(adjacency.toarray()),
    ):
        assert (graph.n, len(graph.ends)) == (34, 78)
        assert graph.complete
        assert graph.unweighted


def test_similarities_are_judged_by_the_threshold():
    similarity = np.array([[1.0, 0.9, 0.2], [0.9, 1.0, 0.5], [0.2, 0.5, 1.0]])
    assert pairs_of(SignedGraph.from_similarity(similarity, 0.5)) == {(0, 1): (1, 1.0), (1, 2): (1, 1.0)}
    distance = pairs_of(SignedGraph.from_similarity(similarity, 0.6, weights="distance"))
    assert {pair: sign for pair, (sign, _) in distance.items()} == {(0, 1): 1, (0, 2): -1, (1, 2): -1}
    assert distance[0, 2][1] == pytest.approx(0.4)
    compared = sparse.csr_array(np.array([[0, 0.9, 0], [0.9, 0, 0.1], [0, 0.1, 0]]))
    assert pairs_of(SignedGraph.from_similarity(compared, 0.5, missing="free")) == {
        (0, 1): (1, 1.0),
        (1, 2): (-1, 1.0),
    }


def test_a_large_similarity_is_read_in_blocks(monkeypatch):
    rng = np.random.default_rng(0)
    points = rng.normal(size=(2100, 2))
    similarity = (points @ points.T).astype(np.float32)
    graph = SignedGraph.from_similarity(similarity, 1.0)
    u, v = np.nonzero(np.triu(similarity >= 1.0, 1))
    np.testing.assert_array_equal(graph.ends, np.stack([u, v], axis=1))


def test_vertices_are_numbered_by_name_and_not_by_row():
    edges = [("b", "a"), ("d", "c")]
    assert (
        SignedGraph.from_edges(edges).ids == SignedGraph.from_edges(edges[::-1]).ids == ("a", "b", "c", "d")
    )
    assert SignedGraph.from_edges([(10, 9)], ids=[10, 9, 2]).ids == (2, 9, 10)
    mixed = SignedGraph.from_edges([(("x", 1), "y")])
    assert set(mixed.ids) == {("x", 1), "y"}
    similarity = np.array([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])
    graph = SignedGraph.from_similarity(similarity, 0.5, ids=["z", "m", "a"])
    assert pairs_of(graph) == {("m", "z"): (1, 1.0)}


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_edges_taken_out_are_no_edges(missing, random_graph):
    graph = random_graph(2, 9, missing=missing)
    u, v = np.triu_indices(9, 1)
    keys = graph.pair_key(u, v)
    left = graph.without(keys[::3])
    expected = graph.signs_of(u, v).copy()
    expected[::3] = 0
    np.testing.assert_array_equal(left.signs_of(u, v), expected)
    kept = np.arange(len(keys)) % 3 != 0
    np.testing.assert_array_equal(left.weights_of(keys[kept]), graph.weights_of(keys[kept]))


def test_components_follow_positive_edges():
    graph = SignedGraph.from_edges([(0, 1), (3, 4)], [(1, 3)], 6)
    assert graph.components[0] == graph.components[1] != graph.components[3]
    assert len(set(graph.components.tolist())) == 4


@settings(deadline=None)
@given(st.integers(0, 2), st.sampled_from(["negative", "free"]))
def test_graphs_without_edges(n, missing):
    graph = SignedGraph.from_edges([], n=n, missing=missing)
    assert (graph.n, len(graph.ends)) == (n, 0)
    assert graph.complete == (missing == "negative" or n < 2)


def test_an_edge_with_both_signs_is_named():
    with pytest.raises(ValueError, match=r"edge 'ann', 'bob' is listed with two signs"):
        SignedGraph.from_edges([("ann", "bob")], [("bob", "ann")])


def test_an_edge_with_two_weights_is_named():
    with pytest.raises(ValueError, match=r"edge 0, 1 is listed with the weights 1 and 2"):
        SignedGraph.from_edges([(0, 1), (1, 0)], positive_weight=[1, 2])
    assert len(SignedGraph.from_edges([(0, 1), (1, 0)]).ends) == 1


def test_self_loops_are_ignored_with_a_warning():
    with pytest.warns(UserWarning, match="1 self-loops ignored, the first at 'a'"):
        graph = SignedGraph.from_edges([("a", "a"), ("a", "b")])
    assert pairs_of(graph) == {("a", "b"): (1, 1.0)}
    with pytest.warns(UserWarning, match="self-loops"):
        SignedGraph.from_scipy(sparse.eye_array(3))


@pytest.mark.parametrize("weight", [-1.0, np.nan])
def test_weights_that_are_no_weights_are_refused(weight):
    with pytest.raises(ValueError, match="edge 0, 1 has weight"):
        SignedGraph.from_edges([(0, 1)], positive_weight=[weight])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SignedGraph.from_scipy(np.array([[0, 1], [2, 0]])), r"not symmetric: entry \(0, 1\) is 1"),
        (lambda: SignedGraph.from_scipy(sparse.csr_array(np.array([[0, 1], [0, 0]]))), "not symmetric"),
        (lambda: SignedGraph.from_scipy(np.ones((2, 3))), "square"),
        (lambda: SignedGraph.from_scipy(sparse.csr_array((2, 3))), "square"),
        (lambda: SignedGraph.from_scipy(sparse.eye_array(2, dtype=complex)), "real numbers"),
        (lambda: SignedGraph.from_scipy(np.array([["a", "b"], ["c", "d"]])), "real numbers"),
        (lambda: SignedGraph.from_scipy(np.array([[0, np.nan], [np.nan, 0]])), r"entry \(0, 1\) is nan"),
        (lambda: SignedGraph.from_similarity(np.array([[0, 1], [0.5, 0]]), 0.5), "not symmetric"),
        (lambda: SignedGraph.from_similarity(np.full((3, 3), np.nan), 0.5), "is nan"),
        (lambda: SignedGraph.from_similarity(np.full((3, 3), np.inf), 0.5), "is inf"),
        (lambda: SignedGraph.from_similarity(np.eye(2), np.nan), "threshold must be finite"),
        (lambda: SignedGraph.from_similarity(sparse.eye_array(2), 0.5, weights="distance"), "every pair"),
        (lambda: SignedGraph.from_similarity(np.eye(2), 0.5, ids=["a"]), "1 ids for 2 rows"),
        (lambda: SignedGraph.from_similarity(np.eye(2), 0.5, ids=["a", "a"]), "'a' names two rows"),
        (lambda: SignedGraph.from_edges([(0, 5)], n=3), r"edge \(0, 5\)"),
        (lambda: SignedGraph.from_edges([(0, -1)]), r"edge \(0, -1\)"),
        (lambda: SignedGraph.from_edges([], n=-1), "n = -1"),
        (lambda: SignedGraph.from_edges(["ab"]), "pairs of vertices, got 'ab'"),
        (lambda: SignedGraph.from_edges([(0, 1)], positive_weight=[1, 1]), "2 weights for 1 edges"),
        (lambda: SignedGraph.from_edges([(0, 1)], missing="none"), "expected 'negative' or 'free'"),
        (lambda: SignedGraph.from_edges([("a", "b")], n=2), "isolated ones in ids"),
        (lambda: SignedGraph.from_networkx(nx.Graph([(0, 1, {"weight": -2.0})])), "has weight -2"),
        (lambda: SignedGraph.from_networkx(nx.Graph([(0, 1, {"sign": "no"})])), "'no' is not a number"),
    ],
)
def test_bad_input_is_refused_with_a_reason(build, message):
    with pytest.raises(ValueError, match=message):
        build()


@pytest.mark.parametrize("graph", [nx.DiGraph([(0, 1)]), nx.MultiGraph([(0, 1)])])
def test_directed_graphs_and_multigraphs_are_refused(graph):
    with pytest.raises(TypeError, match=r"undirected networkx\.Graph"):
        SignedGraph.from_networkx(graph)


def test_graphs_cannot_be_changed():
    graph = SignedGraph.from_edges([(0, 1)])
    with pytest.raises(ValueError, match="read-only"):
        graph.weight[0] = 2.0


def test_a_graph_that_stores_nothing_has_signs_and_weights(no_tables):
    u, v = np.array([0, 1]), np.array([1, 2])
    for missing, sign in (("negative", -1), ("free", 0)):
        graph = SignedGraph.from_edges([], n=3, missing=missing)
        assert graph.signs_of(u, v).tolist() == [sign, sign]
        assert graph.weights_of(graph.pair_key(u, v)).tolist() == [abs(sign)] * 2


def test_infinite_weights_outweigh_all_others():
    graph = SignedGraph.from_edges([(0, 1), (1, 2)], [(2, 3)], positive_weight=[np.inf, 5.5])
    assert graph.hard.tolist() == [True, False]
    assert graph.weight[0] > graph.weight[1] + 6
    assert graph.weight[0] == np.floor(graph.weight[0])
