"""Moves of single vertices against the definition, and against the objective itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import local_moves_pass
from icml_kernels.testing import check_raw_ops, use_route
from scipy import sparse


def arguments(n: int, seed: int, base: float = 1.0) -> tuple:
    """Random scores, a random clustering, and an order."""
    rng = np.random.default_rng(seed)
    score = np.triu(np.where(rng.random((n, n)) < 0.5, rng.normal(base, 1.5, (n, n)), 0.0), 1)
    matrix = sparse.csr_array(score + score.T)
    matrix.sort_indices()
    return (
        torch.from_numpy(matrix.indptr),
        torch.from_numpy(matrix.indices),
        torch.from_numpy(matrix.data),
        base,
        torch.full((n,), 1e-12, dtype=torch.float64),
        torch.from_numpy(rng.integers(n, size=n)),
        torch.from_numpy(rng.permutation(n)),
    )


def worth(given: tuple, labels: torch.Tensor) -> float:
    """The objective: what all pairs in one cluster are worth."""
    ptr, indices, score, base = (t.numpy() if isinstance(t, torch.Tensor) else t for t in given[:4])
    dense = sparse.csr_array((score, indices, ptr)).toarray() - base
    same = labels.numpy()[:, None] == labels.numpy()
    return float(np.triu(dense * same, 1).sum())


@pytest.mark.parametrize("base", [0.0, 0.7])
@pytest.mark.parametrize("seed", range(5))
def test_moves_are_those_of_the_definition_and_gain(seed, base):
    given = arguments(25, seed, base)
    labels, count = local_moves_pass(*given)
    with use_route("reference"):
        expected, number = local_moves_pass(*given)
    assert (labels.tolist(), count) == (expected.tolist(), number)
    assert count > 0
    assert worth(given, labels) > worth(given, given[5])


@pytest.mark.parametrize("seed", range(5))
def test_one_move_is_the_best_of_all(seed):
    *head, labels, _ = arguments(12, seed)
    for v in range(12):
        moved, _ = local_moves_pass(*head, labels, torch.tensor([v]))
        tried = []
        for cluster in range(12):
            other = labels.clone()
            other[v] = cluster
            tried.append(worth(head, other))
        assert worth(head, moved) == pytest.approx(max(tried), abs=1e-9)


def test_nobody_moves_from_the_best_place():
    given = arguments(20, 9)
    labels, count = local_moves_pass(*given)
    while count:
        labels, count = local_moves_pass(*given[:5], labels, given[6])
    again, none = local_moves_pass(*given[:5], labels, given[6])
    assert none == 0
    assert torch.equal(again, labels)


def test_raw_operator_is_well_formed():
    def labels(*given):
        return local_moves_pass(*given)[0]

    assert check_raw_ops(labels, arguments(8, 1), order=0) == {"icml::local_moves_pass"}


def test_bad_arguments_are_named():
    *head, labels, order = arguments(8, 2)
    with pytest.raises(ValueError, match="labels must lie in 0, …, 7"):
        local_moves_pass(*head, labels + 8, order)
    with pytest.raises(TypeError, match="order has dtype"):
        local_moves_pass(*head, labels, order.int())
    with pytest.raises(ValueError, match="have shapes"):
        local_moves_pass(*head, labels[1:], order)
