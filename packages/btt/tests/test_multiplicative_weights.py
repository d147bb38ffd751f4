"""Covers and packings by multiplicative weights: feasible by a scan of all triples, and near the optimum."""

from itertools import combinations

import numpy as np
import pytest
from icml_btt import CoverProgram, SignedGraph, count_bad_triangles, gnp, planted, transversal
from icml_btt.compiled import kernels
from icml_btt.instances import thirds
from icml_btt.linear_program import solve_cover
from icml_btt.multiplicative_weights import approximate_cover
from icml_btt.rounding import threshold_rule
from icml_btt.triangles import TriangleSystem

GRAPHS = {
    "planted": lambda seed: planted(40, 4, 0.15, seed=seed).graph,
    "random": lambda seed: gnp(30, 0.4, seed=seed).graph,
    "sparse": lambda seed: gnp(60, 0.06, seed=seed).graph,
    "weighted": lambda seed: planted(30, 3, 0.2, seed=seed, weighted=True).graph,
    "incomplete": lambda seed: planted(40, 4, 0.2, seed=seed, density=0.5, weighted=True).graph,
}


@pytest.mark.parametrize("eps", [0.1, 0.02])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", GRAPHS)
def test_cover_and_packing_are_feasible_and_prove_each_other(name, seed, eps, oracle):
    graph = GRAPHS[name](seed)
    found = CoverProgram(lp="mwu", eps=eps).solve(graph)
    pairs = oracle.signed_pairs(graph)
    x = dict(zip(map(tuple, found.edges.tolist()), found.x.tolist(), strict=True))
    for triple in oracle.bad_triangles(graph):
        assert sum(x[pair] for pair in combinations(triple, 2)) >= 1 - 1e-12
    load = dict.fromkeys(pairs, 0.0)
    for triangle, y in zip(found.packing.triangles.tolist(), found.packing.values.tolist(), strict=True):
        for pair in combinations(sorted(triangle), 2):
            load[pair] += y
    assert all(load[pair] <= pairs[pair][1] * (1 + 1e-12) for pair in pairs)
    best = CoverProgram(lp="highs").solve(graph).value
    assert found.bound <= best * (1 + 1e-6)
    assert best * (1 - 1e-6) <= found.value <= (1 + eps) * found.bound
    assert found.status == "approximate"
    found.verify(graph)


def test_the_threshold_rule_doubles_it_at_most():
    for graph in (thirds().graph, *(GRAPHS[name](5) for name in GRAPHS)):
        system = TriangleSystem.of(graph)
        cover = approximate_cover(graph, system, eps=0.1)
        assert system.weight @ threshold_rule(system, cover.x) <= 2 * cover.value * (1 + 1e-12)


def test_halving_the_step_reaches_what_the_first_one_does_not():
    """Rational optima in thirds are no sums of halves, so that the covers come from the lengths."""
    graph = thirds().graph
    stages = []
    found = CoverProgram(lp="mwu", eps=0.01).solve(graph, report=lambda stage, **f: stages.append(f))
    assert found.value == pytest.approx(26 / 3, rel=0.01)
    assert found.rounds == stages[-1]["phases"] > 90
    bounds = [stage["bound"] for stage in stages]
    assert bounds == sorted(bounds)


def test_a_clustering_is_a_first_cover():
    instance = planted(60, 3, 0.02, seed=0)
    system = TriangleSystem.of(instance.graph)
    found = approximate_cover(instance.graph, system, labels=instance.truth)
    best = solve_cover(instance.graph, system).value
    assert best * (1 - 1e-6) <= found.value <= best * 1.05


def test_time_limit_returns_what_there_is():
    graph = planted(60, 5, 0.2, seed=1).graph
    found = approximate_cover(graph, TriangleSystem.of(graph), eps=0.001, time_limit=0.0)
    assert found.status == "time limit"
    assert found.rounds == 4
    found.verify(graph)


@pytest.mark.parametrize("missing", ["negative", "free"])
def test_no_triangles_cost_nothing(missing):
    found = CoverProgram(lp="mwu").solve(SignedGraph.from_edges([(0, 1)], n=3, missing=missing))
    assert (found.value, found.bound, len(found.x)) == (0.0, 0.0, 0)


def test_above_the_triangle_limit_compiled_code_takes_over(monkeypatch):
    graph = planted(30, 3, 0.2, seed=2).graph
    count = count_bad_triangles(graph)
    few, most = count // 10 - 1, count // 2
    with pytest.raises(MemoryError, match=rf"triangle_limit={most}; raise it, take lp='mwu'"):
        CoverProgram(lp="highs", triangle_limit=most).solve(graph)
    if kernels() is not None:
        assert CoverProgram(triangle_limit=most).solve(graph).status == "approximate"
        found = transversal(graph, triangle_limit=most)
        assert (found.method, found.lp_value) == ("threshold", None)
        found.verify(graph)
    with pytest.raises(MemoryError, match=f"triangle_limit={few}"):
        CoverProgram(triangle_limit=few).solve(graph)
    monkeypatch.setenv("ICML_BTT_COMPILED", "0")
    with pytest.raises(MemoryError, match=f"triangle_limit={most}"):
        CoverProgram(triangle_limit=most).solve(graph)
    for limit in (few, most):
        assert CoverProgram(lp="mwu", triangle_limit=limit).solve(graph).status == "approximate"


@pytest.mark.parametrize("method", ["threshold", "exact_lp"])
def test_transversals_from_approximate_covers_are_certified(method):
    graph = GRAPHS["incomplete"](4)
    found = transversal(graph, method, lp="mwu", prune=False)
    found.verify(graph)
    assert found.method == "threshold"
    best = CoverProgram(lp="highs").solve(graph).value
    assert found.cost <= 2 * 1.05 * best
    assert found.lower_bound >= best / 1.05


def test_options_are_checked():
    with pytest.raises(ValueError, match="lp='simplex'; expected one of auto, highs, mwu"):
        CoverProgram(lp="simplex")
    for eps in (0.0, 1e-6, 1.0, float("nan")):
        with pytest.raises(ValueError, match=f"eps={eps!r}; expected at least 0.001"):
            CoverProgram(lp="mwu", eps=eps)
        graph = gnp(6, 0.5, seed=0).graph
        with pytest.raises(ValueError, match=f"eps={eps!r}"):
            approximate_cover(graph, TriangleSystem.of(graph), eps=eps)


def test_edges_are_numbered_alike_by_table_and_by_sorting(monkeypatch):
    for graph in (gnp(20, 0.4, seed=1).graph, planted(20, 3, 0.3, seed=2, density=0.6).graph):
        systems = []
        for dense in (0, 10**6):
            monkeypatch.setattr("icml_btt.triangles._DENSE", dense)
            systems.append(TriangleSystem.of(graph))
        for name in ("keys", "sign", "weight", "rows"):
            first, second = (getattr(system, name) for system in systems)
            assert first.dtype == second.dtype
            assert np.array_equal(first, second)
