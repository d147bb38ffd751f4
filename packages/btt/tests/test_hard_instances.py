from itertools import combinations

import networkx as nx
import numpy as np
import pytest
from icml_btt import ExactOptimum, SignedGraphs, collapse, knn
from icml_btt.hard_instances import collapse_graph, packing_optimum, random_triples

pytestmark = pytest.mark.usefixtures("plain")


def exact_cover(triples, n):
    """Whether triples cover every vertex once, by trying all choices for the first open vertex."""

    def extend(covered):
        if len(covered) == n:
            return True
        first = min(set(range(n)) - covered)
        return any(extend(covered | set(t)) for t in triples if first in t and not covered & set(t))

    return extend(frozenset())


@pytest.mark.parametrize("cover", [True, False])
def test_the_family_keeps_its_rules(cover):
    for seed in range(10):
        triples = random_triples(15, cover=cover, seed=seed)
        graph = nx.Graph(collapse_graph(triples, 15).ends.tolist())
        assert graph.number_of_edges() == 3 * len(triples)
        assert sum(nx.triangles(graph).values()) == 3 * len(triples)
        assert max(dict(graph.degree).values()) <= 6
        assert exact_cover(triples, 15) == cover


@pytest.mark.parametrize("cover", [True, False])
def test_all_four_optima_are_the_known_one(cover):
    for seed in range(4):
        instance = collapse(12, cover=cover, seed=seed)
        optima = {
            problem: ExactOptimum(problem).solve(instance.graph) for problem in ("btt", "cc", "cd", "minstc")
        }
        assert {found.status for found in optima.values()} == {"optimal"}
        assert {found.cost for found in optima.values()} == {instance.optimum}
        assert instance.exact_cover == cover
        assert (instance.optimum == len(instance.graph.ends) - 12) == cover


def test_the_packing_program_agrees_with_all_packings():
    for seed in range(6):
        triples = random_triples(9, cover=seed % 2 == 0, seed=seed)
        pieces = [set(t) for t in triples] + [set(p) for t in triples for p in combinations(t, 2)]
        best = {frozenset(): 0}
        for piece in pieces:
            worth = 3 if len(piece) == 3 else 1
            for used, gain in list(best.items()):
                if not used & piece:
                    key = used | piece
                    best[key] = max(best.get(key, 0), gain + worth)
        assert packing_optimum(triples, 9) == 3 * len(triples) - max(best.values())
    assert packing_optimum([], 4) == 0


def test_triples_of_ones_own_are_taken():
    found = SignedGraphs("collapse", vertices=6, triples=[(0, 1, 2), (2, 3, 4)]).sample(1, seed=0)[0]
    assert (found.optimum, found.exact_cover) == (6 - 4, False)
    assert collapse(6, triples=[(0, 1, 2), (3, 4, 5)]).exact_cover


@pytest.mark.parametrize(
    ("triples", "message"),
    [
        ([(0, 1, 1)], "three different vertices"),
        ([(0, 1, 9)], "three different vertices"),
        ([(0, 1, 2), (0, 1, 3)], "share two"),
        ([(0, 1, 2), (2, 3, 4), (0, 4, 5)], "another triangle"),
        ([(0, 1, 2), (0, 3, 4), (0, 5, 6), (0, 7, 8)], "vertex 0 is in 4"),
    ],
)
def test_families_that_break_the_rules_are_refused(triples, message):
    with pytest.raises(ValueError, match=message):
        collapse_graph(triples, 9)


def test_an_exact_cover_needs_a_multiple_of_three():
    with pytest.raises(ValueError, match="multiple of 3"):
        random_triples(10, cover=True, seed=0)


def test_nearest_neighbours_are_positive():
    instance = knn(50, 3, 4, seed=1)
    graph = instance.graph
    degree = np.diff(graph.positive.indptr)
    assert degree.min() >= 4
    assert 50 * 4 / 2 <= len(graph.ends) <= 50 * 4
    u, v = graph.ends.T
    assert np.mean(instance.truth[u] == instance.truth[v]) > np.mean(
        instance.truth[:, None] == instance.truth
    )
    assert knn(1, 1, 1, seed=0).graph.n == 1
    assert len(SignedGraphs("knn", vertices=10).sample(2, seed=0)) == 2
    with pytest.raises(ValueError, match="neighbours=0"):
        knn(5, 1, 0, seed=0)
