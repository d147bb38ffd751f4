"""Smooth elastic distances against the definition, enumeration, and finite differences."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import torch
from icml_kernels import elastic_cross, soft_elastic
from icml_kernels.series.recurrence import BIG, delannoy
from icml_kernels.series.soft_elastic import bytes_per_pair, cpu
from icml_kernels.testing import check_raw_ops, use_route

METRICS = [("dtw", "norm"), ("dtw", "squared"), ("twed", "norm")]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rising(*shape: int, seed: int = 0) -> torch.Tensor:
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (steps + 0.05).cumsum(-1)


def with_gradients(x, y, metric, **options):
    """The value, and the gradient of a fixed combination by everything that has one."""
    leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    for name in ("gamma", "nu", "lam", "x_times", "y_times"):
        if name in options:
            options[name] = torch.as_tensor(options[name], dtype=x.dtype).clone().requires_grad_()
            leaves.append(options[name])
    value = soft_elastic(*leaves[:2], metric, **options)
    weight = torch.arange(1, len(value) + 1, dtype=x.dtype)
    return [value.detach(), *torch.autograd.grad((value * weight).sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize(("metric", "cost"), METRICS)
@pytest.mark.parametrize("window", [None, 3, 0.5])
@pytest.mark.parametrize("one_block", [2**20, 0])
def test_numba_equals_the_definition(metric, cost, window, one_block, monkeypatch):
    monkeypatch.setattr(cpu, "ONE_BLOCK", one_block)
    options = {"gamma": 0.3, "nu": 0.05, "lam": 0.7, "cost": cost, "window": window}
    options |= {"x_lengths": torch.tensor([7, 5, 6, 7, 3]), "y_lengths": torch.tensor([6, 6, 4, 5, 4])}
    for channels, masked in ((1, False), (3, True)):
        x, y = random(5, 7, channels), random(5, 6, channels, seed=1)
        if masked:
            x[0, 2, 0] = y[1, 3, 2] = float("nan")
        for moments in ({}, {"x_times": rising(5, 7), "y_times": rising(5, 6, seed=3)}):
            with use_route("reference"):
                expected = with_gradients(x, y, metric, masked=masked, **options, **moments)
            found = with_gradients(x, y, metric, masked=masked, **options, **moments)
            for a, e in zip(found, expected, strict=True):
                torch.testing.assert_close(a, e, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize(("metric", "cost"), METRICS)
def test_float32_equals_float64(metric, cost):
    x, y = random(40, 30, 2), random(40, 25, 2, seed=1)
    exact = with_gradients(x, y, metric, gamma=0.2, cost=cost)
    found = with_gradients(x.float(), y.float(), metric, gamma=0.2, cost=cost)
    for a, e in zip(found, exact, strict=True):
        assert a.dtype == torch.float32
        assert float((a.double() - e).abs().max()) <= 3e-5 * float(e.abs().max())


@pytest.mark.parametrize(("metric", "cost"), METRICS)
@pytest.mark.parametrize("route", ["auto", "reference"])
def test_gradients_are_finite_differences(metric, cost, route):
    x, y = random(3, 6, 2).requires_grad_(), random(3, 5, 2, seed=1).requires_grad_()
    moments = rising(3, 6).requires_grad_(), rising(3, 5, seed=4).requires_grad_()
    numbers = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, 0.07, 0.6)]

    def value(x, y, ts, ss, gamma, nu, lam):
        options = {"gamma": gamma, "nu": nu, "lam": lam, "x_times": ts, "y_times": ss}
        return soft_elastic(x, y, metric, cost=cost, **options)

    with use_route(route):
        assert torch.autograd.gradcheck(value, (x, y, *moments, *numbers), atol=1e-6)


def test_value_is_minus_gamma_log_of_the_sum_over_all_paths():
    n, m, gamma, nu, lam = 4, 5, 0.7, 0.05, 0.4
    x, y = random(n, 1), random(m, 1, seed=1)
    c = (x - y.T).abs() + nu * (torch.arange(n)[:, None] - torch.arange(m)).abs().double()

    def paths(i, j, kind):
        if kind == "match":
            here = float(c[i, j]) + (float(c[i - 1, j - 1]) if i and j else 0.0)
        else:
            s, k = (x, i) if kind == "x" else (y, j)
            here = float((s[k] - s[k - 1]).abs()) + nu + lam
        if (i, j) == (n - 1, m - 1):
            yield here
            return
        for di, dj, way in ((1, 1, "match"), (1, 0, "x"), (0, 1, "y")):
            if i + di < n and j + dj < m:
                yield from (here + rest for rest in paths(i + di, j + dj, way))

    every = list(paths(0, 0, "match"))
    assert len(every) == delannoy(n - 1, m - 1)
    expected = -gamma * math.log(sum(math.exp(-cost / gamma) for cost in every))
    found = soft_elastic(x[None], y[None], gamma=gamma, nu=nu, lam=lam, smoothing=0.0)
    assert float(found) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_bias_is_bounded_by_the_number_of_paths(metric):
    x, y = random(30, 9, 1), random(30, 7, 1, seed=1)
    hard = torch.diagonal(elastic_cross(x, y, metric))
    for gamma in (1.0, 0.1, 1e-3):
        soft = soft_elastic(x, y, metric, gamma=gamma, smoothing=0.0)
        assert bool((soft <= hard + 1e-12).all())
        assert bool((soft >= hard - gamma * math.log(delannoy(8, 6)) - 1e-12).all())
    torch.testing.assert_close(soft_elastic(x, y, metric, gamma=1e-9, smoothing=0.0), hard, rtol=0, atol=1e-6)


def test_large_values_and_small_temperatures_lose_nothing_in_float32():
    """The least is subtracted first: at values of 1e3 and gamma 0.01 small differences count."""
    x, y = 1e3 * random(8, 20, 1), 1e3 * random(8, 20, 1, seed=1)
    exact = soft_elastic(x, y, gamma=0.01)
    torch.testing.assert_close(
        soft_elastic(x.float(), y.float(), gamma=0.01).double(), exact, rtol=1e-6, atol=0
    )


def test_equal_points_have_a_finite_gradient():
    x = torch.zeros(1, 5, 1, dtype=torch.float64)
    for smoothing in (1e-2, 0.0):
        y = torch.zeros(1, 4, 1, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(soft_elastic(x, y, "dtw", smoothing=smoothing).sum(), y)
        assert bool(torch.isfinite(gradient).all())


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_padding_is_not_seen(metric):
    x, y = random(3, 9, 2), random(3, 8, 2, seed=1)
    lengths = {"x_lengths": torch.tensor([9, 4, 1]), "y_lengths": torch.tensor([3, 8, 5])}
    expected = with_gradients(x, y, metric, **lengths)
    for filler in (float("nan"), 1e30, -7.0):
        a, b = x.clone(), y.clone()
        for k in range(3):
            a[k, lengths["x_lengths"][k] :] = filler
            b[k, lengths["y_lengths"][k] :] = filler
        for found, wanted in zip(with_gradients(a, b, metric, **lengths), expected, strict=True):
            assert torch.equal(found, wanted)
    for gradient, known in zip(expected[1:3], lengths.values(), strict=True):
        for k in range(3):
            assert bool((gradient[k, known[k] :] == 0).all())


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_gradient_norm_of_a_point_is_bounded(metric):
    x, y = random(20, 12, 2), random(20, 10, 2, seed=1).requires_grad_()
    (gradient,) = torch.autograd.grad(soft_elastic(x, y, metric, gamma=0.2).sum(), y)
    norms = gradient.norm(dim=2)
    if metric == "twed":
        assert float(norms.max()) <= 2 + 1e-9
        assert float(norms[:, -1].max()) <= 1 + 1e-9
    assert float(norms.max()) <= 12 + 1e-9


LONG = """
import resource, torch
from icml_kernels import soft_elastic
x = torch.randn(16, 4096, 8)
y = torch.randn(16, 4096, 8, requires_grad=True)
soft_elastic(x[:, :9], y[:, :9]).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
soft_elastic(x, y).sum().backward()
assert bool(torch.isfinite(y.grad).all()) and float(y.grad[:, 9:].abs().max()) > 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the unit of ru_maxrss is that of Linux")
def test_long_series_need_little_memory():
    """4096 points, 16 pairs, 8 channels: value and gradient take less than 1 GiB beside the inputs."""
    done = subprocess.run([sys.executable, "-c", LONG], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) * 1024 < 2**30
    assert bytes_per_pair(4096, 4096, 4) * 16 < 2**30


