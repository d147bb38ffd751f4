"""The kernels of the elastic distances under Triton's interpreter, against the definition."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import elastic_cross, soft_elastic
from icml_kernels.testing import use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)

METRICS = [("dtw", "norm"), ("dtw", "squared"), ("twed", "norm")]
LENGTHS = {"x_lengths": torch.tensor([5, 3]), "y_lengths": torch.tensor([3, 4])}


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rising(*shape: int, seed: int = 0) -> torch.Tensor:
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (steps + 0.05).cumsum(-1)


def both(call):
    with use_route("reference"):
        expected = call()
    with use_route("triton"):
        found = call()
    return list(zip(found, expected, strict=True))


@pytest.mark.parametrize(("metric", "cost"), METRICS)
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_distances_equal_the_definition(metric, cost, window, masked):
    x, y = random(2, 5, 2), random(2, 4, 2, seed=1)
    if masked:
        x[0, 2, 1] = y[1, 2, 0] = float("nan")
    options = {
        "cost": cost,
        "window": window,
        "masked": masked,
        "x_times": rising(2, 5),
        "y_times": rising(2, 4),
    }
    for found, expected in both(lambda: elastic_cross(x, y, metric, **LENGTHS, **options)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def with_gradients(x, y, metric, **options):
    leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
    for name in ("gamma", "nu", "lam", "x_times", "y_times"):
        if name in options:
            options[name] = torch.as_tensor(options[name], dtype=x.dtype).clone().requires_grad_()
            leaves.append(options[name])
    value = soft_elastic(*leaves[:2], metric, **options)
    weight = torch.arange(1, len(value) + 1, dtype=x.dtype)
    return [value.detach(), *torch.autograd.grad((value * weight).sum(), leaves, materialize_grads=True)]


@pytest.mark.parametrize(("metric", "cost"), METRICS)
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("masked", [False, True])
def test_soft_distances_and_gradients_equal_the_definition(metric, cost, window, masked):
    x, y = random(2, 5, 2), random(2, 4, 2, seed=1)
    if masked:
        x[0, 2, 1] = y[1, 2, 0] = float("nan")
    options = {"gamma": 0.3, "nu": 0.05, "lam": 0.7, "cost": cost, "window": window, "masked": masked}
    options |= {"x_times": rising(2, 5), "y_times": rising(2, 4, seed=3)} | LENGTHS
    for found, expected in both(lambda: with_gradients(x, y, metric, **options)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    for found, expected in both(lambda: (soft_elastic(x, y, metric, **options),)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_series_longer_than_a_block_of_lanes(monkeypatch):
    monkeypatch.setattr("icml_kernels.series.soft_elastic.triton.BLOCK", 4)
    monkeypatch.setattr("icml_kernels.series.elastic_cross.triton.BLOCK", 4)
    monkeypatch.setattr("icml_kernels.series.elastic_cross.triton.PAIRS", 2)
    x, y = random(2, 11, 1), random(2, 9, 1, seed=1)
    for found, expected in both(lambda: with_gradients(x, y, "twed", gamma=0.3)):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-11)
    for found, expected in both(lambda: elastic_cross(x, y)):
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_float32():
    x, y = random(2, 6, 1), random(2, 5, 1, seed=1)
    for found, expected in both(lambda: with_gradients(x.float(), y.float(), "twed", gamma=0.3)):
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
