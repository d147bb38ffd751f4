"""Wedges against loops over all triples, and each route against the definition."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import torch
from icml_kernels import bad_triangle_scan, wedge_count, wedge_enumerate
from icml_kernels.testing import check_raw_ops, use_route
from scipy import sparse


def graph(n: int, density: float, seed: int, dtype: torch.dtype = torch.int64) -> tuple:
    """A random graph in compressed rows."""
    upper = np.triu(np.random.default_rng(seed).random((n, n)) < density, 1)
    rows = sparse.csr_array(upper | upper.T)
    rows.sort_indices()
    return torch.from_numpy(rows.indptr).to(dtype), torch.from_numpy(rows.indices).to(dtype)


def star(leaves: int) -> tuple:
    """One centre and many leaves, of which the first two are joined."""
    rows = np.zeros((leaves + 1, leaves + 1), dtype=bool)
    rows[0, 1:] = rows[1:, 0] = rows[1, 2] = rows[2, 1] = True
    matrix = sparse.csr_array(rows)
    return torch.from_numpy(matrix.indptr), torch.from_numpy(matrix.indices)


def pairs(rows: tuple) -> set:
    ptr, indices = (t.tolist() for t in rows)
    return {(u, v) for u in range(len(ptr) - 1) for v in indices[ptr[u] : ptr[u + 1]]}


def brute_force(rows: tuple, closing: tuple, closed: bool) -> list:
    edges, shut, n = pairs(rows), pairs(closing), len(rows[0]) - 1
    return [
        [c, a, b]
        for c in range(n)
        for a, b in combinations(range(n), 2)
        if (c, a) in edges and (c, b) in edges and ((a, b) in shut) == closed
    ]


CASES = {
    "sparse": (graph(25, 0.15, 0), None),
    "dense": (graph(18, 0.6, 1, torch.int32), None),
    "complete": (graph(9, 2.0, 2), None),
    "star": (star(40), None),
    "another closing graph": (graph(20, 0.3, 3), graph(20, 0.5, 4)),
    "few rows to close": (graph(30, 0.2, 5), graph(30, 0.02, 6)),
    "many to close": (graph(30, 0.1, 7), graph(30, 0.95, 8)),
    "no edges": (graph(4, 0.0, 9), None),
    "no vertices": ((torch.zeros(1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)), None),
}


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_wedges_are_those_of_a_loop_over_triples(case, closed, route):
    rows, closing = CASES[case]
    expected = brute_force(rows, closing or rows, closed)
    with use_route(route):
        found = wedge_enumerate(*rows, closing, closed=closed)
        assert found.dtype == rows[1].dtype
        assert found.tolist() == expected
        assert wedge_count(*rows, closing, closed=closed) == len(expected)
        first = bad_triangle_scan(*rows, closing, closed=closed)
    assert (first is None) == (not expected)
    assert first is None or first.tolist() == expected[0]


@pytest.mark.parametrize("shares", [1, 2, 5])
def test_blocks_and_threads_join_to_the_whole(monkeypatch, shares):
    monkeypatch.setattr("icml_kernels.graphs.wedges.cpu.threads", lambda: shares)
    rows = graph(40, 0.3, 10)
    cuts = [0, 1, 7, 7, 100, len(rows[1])]
    parts = [wedge_enumerate(*rows, block=(a, b)) for a, b in pairwise(cuts)]
    assert torch.cat(parts).tolist() == brute_force(rows, rows, False)
    assert wedge_count(*rows) == len(torch.cat(parts))


def test_raw_operators_are_well_formed():
    rows = graph(10, 0.4, 11)

    def everything(ptr, indices):
        wedge_count(ptr, indices)
        bad_triangle_scan(ptr, indices)
        return wedge_enumerate(ptr, indices)

    assert check_raw_ops(everything, rows, order=0) == {
        "icml::wedges_closed",
        "icml::wedge_enumerate",
        "icml::bad_triangle_scan",
    }


def test_bad_arguments_are_named():
    ptr, indices = graph(5, 0.8, 12)
    with pytest.raises(TypeError, match="expected int32 or int64, the same for both"):
        wedge_count(ptr.int(), indices)
    with pytest.raises(ValueError, match="must rise from 0 to its"):
        wedge_count(ptr[:-1], indices)
    with pytest.raises(ValueError, match="vertex outside 0, …, 4"):
        wedge_count(ptr, indices + 1)
    with pytest.raises(ValueError, match="closing has 6 vertices, the graph 5"):
        wedge_count(ptr, indices, graph(6, 0.5, 13))
    with pytest.raises(ValueError, match="block="):
        wedge_enumerate(ptr, indices, block=(3, 1))
