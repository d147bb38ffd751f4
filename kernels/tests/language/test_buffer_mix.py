"""Mixtures of stored distributions against SciPy, and the identity of entropy and divergence."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_kernels import buffer_mix
from icml_kernels.language.buffer_mix.cases import CASES, arguments
from icml_kernels.language.every_case import averaged
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy as scipy_entropy

SMALL = arguments(4, 5, [[0, 2, 1], [3, -1, 1]])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(averaged), case.arguments(), dtype=dtype)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(averaged, SMALL) == {"icml::buffer_mix", "icml::buffer_mix_backward"}


def test_derivatives():
    check_derivatives(averaged, SMALL, by=(0, 1), forward_mode=False)


def test_compiled():
    check_compiled(averaged, SMALL)


def test_entropy_and_divergence_are_those_of_scipy():
    logp, _, index = arguments(20, 600, [[i, i + 1] for i in range(0, 20, 2)])
    found = buffer_mix(logp, torch.ones(10, 2, dtype=torch.float64), index)
    p = logp.exp().numpy()
    mean = (p[::2] + p[1::2]) / 2
    np.testing.assert_allclose(found.entropy.numpy(), scipy_entropy(mean, axis=1), rtol=1e-11)
    expected = [jensenshannon(a, b) ** 2 for a, b in zip(p[::2], p[1::2], strict=True)]
    np.testing.assert_allclose(found.jsd.numpy(), expected, rtol=1e-9)
    np.testing.assert_allclose(found.maxprob.numpy(), mean.max(1), rtol=1e-12)
    assert found.argmax.tolist() == mean.argmax(1).tolist()


def test_entropy_of_the_mixture_is_mean_entropy_plus_divergence():
    logp, weights, index = arguments(9, 800, [[0, 3, 6], [1, 4, 7], [2, 5, 8]])
    found = buffer_mix(logp, weights, index)
    own = torch.from_numpy(scipy_entropy(logp.exp().numpy(), axis=1))[index]
    mean = (weights * own).sum(1) / weights.sum(1)
    torch.testing.assert_close(found.entropy, mean + found.jsd, rtol=1e-11, atol=0)


def test_equal_members_have_no_divergence_and_one_member_its_own_entropy():
    logp, _, _ = arguments(3, 300, [[0]])
    same = buffer_mix(logp, torch.ones(3, 2).double(), torch.arange(3)[:, None].expand(3, 2))
    alone = buffer_mix(logp, torch.ones(3, 1).double(), torch.arange(3)[:, None])
    torch.testing.assert_close(same.jsd, torch.zeros(3).double(), rtol=0, atol=1e-14)
    for a, b in zip(same, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_contexts_that_contradict_each_other_share_a_bit():
    logp = torch.full((2, 1000), -math.inf)
    logp[0, 3] = logp[1, 700] = 0.0
    found = buffer_mix(logp, torch.ones(1, 2), torch.tensor([[0, 1]]))
    assert found.jsd.item() == pytest.approx(math.log(2), rel=1e-6)
    assert (found.argmax.item(), found.maxprob.item()) == (3, 0.5)


def test_a_group_without_members_and_a_row_with_nan_give_nan():
    logp, weights, _ = arguments(4, 600, [[0, 1], [2, 3], [1, 2]])
    logp[3, 550] = math.nan
    found = buffer_mix(logp, weights, torch.tensor([[0, 1], [2, 3], [-1, -1]]))
    for result in (found.entropy, found.jsd, found.maxprob):
        assert torch.isnan(result).tolist() == [False, True, True]


def test_threads_and_missing_gradients_change_nothing(monkeypatch):
    logp, weights, index = arguments(9, 1300, [[0, 3, 6], [1, -1, 7], [2, 5, 8]])
    expected = buffer_mix(logp, weights, index)
    monkeypatch.setattr("icml_kernels.language.buffer_mix.cpu.shares_of", lambda *_: 2)
    with torch.no_grad():
        found = buffer_mix(logp.clone().requires_grad_(), weights, index)
    for a, e in zip(found, expected, strict=True):
        assert torch.equal(a, e)
        assert not a.requires_grad


def test_bad_arguments_are_named():
    logp, weights, index = SMALL
    with pytest.raises(ValueError, match="index holds 4, but rows_logp has the rows 0 to 3"):
        buffer_mix(logp, weights, torch.full_like(index, 4))
    signs = torch.ones_like(weights)
    signs[0, 0] = -1
    with pytest.raises(ValueError, match="weights must not be negative"):
        buffer_mix(logp, weights.abs() * signs, index)
    with pytest.raises(TypeError, match="weights torch.float32"):
        buffer_mix(logp, weights.float(), index)
    with pytest.raises(TypeError, match="index has dtype torch.float64"):
        buffer_mix(logp, weights, index.double())
    with pytest.raises(ValueError, match="index"):
        buffer_mix(logp, weights, index[:, :1])
