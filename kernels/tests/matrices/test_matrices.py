"""Polar factors, triplets and Krylov spaces against LAPACK's SVD, SciPy's optimisers and enumeration."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import (
    block_lanczos,
    lanczos_top,
    msign,
    msign_rank1,
    ns_poly,
    ns_syrk,
    polar_express_coefficients,
    power_iter,
    rank1_load,
    retract_axpy,
    top_singular,
)
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.polar_express import PUBLISHED, minimax_quintic, optimal_quintics
from icml_kernels.testing import check_raw_ops, use_route
from scipy.optimize import minimize

SHAPES = ((3, 20, 50), (2, 64, 64), (1, 50, 20), (4, 8, 96), (1, 1, 7), (1, 7, 1), (2, 3, 2, 5))


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def polar(x: torch.Tensor) -> torch.Tensor:
    u, _, vh = torch.linalg.svd(x.double(), full_matrices=False)
    return u @ vh


def conditioned(*shape: int) -> torch.Tensor:
    """Random singular vectors, singular values from 0.05 to 1: all above the iteration's 1e-3."""
    u, s, vh = torch.linalg.svd(random(*shape), full_matrices=False)
    return (u * torch.linspace(1.0, 0.05, s.shape[-1], dtype=u.dtype)) @ vh


def unit(x: torch.Tensor) -> torch.Tensor:
    return x / x.norm(dim=-1, keepdim=True)


def composition(x: np.ndarray, triples) -> np.ndarray:
    for a, b, c in triples:
        x = a * x + b * x**3 + c * x**5
    return x


