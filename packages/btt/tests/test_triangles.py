import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_btt import SignedGraph, bad_triangles, count_bad_triangles, gnp
from icml_btt.enumeration import unhit_triangles
from icml_btt.triangles import TriangleSystem, bad_triangle_blocks


@pytest.mark.parametrize("missing", ["negative", "free"])
@pytest.mark.parametrize("positive", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_the_list_is_that_of_all_triples(seed, positive, missing, random_graph, oracle):
    graph = random_graph(seed, 10, positive=positive, missing=missing)
    expected = oracle.bad_triangles(graph)
    found = bad_triangles(graph)
    assert sorted(tuple(sorted(row)) for row in found.tolist()) == expected
    assert count_bad_triangles(graph) == len(expected) == unhit_triangles(graph, graph.ends[:0])


def test_the_centre_comes_first(random_graph):
    graph = random_graph(1, 12)
    centre, a, b = bad_triangles(graph).T
    assert (graph.signs_of(centre, a) == 1).all()
    assert (graph.signs_of(centre, b) == 1).all()
    assert (graph.signs_of(a, b) == -1).all()
    assert (a < b).all()


def test_three_negative_edges_are_no_contradiction():
    assert count_bad_triangles(SignedGraph.from_edges([], n=3)) == 0


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_large_graphs_without_a_table_have_the_same_triangles(missing, random_graph, no_tables, oracle):
    graph = random_graph(7, 11, missing=missing)
    assert count_bad_triangles(graph) == len(bad_triangles(graph)) == len(oracle.bad_triangles(graph))


@given(st.integers(1, 50))
@settings(max_examples=20, deadline=None)
def test_blocks_and_limits_cut_the_same_list(size):
    graph = gnp(14, 0.5, seed=3).graph
    whole = bad_triangles(graph).tolist()
    assert [row for block in bad_triangle_blocks(graph, size) for row in block.tolist()] == whole
    assert bad_triangles(graph, limit=size).tolist() == whole[:size]


def test_a_path_counts_its_open_wedges():
    path = SignedGraph.from_edges([(i, i + 1) for i in range(99)])
    assert count_bad_triangles(path) == 98


def test_the_system_knows_each_edge_once(random_graph, oracle):
    graph = random_graph(4, 9, weighted=True)
    system = TriangleSystem.of(graph)
    pairs = oracle.signed_pairs(graph)
    ends = [tuple(end) for end in graph.pair_ends(system.keys).tolist()]
    assert len(set(ends)) == len(ends)
    assert [pairs[end] for end in ends] == list(
        zip(system.sign.tolist(), system.weight.tolist(), strict=True)
    )
    assert system.incidence.sum() == 3 * len(system.rows)
