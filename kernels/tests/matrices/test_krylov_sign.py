"""The tangent equation on a Krylov space against dense eigenvalues, Brent's method and the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import block_lanczos, polar_express_coefficients
from icml_kernels.matrices.krylov_sign import KrylovSign
from icml_kernels.testing import check_raw_ops, use_route
from scipy.optimize import brentq

LARGEST = 21.0


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def problem(rows: int, columns: int, batch: int = 3, seed: int = 0):
    """Normalised matrices that overlap with unit vectors u and v."""
    m = random(batch, rows, columns, seed=seed)
    u, v = random(batch, rows, seed=seed + 1), random(batch, columns, seed=seed + 2)
    u, v = u / u.norm(dim=1, keepdim=True), v / v.norm(dim=1, keepdim=True)
    m = m / m.norm(dim=(1, 2), keepdim=True) + 0.3 * u[:, :, None] * v[:, None]
    return m / m.norm(dim=(1, 2), keepdim=True), u, v


def sign_of(m, u, v, k: int = 8, steps: int = 8) -> KrylovSign:
    model = block_lanczos(m, u, v, k)
    square = m.square().sum((1, 2))
    return KrylovSign(model.t, model.a, model.b, model.overlap, square, steps, LARGEST)


def dense_h(m, u, v, lam: float, steps: int = 8) -> float:
    """The same polynomial of the singular values of the whole matrix."""
    left, s, right = np.linalg.svd((m + lam * torch.outer(u, v)).numpy(), full_matrices=False)
    s = s / (np.sqrt((s**2).sum()) + 1e-7)
    for a, b, c in polar_express_coefficients(steps):
        s = a * s + b * s**3 + c * s**5
    return float(u.numpy() @ (left * s) @ right @ v.numpy())


@pytest.mark.parametrize("steps", [5, 8])
@pytest.mark.parametrize("shape", [(2, 5), (3, 3), (9, 30), (16, 16)], ids=str)
def test_h_is_that_of_the_whole_matrix_where_the_space_is(shape, steps):
    m, u, v = problem(*shape)
    sign = sign_of(m, u, v, steps=steps)
    lam = torch.tensor([[-1.5, -0.1, 0.0, 0.02, 3.0]], dtype=torch.float64).expand(3, -1)
    expected = [[dense_h(m[n], u[n], v[n], float(x), steps) for x in lam[n]] for n in range(3)]
    torch.testing.assert_close(sign.h(lam), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(2, 5), (9, 30), (16, 40)], ids=str)
def test_the_root_is_brents(shape):
    m, u, v = problem(*shape, seed=5)
    sign = sign_of(m, u, v)
    found = sign.root()
    for n in range(3):
        exact = brentq(lambda x, n=n: dense_h(m[n], u[n], v[n], x), -3.0, 3.0, xtol=1e-14)
        assert float(found[n]) == pytest.approx(exact, abs=1e-7)
    step = 1e-4
    slope = (sign.h((found + step)[:, None]) - sign.h((found - step)[:, None]))[:, 0] / (2 * step)
    torch.testing.assert_close(sign.slope(found), slope, rtol=1e-3, atol=0)


def test_a_shifted_root_solves_the_shifted_equation_or_is_the_nearer_end():
    sign = sign_of(*problem(40, 60))
    center = sign.root()
    shift, tilt = torch.full((3,), 0.02, dtype=torch.float64), torch.full((3,), 0.1, dtype=torch.float64)
    reach = torch.tensor([1.0, 0.5, 1e-6], dtype=torch.float64)
    found = sign.root_near(center, shift, tilt, reach)
    left = sign.h(found[:, None])[:, 0] + shift + tilt * (found - center)
    torch.testing.assert_close(left[:2], torch.zeros(2, dtype=torch.float64), rtol=0, atol=1e-9)
    assert float(found[2]) == pytest.approx(float(center[2]) - 1e-6, rel=1e-9)  # out of reach


@pytest.mark.parametrize("k", [1, 3, 8, 16])
def test_numba_equals_the_definition(k):
    for shape in ((40, 60), (64, 64)):
        m, u, v = problem(*shape, seed=k)
        lam = torch.linspace(-2.0, 2.0, 9, dtype=torch.float64).expand(3, -1).contiguous()
        shift = torch.full((3,), -0.03, dtype=torch.float64)

        def everything(m=m, u=u, v=v, lam=lam, shift=shift):
            sign = sign_of(m, u, v, k)
            root = sign.root()
            near = sign.root_near(root, shift, torch.zeros_like(shift), torch.ones_like(shift))
            return sign.h(lam), root, near

        found = everything()
        with use_route("reference"):
            expected = everything()
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-8)


def test_awkward_spectra():
    """Diagonal, of rank one, zero: reflections and rotations meet nothing to remove."""
    size, one = 6, torch.ones(1, dtype=torch.float64)
    a = torch.zeros(1, size, dtype=torch.float64)
    a[0, 0] = 1.0
    for t in (
        torch.diag_embed(random(1, size).abs()),
        torch.ones(1, size, size, dtype=torch.float64),
        torch.zeros(1, size, size, dtype=torch.float64),
        torch.eye(size, dtype=torch.float64)[None],
    ):
        t = 0.05 * t  # of a matrix of norm 1 the trace is 1 at most
        b = t[:, :, 1].clone()
        lam = torch.tensor([[-0.5, 0.0, 0.7]], dtype=torch.float64)
        sign = KrylovSign(t, a, b, (a * b).sum(1), one)
        with use_route("reference"):
            expected = sign.h(lam)
        torch.testing.assert_close(sign.h(lam), expected, rtol=1e-6, atol=1e-9)
    zero = KrylovSign(torch.zeros_like(t), a, torch.zeros_like(a), 0 * one, 0 * one)
    assert float(zero.root()) == 0.0
    spoilt = KrylovSign(t * float("nan"), a, a, one, one)
    assert bool(spoilt.root().isnan().any()) or abs(float(spoilt.root())) <= spoilt.largest


def test_raw_operators_are_well_formed():
    m, u, v = problem(8, 12, batch=2)

    def everything():
        sign = sign_of(m, u, v, 2)
        root = sign.root()
        return sign.slope(root), sign.root_near(root, 0.01 * root, 0 * root, root.abs())

    found = check_raw_ops(everything, ())
    assert found == {f"icml::krylov_sign_{name}" for name in ("entry", "root", "root_near")}


def test_bad_arguments_are_named():
    t, a, one = random(2, 3, 3), random(2, 3), torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"t has shape \[2, 3, 3\]; expected \[2, 4, 4\]"):
        KrylovSign(t, random(2, 4), random(2, 4), one, one)
    with pytest.raises(TypeError, match=r"b has dtype torch.float32; convert it to float64"):
        KrylovSign(t, a, a.float(), one, one)
