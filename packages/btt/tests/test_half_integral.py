from itertools import product

import numpy as np
import pytest
from icml_btt.half_integral import half_integral_cover, vertex_cover_lp

WEIGHTS = {
    "ones": lambda rng, n: np.ones(n),
    "integers": lambda rng, n: rng.integers(0, 5, n).astype(float),
    "quarters": lambda rng, n: rng.integers(1, 9, n) / 4,
    "reals": lambda rng, n: rng.random(n) * 3 + 0.01,
}


def cheapest_in_halves(n, edges, weights):
    """Every assignment of 0, 1/2 and 1; one of them is an optimum of the program."""
    x = np.array(list(product([0.0, 0.5, 1.0], repeat=n)))
    covers = (x[:, edges[:, 0]] + x[:, edges[:, 1]] >= 1).all(axis=1)
    return (x[covers] @ weights).min()


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("seed", range(8))
def test_value_is_that_of_the_best_half_integral_cover(kind, seed):
    rng = np.random.default_rng(seed)
    n = 8
    edges = rng.integers(0, n, (rng.integers(1, 18), 2))  # loops and repeated edges too
    weights = WEIGHTS[kind](rng, n)
    cover = half_integral_cover(n, edges, weights)
    assert set(cover.x.tolist()) <= {0.0, 0.5, 1.0}
    assert (cover.x[edges].sum(axis=1) >= 1).all()
    assert cover.value == pytest.approx(cheapest_in_halves(n, edges, weights), abs=1e-9)
    load = np.bincount(edges.ravel(), weights=np.repeat(cover.y, 2), minlength=n)
    assert (load <= weights * (1 + 1e-9) + 1e-12).all()
    assert cover.y.sum() == pytest.approx(cover.value, abs=1e-7)


def test_large_path_costs_half_its_vertices():
    n = 20_001
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    x, value = vertex_cover_lp(n, edges, np.ones(n))
    assert value == n // 2
    assert (x[edges].sum(axis=1) >= 1).all()


def test_no_edges_cost_nothing():
    x, value = vertex_cover_lp(3, np.zeros((0, 2), dtype=np.int64), np.ones(3))
    assert (x.tolist(), value) == ([0.0, 0.0, 0.0], 0.0)


def test_what_is_wrong_is_named():
    edge = np.array([[0, 1]])
    with pytest.raises(ValueError, match="vertex outside 0, …, 0"):
        vertex_cover_lp(1, edge, np.ones(1))
    with pytest.raises(ValueError, match="negative, NaN or infinite"):
        vertex_cover_lp(2, edge, np.array([1.0, np.nan]))
    with pytest.raises(ValueError, match="one weight for each of 2"):
        vertex_cover_lp(2, edge, np.ones(3))
