"""Chains against the definition, and against the distribution that they must have, by enumeration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_kernels import metropolis_draws, rbm_metropolis, single_flips
from icml_kernels.testing import check_raw_ops, use_route
from icml_kernels.wavefunctions.cases import WALKS, machine, pairs, spins, walk


def states(n):
    """All 2^n rows of spins."""
    return torch.tensor([[1 - 2 * (k >> i & 1) for i in range(n)] for k in range(2**n)], dtype=torch.int8)


def log_psi(parameters, x):
    """By NumPy, with a hyperbolic cosine."""
    w, b, a = (p.double().numpy() for p in parameters)
    x = x.numpy().astype(float)
    return np.log(np.cosh(b + x @ w)).sum(1) + x @ a


@pytest.mark.parametrize("case", WALKS, ids=str)
def test_numba_equals_the_definition(case):
    arguments, options = case.arguments()
    new, value, accepted = rbm_metropolis(*arguments, **options)
    with use_route("reference"):
        expected, of_expected, count = rbm_metropolis(*arguments, **options)
    assert torch.equal(new, expected)
    assert torch.equal(accepted, count)
    torch.testing.assert_close(value, of_expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_low_precision_rounds_the_parameters_and_nothing_else(dtype):
    """The chain in low precision is that in float64 of the rounded machine; no decision here is close."""
    (*parameters, x, moves), options = walk(9, 12, 6, n_steps=200, dtype=dtype)
    new, value, accepted = rbm_metropolis(*parameters, x, moves, **options)
    rounded = [p.to(dtype).double() for p in parameters]
    options["dtype"] = torch.float64
    expected, of_expected, count = rbm_metropolis(*rounded, x, moves, **options)
    assert torch.equal(new, expected)
    assert torch.equal(accepted, count)
    torch.testing.assert_close(value, of_expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_flips_sample_the_square_of_the_amplitude(dtype):
    """20,000 independent chains against all 64 probabilities: χ² with 63 degrees of freedom."""
    n, count = 6, 20_000
    parameters = machine(n, 8, 0.4)
    new, value, _ = rbm_metropolis(
        *parameters, spins(count, n), single_flips(n), n_steps=50 * n, seed=11, dtype=dtype
    )
    everything = states(n)
    probability = np.exp(2 * log_psi(parameters, everything))
    probability /= probability.sum()
    number = ((1 - new.long()) // 2 * 2 ** torch.arange(n)).sum(1)
    seen = np.bincount(number.numpy(), minlength=2**n)
    chi_squared = ((seen - count * probability) ** 2 / (count * probability)).sum()
    assert chi_squared < 63 + 5 * math.sqrt(2 * 63)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-6
    np.testing.assert_allclose(value.numpy(), log_psi(parameters, new), atol=tolerance)


def test_exchanges_keep_the_magnetisation_and_sample_within_it():
    n, count = 6, 20_000
    parameters = machine(n, 7, 0.2)
    start = torch.tensor([[1, 1, 1, -1, -1, -1]], dtype=torch.int8).repeat(count, 1)
    new, _, accepted = rbm_metropolis(*parameters, start, pairs(n), n_steps=1000, seed=3, dtype=torch.float64)
    assert (new.long().sum(1) == 0).all()
    assert int(accepted.min()) > 0
    inside = states(n)[states(n).long().sum(1) == 0]
    probability = np.exp(2 * log_psi(parameters, inside))
    probability /= probability.sum()
    numbers = ((1 - inside.long()) // 2 * 2 ** torch.arange(n)).sum(1).tolist()
    seen = np.bincount(((1 - new.long()) // 2 * 2 ** torch.arange(n)).sum(1).numpy(), minlength=64)[numbers]
    degrees = len(inside) - 1
    assert ((seen - count * probability) ** 2 / (count * probability)).sum() < degrees + 5 * math.sqrt(
        2 * degrees
    )


def test_chains_know_neither_of_each_other_nor_of_where_a_run_was_cut():
    (*parameters, x, moves), options = walk(8, 6, 5, n_steps=96)
    whole, _, _ = rbm_metropolis(*parameters, x, moves, **options)
    options["n_steps"] = 33
    part, _, _ = rbm_metropolis(*parameters, x, moves, **options)
    options |= {"n_steps": 63, "step": 33}
    rest, _, _ = rbm_metropolis(*parameters, part, moves, **options)
    assert torch.equal(rest, whole)
    options |= {"n_steps": 96, "step": 0, "chain": torch.tensor([3])}
    alone, _, _ = rbm_metropolis(*parameters, x[3:4], moves, **options)
    assert torch.equal(alone, whole[3:4])


def test_threads_do_not_change_a_bit():
    (*parameters, x, moves), options = walk(12, 40, 64, n_steps=120, dtype=torch.float32)
    before = torch.get_num_threads()
    results = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(rbm_metropolis(*parameters, x, moves, **options))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_large_angles_are_walked_in_double_precision():
    weight = torch.full((3, 2), 25.0)
    x = spins(4, 3)
    new, value, _ = rbm_metropolis(
        weight, torch.zeros(2), torch.zeros(3), x, single_flips(3), n_steps=20, seed=1
    )
    expected = (new.double().sum(1, keepdim=True) * 25).abs().sum(1) * 2 - 2 * math.log(2)
    torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match="can reach 750"):
        rbm_metropolis(10 * weight, torch.zeros(2), torch.zeros(3), x, single_flips(3), n_steps=1, seed=1)


@pytest.mark.parametrize(("step", "stream"), [(0, 0), (1, 3), (2**40 + 1, 65535)])
def test_draws_equal_the_definition_and_are_uniform(step, stream):
    chain = torch.tensor([0, 5, 2**32 - 1])
    options = {"seed": 2**61 + 5, "step": step, "n_steps": 9, "n_moves": 10, "stream": stream}
    move, log_uniform = metropolis_draws(chain, **options)
    with use_route("reference"):
        expected, of_expected = metropolis_draws(chain, **options)
    assert torch.equal(move, expected)
    torch.testing.assert_close(log_uniform, of_expected, rtol=1e-14, atol=0)
    move, log_uniform = metropolis_draws(torch.arange(200), seed=1, step=0, n_steps=200, n_moves=7)
    seen = torch.bincount(move.flatten(), minlength=7).double()
    assert float(((seen - 40_000 / 7) ** 2 / (40_000 / 7)).sum()) < 6 + 5 * math.sqrt(12)
    # -log u is exponential with mean 1 and variance 1.
    assert float(-log_uniform.mean()) == pytest.approx(1.0, abs=5 / 200)


def test_draws_are_the_published_words():
    """Philox-4x32-10 of counter 0 and key 0, from the authors' known answers."""
    words = [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    move, log_uniform = metropolis_draws(torch.tensor([0]), seed=0, step=0, n_steps=2, n_moves=2**31 - 1)
    assert move[:, 0].tolist() == [words[0] * (2**31 - 1) >> 32, words[2] * (2**31 - 1) >> 32]
    expected = [math.log((words[k] + 0.5) / 2**32) for k in (1, 3)]
    assert log_uniform[:, 0].tolist() == pytest.approx(expected, rel=1e-14)


def test_the_operators_keep_the_rules_of_pytorch():
    (*parameters, x, moves), _ = walk(5, 4, 3)

    def chains(*given):
        return rbm_metropolis(*given, n_steps=4, seed=1, dtype=torch.float64)[1]

    assert check_raw_ops(chains, (*parameters, x, moves), order=0) == {"icml::rbm_metropolis"}
    op = torch.ops.icml.metropolis_draws.default
    assert set(torch.library.opcheck(op, (torch.arange(3), 1, 0, 4, 5, 0)).values()) == {"SUCCESS"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"x": torch.zeros(3, 5, dtype=torch.int8)}, ValueError, r"\+1 or -1"),
        ({"x": torch.ones(3, 5)}, TypeError, "expected int8"),
        ({"x": torch.ones(3, 4, dtype=torch.int8)}, ValueError, "x has shape"),
        ({"moves": torch.tensor([[5, -1]])}, ValueError, "moves must name"),
        ({"moves": torch.tensor([[1, 1]])}, ValueError, "two different spins"),
        ({"moves": torch.zeros(0, 2)}, ValueError, "moves has shape"),
        ({"hidden_bias": torch.zeros(3, dtype=torch.float64)}, ValueError, "have shapes"),
        ({"visible_bias": torch.zeros(5)}, TypeError, "visible_bias has dtype"),
        ({"seed": -1}, ValueError, "seed=-1"),
        ({"step": 2**48}, ValueError, "step="),
        ({"n_steps": -1}, ValueError, "n_steps=-1"),
        ({"dtype": torch.int8}, TypeError, "dtype=torch.int8"),
        ({"chain": torch.arange(2)}, ValueError, "chain is"),
    ],
)
def test_bad_input_is_named(change, error, message):
    (weight, hidden, visible, x, moves), options = walk(5, 4, 3)
    given = {"weight": weight, "hidden_bias": hidden, "visible_bias": visible, "x": x, "moves": moves}
    with pytest.raises(error, match=message):
        rbm_metropolis(**{**given, **options, **change})


def test_draws_out_of_range_are_named():
    with pytest.raises(ValueError, match="n_moves=0"):
        metropolis_draws(torch.arange(2), seed=0, step=0, n_steps=1, n_moves=0)
    with pytest.raises(TypeError, match="expected int64"):
        metropolis_draws(torch.arange(2).int(), seed=0, step=0, n_steps=1, n_moves=1)
    with pytest.raises(ValueError, match="stream=65536"):
        metropolis_draws(torch.arange(2), seed=0, step=0, n_steps=1, n_moves=1, stream=2**16)
