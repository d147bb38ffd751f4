"""Swendsen-Wang sweeps against enumerated Ising and Potts models; all routes draw the same states."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from icml_kernels import swendsen_wang
from icml_kernels.lattices.swendsen_wang.cases import CASES, arguments
from icml_kernels.testing import check_raw_ops, use_route
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_gives_the_states_of_the_definition(case):
    run = case.bind(swendsen_wang)
    with use_route("reference"):
        expected = run(*case.arguments())
    found = run(*case.arguments())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_raw_operators_are_well_formed():
    assert check_raw_ops(swendsen_wang, CASES[0].arguments()) == {"icml::swendsen_wang"}


def exact(q: int, rows: int, cols: int, bond: float, field: float = 0.0):
    """Means of agreeing bonds, of (largest fraction)-like second moments, and of sites in state 1."""
    states = torch.tensor(list(itertools.product(range(q), repeat=rows * cols))).view(-1, rows, cols)
    agree = sum((states == states.roll(-1, axis)).flatten(1).sum(1) for axis in (1, 2)).double()
    ones = (states == 1).flatten(1).sum(1).double()
    weight = torch.softmax(bond * agree + field * ones, 0)
    spins = 2 * ones - rows * cols
    return [float((weight * f).sum()) for f in (agree, ones, spins**2)]


def standard_error(values: torch.Tensor) -> float:
    return float(values.double().std() / math.sqrt(len(values)))


def observed(spins: torch.Tensor) -> list[torch.Tensor]:
    agree = sum((spins == spins.roll(-1, axis)).flatten(1).sum(1) for axis in (1, 2)).double()
    ones = (spins == 1).flatten(1).sum(1).double()
    return [agree, ones, (2 * ones - spins[0].numel()) ** 2]


@pytest.mark.parametrize(
    ("q", "side", "bond", "field"),
    [(2, 4, 0.8, 0.0), (2, 3, 1.3, 0.0), (3, 3, 0.9, 0.0), (2, 3, 0.6, 0.4), (2, 2, 0.5, 0.0)],
)
def test_means_are_those_of_enumeration(q, side, bond, field):
    """``bond`` is 2 beta J of Ising spins and beta J of Potts; ``field`` counts sites in state 1."""
    chains = 40_000
    g = torch.Generator().manual_seed(q + side)
    start = torch.randint(0, q, (chains, side, side), generator=g).to(torch.int8)
    p, ghost = 1 - math.exp(-bond), 1 - math.exp(-field)
    found = swendsen_wang(start, p, q, 25, seed=side, ghost=ghost, ghost_state=1)
    for value, wanted in zip(observed(found.spins), exact(q, side, side, bond, field), strict=True):
        assert abs(float(value.mean()) - wanted) < 4 * standard_error(value) + 1e-9


def test_squared_cluster_sizes_estimate_the_squared_magnetisation():
    """Fortuin and Kasteleyn: with two states and no field E[sum of sizes²] = E[(sum of spins)²]."""
    start = torch.randint(0, 2, (4000, 4, 4), generator=torch.Generator().manual_seed(0)).to(torch.int8)
    warm = swendsen_wang(start, 1 - math.exp(-0.8), 2, 20, seed=1).spins
    sweeps = 10
    found = swendsen_wang(warm, 1 - math.exp(-0.8), 2, sweeps, seed=2)
    squares = found.squared_sizes / sweeps
    assert abs(float(squares.mean()) - exact(2, 4, 4, 0.8)[2]) < 4 * standard_error(squares)


def test_cluster_counts_start_anew_in_every_sweep():
    spins = torch.zeros(2, 5, 6, dtype=torch.int8)
    assert swendsen_wang(spins, 1.0, 3, 7, seed=0).clusters.tolist() == [7, 7]
    free = swendsen_wang(spins, 0.0, 3, 7, seed=0)
    assert free.clusters.tolist() == [210, 210]
    assert free.squared_sizes.tolist() == [210, 210]


def test_clusters_are_the_components_of_the_bonds():
    """With all bonds closed between equal neighbours, against SciPy's components."""
    spins, _, _, _, _ = arguments(1, 9, 8, 2, 1.0, 1)
    index = torch.arange(72).view(9, 8)
    pairs = []
    for axis in (0, 1):
        equal = spins[0] == spins[0].roll(-1, axis)
        pairs += zip(index[equal].tolist(), index.roll(-1, axis)[equal].tolist(), strict=True)
    i, j = zip(*pairs, strict=True)
    count, _ = connected_components(coo_array(([1] * len(i), (i, j)), shape=(72, 72)), directed=False)
    assert int(swendsen_wang(spins, 1.0, 2, 1, seed=3).clusters) == count


def test_seeds_and_threads(monkeypatch):
    given = arguments(7, 6, 6, 2, 0.5, 3)
    results = []
    for shares in (1, 2, 5):
        monkeypatch.setattr("icml_kernels.lattices.swendsen_wang.cpu.threads", lambda shares=shares: shares)
        results.append(swendsen_wang(*given).spins)
    assert all(torch.equal(results[0], r) for r in results[1:])
    assert not torch.equal(results[0], swendsen_wang(*given[:4], 99).spins)


def test_inputs_stay_as_they_were():
    given = arguments(3, 4, 4, 2, 0.3, 5)
    before = given[0].clone()
    swendsen_wang(*given)
    assert torch.equal(given[0], before)


def test_bad_arguments_are_named():
    spins = torch.zeros(1, 3, 3, dtype=torch.int8)
    with pytest.raises(TypeError, match="expected torch.int8"):
        swendsen_wang(spins.long(), 0.5, 2, 1, 0)
    with pytest.raises(ValueError, match="p=1.5 is no probability"):
        swendsen_wang(spins, 1.5, 2, 1, 0)
    with pytest.raises(ValueError, match="spins has states 0 to 2; expected 0 to 1"):
        swendsen_wang(spins + 2 * torch.eye(3, dtype=torch.int8), 0.5, 2, 1, 0)
    with pytest.raises(ValueError, match="sides of 2 or more"):
        swendsen_wang(spins[:, :1], 0.5, 2, 1, 0)
    with pytest.raises(ValueError, match="q=1 must lie in"):
        swendsen_wang(spins, 0.5, 1, 1, 0)
    with pytest.raises(ValueError, match="ghost_state=2"):
        swendsen_wang(spins, 0.5, 2, 1, 0, ghost_state=2)
    with pytest.raises(ValueError, match="n_sweeps=-1"):
        swendsen_wang(spins, 0.5, 2, -1, 0)