def test_groups_of_pairs_give_the_same(monkeypatch):
    x, y = random(7, 9, 1), random(7, 8, 1, seed=1)
    whole = with_gradients(x, y, "twed", gamma=0.2)
    each = bytes_per_pair(9, 8, 8)
    parts = with_gradients(x, y, "twed", gamma=0.2, max_bytes=2 * each)
    for a, e in zip(parts, whole, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"max_bytes=10 is less than the \d+ bytes"):
        soft_elastic(x, y, max_bytes=10)


def test_one_series_serves_all_pairs():
    x, y = random(5, 6, 1), random(1, 4, 1, seed=1)
    several = with_gradients(x, y.expand(5, -1, -1).clone(), "twed")
    one = with_gradients(x, y, "twed")
    torch.testing.assert_close(one[0], several[0])
    torch.testing.assert_close(one[2][0], several[2].sum(0))


def test_threads_do_not_change_bits(monkeypatch):
    x, y = random(130, 9, 1), random(130, 8, 1, seed=1)
    expected = with_gradients(x, y, "twed")
    monkeypatch.setattr(cpu, "_FEW_CELLS", 1)
    monkeypatch.setattr(cpu, "default_threads", lambda: 3)
    for a, e in zip(with_gradients(x, y, "twed"), expected, strict=True):
        assert torch.equal(a, e)


