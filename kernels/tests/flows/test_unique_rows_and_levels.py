"""Distinct rows against NumPy, levels of graphs against networkx' longest paths."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_kernels import dag_levels, unique_rows
from icml_kernels.testing import check_raw_ops, use_route


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("shape", [(0, 3), (1, 1), (500, 2), (300, 7), (5, 0)])
def test_distinct_rows_are_those_of_numpy_in_order_of_appearance(shape, dtype, route):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-3, 4, shape, generator=generator).to(dtype)
    with use_route(route):
        first, inverse = unique_rows(rows)
    assert torch.equal(rows[first][inverse], rows)
    expected = np.sort(np.unique(rows.numpy(), axis=0, return_index=True)[1])
    assert first.tolist() == expected.tolist()


def test_rows_that_differ_far_apart_are_told_apart():
    """Many rows that differ in a high bit of one entry alone."""
    rows = torch.zeros(4096, 3, dtype=torch.int64)
    rows[:, 1] = torch.arange(4096) << 40
    first, inverse = unique_rows(rows)
    assert torch.equal(first, torch.arange(4096))
    assert torch.equal(inverse, torch.arange(4096))


def random_graph(n: int, density: float, seed: int, *, cyclic: bool = False) -> tuple:
    rng = np.random.default_rng(seed)
    wanted = rng.random((n, n)) < density
    if not cyclic:
        wanted = np.triu(wanted, 1)
    names = rng.permutation(n)
    edges = sorted((int(names[u]), int(names[v])) for u, v in np.argwhere(wanted))
    ptr = (
        np.searchsorted([u for u, _ in edges], np.arange(n + 1)) if edges else np.zeros(n + 1, dtype=np.int64)
    )
    return torch.from_numpy(np.asarray(ptr, dtype=np.int64)), torch.tensor(
        [v for _, v in edges], dtype=torch.int64
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 14), st.floats(0, 0.6), st.integers(0, 10**6))
def test_levels_are_the_longest_paths(n, density, seed):
    ptr, children = random_graph(n, density, seed)
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for u in range(n):
        graph.add_edges_from((u, v) for v in children[ptr[u] : ptr[u + 1]].tolist())
    expected = [0] * n
    for v in nx.topological_sort(graph):
        expected[v] = max((expected[u] + 1 for u in graph.predecessors(v)), default=0)
    for route in ("auto", "reference"):
        with use_route(route):
            assert dag_levels(ptr, children).tolist() == expected


@pytest.mark.parametrize("seed", range(5))
def test_vertices_on_and_behind_a_cycle_have_no_level(seed):
    ptr, children = random_graph(9, 0.15, seed, cyclic=True)
    graph = nx.DiGraph([(u, v) for u in range(9) for v in children[ptr[u] : ptr[u + 1]].tolist()])
    graph.add_nodes_from(range(9))
    stuck = set()
    for part in nx.strongly_connected_components(graph):
        if len(part) > 1 or any(graph.has_edge(v, v) for v in part):
            stuck |= part | {w for v in part for w in nx.descendants(graph, v)}
    for route in ("auto", "reference"):
        with use_route(route):
            levels = dag_levels(ptr, children)
        assert {v for v in range(9) if levels[v] < 0} == stuck


def test_double_edges_count_as_one_in_the_level():
    assert dag_levels(torch.tensor([0, 2, 2]), torch.tensor([1, 1])).tolist() == [0, 1]


def test_raw_operators_are_well_formed():
    assert check_raw_ops(unique_rows, (torch.tensor([[1, 2], [1, 2]]),), order=0) == {"icml::unique_rows"}
    graph = torch.tensor([0, 1, 1]), torch.tensor([1])
    assert check_raw_ops(dag_levels, graph, order=0) == {"icml::dag_levels"}


def test_bad_arguments_are_named():
    with pytest.raises(TypeError, match=r"rows has dtype torch.float32"):
        unique_rows(torch.zeros(2, 2))
    with pytest.raises(ValueError, match=r"rows has shape \[2\]"):
        unique_rows(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ValueError, match="outside 0, …, 1"):
        dag_levels(torch.tensor([0, 1, 1]), torch.tensor([2]))
    with pytest.raises(ValueError, match="rise from 0 to the number of edges, 1"):
        dag_levels(torch.tensor([0, 1, 2]), torch.tensor([1]))
    with pytest.raises(ValueError, match="ptr falls"):
        dag_levels(torch.tensor([0, 2, 1, 1]), torch.tensor([1]))
    with pytest.raises(TypeError, match=r"children has dtype torch.int32"):
        dag_levels(torch.tensor([0, 0]), torch.zeros(0, dtype=torch.int32))
