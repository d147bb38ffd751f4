"""Distances and directions against SciPy, the analytic derivative and finite differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import half_list, pair_geometry
from icml_kernels.molecules.cases import random
from icml_kernels.molecules.pair_geometry.cases import CASES, arguments
from icml_kernels.testing import (
    cast,
    check_compiled,
    check_derivatives,
    check_raw_ops,
    check_route,
    derivatives,
)
from scipy.spatial.distance import pdist

SMALL = arguments((3, 2), shifted=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(pair_geometry), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(pair_geometry, SMALL) == {"icml::pair_geometry", "icml::pair_geometry_backward"}


def test_derivatives():
    check_derivatives(pair_geometry, SMALL)


def test_compiled():
    check_compiled(pair_geometry, SMALL)


def test_all_pairs_equal_scipy():
    positions = random(20, 3)
    i, j = torch.triu_indices(20, 20, 1)
    r, u = pair_geometry(positions, half_list(i, j, 20))
    np.testing.assert_allclose(r.numpy(), pdist(positions.numpy()), rtol=1e-14)
    torch.testing.assert_close(u * r[:, None], positions[j] - positions[i])


def test_a_shift_moves_the_second_atom():
    positions = torch.tensor([[0.5, 0, 0], [9.5, 0, 0]], dtype=torch.float64)
    shift = torch.tensor([[-10.0, 0, 0]], dtype=torch.float64)
    r, u = pair_geometry(positions, half_list(torch.tensor([0]), torch.tensor([1]), 2), shift)
    assert r.tolist() == [1.0]
    assert u.tolist() == [[-1.0, 0.0, 0.0]]


def test_gradient_of_the_distance_is_the_direction():
    positions, pairs = arguments((4,))
    positions = positions.requires_grad_()
    r, u = pair_geometry(positions, pairs)
    (gradient,) = torch.autograd.grad(r[0], positions)
    i, j = (int(t[0]) for t in pairs.ij())
    expected = torch.zeros_like(positions)
    expected[i], expected[j] = -u[0], u[0]
    torch.testing.assert_close(gradient, expected.detach())


def test_atoms_at_one_place_have_no_direction_and_no_gradient():
    positions = torch.zeros(2, 3, dtype=torch.float64)
    pairs = half_list(torch.tensor([0]), torch.tensor([1]), 2)
    assert all(bool((t == 0).all()) for t in derivatives(lambda x: pair_geometry(x, pairs), (positions,)))


def test_nan_is_seen():
    positions, pairs = arguments((4,))
    positions[0, 1] = float("nan")
    r, u = pair_geometry(positions, pairs)
    touched = pairs.ij()[0] == 0
    assert r[touched].isnan().all()
    assert u[touched].isnan().all()
    assert r[~touched].isfinite().all()


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    positions, pairs = cast(arguments((23, 9, 14)), torch.float32)
    results = []
    for shares in (1, 2, 5):
        monkeypatch.setattr("icml_kernels.molecules.pair_geometry.cpu.threads", lambda shares=shares: shares)
        results.append(derivatives(lambda x: pair_geometry(x, pairs), (positions,), order=1))
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bad_arguments_are_named():
    positions, pairs = arguments((4,))
    with pytest.raises(ValueError, match=r"positions has shape \[3, 3\]; expected \[4, 3\]"):
        pair_geometry(positions[:3], pairs)
    with pytest.raises(ValueError, match=r"shift has shape \[1, 3\]"):
        pair_geometry(positions, pairs, positions.new_zeros(1, 3))
    with pytest.raises(TypeError, match=r"positions has dtype torch.float16"):
        pair_geometry(positions.half(), pairs)