def test_raw_operators_are_well_formed():
    call = lambda x, y: soft_elastic(x, y, gamma=0.3)  # noqa: E731
    assert check_raw_ops(call, (random(2, 4, 1), random(2, 3, 1)), order=1) == {
        "icml::soft_elastic_gradients"
    }


def test_functional_gradient_equals_autograd():
    x, y = random(2, 5, 1), random(2, 4, 1, seed=1)
    expected = with_gradients(x, y, "twed")[2] / torch.tensor([1.0, 2.0])[:, None, None]
    found = torch.func.grad(lambda v: soft_elastic(x, v).sum())(y)
    torch.testing.assert_close(found, expected)


def test_second_derivative_is_refused():
    x, y = random(1, 4, 1), random(1, 3, 1, seed=1).requires_grad_()
    (gradient,) = torch.autograd.grad(soft_elastic(x, y).sum() ** 2, y, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        gradient.sum().backward()


def test_the_sentinel_is_no_infinity():
    assert math.isfinite(BIG - BIG)


def test_bad_arguments_are_named():
    x = random(2, 5, 1)
    with pytest.raises(ValueError, match="gamma=0 must be positive"):
        soft_elastic(x, x, gamma=0.0)
    with pytest.raises(ValueError, match="lam=-1 must be at least 0"):
        soft_elastic(x, x, lam=-1.0)
    with pytest.raises(ValueError, match="x has 2 series but y has 3"):
        soft_elastic(x, random(3, 5, 1))
    with pytest.raises(ValueError, match="lengths of x must lie in 1 to 5"):
        soft_elastic(x, x, x_lengths=torch.tensor([0, 5]))
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        soft_elastic(x.long(), x)