@pytest.mark.parametrize("form", ["standard", "gram", "auto"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_msign_is_the_polar_factor(shape, form):
    x = conditioned(*shape)
    torch.testing.assert_close(msign(x, form=form, dtype=torch.float64), polar(x), rtol=0, atol=1e-9)
    single = msign(x.float(), form=form, dtype=torch.float32).double()
    torch.testing.assert_close(single, polar(x), rtol=0, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("form", ["standard", "gram"])
def test_16_bits_keep_two_digits(form, dtype):
    x = random(2, 24, 72)
    error = (msign(x, form=form, dtype=dtype).double() - polar(x)).norm(dim=(1, 2)) / 24**0.5
    assert float(error.max()) < (0.06 if dtype == torch.bfloat16 else 0.01)


def test_msign_does_not_depend_on_scale_and_leaves_its_input_alone():
    x = conditioned(2, 9, 14).float()
    before = x.clone()
    for factor in (1e-3, 1.0, 1e12):
        found = msign(factor * x, dtype=torch.float32)
        torch.testing.assert_close(found, polar(x).float(), rtol=0, atol=1e-4)
    assert torch.equal(x, before)
    for dtype in (torch.float32, torch.bfloat16):
        y = x.to(dtype)
        kept = y.clone()
        msign(y, dtype=dtype)
        assert torch.equal(y, kept)


def test_zero_matrices_give_zeros():
    found = msign(torch.zeros(2, 3, 5), dtype=torch.float32)
    assert torch.equal(found, torch.zeros(2, 3, 5))


def test_low_rank_keeps_its_null_space():
    x = random(1, 12, 3) @ random(1, 3, 20, seed=1)
    u, _, vh = torch.linalg.svd(x, full_matrices=False)
    expected = u[:, :, :3] @ vh[:, :3]
    torch.testing.assert_close(msign(x, dtype=torch.float64), expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("shape", [(2, 6, 15), (1, 15, 6), (1, 8, 8)], ids=str)
def test_rank_one_enters_as_if_it_were_added(shape):
    m = random(*shape)
    u, v = unit(random(shape[0], shape[1], seed=1)), unit(random(shape[0], shape[2], seed=2))
    inverse = 1 / m.norm(dim=(1, 2))
    lam = torch.linspace(-0.7, 0.4, shape[0], dtype=torch.float64)
    found = msign_rank1(m, u, v, lam, inverse, dtype=torch.float64)
    whole = m * inverse[:, None, None] + lam[:, None, None] * u[:, :, None] * v[:, None, :]
    torch.testing.assert_close(found, msign(whole, dtype=torch.float64), rtol=0, atol=1e-6)


def test_columns_may_be_spread_over_processes():
    """Two halves of the columns, each with a reduction that adds what the other half would send."""
    x = random(2, 5, 14)
    parts = [x[:, :, :9], x[:, :, 9:]]
    for own, other in (parts, parts[::-1]):
        sent = [other.square().sum((1, 2)), other @ other.mT]
        queue = iter(sent)
        found = msign(own, dtype=torch.float64, reduce=lambda t, queue=queue: t + _scaled(next(queue), t, x))
        whole = msign(x, form="gram", dtype=torch.float64)
        expected = whole[:, :, :9] if own is parts[0] else whole[:, :, 9:]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def _scaled(sent: torch.Tensor, like: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return sent if like.dim() == 1 else sent / (x.norm(dim=(1, 2)) + 1e-7).square()[:, None, None]


def test_eight_steps_are_the_published_ones():
    found = polar_express_coefficients(8)
    assert found[-1] == PUBLISHED[-1]
    for (a, b, c), (x, y, z) in zip(found[:-1], PUBLISHED[:-1], strict=True):
        assert (a, b, c) == pytest.approx((x / 1.01, y / 1.01**3, z / 1.01**5), rel=1e-12)
    assert polar_express_coefficients(10) == (*found, PUBLISHED[-1], PUBLISHED[-1])


@pytest.mark.parametrize("low", [0.02, 0.3, 0.8])
def test_the_quintic_is_the_minimax_one(low):
    """Against a simplex search on a dense grid, and by the alternation of its error."""
    x = np.linspace(low, 1.0, 4001)
    (a, b, c), error = minimax_quintic(low, 1.0)
    deviation = 1 - composition(x, [(a, b, c)])
    assert np.abs(deviation).max() == pytest.approx(error, rel=1e-6)

    def worst(p):
        return np.abs(1 - composition(x, [p])).max()

    best = minimize(worst, (a, b, c), method="Nelder-Mead", options={"xatol": 1e-10, "fatol": 1e-13})
    assert best.fun >= error * (1 - 1e-6)
    peaks = deviation[np.flatnonzero(np.abs(deviation) > error * (1 - 1e-5))]
    assert (np.diff(np.sign(peaks)) != 0).sum() == 3


@pytest.mark.parametrize("steps", [3, 5, 7])
def test_fewer_steps_are_solved_anew_and_not_cut_off(steps):
    x = np.geomspace(1e-3, 1.0, 4001)
    ours = np.abs(1 - composition(x, optimal_quintics(steps, 1e-3))).max()
    cut = np.abs(1 - composition(x, PUBLISHED[:steps])).max()
    assert ours < cut


@pytest.mark.parametrize("shape", [(3, 12, 30), (2, 30, 12), (1, 9, 9)], ids=str)
def test_top_triplet_is_lapacks(shape):
    w = random(*shape)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    sigma, left, right = top_singular(w, iters=400)
    torch.testing.assert_close(sigma, s[:, 0], rtol=1e-9, atol=0)
    overlap = (left * u[:, :, 0]).sum(1) * (right * vh[:, 0]).sum(1)
    torch.testing.assert_close(overlap, torch.ones(shape[0], dtype=torch.float64), rtol=0, atol=1e-7)
    torch.testing.assert_close(torch.bmm(w, right[:, :, None])[:, :, 0], sigma[:, None] * left)


def test_the_vector_of_ones_may_be_annihilated():
    """W 1 = 0: from the vector of ones a power iteration finds nothing."""
    w = random(1, 10, 16)
    w = w - w.mean(2, keepdim=True)
    ones = torch.full((1, 16), 0.25, dtype=torch.float64)
    assert float(power_iter(w, ones, 0)[0]) < 1e-12
    exact = torch.linalg.matrix_norm(w, ord=2)
    torch.testing.assert_close(top_singular(w, iters=300)[0], exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["dense", "low rank", "few rows", "zero"])
def test_krylov_space_is_that_of_every_multiplier(kind):
    """(M + l u v^T)(...)^T applied to vectors of a smaller Krylov space stays inside, for any l."""
    rows, columns = (10, 40) if kind == "few rows" else (40, 60)
    m = random(2, rows, columns)
    if kind == "low rank":
        m = random(2, rows, 4) @ random(2, 4, columns, seed=3)
    if kind == "zero":
        m = torch.zeros_like(m)
    u, v = unit(random(2, rows, seed=4)), unit(random(2, columns, seed=5))
    model = block_lanczos(m, u, v, 8)
    image = (m @ v[:, :, None])[:, :, 0]
    torch.testing.assert_close(model.overlap, (u * image).sum(1))
    # Moments u^T (Z Z^T)^j Z v agree up to j = 2k - 1, and functions of Z Z^T with them.
    for lam in (-0.8, 0.0, 2.5):
        z = m + lam * u[:, :, None] * v[:, None, :]
        small = model.t + lam * (
            model.a[:, :, None] * model.b[:, None] + model.b[:, :, None] * model.a[:, None]
        )
        small = small + lam**2 * model.a[:, :, None] * model.a[:, None]
        left, right = u[:, :, None], z @ v[:, :, None]
        projected = (model.b + lam * model.a)[:, :, None]
        for _ in range(8):
            exact = (left * right).sum((1, 2))
            modelled = (model.a[:, :, None] * projected).sum((1, 2))
            torch.testing.assert_close(modelled, exact, rtol=1e-8, atol=1e-10)
            size = right.norm(dim=(1, 2), keepdim=True).clamp_min(1e-30)
            right, projected = z @ (z.mT @ right) / size, small @ projected / size


@pytest.mark.parametrize("shape", [(3, 40, 60), (2, 10, 30)], ids=str)
def test_lanczos_follows_the_top_triplet(shape):
    """From the second singular vector, as if it had been the first a step before."""
    w = random(*shape)
    u, s, vh = torch.linalg.svd(w, full_matrices=False)
    sigma, left, right = lanczos_top(w, u[:, :, 1], 8, turn=torch.tensor(3.0))
    torch.testing.assert_close(sigma, s[:, 0], rtol=2e-2, atol=0)
    assert bool((sigma <= s[:, 0] * (1 + 1e-12)).all())
    torch.testing.assert_close((w.mT @ left[:, :, None])[:, :, 0], sigma[:, None] * right)
    sharper, _, v = lanczos_top(w, left, 16, turn=4)
    torch.testing.assert_close(sharper, s[:, 0], rtol=1e-6, atol=0)
    torch.testing.assert_close((v * vh[:, 0]).sum(1).abs(), torch.ones_like(sigma), rtol=0, atol=1e-3)
    with pytest.raises(ValueError, match="k=0"):
        lanczos_top(w, left, 0)


def test_matrices_times_vectors_are_those_of_bmm():
    m = random(3, 7, 5)
    for x in (random(3, 5, seed=2), random(3, 7, seed=2)):
        wide = m if x.shape[1] == 5 else m.mT
        torch.testing.assert_close(matvec(wide, x), (wide @ x[:, :, None])[..., 0])


def test_raw_operators_are_well_formed():
    x, square = random(2, 4, 6), random(2, 4, 4)
    one = torch.ones(2, dtype=torch.float64)

    def everything(x, square):
        return (
            ns_syrk(x, 2.0, 0.5, square @ square.mT),
            retract_axpy(x, one, x, one),
            rank1_load(x, x[:, :, 0], x[:, 0], one, one, torch.float32),
        )

    found = check_raw_ops(lambda: everything(x, square), ())
    assert found == {"icml::ns_syrk", "icml::retract_axpy", "icml::rank1_load"}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_blas_equals_the_definition(dtype):
    x, phi = random(3, 5, 8, dtype=dtype), random(3, 5, 8, seed=1).to(torch.bfloat16)
    symmetric = x @ x.mT
    scale, alpha = random(3, seed=2, dtype=dtype), random(3, seed=3, dtype=dtype)

    def calls():
        return (
            ns_syrk(x),
            ns_syrk(x, 1.5, -0.5, symmetric),
            ns_poly(symmetric, -2.0, 0.3),
            retract_axpy(x, scale, phi, alpha),
            rank1_load(x, x[:, :, 0], x[:, 0], scale, alpha, torch.bfloat16),
        )

    found = calls()
    with use_route("reference"):
        expected = calls()
    for f, e in zip(found, expected, strict=True):
        tolerance = 1e-2 if f.dtype == torch.bfloat16 else 1e-5 if dtype == torch.float32 else 1e-13
        torch.testing.assert_close(f, e, rtol=tolerance, atol=tolerance)


def test_bad_arguments_are_named():
    x = random(2, 3, 4)
    one = torch.ones(2, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"x has shape \[4\]"):
        msign(x[0, 0])
    with pytest.raises(ValueError, match=r"steps=0"):
        msign(x, steps=0)
    with pytest.raises(ValueError, match=r"form='fast' is not one of auto"):
        msign(x, form="fast")
    with pytest.raises(TypeError, match=r"x has dtype torch.int64"):
        msign(x.long())
    with pytest.raises(TypeError, match=r"dtype=torch.int8"):
        msign(x, dtype=torch.int8)
    with pytest.raises(ValueError, match=r"at least one row"):
        msign(x[:, :0])
    with pytest.raises(ValueError, match=r"k=0"):
        block_lanczos(x, x[:, :, 0], x[:, 0], 0)
    with pytest.raises(ValueError, match=r"u has shape \[2, 4\]; expected \[2, 3\]"):
        block_lanczos(x, x[:, 0], x[:, 0])
    with pytest.raises(ValueError, match=r"c has shape \[2, 3, 4\]"):
        ns_syrk(x, 1.0, 1.0, x)
    with pytest.raises(ValueError, match=r"expected square symmetric"):
        ns_poly(x, 1.0, 1.0)
    with pytest.raises(TypeError, match=r"scale has dtype torch.float32 but w torch.float64"):
        retract_axpy(x, one.float(), x, one)
    with pytest.raises(ValueError, match=r"alpha has shape \[3\]; expected \[2\]"):
        retract_axpy(x, one, x, torch.ones(3))
    with pytest.raises(ValueError, match=r"iters=-1"):
        top_singular(x, iters=-1)
    with pytest.raises(ValueError, match=r"lower=2"):
        optimal_quintics(3, 2.0)


@pytest.mark.parametrize("form", ["gram", "standard"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_stay_in_range_for_any_spectrum(form, dtype):
    """Log-normal singular values: with 16-bit Gram matrices one in a hundred of a few rows overflowed."""
    generator = torch.Generator().manual_seed(0)
    for shape, count in (((3, 8), 4000), ((8, 24), 1000), ((16, 64), 300), ((64, 192), 60)):
        for spread in (0.5, 1.5, 4.0):
            left, values, right = torch.linalg.svd(
                torch.randn(count, *shape, generator=generator), full_matrices=False
            )
            values = torch.exp(spread * torch.randn(values.shape, generator=generator))
            found = msign(left * values[:, None] @ right, form=form, dtype=dtype).float()
            assert bool(found.isfinite().all())
            assert float(torch.linalg.matrix_norm(found, ord=2).max()) < 1.05
