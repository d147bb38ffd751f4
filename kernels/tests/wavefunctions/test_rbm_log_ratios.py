"""Ratios of amplitudes against the definition, and against hyperbolic cosines by NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import rbm_log_ratios
from icml_kernels.testing import check_raw_ops, use_route
from icml_kernels.wavefunctions.cases import RATIOS, masks


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", RATIOS, ids=str)
def test_numba_equals_the_definition(case, dtype):
    arguments = [a.to(dtype) if a.is_floating_point() else a for a in case.arguments()]
    if dtype == torch.float32 and float(arguments[0].abs().sum(0).max()) > 39:
        pytest.skip("angles beyond float32")
    found = rbm_log_ratios(*arguments)
    with use_route("reference"):
        expected = rbm_log_ratios(*arguments)
    assert found.dtype == dtype
    tolerance = 1e-11 if dtype == torch.float64 else 2e-5
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_ratios_are_those_of_hyperbolic_cosines():
    which = [[0], [2, 3], [1, 4, 5]]
    weight, hidden, visible, x, ptr, sites = masks(6, 5, 4, which)
    w, b, a, s = (t.double().numpy() for t in (weight, hidden, visible, x))

    def log_psi(spins):
        return np.log(np.cosh(b + spins @ w)).sum(1) + spins @ a

    found = rbm_log_ratios(weight, hidden, visible, x, ptr, sites)
    for m, mask in enumerate(which):
        flipped = s.copy()
        flipped[:, mask] *= -1
        np.testing.assert_allclose(found[:, m].numpy(), log_psi(flipped) - log_psi(s), rtol=1e-11, atol=1e-12)


def test_the_operator_keeps_the_rules_of_pytorch():
    arguments = masks(5, 4, 3, [[0], [1, 2]])
    assert check_raw_ops(rbm_log_ratios, arguments, order=0) == {"icml::rbm_log_ratios"}


def test_bad_input_is_named():
    weight, hidden, visible, x, ptr, sites = masks(5, 4, 3, [[0], [1, 2]])
    with pytest.raises(ValueError, match="bounds of the masks"):
        rbm_log_ratios(weight, hidden, visible, x, ptr[:-1], sites)
    with pytest.raises(ValueError, match="outside 0, …, 4"):
        rbm_log_ratios(weight, hidden, visible, x, ptr, sites + 4)
    with pytest.raises(TypeError, match="float32 or float64"):
        rbm_log_ratios(weight.half(), hidden.half(), visible.half(), x, ptr, sites)
    with pytest.raises(ValueError, match="must stay below 340"):
        rbm_log_ratios(weight * 1e4, hidden, visible, x, ptr, sites)
