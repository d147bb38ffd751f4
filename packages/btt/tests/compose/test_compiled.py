"""The compiled loops change nothing but the time."""

import numpy as np
import pytest
from icml_btt import (
    Coins,
    CorrelationClustering,
    CoverProgram,
    SignedGraph,
    bad_triangles,
    count_bad_triangles,
    gnp,
    kwik_cluster,
    local_moves,
    pivot_rounding,
    planted,
    transversal,
)
from icml_btt.compiled import WORTH, kernels

needs_kernels = pytest.mark.skipif(kernels() is None, reason="needs the extra fast")

GRAPHS = {
    "planted": lambda: planted(60, 5, 0.15, seed=1).graph,
    "random": lambda: gnp(40, 0.3, seed=2).graph,
    "weighted and incomplete": lambda: planted(50, 4, 0.2, seed=3, density=0.6, weighted=True).graph,
    "few judgements": lambda: planted(80, 4, 0.1, seed=4, density=0.15).graph,
    "no opinions": lambda: gnp(30, 0.5, seed=5).graph.without(np.arange(1, 29)),
    "named": lambda: SignedGraph.from_edges([("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"), ("a", "e")]),
    "empty": lambda: SignedGraph.from_edges([], n=0),
    "lonely": lambda: SignedGraph.from_edges([], n=3),
}


@pytest.fixture
def both(monkeypatch):
    """Call with and without the compiled loops."""

    def call(work):
        with monkeypatch.context() as context:
            context.setenv("ICML_BTT_COMPILED", "1")
            fast = work()
        with monkeypatch.context() as context:
            context.setenv("ICML_BTT_COMPILED", "0")
            assert kernels() is None
            return fast, work()

    return call


@needs_kernels
@pytest.mark.parametrize("name", GRAPHS)
def test_triangles_come_in_the_same_order(name, both):
    fast, plain = both(lambda: bad_triangles(GRAPHS[name]()))
    assert fast.dtype == plain.dtype
    assert fast.tolist() == plain.tolist()
    assert len(set(both(lambda: count_bad_triangles(GRAPHS[name]())))) == 1
    fast, plain = both(lambda: bad_triangles(GRAPHS[name](), limit=1))
    assert fast.tolist() == plain.tolist()


@needs_kernels
@pytest.mark.parametrize("name", GRAPHS)
def test_pivot_runs_are_the_same(name, both):
    def work():
        graph = GRAPHS[name]()
        keys = transversal(graph, "disjoint").keys(graph)
        return pivot_rounding(graph, keys, runs=30, seed=-7, first_run=5)

    def flipped():
        graph = GRAPHS[name]()
        keys = transversal(graph, "disjoint").keys(graph)
        sign = graph.signs_of(*graph.pair_ends(keys).T)
        count = min((sign > 0).sum(), (sign < 0).sum())  # as many edges go as come
        keys = np.concatenate([keys[sign > 0][:count], keys[sign < 0][:count]])
        return pivot_rounding(graph, keys, runs=30, seed=2, coins=Coins(0.0, 1.0))

    def without_transversal():
        return kwik_cluster(GRAPHS[name](), runs=30, seed=3)

    for fast, plain in (both(work), both(flipped), both(without_transversal)):
        assert fast.dtype == plain.dtype
        assert np.array_equal(fast, plain)


@needs_kernels
@pytest.mark.parametrize("name", GRAPHS)
def test_local_moves_are_the_same(name, both):
    def work():
        graph = GRAPHS[name]()
        return local_moves(graph, np.random.default_rng(0).integers(max(graph.n, 1), size=graph.n))

    fast, plain = both(work)
    assert fast.tolist() == plain.tolist()


@needs_kernels
@pytest.mark.filterwarnings("ignore:no factor on incomplete graphs")
@pytest.mark.parametrize("name", ["planted", "weighted and incomplete"])
def test_clusters_and_certificates_are_the_same(name, both):
    def work():
        found = CorrelationClustering(runs=8).solve(GRAPHS[name]())
        return found.labels.tolist(), found.cost, found.lower_bound

    fast, plain = both(work)
    assert fast == plain


@needs_kernels
@pytest.mark.parametrize("name", ["planted", "random", "weighted and incomplete"])
def test_approximate_programs_are_the_same(name, both):
    fast, plain = both(lambda: CoverProgram(lp="mwu", eps=0.01).solve(GRAPHS[name]()))
    assert fast.rounds == plain.rounds > 0
    assert np.array_equal(fast.x, plain.x)
    assert np.array_equal(fast.packing.values, plain.packing.values)


@needs_kernels
def test_small_work_stays_with_numpy_unless_asked(monkeypatch):
    monkeypatch.delenv("ICML_BTT_COMPILED", raising=False)
    assert kernels(10) is None
    assert kernels(WORTH) is not None
    monkeypatch.setenv("ICML_BTT_COMPILED", "1")
    assert kernels(10) is not None
