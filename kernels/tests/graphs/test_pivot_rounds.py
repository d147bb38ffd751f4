"""Pivot runs against the definition, and against what every run must be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import pivot_rounds
from icml_kernels.testing import check_raw_ops, use_route
from scipy import sparse


def arguments(n: int, density: float, runs: int, seed: int, coins: bool = True) -> tuple:
    """A random graph with probabilities, keys and salts."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.random((n, n)) < density, 1)
    chance = rng.choice([0.25, 0.75, 1.0], (n, n)) if coins else np.ones((n, n))
    matrix = sparse.csr_array(np.where(upper, chance, 0.0))
    matrix = sparse.csr_array(matrix + matrix.T)
    matrix.sort_indices()
    bits = [torch.from_numpy(rng.integers(-(2**63), 2**63, k)) for k in (n, runs, runs)]
    return (
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data),
        *bits,
    )


@pytest.mark.parametrize(("n", "density"), [(30, 0.2), (12, 0.8), (40, 0.0), (1, 0.0), (0, 0.0)])
@pytest.mark.parametrize("coins", [True, False])
def test_runs_are_those_of_the_definition(n, density, coins):
    given = arguments(n, density, 20, n, coins)
    found = pivot_rounds(*given)
    with use_route("reference"):
        assert torch.equal(found, pivot_rounds(*given))
    assert found.shape == (20, n)


def test_without_coins_pivots_are_independent_and_take_every_neighbour():
    ptr, indices, chance, *bits = arguments(50, 0.1, 10, 1, coins=False)
    adjacent = sparse.csr_array((chance.numpy(), indices.numpy(), ptr.numpy())).toarray() > 0
    for run in pivot_rounds(ptr, indices, chance, *bits).numpy():
        pivots = np.unique(run)
        assert (run[pivots] == pivots).all()
        assert not adjacent[np.ix_(pivots, pivots)].any()
        others = np.setdiff1d(np.arange(50), pivots)
        assert adjacent[others, run[others]].all()


def test_every_vertex_comes_first_and_every_coin_falls_as_often_as_it_should():
    """A single edge of probability 1/4, in 20,000 runs: five standard errors."""
    ptr, indices = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    bits = arguments(2, 0.0, 20_000, 3)[3:]
    found = pivot_rounds(ptr, indices, torch.full((2,), 0.25, dtype=torch.float64), *bits)
    joined = found[:, 0] == found[:, 1]
    assert abs(float(joined.double().mean()) - 0.25) < 5 * (0.25 * 0.75 / 20_000) ** 0.5
    assert abs(float((found[joined, 0] == 0).double().mean()) - 0.5) < 5 * (0.25 / 5_000) ** 0.5


def test_threads_change_nothing(monkeypatch):
    given = arguments(30, 0.3, 7, 4)
    results = []
    for count in (1, 2, 5):
        monkeypatch.setattr("icml_kernels.graphs.pivot_rounds.cpu.threads", lambda count=count: count)
        results.append(pivot_rounds(*given))
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_raw_operator_is_well_formed():
    assert check_raw_ops(pivot_rounds, arguments(8, 0.4, 3, 5), order=0) == {"icml::pivot_rounds"}


def test_bad_arguments_are_named():
    ptr, indices, chance, keys, order, coin = arguments(8, 0.4, 3, 6)
    with pytest.raises(TypeError, match="vertex_keys has dtype"):
        pivot_rounds(ptr, indices, chance, keys.double(), order, coin)
    with pytest.raises(ValueError, match="probability and vertex_keys have shapes"):
        pivot_rounds(ptr, indices, chance[1:], keys, order, coin)
    with pytest.raises(ValueError, match="expected \\[runs\\] twice"):
        pivot_rounds(ptr, indices, chance, keys, order, coin[1:])
