"""The multiplier against Brent's method on an SVD, both solvers, and what they do in awkward cases."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_sso import SolverOptions, TangentLambda, TangentProblem, exact_msign, tangent_lambda
from icml_sso.tangent_multiplier import tangent_direction
from scipy.optimize import brentq

EXACT = {"msign_dtype": torch.float64, "msign_steps": 40}


def problem(shape, seed=0, rank=None, aligned=0.5):
    g = torch.Generator().manual_seed(seed)
    w = torch.randn(shape, generator=g, dtype=torch.float64)
    m = torch.randn(shape, generator=g, dtype=torch.float64)
    left, _, right = torch.linalg.svd(w, full_matrices=False)
    if rank is not None:
        a, s, b = torch.linalg.svd(m, full_matrices=False)
        s[rank:] = 1e-4
        m = (a * s) @ b
    m = m / m.norm() + aligned * torch.outer(left[:, 0], right[0])
    return m, left[:, 0], right[0]


def h(m, u, v, lam):
    return float(u @ exact_msign(m / m.norm() + lam * torch.outer(u, v)) @ v)


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 20), st.integers(2, 30), st.integers(0, 2**31))
def test_h_never_falls(m, n, seed):
    args = problem((m, n), seed)
    values = [h(*args, lam) for lam in torch.linspace(-2, 2, 15, dtype=torch.float64).tolist()]
    assert all(b >= a - 1e-9 for a, b in pairwise(values))
    assert values[0] < 0 < values[-1]


@pytest.mark.parametrize("solver", ["krylov", "bisection"])
@pytest.mark.parametrize(
    ("shape", "rank"),
    [
        ((12, 40), None),
        ((40, 12), None),
        ((24, 24), None),
        ((8, 300), None),
        ((32, 32), 4),
        ((2, 2), None),
        ((3, 50), None),
    ],
    ids=str,
)
def test_both_solvers_find_brents_root(shape, rank, solver):
    for seed in range(3):
        m, u, v = problem(shape, seed, rank)
        exact = brentq(lambda lam, a=(m, u, v): h(*a, lam), -3, 3, xtol=1e-13)
        found = tangent_lambda(m, u, v, solver=solver, tol=1e-6, max_iters=40, **EXACT)
        assert found.lam == pytest.approx(exact, rel=1e-3, abs=1e-6)
        # With (2, 2) h jumps over 0 where the determinant changes sign: no multiplier is within tolerance.
        assert not found.failed or shape == (2, 2)
        found.verify(TangentProblem(m, u, v))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(48, 200), (64, 64), (96, 64)], ids=str)
def test_krylov_takes_at_most_three_matrix_signs_and_bisection_many(shape, dtype):
    calls, others = [], []
    for seed in range(5):
        m, u, v = (x.float() for x in problem(shape, seed))
        found = tangent_lambda(m, u, v, msign_dtype=dtype)
        calls.append(found.calls)
        others.append(tangent_lambda(m, u, v, msign_dtype=dtype, solver="bisection").calls)
        assert abs(h(m.double(), u.double(), v.double(), found.lam)) < 2e-2
    assert max(calls) <= 3
    assert sum(others) > 3 * sum(calls)


def test_wide_matrices_in_16_bits_take_one_matrix_sign_and_are_right():
    """bfloat16 measures h to 1e-3; the Krylov root is better than that, and is not spoilt by it."""
    for seed in range(4):
        m, u, v = problem((32, 160), seed)
        found = tangent_lambda(m.float(), u.float(), v.float())
        assert found.calls == 1
        assert abs(h(m, u, v, found.lam)) < 1e-5


def test_the_direction_is_the_optimum_of_the_convex_program():
    """max <M, Phi> with ||Phi||_2 <= 1 and <Theta, Phi> = 0, by an interior-point method."""
    import cvxpy as cp

    for seed in range(3):
        m, u, v = problem((6, 8), seed)
        m = m / m.norm()
        theta = torch.outer(u, v)
        x = cp.Variable((6, 8))
        constraints = [cp.sigma_max(x) <= 1, cp.sum(cp.multiply(theta.numpy(), x)) == 0]
        program = cp.Problem(cp.Maximize(cp.sum(cp.multiply(m.numpy(), x))), constraints)
        optimum = float(program.solve(solver=cp.CLARABEL))
        found = tangent_lambda(m, u, v, tol=1e-7, **EXACT)
        assert float((m * found.phi).sum()) == pytest.approx(optimum, abs=1e-4)
        assert abs(float((theta * found.phi).sum())) < 1e-4


def test_a_batch_equals_its_members():
    problems = [problem((20, 32), seed) for seed in range(4)]
    m, u, v = (torch.stack(x).float() for x in zip(*problems, strict=True))
    options = SolverOptions(msign_dtype=torch.float32)
    together = tangent_direction(m * torch.tensor([1.0, 1e-4, 1e4, 7.0])[:, None, None], u, v, options)
    for k in range(4):
        alone = tangent_direction(m[k : k + 1], u[k : k + 1], v[k : k + 1], options)
        torch.testing.assert_close(together.lam[k], alone.lam[0], rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(together.phi[k], alone.phi[0], rtol=0, atol=1e-4)
        assert together.calls[k] == alone.calls[0]


def test_without_looking_at_results_the_direction_is_the_same():
    m, u, v = (x[None].float() for x in problem((24, 24), 3))
    fixed = SolverOptions(msign_dtype=torch.float32, synchronise=False)
    found = tangent_direction(m, u, v, fixed)
    free = tangent_direction(m, u, v, SolverOptions(msign_dtype=torch.float32))
    assert int(found.calls) == 3
    torch.testing.assert_close(found.lam, free.lam, rtol=1e-2, atol=1e-4)
    torch.testing.assert_close(found.residual, free.residual, rtol=0, atol=1e-4)
    assert abs(float(found.residual)) <= 2e-3


def test_what_the_caller_removes_costs_no_matrix_sign():
    """|h| up to the bound stays in Phi; Phi - h Theta is tangent, and of norm 1 + |h| / 2 to second order."""
    m, u, v = (torch.stack(x).float() for x in zip(*(problem((64, 64), s) for s in range(12)), strict=True))
    strict = tangent_direction(m, u, v, SolverOptions())
    found = tangent_direction(m, u, v, SolverOptions(removable=0.04))
    assert int(found.calls.sum()) < int(strict.calls.sum())
    assert float(found.residual.abs().max()) <= 0.04
    assert not bool(found.failed.any())
    theta = u[:, :, None] * v[:, None]
    left = found.phi.float() - found.residual[:, None, None] * theta
    torch.testing.assert_close((left * theta).sum((1, 2)), torch.zeros(12), rtol=0, atol=1e-5)
    added = torch.linalg.matrix_norm(left, ord=2) - torch.linalg.matrix_norm(found.phi.float(), ord=2)
    assert bool((added <= 0.5 * found.residual.abs() + 1e-3).all())


@pytest.mark.parametrize("shape", [(1, 9), (9, 1)], ids=str)
def test_vectors_are_projected_and_normalised(shape):
    """min(m, n) = 1: Theta = W / ||W||, and the direction is M less its part along W, of length 1."""
    m, u, v = problem(shape)
    found = tangent_lambda(m, u, v)
    theta = torch.outer(u, v)
    expected = m - (m * theta).sum() * theta
    torch.testing.assert_close(found.phi, expected / expected.norm(), rtol=0, atol=1e-12)
    assert found.calls == 0
    parallel = tangent_lambda(2.0 * theta, u, v)
    assert torch.equal(parallel.phi, torch.zeros(shape, dtype=torch.float64))


@pytest.mark.parametrize("solver", ["krylov", "bisection"])
def test_a_zero_momentum_has_multiplier_zero(solver):
    _, u, v = problem((6, 9))
    found = tangent_lambda(torch.zeros(6, 9, dtype=torch.float64), u, v, solver=solver)
    assert (found.lam, found.residual, found.failed) == (0.0, 0.0, False)
    assert float(found.phi.abs().max()) == 0.0


def test_a_root_out_of_reach_of_bisection_is_counted_and_becomes_a_step_of_muon():
    """M = -Theta and a little noise: h is -1 until shortly before lambda = 1. Four doublings end at 0.015."""
    g = torch.Generator().manual_seed(7)
    m, u, v = problem((6, 9))
    m = -3.0 * torch.outer(u, v) + 1e-3 * torch.randn(6, 9, generator=g, dtype=torch.float64)
    far = m / m.norm()
    found = tangent_lambda(far, u, v, **EXACT)
    assert not found.failed
    assert found.lam == pytest.approx(1.0, abs=1e-2)
    options = SolverOptions("bisection", max_iters=3, **EXACT)
    import icml_sso.tangent_multiplier as module

    before, module.DOUBLINGS = module.DOUBLINGS, 4
    try:
        lost = tangent_direction(far[None], u[None], v[None], options)
    finally:
        module.DOUBLINGS = before
    assert bool(lost.failed)
    assert float(lost.lam) == 0.0
    torch.testing.assert_close(lost.phi[0], exact_msign(far), rtol=0, atol=1e-6)


def test_the_krylov_solver_hands_over_to_bisection_where_it_fails(monkeypatch):
    """With a model that knows nothing of M the root is still found."""
    import icml_sso.tangent_multiplier as module

    m, u, v = problem((24, 24), 1)
    monkeypatch.setattr(module.TangentModel, "root", lambda self: torch.full_like(self.overlap, 0.8))
    monkeypatch.setattr(module.TangentModel, "corrected_root", lambda self, c, *a: torch.full_like(c, -0.9))
    found = tangent_lambda(m, u, v, **EXACT)
    assert not found.failed
    assert found.calls > 3
    assert abs(h(m, u, v, found.lam)) < 1e-3


def test_what_16_bits_cannot_settle_is_solved_in_float32():
    """A momentum of rank 2 in 16 x 16: bfloat16 loses its other singular values."""
    for seed in range(6):
        m, u, v = problem((16, 16), seed, rank=2)
        found = tangent_lambda(m.float(), u.float(), v.float())
        assert found.calls <= 6
        assert abs(found.residual) <= 2e-2


def test_bad_input_is_named():
    m, u, v = problem((4, 5))
    with pytest.raises(ValueError, match=r"m has shape \[4, 5\] but u 5 and v 4"):
        tangent_lambda(m, v, u)
    with pytest.raises(ValueError, match="m holds NaN"):
        tangent_lambda(m * float("nan"), u, v)
    with pytest.raises(ValueError, match="u has length 2; expected a unit vector"):
        tangent_lambda(m, 2 * u, v)
    with pytest.raises(TypeError, match="m is torch.int64"):
        tangent_lambda(m.long(), u, v)
    with pytest.raises(ValueError, match="solver='bisect' is not one of krylov, bisection, none"):
        tangent_lambda(m, u, v, solver="bisect")
    with pytest.raises(ValueError, match="msign_steps=0"):
        tangent_lambda(m, u, v, msign_steps=0)
    with pytest.raises(ValueError, match=r"removable=1.0 must lie in \[0, 1\)"):
        SolverOptions(removable=1.0)
    with pytest.raises(ValueError, match="solver_tol=0"):
        tangent_lambda(m, u, v, tol=0.0)
    with pytest.raises(TypeError, match="expected a TangentProblem"):
        TangentLambda().solve(m)
    with pytest.raises(ValueError, match="capturable=True needs solver='krylov'"):
        SolverOptions("bisection", synchronise=False)
