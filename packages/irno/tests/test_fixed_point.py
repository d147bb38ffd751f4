"""The solver and the certificate on maps whose fixed points and Jacobians are known."""

from __future__ import annotations

import math

import pytest
import torch
from icml_irno import solve_fixed_point, step_ratios
from icml_irno.contraction import error_bound, jacobian_norm


def affine(dim: int, samples: int = 3, seed: int = 0, radius: float = 0.9):
    """f(h) = A h + b of each sample, with its zero; I + A contracts by ``radius``."""
    g = torch.Generator().manual_seed(seed)
    rotation, _ = torch.linalg.qr(torch.randn(samples, dim, dim, generator=g, dtype=torch.float64))
    values = radius * (2 * torch.rand(samples, dim, generator=g, dtype=torch.float64) - 1)
    A = rotation @ torch.diag_embed(values) @ rotation.mT - torch.eye(dim, dtype=torch.float64)
    b = torch.randn(samples, dim, generator=g, dtype=torch.float64)
    exact = torch.linalg.solve(A, -b)
    return (lambda h, rows: torch.einsum("bij,bj->bi", A[rows], h) + b[rows]), exact


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_anderson_is_exact_on_an_affine_map_after_dim_plus_one_steps(dim):
    f, exact = affine(dim)
    h, info = solve_fixed_point(
        f, torch.zeros_like(exact), tol=0.0, max_iter=dim + 2, anderson=dim, regularization=0.0
    )
    # dim + 1 evaluations span the differences; the step of the next is the exact point.
    torch.testing.assert_close(h, exact, rtol=1e-6, atol=1e-6)
    assert int(info.rejected.sum()) <= len(exact)


@pytest.mark.parametrize("dim", [2, 4])
def test_the_default_regularization_reaches_the_same_point(dim):
    f, exact = affine(dim)
    h, info = solve_fixed_point(f, torch.zeros_like(exact), tol=1e-10, max_iter=60, anderson=3)
    torch.testing.assert_close(h, exact, rtol=1e-7, atol=1e-7)
    _, plain = solve_fixed_point(f, torch.zeros_like(exact), tol=1e-10, max_iter=1000)
    assert info.status == plain.status == "converged"
    assert int(info.accelerated.min()) > 0
    assert float(info.calls.double().mean()) <= 0.6 * float(plain.calls.double().mean())


def test_plain_steps_are_the_iteration():
    f, _ = affine(4)
    start = torch.ones(3, 4, dtype=torch.float64)
    h, best, least = start, start.clone(), [torch.inf] * 3
    for _ in range(7):
        step = f(h, torch.arange(3))
        for i, relative in enumerate((step.norm(dim=1) / h.norm(dim=1)).tolist()):
            if relative <= least[i]:
                best[i], least[i] = h[i] + step[i], relative
        h = h + step
    found, info = solve_fixed_point(f, start, tol=0.0, max_iter=7)
    torch.testing.assert_close(found, best, rtol=0, atol=1e-14)
    torch.testing.assert_close(info.residual, torch.tensor(least, dtype=torch.float64))
    assert info.calls.tolist() == [7, 7, 7]
    assert info.accelerated.tolist() == info.rejected.tolist() == [0, 0, 0]


@pytest.mark.parametrize("anderson", [0, 3])
def test_eight_samples_together_equal_each_alone(anderson):
    f, exact = affine(5, samples=8, seed=1)
    start = torch.zeros_like(exact)
    together, info = solve_fixed_point(f, start, tol=1e-6, max_iter=200, anderson=anderson)
    assert len(set(info.calls.tolist())) > 1
    for i in range(8):
        alone, own = solve_fixed_point(
            lambda h, rows, i=i: f(h, torch.tensor([i])),
            start[i : i + 1],
            tol=1e-6,
            max_iter=200,
            anderson=anderson,
        )
        torch.testing.assert_close(together[i : i + 1], alone, rtol=0, atol=1e-12)
        assert int(own.calls) == int(info.calls[i])
        assert int(own.accelerated) == int(info.accelerated[i])


def test_a_looser_tolerance_makes_fewer_calls():
    f, exact = affine(5)
    calls = [
        int(solve_fixed_point(f, torch.ones_like(exact), tol=tol, max_iter=500)[1].calls.sum())
        for tol in (0.05, 1e-3, 1e-5)
    ]
    assert calls[0] < calls[1] < calls[2]


