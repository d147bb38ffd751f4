"""Linear systems on trees against SciPy's sparse solver and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import hines_solve
from icml_kernels.neurons.hines_solve import cpu
from icml_kernels.neurons.hines_solve.cases import CASES, arguments, random, tree
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route
from scipy import sparse
from scipy.sparse.linalg import spsolve

SMALL = arguments(5, 2, "random")


def matrix(parent, d, u, l) -> sparse.csc_matrix:
    """A of one column, put together from the definition of its entries."""
    child = np.flatnonzero(parent >= 0)
    above = parent[child]
    rows = np.concatenate([np.arange(len(d)), child, above])
    columns = np.concatenate([np.arange(len(d)), above, child])
    return sparse.csc_matrix((np.concatenate([d, u[child], l[child]]), (rows, columns)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(hines_solve), case.arguments(), dtype=dtype)


@pytest.mark.parametrize("kind", ["cable", "star", "random", "forest"])
@pytest.mark.parametrize("nodes", [1, 2, 37, 400])
def test_solutions_are_those_of_a_sparse_solver(kind, nodes):
    parent, d, u, l, rhs = arguments(nodes, 3, kind if nodes > 1 else "cable")
    x = hines_solve(parent, d, u, l, rhs).numpy()
    for b in range(3):
        a = matrix(parent.numpy(), d[:, b].numpy(), u[:, b].numpy(), l[:, b].numpy())
        expected = spsolve(a, rhs[:, b].numpy())
        np.testing.assert_allclose(x[:, b], expected, rtol=1e-12, atol=1e-13)


def test_a_cable_has_the_inverse_of_green():
    """-x'' = delta on a chain with fixed ends: x is a tent, linear on both sides of the source."""
    n, source = 21, 7
    one = torch.ones(n, 1, dtype=torch.float64)
    rhs = torch.zeros(n, 1, dtype=torch.float64)
    rhs[source] = 1
    x = hines_solve(tree(n, "cable"), 2 * one, -one, -one, rhs)[:, 0]
    place = torch.arange(n, dtype=torch.float64)
    tent = torch.minimum((place + 1) * (n - source), (source + 1) * (n - place)) / (n + 1)
    torch.testing.assert_close(x, tent, rtol=1e-12, atol=1e-12)


def test_threads_and_tiles_do_not_change_bits(monkeypatch):
    given = arguments(30, 700, "random")
    whole = hines_solve(*given)
    monkeypatch.setattr(cpu, "ALONE", 1)
    assert torch.equal(hines_solve(*given), whole)
    part = hines_solve(given[0], *(t[:, 64:128] for t in given[1:]))
    assert torch.equal(part, whole[:, 64:128])


def test_raw_operators_are_well_formed():
    assert check_raw_ops(hines_solve, SMALL) == {"icml::hines_solve"}


def test_derivatives():
    check_derivatives(hines_solve, SMALL)


def test_compiled():
    check_compiled(hines_solve, SMALL, by=4)


def test_bad_arguments_are_named():
    parent, d, u, l, rhs = SMALL
    with pytest.raises(ValueError, match=r"parent\[2\] = 2; a parent stands before its children"):
        hines_solve(torch.tensor([-1, 0, 2, 1, 1], dtype=torch.int32), d, u, l, rhs)
    with pytest.raises(TypeError, match="expected torch.int32"):
        hines_solve(parent.long(), d, u, l, rhs)
    with pytest.raises(ValueError, match=r"u has shape \[4, 2\]; expected \[5, 2\]"):
        hines_solve(parent, d, u[:4], l, rhs)
    with pytest.raises(TypeError, match="l has dtype torch.float32"):
        hines_solve(parent, d, u, l.float(), rhs)
    with pytest.raises(ValueError, match="at least one"):
        hines_solve(parent[:0], d[:0], u[:0], l[:0], rhs[:0])
    assert hines_solve(parent, d, u, l, random(5, 2)).shape == (5, 2)
