import numpy as np
import pytest
from icml_btt import gnp, planted, transversal
from icml_btt.instances import thirds
from icml_btt.krivelevich import krivelevich, outside_cut
from icml_btt.triangles import TriangleSystem

pytestmark = pytest.mark.usefixtures("plain")


@pytest.mark.parametrize("prune", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_it_hits_every_triangle_for_at_most_twice_the_program(weighted, prune, random_graph, oracle):
    for seed in range(10):
        graph = random_graph(seed, 9, weighted=weighted, free=0.3)
        found = transversal(graph, "krivelevich", prune=prune)
        found.verify(graph)
        assert oracle.missed(graph, found.edges) == []
        assert found.cost <= 2 * found.lp_value + 1e-6


def test_on_thirds_it_solves_a_second_program():
    graph = thirds().graph
    chosen, cover, programs = krivelevich(graph, TriangleSystem.of(graph))
    assert programs >= 2
    assert chosen.sum() <= 2 * cover.value
    assert transversal(graph, "krivelevich", prune=False).method == "krivelevich"


def test_one_edge_at_a_time_takes_as_many_programs_as_edges():
    graph = gnp(9, 0.5, seed=1).graph
    system = TriangleSystem.of(graph)
    chosen, cover, programs = krivelevich(graph, system, batch=False)
    assert chosen[system.rows].any(axis=1).all()
    assert chosen.sum() <= 2 * cover.value + 1e-6
    assert programs == chosen.sum() > 3


def test_a_cut_leaves_at_most_half_and_one_edge_of_each_triangle():
    for seed in range(5):
        system = TriangleSystem.of(graph := gnp(20, 0.5, seed=seed, weighted=True).graph)
        outside = outside_cut(graph, system)
        assert system.weight @ outside <= system.weight.sum() / 2
        assert outside[system.rows].any(axis=1).all()


def test_out_of_time_the_threshold_rule_rounds_what_is_left(oracle):
    graph = planted(40, 4, 0.3, seed=0).graph
    found = transversal(graph, "krivelevich", time_limit=1e-9)
    found.verify(graph)
    assert found.lp_value is None
    assert np.isfinite(found.ratio)