def test_a_singular_history_takes_the_plain_step():
    # f moves along one line for ever the same way: every difference of residuals is 0.
    h, info = solve_fixed_point(
        lambda h, rows: torch.ones_like(h), torch.ones(1, 3, dtype=torch.float64), tol=0.0, max_iter=5,
        anderson=3, regularization=0.0,
    )  # fmt: skip
    assert h.tolist() == [[6.0, 6.0, 6.0]]
    assert int(info.accelerated) == 0


def test_a_step_that_makes_the_residual_grow_is_taken_back():
    # Linear with a kink: extrapolation from the left overshoots to where f is large.
    def f(h: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.where(h < 0.9, 0.1 * (2 - h), 30 * (0.95 - h)).clamp(-5, 5)

    h, info = solve_fixed_point(f, torch.zeros(1, 1, dtype=torch.float64), tol=1e-9, max_iter=40, anderson=1)
    assert int(info.rejected) > 0
    assert math.isfinite(float(h))


def test_the_best_point_is_returned_when_steps_run_out():
    # The residual falls to 0.01 at the third point, and rises again.
    residuals = {0.0: 1.0, 1.0: 1.0, 2.0: 0.01, 2.01: 3.0}

    def f(h: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        near = min(residuals, key=lambda v: abs(v - float(h)))
        return torch.full_like(h, residuals[near])

    h, info = solve_fixed_point(f, torch.zeros(1, 1, dtype=torch.float64), tol=1e-6, max_iter=4)
    assert float(h) == pytest.approx(2.01)
    assert info.status == "max_iter"
    assert float(info.residual) == pytest.approx(0.005)


@pytest.mark.parametrize("growth", [3.0, math.inf, math.nan])
def test_divergence_keeps_the_last_finite_point_of_that_sample_alone(growth):
    def f(h: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return torch.where((rows == 1)[:, None], h * growth, -0.5 * h + 0.5)

    h, info = solve_fixed_point(f, torch.full((2, 3), 2.0, dtype=torch.float64), tol=1e-6, max_iter=60)
    assert info.statuses == ("converged", "diverged")
    assert info.status == "diverged"
    torch.testing.assert_close(h[0], torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)
    assert bool(torch.isfinite(h[1]).all())
    assert float(h[1, 0]) <= 1e3 * 8
    assert float(info.residual[0]) < 1e-6
    assert math.isinf(float(info.residual[1]))


def test_options_are_checked():
    for options in ({"tol": -1}, {"max_iter": 0}, {"anderson": -1}, {"regularization": math.nan}):
        with pytest.raises(ValueError, match="at least"):
            solve_fixed_point(lambda h, rows: h, torch.ones(1, 1), **options)


def test_the_norm_of_a_jacobian_is_its_largest_singular_value():
    g = torch.Generator().manual_seed(0)
    J = torch.randn(4, 6, 6, generator=g, dtype=torch.float64)
    bend = torch.randn(4, 6, generator=g, dtype=torch.float64)

    def step(h: torch.Tensor) -> torch.Tensor:
        return torch.einsum("bij,bj->bi", J, h) + bend * h.square()

    h = torch.randn(4, 6, generator=g, dtype=torch.float64)
    exact = torch.linalg.matrix_norm(J + 2 * torch.diag_embed(bend * h), 2)
    torch.testing.assert_close(jacobian_norm(step, h, 300), exact, rtol=1e-6, atol=0)
    assert bool((jacobian_norm(step, h, 5) <= exact * (1 + 1e-12)).all())  # from below
    with pytest.raises(ValueError, match="iters=0"):
        jacobian_norm(step, h, 0)


def test_ratios_of_steps():
    iterates = [torch.tensor([[v]]) for v in (0.0, 1.0, 1.5, 1.75)]
    assert step_ratios(iterates).flatten().tolist() == [0.5, 0.5]
    with pytest.raises(ValueError, match="2 iterates"):
        step_ratios(iterates[:2])


def test_the_bound_is_reached_by_a_scalar_affine_map():
    # e_{k+1} = q e_k - alpha b with b opposite to e: every triangle inequality is an equality.
    q, alpha, b, e0 = 0.6, 0.5, -0.3, 1.0
    e = e0
    for k in range(6):
        bound = error_bound(*(torch.tensor([v], dtype=torch.float64) for v in (e0, abs(b), q)), alpha, k)
        assert float(bound) == pytest.approx(e, rel=1e-12)
        e = q * e - alpha * b
